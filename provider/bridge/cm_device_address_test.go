package bridge

import (
	"net"
	"net/netip"
	"strconv"
	"syscall"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider/bridge/abi"
	"github.com/govs-rdma/govs/provider/engine"
	"github.com/govs-rdma/govs/provider/engine/memnet"
	"github.com/govs-rdma/govs/provider/engine/transport"
)

// TestCMDeviceAddress: a device with one address. An id bound to the unspecified address listens
// and connects there, and other addresses are refused.
func TestCMDeviceAddress(t *testing.T) {
	own := netip.MustParseAddr("127.0.0.3")
	server, client := newHost(t, nil), newHost(t, nil)
	server.b.cm.addresses = []netip.Addr{own}
	client.b.cm.addresses = []netip.Addr{netip.MustParseAddr("127.0.0.4")}
	sq, cq := server.queuePair(), client.queuePair()
	s, c := server.open(), client.open()

	other := s.createID(1)
	s.fails(syscall.ENODEV, abi.CMBindIP, bindIP(other, netip.MustParseAddrPort("[::]:0")), nil)
	s.must(abi.CMBindIP, bindIP(other, netip.AddrPortFrom(localAddr(), 0)), nil)
	var route abi.QueryRouteResp
	if s.must(abi.CMQueryRoute, &abi.Query{ID: other}, &route); route.NumPaths != 0 ||
		route.PortNum != 0 {
		t.Errorf("a loopback address that is not the device's is bound to it: %s",
			abi.Format(route))
	}
	s.destroy(other, 0)

	l := s.createID(1)
	anywhere := netip.AddrPortFrom(netip.IPv4Unspecified(), 0)
	s.must(abi.CMBindIP, bindIP(l, anywhere), nil)
	s.must(abi.CMListen, &abi.Listen{ID: l, Backlog: 1}, nil)
	at, _ := s.addresses(l)
	if !at.Addr().IsUnspecified() || at.Port() == 0 {
		t.Errorf("the program sees a listener at %s", at)
	}

	elsewhere := c.resolve(2, netip.AddrPortFrom(localAddr(), at.Port()))
	c.must(abi.CMConnect, &abi.Connect{ID: elsewhere,
		ConnParam: param(client.queuePair(), "")}, nil)
	if e := c.next(); e.Event != cmRejectedEvent || e.Status == 0 {
		t.Errorf("connecting to an address that is not the device's: %s", abi.Format(e))
	}

	id := c.resolve(3, netip.AddrPortFrom(own, at.Port()))
	if src, _ := c.addresses(id); src.Addr().String() != "127.0.0.4" {
		t.Errorf("connecting from %s", src)
	}
	c.must(abi.CMConnect, &abi.Connect{ID: id, ConnParam: param(cq, "")}, nil)
	req, _ := s.request(1)
	s.must(abi.CMAccept, &abi.Accept{ID: req, UID: 4, ConnParam: param(sq, "")}, nil)
	s.event(req, 4, cmEstablishedEvent)
	c.event(id, 3, cmEstablishedEvent)
}

// TestCMDeviceAddressKept: an id bound to the unspecified address, whose listen fails, later
// listens only at the device's address.
func TestCMDeviceAddressKept(t *testing.T) {
	own := netip.MustParseAddr("127.0.0.3")
	h := newHost(t, &engine.Options{Network: &failingListen{Network: transport.NewTCP(nil)}})
	h.b.cm.addresses = []netip.Addr{own}
	c := h.open()
	id := c.createID(1)
	c.must(abi.CMBindIP, bindIP(id, netip.AddrPortFrom(netip.IPv4Unspecified(), 0)), nil)
	at, _ := c.addresses(id)
	c.fails(syscall.ENOMEM, abi.CMListen, &abi.Listen{ID: id, Backlog: 1}, nil)
	c.must(abi.CMListen, &abi.Listen{ID: id, Backlog: 1}, nil)
	dial := func(addr netip.Addr) error {
		conn, err := net.Dial("tcp", netip.AddrPortFrom(addr, at.Port()).String())
		if err == nil {
			_ = conn.Close()
		}
		return err
	}
	testkit.OK(t, dial(own))
	if dial(netip.MustParseAddr("127.0.0.4")) == nil {
		t.Error("it listens at an address that is not the device's")
	}
}

// TestCMDeviceAddressConflicts: a conflict with an id bound to the unspecified address has the
// errno for that address, although the id internally has the device's.
func TestCMDeviceAddressConflicts(t *testing.T) {
	own, foreign := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	h := newHost(t, &engine.Options{Network: memnet.New(&memnet.Options{Addrs: []netip.Addr{own, foreign}})})
	h.b.cm.addresses = []netip.Addr{own}
	c := h.open()
	id, second := c.createID(1), c.createID(2)
	bind := func(id uint32, addr netip.Addr, port uint16, want syscall.Errno) {
		t.Helper()
		cmd := bindIP(id, netip.AddrPortFrom(addr, port))
		if want == 0 {
			c.must(abi.CMBindIP, cmd, nil)
		} else {
			c.fails(want, abi.CMBindIP, cmd, nil)
		}
	}
	bind(id, netip.IPv4Unspecified(), 0, 0)
	at, _ := c.addresses(id)
	bind(second, own, at.Port(), syscall.EADDRNOTAVAIL)
	bind(second, netip.IPv4Unspecified(), at.Port(), syscall.EADDRNOTAVAIL)
	bind(second, foreign, at.Port(), syscall.ENODEV)

	// Now it has an address.
	c.must(abi.CMResolveIP, resolveIP(id, netip.AddrPort{}, netip.AddrPortFrom(own, 7471)), nil)
	c.event(id, 1, cmAddrResolvedEvent)
	bind(second, own, at.Port(), syscall.EADDRINUSE)
	bind(second, netip.IPv4Unspecified(), at.Port(), syscall.EADDRNOTAVAIL)
	c.destroy(id, 1)

	bind(second, own, at.Port(), 0)
	third := c.createID(3)
	bind(third, own, at.Port(), syscall.EADDRINUSE)
}

// TestCMDeviceAddressZone: the zone of a link-local address is the name of an interface for the
// bridge, and its number for programs.
func TestCMDeviceAddressZone(t *testing.T) {
	h := newHost(t, nil)
	lo := testkit.Must(net.InterfaceByName("lo"))(t)
	for _, zone := range []string{lo.Name, strconv.Itoa(lo.Index)} {
		b := New(h.b.vctx, h.prog, &Options{Addresses: []netip.Addr{
			netip.MustParseAddr("fe80::1").WithZone(zone)}})
		var program abi.SockaddrStorage
		program.Set(netip.AddrPortFrom(netip.MustParseAddr("fe80::1").WithZone(strconv.Itoa(lo.Index)),
			7))
		if _, err := b.cm.deviceAddress(ipOf(&program)); err != nil {
			t.Errorf("with zone %s: %v", zone, err)
		}
		if !b.cm.has(ipOf(&program).Addr()) {
			t.Errorf("with zone %s the address is not the device's", zone)
		}
	}
}

// failingListen is a network whose first Listen fails.
type failingListen struct {
	transport.Network
	failed bool
}

func (n *failingListen) Bind(local netip.AddrPort) (transport.Binding, error) {
	b, err := n.Network.Bind(local)
	if err != nil || n.failed {
		return b, err
	}
	n.failed = true
	return failingBinding{b}, nil
}

type failingBinding struct{ transport.Binding }

func (b failingBinding) Listen(int) (transport.Listener, error) {
	_ = b.Close()
	return nil, syscall.ENOMEM
}
