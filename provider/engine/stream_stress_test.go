package engine

import (
	"sync"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
)

// TestEveryWorkRequestCompletes: whatever is posted when a connection ends gives
// exactly one completion each.
func TestEveryWorkRequestCompletes(t *testing.T) {
	for round := range 20 {
		network := testkit.Must(tcpNetwork(Options{}))(t)
		a, b := pair(t, network, tcpAddr, Options{}, sideOptions{cap: provider.QPCap{MaxSendWR: 4096, MaxRecvWR: 4096, MaxSendSGE: 1, MaxRecvSGE: 1}, cqe: 16384}, params(true))
		m := a.reg(64, 0)
		dst := b.reg(64, everything)
		const n = 3000
		for i := range n {
			if i < 2000 {
				b.recv(provider.RecvWR{WRID: uint64(i), SGList: []provider.SGE{dst.sge(0, 64)}})
			}
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			for i := range n {
				a.send(provider.SendWR{WRID: uint64(i), Opcode: provider.WRSend, Flags: provider.SendSignaled, SGList: []provider.SGE{m.sge(0, 64)}})
			}
		})
		time.Sleep(time.Duration(round) * 50 * time.Microsecond)
		testkit.OK(t, b.modify(provider.QPErr))
		wg.Wait()
		for i := range n {
			if wc := a.poll(); wc.WRID != uint64(i) {
				t.Fatalf("completion %d is of %d", i, wc.WRID)
			}
		}
		a.noWC("no more")
		for i := range 2000 {
			if wc := b.poll(); wc.WRID != uint64(i) {
				t.Fatalf("completion %d is of %d", i, wc.WRID)
			}
		}
		b.noWC("no more")
	}
}
