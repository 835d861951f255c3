package bridge

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/govs-rdma/govs/provider/bridge/abi"
)

// connect requests n connections to a listener, each with its own id.
func (c *libCM) connect(at netip.AddrPort, n int) (ids []uint32) {
	c.t.Helper()
	for range n {
		id := c.resolve(0x99, at)
		c.must(abi.CMConnect, &abi.Connect{ID: id, ConnParam: param(c.queuePair(), "")}, nil)
		ids = append(ids, id)
	}
	return ids
}

// eventually waits until so returns true.
func eventually(t *testing.T, what string, so func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !so(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not after %v", what, patience)
		}
	}
}

// TestCMUnreadEvents: unfetched events are removed with their id, and a listener that is destroyed
// rejects its unfetched requests.
func TestCMUnreadEvents(t *testing.T) {
	server, client := newHost(t, nil), newHost(t, nil)
	s, c := server.open(), client.open()
	l, at := s.listen(1, 8)
	c.connect(at, 1)
	req, _ := s.request(1)
	c.connect(at, 2)
	if !s.readable(int(patience.Milliseconds())) {
		t.Fatal("no request")
	}

	// An event of another id stays.
	id := s.createID(2)
	s.must(abi.CMResolveIP, resolveIP(id, netip.AddrPort{}, at), nil)
	time.Sleep(10 * time.Millisecond) // on most runs all of them have arrived then
	s.destroy(l, 1)
	s.event(id, 2, cmAddrResolvedEvent)
	if s.readable(0) {
		t.Error("there are more events")
	}
	for range 2 {
		if e := c.next(); e.Event != cmRejectedEvent {
			t.Errorf("event %s", abi.Format(e))
		}
	}
	s.must(abi.CMReject, &abi.Reject{ID: req}, nil) // fetched by the program, so the listener does not end it
	if e := c.next(); e.Event != cmRejectedEvent {
		t.Errorf("event %s", abi.Format(e))
	}

	// No event was read, so none was reported.
	s.must(abi.CMResolveRoute, &abi.ResolveRoute{ID: id, TimeoutMS: 100}, nil)
	if !s.readable(int(patience.Milliseconds())) {
		t.Fatal("no event")
	}
	s.destroy(id, 1)
	if s.readable(0) {
		t.Error("the descriptor can be read, and there is no event")
	}
	s.fails(syscall.EAGAIN, abi.CMGetEvent, &abi.Response{}, &abi.EventResp{})

	// If the program has no memory for an event, the event remains.
	id = s.createID(3)
	s.must(abi.CMResolveIP, resolveIP(id, netip.AddrPort{}, at), nil)
	if !s.readable(int(patience.Milliseconds())) {
		t.Fatal("no event")
	}
	b := abi.Append(nil, &abi.CMHeader{Cmd: abi.CMGetEvent, In: 8, Out: 336})
	if _, err := s.write(abi.Append(b, &abi.Response{Response: 8})); !errors.Is(err,
		syscall.EFAULT) {
		t.Errorf("an event without memory: %v", err)
	}
	// A program compiled with older headers has less room for it.
	e := abi.EventResp{ECE: abi.ECE{VendorID: 77}}
	if err := s.commandRoom(abi.CMGetEvent, &abi.Response{}, &e, 323); !errors.Is(err,
		syscall.ENOSPC) {
		t.Errorf("an event with room for 323 bytes: %v", err)
	}
	if err := s.commandRoom(abi.CMGetEvent, &abi.Response{}, &e, 324); err != nil || e.ID != id ||
		e.UID != 3 {
		t.Errorf("event %s: %v", abi.Format(e), err)
	}

	// An id without uid has no events.
	id = s.createID(0)
	s.must(abi.CMResolveIP, resolveIP(id, netip.AddrPort{}, at), nil)
	eventually(t, "resolving", func() bool {
		return s.command(abi.CMResolveRoute, &abi.ResolveRoute{ID: id, TimeoutMS: 100}, nil) == nil
	})
	s.destroy(id, 0)
}

