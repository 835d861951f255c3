package bridge

import (
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/govs-rdma/govs/ci/vm/vmtest"
	"github.com/govs-rdma/govs/provider/bridge/abi"
)

// TestCMOnSiw runs the tests of rdma_cm on the kernel with siw.
func TestCMOnSiw(t *testing.T) {
	vmtest.Need(t)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"TestCMConnection", "TestCMConnectionByNewerCommands", "TestCMReject", "TestCMAcceptFails",
		"TestCMRefused", "TestCMStates", "TestCMGarbled",
		"TestCMUnreadEvents", "TestCMMigrate", "TestCMBacklog", "TestCMBindConflicts",
		"TestCMOptions", "TestCMProbe",
		"TestCMOtherPortSpaces", "TestCMNumbers", "TestCMQuery",
	}
	vmtest.Tests(t, vmtest.Options{Dir: dir, Env: []string{"GOVS_BRIDGE_TEST=siw"}}, want,
		exe, "-test.run=^("+strings.Join(want, "|")+")$", "-test.v", "-test.timeout=5m")
}

// qpAttr returns the attributes that a QP needs for a state.
func (c *libCM) qpAttr(id, state uint32) (resp abi.QPAttr) {
	c.t.Helper()
	c.must(abi.CMInitQPAttr, &abi.InitQPAttr{ID: id, QPState: state}, &resp)
	return resp
}

func (c *libCM) wantQPAttr(what string, id, state, mask, access uint32) {
	c.t.Helper()
	if a := c.qpAttr(id, state); a.QPAttrMask != mask || a.QPAccessFlags != access ||
		a.QPState != state || a.PortNum != 1 {
		c.t.Errorf("%s: attributes for state %d: mask %#x, access %#x, state %d, port %d; want "+
			"mask %#x, access %#x",
			what, state, a.QPAttrMask, a.QPAccessFlags, a.QPState, a.PortNum, mask, access)
	}
}

// States of QPs.
const (
	qpsInit = 1
	qpsRTR  = 2
	qpsRTS  = 3
	qpsSQD  = 4
)

// TestCMConnection: a connection from the first command to the last.
func TestCMConnection(t *testing.T) {
	server, client := newHost(t, nil), newHost(t, nil)
	sq, cq := server.queuePair(), client.queuePair()
	s, c := server.open(), client.open()
	l, at := s.listen(0x11, 3)
	if at.Addr() != localAddr() || at.Port() == 0 {
		t.Errorf("the listener is at %s", at)
	}

	id := c.createID(0x22)
	c.must(abi.CMResolveIP, resolveIP(id, netip.AddrPort{}, at), nil)
	c.event(id, 0x22, cmAddrResolvedEvent)
	src, dst := c.addresses(id)
	if src.Addr() != localAddr() || src.Port() == 0 || dst != at {
		t.Errorf("resolved: from %s to %s, want %s to %s", src, dst, localAddr(), at)
	}
	c.must(abi.CMResolveRoute, &abi.ResolveRoute{ID: id, TimeoutMS: 2000}, nil)
	c.event(id, 0x22, cmRouteResolvedEvent)
	const withAccess, access = 1<<0 | 1<<3 | 1<<5, 1<<1 | 1<<2
	c.wantQPAttr("before connect", id, qpsInit, withAccess, 0)
	c.wantQPAttr("before connect", id, qpsRTS, withAccess, 0)
	c.must(abi.CMConnect, &abi.Connect{ID: id, ConnParam: param(cq, "please")}, nil)

	req, e := s.request(0x11)
	if private(e) != "please" || e.Param.ResponderResources != 3 || e.Param.InitiatorDepth != 4 ||
		e.Status != 0 {
		t.Errorf("request %s", abi.Format(e))
	}
	s.wantQPAttr("request", req, qpsInit, withAccess, access)
	s.wantQPAttr("request", req, qpsRTR, withAccess, access)
	s.wantQPAttr("request", req, qpsRTS, 1<<5, 0)
	s.fails(syscall.EINVAL, abi.CMInitQPAttr, &abi.InitQPAttr{ID: req, QPState: qpsSQD},
		&abi.QPAttr{})
	if local, peer := s.addresses(req); local != at || peer != src {
		t.Errorf("the request is from %s to %s, want %s to %s", peer, local, src, at)
	}
	s.must(abi.CMAccept, &abi.Accept{ID: req, UID: 0x33, ConnParam: param(sq, "welcome")}, nil)
	e = s.event(req, 0x33, cmEstablishedEvent)
	if private(e) != "" || e.Status != 0 || e.Param.ResponderResources != 3 ||
		e.Param.InitiatorDepth != 4 {
		t.Errorf("established at the server: %s", abi.Format(e))
	}
	e = c.event(id, 0x22, cmEstablishedEvent)
	depths := [2]uint8{3, 4}
	if onSiw { // the peer's
		depths = [2]uint8{4, 3}
	}
	if private(e) != "welcome" || e.Status != 0 || [2]uint8{e.Param.ResponderResources,
		e.Param.InitiatorDepth} != depths {
		t.Errorf("established at the client: %s", abi.Format(e))
	}
	if from, to := c.addresses(id); from != src || to != at {
		t.Errorf("connected from %s to %s, want %s to %s", from, to, src, at)
	}
	c.must(abi.CMNotify, &abi.Notify{ID: id, Event: 1}, nil)

	c.must(abi.CMDisconnect, &abi.Disconnect{ID: id}, nil)
	s.event(req, 0x33, cmDisconnectedEvent)
	s.must(abi.CMDisconnect, &abi.Disconnect{ID: req}, nil)
	c.event(id, 0x22, cmDisconnectedEvent)
	c.must(abi.CMDisconnect, &abi.Disconnect{ID: id}, nil)
	c.fails(syscall.EINVAL, abi.CMConnect, &abi.Connect{ID: id, ConnParam: param(cq, "")}, nil)
	c.destroy(id, 4)
	s.destroy(req, 2)
	s.destroy(l, 1)
	if s.readable(0) || c.readable(0) {
		t.Error("there are more events")
	}
}

