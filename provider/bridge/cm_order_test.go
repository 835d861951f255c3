package bridge

import (
	"net/netip"
	"testing"

	"github.com/govs-rdma/govs/provider/bridge/abi"
)

// TestCMOrder: a listener's CONNECT_REQUESTs have the order of the program's calls of CONNECT, and
// the events of RESOLVE_IP and RESOLVE_ROUTE the order of those calls. perftest relies on this to
// number the QPs of both ends.
func TestCMOrder(t *testing.T) {
	server, client := newHost(t, nil), newHost(t, nil)
	s, c := server.open(), client.open()
	_, at := s.listen(1, 64)
	for range 10 {
		ids := make([]uint32, 16)
		for i := range ids {
			ids[i] = c.createID(uint64(i + 1))
			c.must(abi.CMResolveIP, resolveIP(ids[i], netip.AddrPort{}, at), nil)
		}
		for i, id := range ids {
			c.event(id, uint64(i+1), cmAddrResolvedEvent)
			c.must(abi.CMResolveRoute, &abi.ResolveRoute{ID: id, TimeoutMS: 2000}, nil)
		}
		for i, id := range ids {
			c.event(id, uint64(i+1), cmRouteResolvedEvent)
			connect := &abi.Connect{ID: id, ConnParam: param(c.queuePair(), string(rune('a'+i)))}
			c.must(abi.CMConnect, connect, nil)
		}
		for i := range ids {
			id, e := s.request(1)
			if got, want := private(e), string(rune('a'+i)); got != want {
				t.Fatalf("request %d has the private data %q, want %q", i, got, want)
			}
			s.must(abi.CMReject, &abi.Reject{ID: id}, nil)
			s.destroy(id, 0)
		}
		for range ids {
			if e := c.next(); e.Event != cmRejectedEvent {
				t.Fatalf("event %s", abi.Format(e))
			}
		}
		for _, id := range ids {
			c.destroy(id, 3)
		}
	}
}