// TestCMMigrate: an id moves to another descriptor with its unfetched events.
func TestCMMigrate(t *testing.T) {
	server, client := newHost(t, nil), newHost(t, nil)
	s, to, c := server.open(), server.open(), client.open()
	l, at := s.listen(1, 8)
	c.connect(at, 1)
	s.request(1)
	id := s.createID(2)
	s.must(abi.CMResolveIP, resolveIP(id, netip.AddrPort{}, at), nil)
	if !s.readable(int(patience.Milliseconds())) {
		t.Fatal("no event")
	}
	move := func(from, to *libCM, id, want uint32) {
		t.Helper()
		var resp abi.DestroyResp
		to.must(abi.CMMigrateID, &abi.MigrateID{ID: id, FD: uint32(from.fd)}, &resp)
		if resp.EventsReported != want {
			t.Errorf("%d events were reported, want %d", resp.EventsReported, want)
		}
	}
	move(s, to, id, 0)
	move(s, to, l, 1)
	if s.readable(0) {
		t.Error("the former descriptor has events")
	}
	s.fails(syscall.EINVAL, abi.CMListen, &abi.Listen{ID: id}, nil)
	to.event(id, 2, cmAddrResolvedEvent)
	to.must(abi.CMResolveRoute, &abi.ResolveRoute{ID: id, TimeoutMS: 100}, nil)
	to.event(id, 2, cmRouteResolvedEvent)
	move(to, to, id, 2)
	s.close() // it has the first request
	if e := c.next(); e.Event != cmRejectedEvent {
		t.Errorf("event %s", abi.Format(e))
	}
	c.connect(at, 1)
	req, _ := to.request(1)
	to.must(abi.CMReject, &abi.Reject{ID: req}, nil)
	third := server.open()
	move(to, third, l, 2)
	third.destroy(l, 2)
	to.destroy(req, 0)
}

// TestCMBacklog: a listener accepts as many requests as the program may leave unread, and rejects
// others.
func TestCMBacklog(t *testing.T) {
	server, client := newHost(t, nil), newHost(t, nil)
	s, c := server.open(), client.open()
	_, at := s.listen(1, 2)
	for range 3 { // one at a time, because siw has no more work entries than the backlog
		c.connect(at, 1)
		if !s.readable(int(patience.Milliseconds())) {
			t.Fatal("no request")
		}
		time.Sleep(10 * time.Millisecond)
	}
	if e := c.next(); e.Event != cmRejectedEvent {
		t.Errorf("the third: %s", abi.Format(e))
	}
	s.request(1)
	c.connect(at, 1)
	s.request(1)
	s.request(1)
	if s.readable(0) {
		t.Error("there are more requests")
	}
	s.close() // before the ids that are waiting for an answer
}

// TestCMProbe: librdmacm uses an id of the port space IB to find out whether the kernel knows
// addresses of AF_IB.
func TestCMProbe(t *testing.T) {
	c := newHost(t, nil).open()
	id := c.createPS(0, abi.PortSpaceIB)
	bind := &abi.Bind{ID: id, AddrSize: sizeofSockaddrIB}
	binary.NativeEndian.PutUint16(bind.Addr[:], abi.FamilyIB)
	binary.BigEndian.PutUint64(bind.Addr[ibService:], ibPortSpaceTCP)
	binary.BigEndian.PutUint64(bind.Addr[ibServiceMask:], ibPortSpaceMask)
	c.must(abi.CMBind, bind, nil)
	for _, option := range []uint32{abi.QueryAddr, abi.QueryGID} {
		var resp abi.QueryAddrResp
		c.must(abi.CMQuery, &abi.Query{ID: id, Option: option}, &resp)
		service := binary.BigEndian.Uint64(resp.SrcAddr[ibService:])
		if resp.SrcSize != sizeofSockaddrIB || resp.DstSize != sizeofSockaddrIB ||
			resp.SrcAddr.Family() != abi.FamilyIB || resp.DstAddr.Family() != abi.FamilyIB ||
			service&ibPortSpaceMask != ibPortSpaceTCP || service&0xffff == 0 || resp.PortNum != 0 ||
			binary.BigEndian.Uint64(resp.SrcAddr[ibServiceMask:]) != ^uint64(0) {
			t.Errorf("query %d: %s", option, abi.Format(resp))
		}
	}
	c.fails(syscall.EINVAL, abi.CMBind, bind, nil)
	c.fails(syscall.EINVAL, abi.CMConnect, &abi.Connect{ID: id, ConnParam: param(1, "")}, nil)
	c.destroy(id, 0)

	// A GID of a device that is not InfiniBand, and another port space.
	id = c.createPS(0, abi.PortSpaceIB)
	bind.ID = id
	bind.Addr[ibGID] = 0xfe
	c.fails(syscall.ENODEV, abi.CMBind, bind, nil)
	bind.Addr[ibGID] = 0
	binary.BigEndian.PutUint64(bind.Addr[ibService:], 0x7777<<16)
	c.fails(syscall.EPROTONOSUPPORT, abi.CMBind, bind, nil)
	resolve := &abi.ResolveAddr{ID: id, DstSize: sizeofSockaddrIB, TimeoutMS: 100}
	binary.NativeEndian.PutUint16(resolve.DstAddr[:], abi.FamilyIB)
	resolve.DstAddr[ibGID] = 0xfe
	c.fails(syscall.ENODEV, abi.CMResolveAddr, resolve, nil)
	c.must(abi.CMListen, &abi.Listen{ID: id}, nil) // on no device
}

