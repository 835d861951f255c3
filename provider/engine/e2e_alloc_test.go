package engine

import (
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
)

// TestE2EAllocs: once the pooled objects have been made, nothing is allocated from post to
// completion, on either side, with receives from the QP or from an SRQ.
func TestE2EAllocs(t *testing.T) {
	onWires(t, func(w e2eWire) bool { return w.real }, func(t *testing.T, w e2eWire) {
		for _, n := range []int{0, 64, 4096, 200000} {
			for _, srq := range []bool{false, true} {
				a, b := newE2EPair(t, w, e2eSetup{srq: srq})
				postRecv := b.q.PostRecv
				if r := b.q.srq(); r != nil {
					postRecv = r.PostRecv
				}
				src := a.filled(n, provider.AccessLocalWrite, 1)
				dst := b.region(n, allRights)
				sges, into := []provider.SGE{sge(src.Region, 0, n)}, []provider.SGE{sge(dst.Region, 0, n)}
				var inline [64]byte
				wrs := []provider.SendWR{
					{Opcode: provider.WRRDMAWrite, SGList: sges, RemoteAddr: dst.Addr(), RKey: dst.RKey()},
					{Opcode: provider.WRRDMARead, SGList: sges, RemoteAddr: dst.Addr(), RKey: dst.RKey()},
					{Opcode: provider.WRRDMAWrite, Inline: inline[:min(n, 64)], Flags: provider.SendInline,
						RemoteAddr: dst.Addr(), RKey: dst.RKey()},
					{Opcode: provider.WRSend, SGList: sges, Flags: provider.SendSignaled | provider.SendFence},
				}
				recvs := []provider.RecvWR{{SGList: into}}
				round := func() {
					if _, err := postRecv(recvs); err != nil {
						t.Fatal(err)
					}
					if _, err := a.q.PostSend(wrs); err != nil {
						t.Fatal(err)
					}
					pollBoth(t, 2, a.scq, b.rcq)
				}
				wantNoAllocs(t, round)
			}
		}
	})
}

// wantNoAllocs checks that round allocates nothing once the pooled objects have been made. Under
// the race detector, which allocates, it runs round once.
func wantNoAllocs(t *testing.T, round func()) {
	t.Helper()
	if testkit.Race {
		round()
		return
	}
	for range 50 {
		round()
	}
	testkit.Equal(t, "allocations per round", testing.AllocsPerRun(200, round), 0)
}

// pollBoth polls two CQs until n completions have come: neither end gets on without the other.
func pollBoth(t *testing.T, n int, cqs ...*cq) {
	t.Helper()
	var wc [1]provider.WC
	for left := n; left > 0; {
		for _, c := range cqs {
			k, err := c.Poll(wc[:])
			if err != nil || k > 0 && wc[0].Status != provider.WCSuccess {
				t.Fatalf("%+v: %v", wc[0], err)
			}
			left -= k
		}
	}
}
