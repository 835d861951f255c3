package engine

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/memnet"
)

// TestLingerBegins: the last bytes and the FIN go out at once, even if another goroutine, such
// as the watch over a graceful end, takes the linger's lock for a moment.
func TestLingerBegins(t *testing.T) {
	network := memnet.New(nil)
	s := newSide(t, Options{Network: network}, sideOptions{})
	for range 1000 { // the moment is short
		q := s.newQP(sideOptions{cap: provider.QPCap{MaxSendWR: 1}})
		mine, theirs := connectTransport(t, network, memAddr)
		testkit.OK(t, q.start(mine, params(true), func(error) {}))
		st := q.stream.Load()
		l := &st.closer
		var stop atomic.Bool
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				for !stop.Load() {
					if l.mu.TryLock() {
						l.mu.Unlock()
					}
				}
			})
		}
		st.fail(&ending{cause: errModified})
		st.settle()
		stop.Store(true)
		wg.Wait()
		at := st.at()
		testkit.OK(t, theirs.Close())
		testkit.OK(t, q.Close())
		if at < phaseLingerFINSent {
			t.Fatalf("FIN was not sent: the phase is %q", at)
		}
	}
}