// TestCMOtherPortSpaces: ids for datagrams can resolve addresses and routes; other tests show that
// such QPs do not exist.
func TestCMOtherPortSpaces(t *testing.T) {
	c := newHost(t, nil).open()
	_, at := c.listen(1, 1)
	for _, ps := range []uint16{abi.PortSpaceUDP, abi.PortSpaceIB} {
		id := c.createPS(2, ps)
		c.must(abi.CMResolveIP, resolveIP(id, netip.AddrPort{}, at), nil)
		c.event(id, 2, cmAddrResolvedEvent)
		c.must(abi.CMResolveRoute, &abi.ResolveRoute{ID: id, TimeoutMS: 100}, nil)
		c.event(id, 2, cmRouteResolvedEvent)
		c.destroy(id, 2)
	}
	id := c.createPS(3, abi.PortSpaceIPoIB)
	c.fails(syscall.EINVAL, abi.CMBindIP, bindIP(id, netip.AddrPortFrom(localAddr(), 0)), nil)
	c.destroy(id, 0)
	id = c.createPS(3, abi.PortSpaceIPoIB)
	c.must(abi.CMResolveIP, resolveIP(id, netip.AddrPort{}, at), nil)
	if e := c.event(id, 3, cmAddrErrorEvent); int32(e.Status) != -int32(syscall.EINVAL) {
		t.Errorf("event %s", abi.Format(e))
	}
	c.destroy(id, 1)

	// Multicast groups cannot be joined.
	group := netip.MustParseAddrPort("224.0.0.99:0")
	join := func(id uint32, flags uint16) *abi.JoinMcast {
		cmd := &abi.JoinMcast{ID: id, AddrSize: 16, JoinFlags: flags}
		cmd.Addr.Set(group)
		return cmd
	}
	joinIP := func(id uint32) *abi.JoinIPMcast {
		cmd := &abi.JoinIPMcast{ID: id}
		cmd.Addr.Set(group)
		return cmd
	}
	tcp, udp := c.createID(4), c.createPS(5, abi.PortSpaceUDP)
	for _, id := range []uint32{tcp, udp} {
		c.fails(syscall.EINVAL, abi.CMJoinMcast, join(id, 0), &abi.CreateIDResp{})
		c.must(abi.CMBindIP, bindIP(id, netip.AddrPortFrom(localAddr(), 0)), nil)
	}
	c.all([]cmStory{
		{"a reliable connection", syscall.EINVAL, abi.CMJoinMcast, join(tcp, 0),
			&abi.CreateIDResp{}},
		{"datagrams", syscall.ENOSYS, abi.CMJoinMcast, join(udp, 0), &abi.CreateIDResp{}},
		{"datagrams", syscall.ENOSYS, abi.CMJoinMcast, join(udp, 1), &abi.CreateIDResp{}},
		{"datagrams", syscall.ENOSYS, abi.CMJoinIPMcast, joinIP(udp), &abi.CreateIDResp{}},
		{"flags", syscall.EINVAL, abi.CMJoinMcast, join(udp, 2), &abi.CreateIDResp{}},
		{"no address", syscall.EINVAL, abi.CMJoinMcast, &abi.JoinMcast{ID: udp},
			&abi.CreateIDResp{}},
		{"no address", syscall.EINVAL, abi.CMJoinIPMcast, &abi.JoinIPMcast{ID: udp},
			&abi.CreateIDResp{}},
		{"no id", syscall.ENOENT, abi.CMJoinMcast, join(9999, 0), &abi.CreateIDResp{}},
	})
}

