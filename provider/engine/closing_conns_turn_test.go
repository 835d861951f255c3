package engine

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/cm"
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"github.com/govs-rdma/govs/provider/engine/memnet"
	"github.com/govs-rdma/govs/provider/engine/transport"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
)

// TestTurnsOfRefusedConns: peers that were refused and go on sending share the turns of a Poll, as
// all streams do.
func TestTurnsOfRefusedConns(t *testing.T) {
	const peers, octetsEach = 32, 256 << 10
	synctest.Test(t, func(t *testing.T) {
		network := memnet.New(&memnet.Options{Window: 1 << 30})
		w := newCMWorld(t, network, "192.0.2.1:0", Options{CloseTimeout: time.Hour}, true)
		l := w.server.listen()
		var sources []*rawPeer
		for range peers {
			p := w.dialRaw(l.LocalAddr())
			waysToClose["refused"](w, l, p)
			if err := p.wantEnd("FIN"); err == nil {
				t.Error("no FIN")
			}
			sources = append(sources, p)
		}
		w.moment()
		w.server.dev.prog.cancel() // from here on this test alone calls the poller
		<-w.server.dev.prog.ended
		var all []*refusedConn
		for c := range w.server.dev.closing.places {
			all = append(all, c.(*refusedConn))
		}
		testkit.Equal(t, "connections that wait", len(all), peers)
		for _, p := range sources {
			p.send(make([]byte, octetsEach))
		}
		synctest.Wait()
		w.server.dev.poller.Poll()
		left := 0
		for _, f := range all {
			left += unread(t, f.conn)
		}
		limit := policy.BudgetAllShort + peers*len(w.server.dev.closing.dropped)
		if n := peers*octetsEach - left; n == 0 || n > limit {
			t.Errorf("one call of Poll took %d bytes of %d, want 1 to %d", n, peers*octetsEach,
				limit)
		}
	})
}

// unread reads what has arrived, and returns how much that was.
func unread(t *testing.T, c transport.Conn) (total int) {
	t.Helper()
	b := make([]byte, 256<<10)
	for {
		n, err := c.Readv([][]byte{b})
		if total += n; err != nil {
			testkit.Equal(t, "the error when all is read", err, transport.ErrWouldBlock)
			return total
		}
	}
}

// TestTurnsOfEnds: streams that end in one Poll share its turns, too, even if much has arrived
// after the bytes that end them.
func TestTurnsOfEnds(t *testing.T) {
	const peers, octetsEach = 64, 256 << 10
	synctest.Test(t, func(t *testing.T) {
		network := memnet.New(&memnet.Options{Window: 1 << 30})
		w := newCMWorld(t, network, "192.0.2.1:0", Options{CloseTimeout: time.Hour}, true)
		l := w.server.listen()
		var sources []*rawPeer
		var conns []transport.Conn
		var servers []*cm.ID
		for range peers {
			p := w.request(l)
			server, _ := w.server.wantRequest("a request", l)
			testkit.OK(t, server.Accept(provider.ConnParam{}))
			p.wantFrame("accepted", mpa.KindReply)
			w.server.want("established", server, provider.CMEstablished, 0)
			sources, servers = append(sources, p), append(servers, server)
			conns = append(conns, qpOf(server).stream.Load().conn)
		}
		w.moment()
		w.server.dev.prog.cancel() // from here on this test alone calls the poller
		<-w.server.dev.prog.ended
		for _, p := range sources {
			p.send(make([]byte, octetsEach)) // no FPDU
		}
		synctest.Wait()
		ended := func() (n int) {
			for _, id := range servers {
				if qpOf(id).Cause() != nil {
					n++
				}
			}
			return n
		}
		for polls, before := 1, 0; before < peers; polls++ {
			w.server.dev.poller.Poll()
			n := ended() - before
			if before += n; n == 0 || n > policy.BudgetAllShort/policy.EndCost {
				t.Fatalf("Poll %d ended %d streams, want 1 to %d", polls, n, policy.BudgetAllShort/policy.EndCost)
			}
		}
		left := 0
		for _, c := range conns {
			left += unread(t, c)
		}
		// What is read before the end is a turn, and so is what is dropped in the Polls.
		if n := peers*octetsEach - left; n == 0 || n > peers*policy.BudgetOne {
			t.Errorf("the ends took %d bytes of %d, want no more than %d", n, peers*octetsEach,
				peers*policy.BudgetOne)
		}
		for _, id := range servers {
			w.server.want("ended", id, provider.CMDisconnected, 0)
		}
	})
}

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
