package bridge

import (
	"net/netip"
	"testing"

	"github.com/govs-rdma/govs/provider/bridge/abi"
)

// TestOpeningWrite: the connecting side opens the stream with a Write, unless that is turned off.
func TestOpeningWrite(t *testing.T) {
	for name, off := range map[string]bool{"on": false, "off": true} {
		t.Run(name, func(t *testing.T) {
			server, client := newHost(t, nil), newHost(t, nil)
			client.b.opts.NoOpeningWrite = off
			sq, cq := server.queuePair(), client.queuePair()
			s, c := server.open(), client.open()
			l, at := s.listen(1, 1)
			id := c.createID(2)
			c.must(abi.CMResolveIP, resolveIP(id, netip.AddrPort{}, at), nil)
			c.event(id, 2, cmAddrResolvedEvent)
			c.must(abi.CMResolveRoute, &abi.ResolveRoute{ID: id, TimeoutMS: 2000}, nil)
			c.event(id, 2, cmRouteResolvedEvent)
			c.must(abi.CMConnect, &abi.Connect{ID: id, ConnParam: param(cq, "")}, nil)
			req, _ := s.request(1)
			s.must(abi.CMAccept, &abi.Accept{ID: req, UID: 3, ConnParam: param(sq, "")}, nil)
			s.event(req, 3, cmEstablishedEvent)
			c.event(id, 2, cmEstablishedEvent)
			c.must(abi.CMDisconnect, &abi.Disconnect{ID: id}, nil)
			s.event(req, 3, cmDisconnectedEvent) // after everything that arrived
			stats, err := server.b.queuePairByNumber(sq).qp.Stats()
			if err != nil || (stats.Received.Write.Messages == 0) != off {
				t.Errorf("%d Writes arrive, %v", stats.Received.Write.Messages, err)
			}
			c.event(id, 2, cmDisconnectedEvent)
			c.destroy(id, 4)
			s.destroy(req, 2)
			s.destroy(l, 1)
		})
	}
}