// TestCMNumbers: an id gets the lowest free number over all descriptors.
func TestCMNumbers(t *testing.T) {
	host := newHost(t, nil)
	a, b := host.open(), host.open()
	first := a.createID(1)
	second, third, fourth := b.createID(1), a.createID(1), a.createID(1)
	if second != first+1 || third != first+2 || fourth != first+3 {
		t.Errorf("ids %d, %d, %d, %d", first, second, third, fourth)
	}
	a.destroy(third, 0)
	b.destroy(second, 0)
	if x, y, z := a.createID(1), b.createID(1), b.createID(1); x != second || y != third ||
		z != fourth+1 {
		t.Errorf("ids %d, %d, %d, want %d, %d, %d", x, y, z, second, third, fourth+1)
	}
	b.close()
	if x := a.createID(1); x != third {
		t.Errorf("id %d, want %d", x, third)
	}
}

// TestCMQuery: what QUERY returns for an id in each state.
func TestCMQuery(t *testing.T) {
	c := newHost(t, nil).open()
	query := func(id, option uint32) (resp abi.QueryAddrResp) {
		t.Helper()
		c.must(abi.CMQuery, &abi.Query{ID: id, Option: option}, &resp)
		return resp
	}
	id := c.createID(1)
	if r := query(id, abi.QueryAddr); r.SrcSize != 0 || r.DstSize != 0 ||
		r.NodeGUID != [8]uint8{} || r.PortNum != 0 {
		t.Errorf("idle: %s", abi.Format(r))
	}
	if r := query(id, abi.QueryGID); r.SrcSize != sizeofSockaddrIB ||
		r.DstSize != sizeofSockaddrIB || r.SrcAddr.Family() != abi.FamilyIB {
		t.Errorf("idle: %s", abi.Format(r))
	}
	// LISTEN binds by itself.
	c.must(abi.CMListen, &abi.Listen{ID: id}, nil)
	r := query(id, abi.QueryAddr)
	src, _ := r.SrcAddr.AddrPort()
	if r.SrcSize != 16 || r.DstSize != 16 || !src.Addr().IsUnspecified() || src.Port() == 0 ||
		r.PortNum != 0 {
		t.Errorf("listening: %s", abi.Format(r))
	}
	c.destroy(id, 0)

	_, at := c.listen(1, 1)
	id = c.createID(2)
	c.must(abi.CMResolveIP, resolveIP(id, netip.AddrPort{}, at), nil)
	c.event(id, 2, cmAddrResolvedEvent)
	r = query(id, abi.QueryGID)
	guid, gid := r.NodeGUID, [16]uint8(r.SrcAddr[ibGID:])
	if guid == [8]uint8{} || gid == [16]uint8{} || r.PortNum != 1 || r.Pkey != 0 ||
		binary.BigEndian.Uint64(r.DstAddr[ibService:]) != ibPortSpaceTCP|uint64(at.Port()) {
		t.Errorf("resolved: %s", abi.Format(r))
	}
	var route abi.QueryRouteResp
	c.must(abi.CMQueryRoute, &abi.Query{ID: id}, &route)
	if route.NodeGUID != guid || route.PortNum != 1 || route.NumPaths != 0 ||
		route.Route0.SGID != gid || [16]uint8(r.DstAddr[ibGID:]) != route.Route0.DGID {
		t.Errorf("route: %s", abi.Format(route))
	}
	t.Logf("GIDs: %x to %x", route.Route0.SGID, route.Route0.DGID)
}
