package bridge

import (
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/provider/bridge/abi"
)

// scribble writes what a faulty program might write into a queue until stop is set: elements that
// change while they are read, with any counts, lengths and keys.
func scribble(mem []byte, element uintptr, r *rand.Rand, keys []uint32, addrs []uint64,
	stop *atomic.Bool) {
	words := unsafe.Slice((*uint32)(unsafe.Pointer(&mem[0])), len(mem)/4)
	per := int(element / 4)
	for !stop.Load() {
		at := r.IntN(len(words))
		var v uint32
		switch in := at % per; {
		case in == 2: // flags and their neighbours
			v = uint32(r.IntN(64)) | uint32(r.IntN(9))<<16 | uint32(r.IntN(11))<<24
			if r.IntN(4) == 0 {
				v = r.Uint32()
			}
		case r.IntN(3) == 0:
			v = keys[r.IntN(len(keys))]
		case r.IntN(2) == 0 && at+1 < len(words):
			addr := addrs[r.IntN(len(addrs))]
			atomic.StoreUint32(&words[at+1], uint32(addr>>32))
			v = uint32(addr)
		case r.IntN(2) == 0:
			v = uint32(r.IntN(4096))
		default:
			v = r.Uint32()
		}
		atomic.StoreUint32(&words[at], v)
	}
}

// TestGarbledQueues makes programs write garbage into the queues that they share with the bridge,
// while doorbells ring and messages arrive. Only their connections end: nothing but their
// registered memory is read or written, and the device continues.
func TestGarbledQueues(t *testing.T) {
	const rounds = 12
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	for round := range rounds {
		a, b := newEnd(t, nil), newEnd(t, nil)
		am, bm := a.regMR(a.pd, 8192, 3), b.regMR(b.pd, 8192, 3)
		guards := make([][]byte, 2)
		for i, e := range []*libEnd{a, b} {
			guards[i], _ = e.prog.alloc(4096) // after the registered memory
		}
		connect(t, a, b)
		var stop atomic.Bool
		var wg sync.WaitGroup
		keys := []uint32{am.LKey, am.RKey, bm.LKey, bm.RKey, 0, 1}
		addrs := []uint64{am.addr, bm.addr, am.addr + 8000, bm.addr + 8191, 0, ^uint64(0)}
		for i, e := range []*libEnd{a, b} {
			for j, x := range []struct {
				mem     []byte
				element uintptr
			}{{e.qp.sq, sqeSize}, {e.qp.rq, rqeSize}, {e.cq.mem, cqeSize}} {
				r := rand.New(rand.NewPCG(seed, uint64(round*100+i*10+j)))
				wg.Go(func() { scribble(x.mem, x.element, r, keys, addrs, &stop) })
			}
			wg.Go(func() {
				f := e.prog.File(e.fd).(*uverbsFile)
				for !stop.Load() {
					_ = e.qp.doorbell()
					f.Progress(e.cq.handle)
					f.Attend(e.cq.handle)
				}
			})
		}
		time.Sleep(100 * time.Millisecond)
		stop.Store(true)
		wg.Wait()
		for i, e := range []*libEnd{a, b} {
			for _, octet := range guards[i] {
				if octet != 0 {
					t.Fatal("memory that is not registered was written")
				}
			}
			e.must(abi.UverbsDestroyQP, &abi.DestroyQP{QPHandle: e.qp.handle}, nil,
				&abi.DestroyResp{}, nil)
			e.must(abi.UverbsDestroyCQ, &abi.DestroyCQ{CQHandle: e.cq.handle}, nil,
				&abi.DestroyCQResp{}, nil)
		}
	}
	// The device still works.
	a, b := newEnd(t, nil), newEnd(t, nil)
	dst := b.regMR(b.pd, 64, 1)
	b.qp.postRecv(1, dst.sge(0, 64))
	connect(t, a, b)
	if err := a.qp.postSend(abi.SiwSQE{ID: 7, Opcode: abi.SiwSend}); err != nil {
		t.Fatal(err)
	}
	b.wantWC("a message", 1, abi.SiwReceive, abi.SiwWCSuccess, 0)
}

// inlineOf returns the place of the inline data of an element.
func inlineOf(e *abi.SiwSQE) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(&e.SGE[1])), abi.SiwMaxInline)
}

// TestElementSizes: the structs of package abi have the same layout in memory as encoded, so the
// queues can be arrays of them.
func TestElementSizes(t *testing.T) {
	for _, x := range []struct {
		name   string
		memory uintptr
		msg    any
	}{
		{"SQE", unsafe.Sizeof(abi.SiwSQE{}), abi.SiwSQE{}},
		{"RQE", unsafe.Sizeof(abi.SiwRQE{}), abi.SiwRQE{}},
		{"CQE", unsafe.Sizeof(abi.SiwCQE{}), abi.SiwCQE{}},
		{"CQ control", unsafe.Sizeof(abi.SiwCQCtrl{}), abi.SiwCQCtrl{}},
	} {
		if int(x.memory) != abi.Size(x.msg) {
			t.Errorf("%s: %d bytes in memory, %d encoded", x.name, x.memory, abi.Size(x.msg))
		}
	}
	for name, off := range map[string]uintptr{"SQE": unsafe.Offsetof(abi.SiwSQE{}.Flags),
		"RQE": unsafe.Offsetof(abi.SiwRQE{}.Flags)} {
		if off != flagsOffset {
			t.Errorf("%s: the flags are at %d, those of a CQE at %d", name, off, flagsOffset)
		}
	}
}

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

// TestDoorbellAllocs: posting a Write and taking its completion allocates nothing.
func TestDoorbellAllocs(t *testing.T) {
	if testkit.Race {
		t.Skip("under the race detector everything allocates; ci/test runs this without it")
	}
	a, b := newEnd(t, nil), newEnd(t, nil)
	src, dst := a.regMR(a.pd, 64, 1), b.regMR(b.pd, 64, 3)
	connect(t, a, b)
	file := a.prog.File(a.fd)
	request := abi.Append(nil, &abi.UverbsHeader{Command: abi.UverbsPostSend, InWords: 8,
		OutWords: 1})
	_, response := a.prog.alloc(4)
	request = abi.Append(request, &abi.PostSend{Response: response, QPHandle: a.qp.handle,
		WQESize: 128})
	sges := [abi.SiwMaxSGE]abi.SiwSGE{src.sge(0, 64)}
	round := func() {
		at := unsafe.Pointer(&a.qp.sq[uintptr(a.qp.sput%a.qp.nsq)*sqeSize])
		e := (*abi.SiwSQE)(at)
		e.RAddr, e.RKey, e.SGE = dst.addr, dst.RKey, sges
		setHead(at, wqeHead{flags: abi.SiwWQEValid | abi.SiwWQESignalled, numSGE: 1,
			opcode: abi.SiwWrite})
		a.qp.sput++
		if _, err := file.Write(request); err != nil {
			t.Fatal(err)
		}
		for {
			if wc, ok := a.cq.poll(); ok {
				if wc.Status != abi.SiwWCSuccess {
					t.Fatalf("completion %s", abi.Format(wc))
				}
				return
			}
			file.(*uverbsFile).Progress(a.cq.handle)
		}
	}
	for range 50 {
		round()
	}
	if got := testing.AllocsPerRun(500, round); got != 0 {
		t.Errorf("%v allocations for a Write", got)
	}
}
