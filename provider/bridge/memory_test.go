package bridge

import (
	"testing"
)

// TestMemoryEndsWhileRegistered: if another thread remaps memory while it is being registered, the
// memory does not belong to the region after both calls have returned.
func TestMemoryEndsWhileRegistered(t *testing.T) {
	b, prog := newBridge(t, nil)
	d := openDevice(t, b, prog)
	defer d.close()
	pd := d.allocPD()
	ended := make(chan error)
	prog.registering = func() {
		go func() { ended <- b.EndMemory(prog.base(), prog.base()+1<<24) }()
	}
	for range 200 {
		d.regMR(pd, 64, accessLocalWrite|accessRemoteWrite)
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		b.mu.Lock()
		left := len(b.memory)
		b.mu.Unlock()
		if left != 0 {
			t.Fatal("the region has the memory still")
		}
	}
}
