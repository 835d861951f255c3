//go:build !race

// Peers write to memory while a copy of it is made, which the race detector reports.

package engine

import (
	"sync"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/memory"
)

// TestWritesWhileSending has two sides send the same memory to a peer each, again and again, from
// regions that come and go, while two peers write to it, and one performs atomic operations on it,
// by regions and windows that come and go. No connection ends, nobody waits for ever, and no
// interval is left.
func TestWritesWhileSending(t *testing.T) {
	const size, part = 200_000, 50_000
	const open = provider.AccessLocalWrite | provider.AccessRemoteWrite | provider.AccessMWBind
	shared := make([]byte, size)
	network := testkit.Must(tcpNetwork(Options{}))(t)
	so := sideOptions{cap: provider.QPCap{MaxSendWR: 8, MaxRecvWR: 8, MaxSendSGE: 1, MaxRecvSGE: 1}}
	end := time.Now().Add(500 * time.Millisecond)
	var all sync.WaitGroup
	for i := range 2 {
		a, b := pair(t, network, tcpAddr, Options{}, so, params(true))
		dst := b.reg(size, open)
		all.Go(func() { // sends
			for wrid := uint64(1); time.Now().Before(end); wrid++ {
				m, err := a.pd.RegMR(shared, provider.AccessLocalWrite)
				if err != nil {
					t.Error(err)
					return
				}
				b.recv(provider.RecvWR{})
				a.send(provider.SendWR{WRID: wrid, Opcode: provider.WRRDMAWrite, RemoteAddr: dst.to(0),
					RKey: dst.m.STag(), SGList: []provider.SGE{{Addr: m.Addr(), Length: size, LKey: m.LKey()}}},
					provider.SendWR{Opcode: provider.WRSend, Flags: provider.SendSignaled})
				aDone, bDone := a.poll(), b.poll()
				if aDone.Status != provider.WCSuccess || bDone.Status != provider.WCSuccess {
					t.Errorf("round %d of sender %d: %v, %v: %v", wrid, i, aDone.Status, bDone.Status,
						b.qp.Cause())
					return
				}
				testkit.OK(t, m.Close())
			}
		})
	}
	for i := range 3 {
		a, b := pair(t, network, tcpAddr, Options{Extensions: true}, so, params(true))
		a, b = b, a // who connects sends first
		src := b.reg(part, provider.AccessLocalWrite)
		pattern(src.b, i)
		all.Go(func() { // is written to
			for round := uint64(1); time.Now().Before(end); round++ {
				m := testkit.Must(a.pd.RegMR(shared, open|provider.AccessRemoteAtomic))(t).(*memory.Region)
				key, at := m.STag(), m.Addr()+uint64(i*part)
				var w *memory.Window
				wr := provider.SendWR{Opcode: provider.WRRDMAWrite}
				switch {
				case i == 2:
					wr = provider.SendWR{Opcode: provider.WRAtomicFetchAdd, CompareAdd: round}
				case round%2 == 0:
					w = testkit.Must(a.pd.AllocMW(provider.MWType1))(t).(*memory.Window)
					key = bindNow(t, &a.qp.peer, w, m, provider.AccessRemoteWrite)
				}
				wr.RKey, wr.RemoteAddr = key, at
				wr.SGList = []provider.SGE{src.sge(0, part)}
				if i == 2 {
					wr.SGList = []provider.SGE{src.sge(0, 8)}
				}
				a.recv(provider.RecvWR{})
				b.send(wr, provider.SendWR{Opcode: provider.WRSend, Flags: provider.SendSignaled | provider.SendFence})
				bDone, aDone := b.poll(), a.poll()
				if aDone.Status != provider.WCSuccess || bDone.Status != provider.WCSuccess {
					t.Errorf("round %d of writer %d: %v, %v: %v", round, i, aDone.Status, bDone.Status,
						a.qp.Cause())
					return
				}
				if w != nil {
					testkit.OK(t, w.Close())
				}
				testkit.OK(t, m.Close())
			}
		})
	}
	all.Wait()
	if n := memory.Exposures(shared); n > 0 {
		t.Errorf("%d intervals of memory that is not registered any more", n)
	}
}
