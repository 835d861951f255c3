package engine

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/memnet"
	"github.com/govs-rdma/govs/provider/engine/transport"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
)

// TestTurnsOfFarewells: peers that were refused and go on to send have turns together
// with all others that a Poll serves.
func TestTurnsOfFarewells(t *testing.T) {
	const peers, octetsEach = 32, 1 << 20
	synctest.Test(t, func(t *testing.T) {
		w := newCMWorld(t, memnet.New(&memnet.Options{Window: 1 << 30}), "192.0.2.1:0", Options{CloseTimeout: time.Hour}, true)
		l := w.server.listen()
		var sources []*rawPeer
		for range peers {
			p := w.dialRaw(l.LocalAddr())
			leavings["refused"](w, l, p)
			if err := p.wantEnd("FIN"); err == nil {
				t.Error("no FIN")
			}
			sources = append(sources, p)
		}
		w.moment()
		w.server.dev.prog.cancel() // from here on this test alone calls the poller
		<-w.server.dev.prog.ended
		var all []*farewell
		for c := range w.server.dev.leaving.places {
			all = append(all, c.(*farewell))
		}
		if len(all) != peers {
			t.Fatalf("%d wait, want %d", len(all), peers)
		}
		for _, p := range sources {
			p.send(make([]byte, octetsEach))
		}
		synctest.Wait()
		w.server.dev.poller.Poll()
		left := 0
		for _, f := range all {
			left += unread(t, f.conn)
		}
		if n := peers*octetsEach - left; n == 0 || n > turnsMost+peers*len(w.server.dev.leaving.dropped) {
			t.Errorf("one call of Poll took %d octets of %d, want no more than %d", n, peers*octetsEach, turnsMost)
		}
	})
}

// unread reads what has arrived, and returns how much that was.
func unread(t *testing.T, c transport.Conn) (total int) {
	t.Helper()
	b := make([]byte, 1<<20)
	for {
		n, err := c.Readv([][]byte{b})
		if total += n; err != nil {
			if err != transport.ErrWouldBlock {
				t.Fatal(err)
			}
			return total
		}
	}
}

// TestTurnsOfEnds: streams that end in one Poll, each with much behind what ends it, have
// turns together, too.
func TestTurnsOfEnds(t *testing.T) {
	const peers, octetsEach = 64, 4 << 20
	synctest.Test(t, func(t *testing.T) {
		w := newCMWorld(t, memnet.New(&memnet.Options{Window: 1 << 30}), "192.0.2.1:0", Options{CloseTimeout: time.Hour}, true)
		l := w.server.listen()
		var sources []*rawPeer
		var conns []transport.Conn
		var servers []*cmID
		for range peers {
			p := w.dialRaw(l.LocalAddr())
			p.send(rawRequest(nil))
			server, _ := w.server.wantRequest("a request", l)
			ok(t, server.Accept(provider.ConnParam{}))
			p.wantFrame("accepted", mpa.KindReply)
			w.server.want("established", server, provider.CMEstablished, 0)
			sources, servers, conns = append(sources, p), append(servers, server), append(conns, server.qp.stream.Load().conn)
		}
		w.moment()
		w.server.dev.prog.cancel() // from here on this test alone calls the poller
		<-w.server.dev.prog.ended
		for _, p := range sources {
			p.send(make([]byte, octetsEach)) // no FPDU
		}
		synctest.Wait()
		w.server.dev.poller.Poll()
		left := 0
		for _, c := range conns {
			left += unread(t, c)
		}
		// What is read before the end is a turn, and so is what is dropped.
		if n := peers*octetsEach - left; n == 0 || n > 4*turnsMost {
			t.Errorf("one call of Poll took %d octets of %d, want no more than %d", n, peers*octetsEach, 4*turnsMost)
		}
		for _, id := range servers {
			w.server.want("ended", id, provider.CMDisconnected, 0)
		}
	})
}