// TestCMConnectionByNewerCommands: the same with BIND, RESOLVE_ADDR and QUERY.
func TestCMConnectionByNewerCommands(t *testing.T) {
	server, client := newHost(t, nil), newHost(t, nil)
	sq, cq := server.queuePair(), client.queuePair()
	s, c := server.open(), client.open()
	query := func(c *libCM, id uint32) (src, dst netip.AddrPort) {
		t.Helper()
		var resp abi.QueryAddrResp
		c.must(abi.CMQuery, &abi.Query{ID: id, Option: abi.QueryAddr}, &resp)
		src, _ = resp.SrcAddr.AddrPort()
		dst, _ = resp.DstAddr.AddrPort()
		if resp.SrcSize != abi.SizeofSockaddrIn || resp.DstSize != abi.SizeofSockaddrIn {
			t.Errorf("addresses of %d and %d bytes", resp.SrcSize, resp.DstSize)
		}
		return src, dst
	}
	l := s.createID(1)
	bind := &abi.Bind{ID: l, AddrSize: abi.SizeofSockaddrIn}
	bind.Addr.Set(netip.AddrPortFrom(localAddr(), 0))
	s.must(abi.CMBind, bind, nil)
	s.must(abi.CMListen, &abi.Listen{ID: l}, nil)
	at, none := query(s, l)
	if at.Port() == 0 || none != netip.AddrPortFrom(netip.IPv4Unspecified(), 0) {
		t.Errorf("the listener is at %s with the peer %s", at, none)
	}

	id := c.createID(2)
	resolve := &abi.ResolveAddr{ID: id, TimeoutMS: 2000, SrcSize: abi.SizeofSockaddrIn,
		DstSize: abi.SizeofSockaddrIn}
	resolve.SrcAddr.Set(netip.AddrPortFrom(localAddr(), 0))
	resolve.DstAddr.Set(at)
	c.must(abi.CMResolveAddr, resolve, nil)
	c.event(id, 2, cmAddrResolvedEvent)
	src, dst := query(c, id)
	if src.Addr() != localAddr() || src.Port() == 0 || dst != at {
		t.Errorf("resolved: from %s to %s", src, dst)
	}
	c.must(abi.CMResolveRoute, &abi.ResolveRoute{ID: id, TimeoutMS: 2000}, nil)
	c.event(id, 2, cmRouteResolvedEvent)
	path := abi.QueryPathResp{NumPaths: 99}
	c.must(abi.CMQuery, &abi.Query{ID: id, Option: abi.QueryPath}, &path)
	if path.NumPaths != 0 {
		t.Errorf("%d paths", path.NumPaths)
	}
	// Structs in the length that programs compiled with older headers write.
	short := abi.Append(nil, &abi.Connect{ID: id, ConnParam: param(cq, "")})[:280]
	if _, err := c.write(append(abi.Append(nil, &abi.CMHeader{Cmd: abi.CMConnect, In: 280}),
		short...)); err != nil {
		t.Fatalf("connect of 280 bytes: %v", err)
	}
	req, _ := s.request(1)
	if local, peer := query(s, req); local != at || peer != src {
		t.Errorf("the request is from %s to %s", peer, local)
	}
	s.must(abi.CMAccept, &abi.Accept{ID: req, UID: 3, ConnParam: param(sq, "")}, nil)
	s.event(req, 3, cmEstablishedEvent)
	c.event(id, 2, cmEstablishedEvent)
	c.destroy(id, 3) // which ends the connection
	s.event(req, 3, cmDisconnectedEvent)
	s.destroy(req, 2)
}

