package bridge

import (
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/govs-rdma/govs/ibverbs"
)

// testRing is a CQ whose program does what the test says.
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

// take has the program take a completion.
func (r *testRing) take() {
	atomic.StoreUint32(word(unsafe.Pointer(r.at(r.get))), 0)
	r.get++
}

// TestTakenIsUpToDate: Taken returns the same number as long as the program takes nothing, however
// much it has taken since the last call, and another one if it has taken anything.
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

// TestTakenOfFullRing: more completions than the ring has have come since the last call, and an
// element has one that was not taken in place of one that was.
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
