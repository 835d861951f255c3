package bridge

import (
	"os"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/provider/bridge/abi"
)

// TestDoorbellOutOfStep: the state of a QP changes while its queue is posted. A request that was
// posted too early or too late does not count as one that cannot be posted.
func TestDoorbellOutOfStep(t *testing.T) {
	const wrid = 7
	for name, states := range map[string][]ibverbs.QPState{
		// The state after each failed post.
		"connected meanwhile":             {ibverbs.QPRTS},
		"this side leaves":                {ibverbs.QPSQD, ibverbs.QPSQD},
		"this side leaves, and has left":  {ibverbs.QPErr},
		"this side leaves, then has left": {ibverbs.QPSQD, ibverbs.QPErr},
	} {
		t.Run(name, func(t *testing.T) {
			posted := make(chan uint64, 1)
			state := ibverbs.QPReset
			r := &sendRing{size: 4, mem: &queueMemory{mem: make([]byte, 4*sqeSize)},
				state: func() ibverbs.QPState { return state },
				bad:   func(wrid uint64, _ uint8) { t.Errorf("WR %d is refused", wrid) },
			}
			r.post = func(wrs ...ibverbs.SendWR) error {
				if len(states) > 0 {
					state, states = states[0], states[1:]
					return syscall.EINVAL
				}
				posted <- wrs[0].WRID
				return nil
			}
			e := r.at(0)
			e.ID = wrid
			setHead(unsafe.Pointer(e), wqeHead{flags: abi.SiwWQEValid, opcode: abi.SiwSend})
			if err := r.doorbell(); err != nil {
				t.Error(err)
			}
			select {
			case got := <-posted:
				if got != wrid {
					t.Errorf("WR %d is posted", got)
				}
			case <-time.After(patience):
				t.Error("it is not posted")
			}
		})
	}
}

// TestErrorFlushesQueue: work that was posted without a connection is flushed when the QP is moved
// to the error state.
func TestErrorFlushesQueue(t *testing.T) {
	e := newEnd(t, nil)
	sqe := abi.SiwSQE{ID: 3, Opcode: abi.SiwSend, Flags: abi.SiwWQESignalled}
	if err := e.qp.postSend(sqe); err != syscall.ENOTCONN {
		t.Errorf("a doorbell without a connection: %v, want ENOTCONN", err)
	}
	e.must(abi.UverbsModifyQP, &abi.ModifyQP{QPHandle: e.qp.handle, AttrMask: maskState,
		QPState: uint8(ibverbs.QPErr)}, nil, nil, nil)
	e.wantWC("what was posted", 3, abi.SiwSend, abi.SiwWCWRFlushErr, -1)
}

// TestBadElementWaits: siw does not read the queue before the QP is connected. A bad element ends
// the connection, but not a QP that has none yet.
func TestBadElementWaits(t *testing.T) {
	const wrid = 5
	var refused []uint64
	state := ibverbs.QPInit
	r := &sendRing{size: 4, mem: &queueMemory{mem: make([]byte, 4*sqeSize)},
		state: func() ibverbs.QPState { return state },
		bad:   func(wrid uint64, _ uint8) { refused = append(refused, wrid) },
	}
	e := r.at(0)
	e.ID = wrid
	setHead(unsafe.Pointer(e), wqeHead{flags: abi.SiwWQEValid, opcode: abi.SiwReceive})
	if err := r.doorbell(); err != syscall.ENOTCONN || len(refused) > 0 {
		t.Errorf("a doorbell without a connection: %v, refused %d; want ENOTCONN, none", err, refused)
	}
	state = ibverbs.QPRTS
	if err := r.doorbell(); err != nil || len(refused) != 1 || refused[0] != wrid {
		t.Errorf("a doorbell with a connection: %v, refused %d; want WR %d", err, refused, wrid)
	}
}

// TestElementIsFreeFirst: an element is freed before the device has the work request. Another
// thread of the program may see the completion at once and post into that place.
func TestElementIsFreeFirst(t *testing.T) {
	r := &sendRing{size: 1, mem: &queueMemory{mem: make([]byte, sqeSize)},
		state: func() ibverbs.QPState { return ibverbs.QPRTS },
		bad:   func(wrid uint64, _ uint8) { t.Errorf("WR %d is refused", wrid) },
	}
	e := r.at(0)
	posted, full := "", true
	r.post = func(wrs ...ibverbs.SendWR) error {
		if loadHead(unsafe.Pointer(e)).flags&abi.SiwWQEValid != 0 {
			t.Error("the device has the work request, and its element is not free")
		}
		inline := unsafe.Slice((*byte)(unsafe.Pointer(&e.SGE[1])), 5)
		copy(inline, "other") // the program's next request
		if full {
			full = false
			return syscall.ENOMEM
		}
		posted = string(wrs[0].Inline)
		return nil
	}
	e.SGE[0].Length = 5
	copy(unsafe.Slice((*byte)(unsafe.Pointer(&e.SGE[1])), 5), "first")
	setHead(unsafe.Pointer(e), wqeHead{flags: abi.SiwWQEValid | abi.SiwWQEInline, opcode: abi.SiwSend})
	testkit.OK(t, r.doorbell())
	testkit.OK(t, r.doorbell()) // as after fullPause
	if posted != "first" {
		t.Errorf("posted %q, want what the element had when it was taken", posted)
	}
}

// TestDestroyedQueueIsOver: a doorbell that finds the QP closed, because the program destroys it at
// the same time, completes nothing. Other QPs may use the same CQ.
func TestDestroyedQueueIsOver(t *testing.T) {
	r := &sendRing{size: 4, mem: &queueMemory{mem: make([]byte, 4*sqeSize)},
		state: func() ibverbs.QPState { return ibverbs.QPErr },
		post:  func(...ibverbs.SendWR) error { return &ibverbs.Error{Op: "ibv_post_send", Err: os.ErrClosed} },
		bad:   func(wrid uint64, _ uint8) { t.Errorf("WR %d is refused", wrid) },
	}
	setHead(unsafe.Pointer(r.at(0)), wqeHead{flags: abi.SiwWQEValid, opcode: abi.SiwSend})
	testkit.OK(t, r.doorbell())
}

// TestDestroyLeavesAnotherQP: another QP may already have the number of a QP that is being
// destroyed.
func TestDestroyLeavesAnotherQP(t *testing.T) {
	e := newEnd(t, nil)
	q := testkit.Must(lookup[*queuePair](&e.prog.File(e.fd).(*uverbsFile).handles, e.qp.handle))(t)
	b, other := q.file.b, &queuePair{}
	b.mu.Lock()
	b.qps[q.qp.QPN()] = other
	b.mu.Unlock()
	testkit.OK(t, q.destroy())
	if b.queuePairByNumber(q.qp.QPN()) != other {
		t.Error("the other QP has no number any more")
	}
}