// TestCMReject: a request is refused, and the peer gets the reason.
func TestCMReject(t *testing.T) {
	server, client := newHost(t, nil), newHost(t, nil)
	cq := client.queuePair()
	s, c := server.open(), client.open()
	l, at := s.listen(1, 3)
	id := c.resolve(2, at)
	c.must(abi.CMConnect, &abi.Connect{ID: id, ConnParam: param(cq, "")}, nil)
	req, _ := s.request(1)
	s.fails(syscall.EINVAL, abi.CMReject, &abi.Reject{ID: req, Reason: 3}, nil)
	s.fails(syscall.EINVAL, abi.CMReject, &abi.Reject{ID: l}, nil)
	s.must(abi.CMDisconnect, &abi.Disconnect{ID: req}, nil) // does nothing
	cmd := &abi.Reject{ID: req, PrivateDataLen: 7, Reason: 28}
	copy(cmd.PrivateData[:], "go away")
	s.must(abi.CMReject, cmd, nil)
	e := c.event(id, 2, cmRejectedEvent)
	if private(e) != "go away" || int32(e.Status) != -int32(syscall.ECONNRESET) ||
		e.Param.ResponderResources != 0 || e.Param.InitiatorDepth != 0 {
		t.Errorf("rejected: %s", abi.Format(e))
	}
	s.fails(syscall.EINVAL, abi.CMReject, cmd, nil)
	s.fails(syscall.EINVAL, abi.CMAccept, &abi.Accept{ID: req, UID: 3,
		ConnParam: param(server.queuePair(), "")}, nil)
	c.must(abi.CMDisconnect, &abi.Disconnect{ID: id}, nil)
	c.fails(syscall.EINVAL, abi.CMConnect, &abi.Connect{ID: id, ConnParam: param(cq, "")}, nil)
	s.destroy(req, 0)
	c.destroy(id, 3)

	// Destroying a request also rejects it.
	id = c.resolve(2, at)
	c.must(abi.CMConnect, &abi.Connect{ID: id, ConnParam: param(client.queuePair(), "")}, nil)
	req, _ = s.request(1)
	s.destroy(req, 0)
	if e := c.event(id, 2, cmRejectedEvent); private(e) != "" {
		t.Errorf("rejected: %s", abi.Format(e))
	}
	s.destroy(l, 2)
}

// TestCMAcceptFails: a request that ACCEPT refuses is rejected.
func TestCMAcceptFails(t *testing.T) {
	server, client := newHost(t, nil), newHost(t, nil)
	sq := server.queuePair()
	s, c := server.open(), client.open()
	_, at := s.listen(1, 3)
	deep := param(sq, "")
	deep.InitiatorDepth = 200
	invalid := param(sq, "")
	invalid.Valid = 0
	for name, p := range map[string]abi.ConnParam{"no such QP": param(0xfffff0, ""),
		"no parameters": invalid, "too deep": deep} {
		id := c.resolve(2, at)
		c.must(abi.CMConnect, &abi.Connect{ID: id, ConnParam: param(client.queuePair(), "")}, nil)
		req, _ := s.request(1)
		s.fails(syscall.EINVAL, abi.CMAccept, &abi.Accept{ID: req, UID: 3, ConnParam: p}, nil)
		if e := c.next(); e.Event != cmRejectedEvent {
			t.Errorf("%s: the client has the event %s", name, abi.Format(e))
		}
		s.fails(syscall.EINVAL, abi.CMAccept, &abi.Accept{ID: req, UID: 3, ConnParam: param(sq,
			"")}, nil)
		s.destroy(req, 0)
		c.destroy(id, 3)
	}
	// The QP is still usable.
	id := c.resolve(2, at)
	c.must(abi.CMConnect, &abi.Connect{ID: id, ConnParam: param(client.queuePair(), "")}, nil)
	req, _ := s.request(1)
	s.must(abi.CMAccept, &abi.Accept{ID: req, UID: 3, ConnParam: param(sq, "")}, nil)
	s.event(req, 3, cmEstablishedEvent)
}

// TestCMRefused: nobody listens.
func TestCMRefused(t *testing.T) {
	host := newHost(t, nil)
	qpn := host.queuePair()
	c := host.open()
	l, at := c.listen(1, 1)
	c.destroy(l, 0)
	id := c.resolve(2, at)
	connect := &abi.Connect{ID: id, ConnParam: param(qpn, "")}
	if onSiw { // CONNECT makes the TCP connection within the call there
		c.fails(syscall.ECONNREFUSED, abi.CMConnect, connect, nil)
		c.fails(syscall.EINVAL, abi.CMDisconnect, &abi.Disconnect{ID: id}, nil)
		return
	}
	c.must(abi.CMConnect, connect, nil)
	if e := c.event(id, 2, cmRejectedEvent); int32(e.Status) != -int32(syscall.ECONNREFUSED) {
		t.Errorf("event %s", abi.Format(e))
	}
}

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
