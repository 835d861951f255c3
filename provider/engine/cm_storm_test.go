package engine

import (
	"net/netip"
	"runtime"
	"testing"
	"testing/synctest"

	"github.com/govs-rdma/govs/provider/engine/memnet"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
)

// TestWhoHasSpokenIsNotSilent: connections whose Requests have arrived by the time that
// they are accepted are none of those that MaxPendingPerPeer bounds, however many come
// out of the backlog at once.
func TestWhoHasSpokenIsNotSilent(t *testing.T) {
	const places = 8
	synctest.Test(t, func(t *testing.T) {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // all are accepted before one is looked at
		w := newCMWorld(t, memnet.New(nil), "192.0.2.1:0", Options{MaxPending: places, MaxPendingPerPeer: 2}, true)
		l := w.server.listen()
		w.moment() // the place of who comes next is taken
		for range places - 1 {
			l.listening.places <- struct{}{}
		}
		var peers []*rawPeer
		for range places {
			p := w.dialRaw(l.LocalAddr())
			p.send(rawRequest(nil))
			peers = append(peers, p)
		}
		first, _ := w.server.wantRequest("the one place", l)
		w.server.wantIdle("the others wait in the backlog")
		for range places - 1 {
			<-l.listening.places
		}
		ok(t, first.Reject(nil))
		for range places - 1 {
			server, _ := w.server.wantRequest("an honest peer's", l)
			ok(t, server.Reject(nil))
		}
		for _, p := range peers {
			p.wantFrame("rejected", mpa.KindReply)
		}
	})
}

// TestSilentPeersLeaveRoomForOthers: with nothing but MaxAccepted set, or lowered by
// RLIMIT_NOFILE, connections that are silent delay others, which wait in the backlog, and
// have none of them reset.
func TestSilentPeersLeaveRoomForOthers(t *testing.T) {
	addrs := []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("192.0.2.3")}
	synctest.Test(t, func(t *testing.T) {
		w := newCMWorld(t, memnet.New(&memnet.Options{Addrs: addrs}), "192.0.2.1:0", Options{MaxAccepted: 8}, true)
		l := w.server.listen()
		from := func(i int) *rawPeer {
			return w.raw(must(w.net.Dial(t.Context(), netip.AddrPortFrom(addrs[i], 0), l.LocalAddr()))(t))
		}
		for range 8 {
			for i := 1; i < 3; i++ {
				from(i)
			}
		}
		w.moment()
		honest := from(0)
		honest.send(rawRequest(nil))
		server, _ := w.server.wantRequest("when the time of silent ones is over", l)
		ok(t, server.Reject(nil))
		honest.wantFrame("rejected", mpa.KindReply)
	})
}
