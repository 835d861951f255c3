package bridge

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

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
