package engine

import (
	"net/netip"
	"runtime"
	"testing"
	"testing/synctest"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider/engine/memnet"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
)

// TestArrivedRequestIsNotSilent: a connection whose Request has arrived by the time that it
// comes out of the backlog does not count against MaxPendingPerPeer, however many come out at
// once.
func TestArrivedRequestIsNotSilent(t *testing.T) {
	const places = 8
	synctest.Test(t, func(t *testing.T) {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // all are accepted before one is looked at
		opts := Options{MaxPending: places, MaxPendingPerPeer: 2}
		w := newCMWorld(t, memnet.New(nil), "192.0.2.1:0", opts, true)
		l := w.server.listen()
		w.moment() // until the place of the next connection is taken
		for range places - 1 {
			l.listening.places <- struct{}{}
		}
		var peers []*rawPeer
		for range places {
			p := w.request(l)
			peers = append(peers, p)
		}
		first, _ := w.server.wantRequest("the one place", l)
		w.server.wantIdle("the others wait in the backlog")
		for range places - 1 {
			<-l.listening.places
		}
		testkit.OK(t, first.Reject(nil))
		for range places - 1 {
			server, _ := w.server.wantRequest("an honest peer's", l)
			testkit.OK(t, server.Reject(nil))
		}
		for _, p := range peers {
			p.wantFrame("rejected", mpa.KindReply)
		}
	})
}

// TestSilentPeersLeaveRoomForOthers: if only MaxAccepted is set, or lowered by RLIMIT_NOFILE,
// silent connections make others wait in the backlog, but not be reset.
func TestSilentPeersLeaveRoomForOthers(t *testing.T) {
	addrs := []netip.Addr{
		netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"),
		netip.MustParseAddr("192.0.2.3"),
	}
	synctest.Test(t, func(t *testing.T) {
		network := memnet.New(&memnet.Options{Addrs: addrs})
		w := newCMWorld(t, network, "192.0.2.1:0", Options{MaxAccepted: 8}, true)
		l := w.server.listen()
		from := func(i int) *rawPeer {
			return w.raw(testkit.Must(w.net.Dial(t.Context(), netip.AddrPortFrom(addrs[i], 0),
				l.LocalAddr()))(t))
		}
		for range 8 {
			for i := 1; i < 3; i++ {
				from(i)
			}
		}
		w.moment()
		honest := from(0)
		honest.send(rawRequest(nil))
		server, _ := w.server.wantRequest("when the time of the silent ones is over", l)
		testkit.OK(t, server.Reject(nil))
		honest.wantFrame("rejected", mpa.KindReply)
	})
}
