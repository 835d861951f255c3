package bridge

import (
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/govs-rdma/govs/ibverbs"
)

// testRing is a CQ whose program is the test.
type testRing struct {
	t *testing.T
	*cqRing
	get uint32
}

func newTestRing(t *testing.T, size uint32) *testRing {
	return &testRing{t, newCQRing(&queueMemory{mem: make([]byte, cqOctets(size))}, size), 0}
}

func (r *testRing) complete() {
	r.t.Helper()
	if stored, _ := r.Complete(&ibverbs.WC{}, false); !stored {
		r.t.Fatal("no room")
	}
}

// take takes a completion as the program would.
func (r *testRing) take() {
	atomic.StoreUint32(word(unsafe.Pointer(r.at(r.get))), 0)
	r.get++
}

// TestTakenIsUpToDate: Taken returns the same number as long as the program takes nothing, and
// another one once it has taken completions, no matter how many.
func TestTakenIsUpToDate(t *testing.T) {
	r := newTestRing(t, 2048)
	for range 3000 {
		r.complete()
		r.take()
	}
	for i := range 3 {
		if n := r.Taken(); n != 3000 {
			t.Errorf("call %d: %d, want 3000", i+1, n)
		}
	}
	r.complete()
	if n := r.Taken(); n != 3000 {
		t.Errorf("%d with a completion that was not taken, want 3000", n)
	}
}

// TestTakenOfFullRing: more completions than fit into the ring have arrived since the last call, so
// an untaken completion has replaced a taken one.
func TestTakenOfFullRing(t *testing.T) {
	r := newTestRing(t, 4)
	for n := range uint32(20) {
		r.complete()
		if n%5 < 4 {
			r.take()
			continue
		}
		if got := r.Taken(); got != r.get {
			t.Errorf("%d, want %d of %d", got, r.get, n+1)
		}
		r.take()
	}
}
