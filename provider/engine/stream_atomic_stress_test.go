package engine

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/memnet"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// TestAtomicsAreAtomic: QPs of one device, with the CPU's own operations among them,
// count without a loss and hold a lock one at a time.
//
//rfc:7306 EXT-5-01 Atomic on one location not interleaved with another atomic
//rfc:7306 EXT-5.3-01 Atomicity across streams of the same RNIC
func TestAtomicsAreAtomic(t *testing.T) {
	const qps = 3
	rounds := 300
	if testkit.Race {
		rounds = 50
	}
	so := sideOptions{cap: provider.QPCap{MaxSendWR: 16, MaxSendSGE: 1, MaxRecvWR: 1}}
	network := testkit.Must(tcpNetwork(Options{}))(t)
	opts := Options{Extensions: true, Network: network}
	target := newSide(t, opts, so)
	m, w := target.words(3, atomicRights)
	var wg sync.WaitGroup
	var holders atomic.Int32
	for i := range qps {
		q := target.newQP(so)
		t.Cleanup(func() { testkit.OK(t, q.Close()) })
		x := newSide(t, opts, so)
		cx, cq := connectTransport(t, network, tcpAddr)
		x.start(cx, params(true))
		testkit.OK(t, q.start(cq, responder(true), func(error) {}))
		sink, old := x.words(1, provider.AccessLocalWrite)
		wr := provider.SendWR{Flags: provider.SendSignaled,
			SGList: []provider.SGE{{Addr: sink.Addr(), Length: 8, LKey: sink.STag()}}, RKey: m.STag()}
		do := func(op provider.WROpcode, word int, compareAdd, swap uint64) uint64 {
			wr.Opcode, wr.RemoteAddr, wr.CompareAdd, wr.Swap = op, m.Addr()+uint64(8*word), compareAdd, swap
			x.send(wr)
			x.poll() // which sleeps: there are more goroutines than CPUs
			return old[0]
		}
		wg.Go(func() {
			last := uint64(0)
			for range rounds {
				got := do(provider.WRAtomicFetchAdd, 0, 1, 0)
				if last != 0 && got <= last {
					t.Errorf("counted %d after %d", got, last)
				}
				last = got
				for do(provider.WRAtomicCmpAndSwp, 1, 0, uint64(i+1)) != 0 {
				}
				testkit.Equal(t, "holders of the lock", holders.Add(1), 1)
				holders.Add(-1)
				testkit.Equal(t, "whose the lock was",
					do(provider.WRAtomicCmpAndSwp, 1, uint64(i+1), 0), uint64(i+1))
				// Fields of their own of one word.
				wr.CompareAddMask = 0x8000800080008000
				do(provider.WRMaskedAtomicFetchAdd, 2, 1<<(16*i), 0)
			}
		})
	}
	stop := make(chan struct{})
	served := make(chan struct{})
	go func() { // the CPU's own, and the target's side of things
		defer close(served)
		var wc [1]provider.WC
		for i := 0; ; i++ {
			if _, err := target.cq.Poll(wc[:]); err != nil {
				t.Error(err)
			}
			runtime.Gosched()
			if i < rounds {
				atomic.AddUint64(&w[0], 1)
			}
			select {
			case <-stop:
				if i >= rounds {
					return
				}
			default:
			}
		}
	}()
	wg.Wait()
	close(stop)
	<-served
	testkit.Equal(t, "the count", atomic.LoadUint64(&w[0]), uint64((qps+1)*rounds))
	if got, want := atomic.LoadUint64(&w[2]), uint64(rounds)*0x0000_0001_0001_0001; got != want || w[1] != 0 {
		t.Errorf("fields %#x, want %#x; lock %d", got, want, w[1])
	}
}

// TestPerformAtomic: what several receive sides do at the same time, and the CPU, does
// not get lost.
//
//rfc:7306 EXT-5-01 Atomic on one location not interleaved with another atomic
//rfc:7306 EXT-5.3-01 Atomicity across streams of the same RNIC
func TestPerformAtomic(t *testing.T) {
	const goroutines = 4
	each := 200_000
	if testkit.Race { // which sees a plain access without a collision; ci/test runs all without it, too
		each = 20_000
	}
	var ready sync.WaitGroup
	ready.Add(goroutines)
	s := newSide(t, Options{Extensions: true, Network: memnet.New(nil)}, sideOptions{})
	m, w := s.words(1, atomicRights)
	var wg sync.WaitGroup
	for i := range goroutines {
		wg.Go(func() {
			add := rdmap.FetchAdd(0, m.STag(), m.Addr(), 1, 0)
			masked := rdmap.FetchAdd(0, m.STag(), m.Addr(), 1<<32, 1<<63)
			ready.Done()
			ready.Wait()
			for range each {
				if i == 0 {
					atomic.AddUint64(&w[0], 1+1<<32)
					continue
				}
				for _, req := range []*rdmap.AtomicRequest{&add, &masked} {
					if _, err := ofPD(s.pd).Atomic(req); err != nil {
						t.Error(err)
						return
					}
				}
				swap := rdmap.CmpSwap(0, m.STag(), m.Addr(), 0, 99, 1<<63, 0) // changes nothing, whatever is there
				if _, err := ofPD(s.pd).Atomic(&swap); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	testkit.Equal(t, "the word", w[0], uint64(each*goroutines)*(1+1<<32))
}

// TestExtensionsAllocateNothing: neither side allocates anything for atomic operations, but at the
// first of a QP, and for immediate data.
func TestExtensionsAllocateNothing(t *testing.T) {
	a, b := tcpPair(t, Options{Extensions: true}, true, sideOptions{})
	m, _ := b.words(1, atomicRights|provider.AccessRemoteWrite)
	sink, _ := a.words(1, provider.AccessLocalWrite)
	sges := []provider.SGE{{Addr: sink.Addr(), Length: 8, LKey: sink.STag()}}
	recvs := make([]provider.RecvWR, 2)
	wrs := []provider.SendWR{
		{Opcode: provider.WRRDMAWriteWithImm, SGList: sges, RemoteAddr: m.Addr(), RKey: m.STag()},
		{Opcode: provider.WRSendWithImm},
		{Opcode: provider.WRAtomicFetchAdd, SGList: sges, RemoteAddr: m.Addr(), RKey: m.STag(), CompareAdd: 1},
		{Opcode: provider.WRMaskedAtomicCmpAndSwp, Flags: provider.SendSignaled, SGList: sges,
			RemoteAddr: m.Addr(), RKey: m.STag()},
	}
	wantNoAllocs(t, func() {
		b.recv(recvs...)
		a.send(wrs...)
		pollBoth(t, 3, a.cq, b.cq)
	})
}
