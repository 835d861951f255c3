package bridge

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"syscall"
	"testing"

	"github.com/govs-rdma/govs/provider/bridge/abi"
)

// cmStory is a command that must fail.
type cmStory struct {
	what string
	want syscall.Errno
	cmd  uint32
	req  any
	resp any
}

func (c *libCM) all(list []cmStory) {
	c.t.Helper()
	for _, x := range list {
		if err := c.command(x.cmd, x.req, x.resp); !errors.Is(err, x.want) {
			c.t.Errorf("%s: %s: %v, want %v", x.what, abi.CMCommands[x.cmd].Name, err, x.want)
		}
	}
}

// needBound are commands that need an id with a device.
func needBound(what string, id, qpn uint32) []cmStory {
	return []cmStory{
		{what, syscall.EINVAL, abi.CMResolveRoute, &abi.ResolveRoute{ID: id, TimeoutMS: 100}, nil},
		{what, syscall.EINVAL, abi.CMConnect, &abi.Connect{ID: id, ConnParam: param(qpn, "")}, nil},
		{what, syscall.EINVAL, abi.CMAccept, &abi.Accept{ID: id, ConnParam: param(qpn, "")}, nil},
		{what, syscall.EINVAL, abi.CMReject, &abi.Reject{ID: id}, nil},
		{what, syscall.EINVAL, abi.CMDisconnect, &abi.Disconnect{ID: id}, nil},
		{what, syscall.EINVAL, abi.CMNotify, &abi.Notify{ID: id}, nil},
	}
}

// TestCMStates: commands out of order.
func TestCMStates(t *testing.T) {
	host := newHost(t, nil)
	qpn := host.queuePair()
	c := host.open()
	local := netip.AddrPortFrom(localAddr(), 0)
	l, at := c.listen(9, 1)

	id := c.createID(1)
	c.all(needBound("an idle id", id, qpn))
	c.fails(syscall.EINVAL, abi.CMInitQPAttr, &abi.InitQPAttr{ID: id, QPState: qpsInit},
		&abi.QPAttr{})
	c.must(abi.CMBindIP, bindIP(id, netip.AddrPortFrom(netip.IPv4Unspecified(), 0)), nil)
	c.all(needBound("bound to any address", id, qpn))
	c.fails(syscall.EINVAL, abi.CMInitQPAttr, &abi.InitQPAttr{ID: id, QPState: qpsInit},
		&abi.QPAttr{})
	c.destroy(id, 0)

	id = c.createID(1)
	c.must(abi.CMBindIP, bindIP(id, local), nil)
	c.all(needBound("bound", id, qpn))
	c.fails(syscall.EINVAL, abi.CMBindIP, bindIP(id, local), nil)
	c.fails(syscall.EINVAL, abi.CMInitQPAttr, &abi.InitQPAttr{ID: id, QPState: 7}, &abi.QPAttr{})
	c.fails(syscall.EINVAL, abi.CMResolveIP, resolveIP(id, local,
		netip.MustParseAddrPort("[2001:db8::1]:7471")), nil)
	c.must(abi.CMListen, &abi.Listen{ID: id, Backlog: 1}, nil)
	c.all(needBound("listening", id, qpn)[:5])
	c.must(abi.CMNotify, &abi.Notify{ID: id}, nil)
	c.fails(syscall.EINVAL, abi.CMListen, &abi.Listen{ID: id, Backlog: 1}, nil)
	c.fails(syscall.EINVAL, abi.CMBindIP, bindIP(id, local), nil)
	c.fails(syscall.EINVAL, abi.CMResolveIP, resolveIP(id, local, at), nil)
	c.fails(syscall.EINVAL, abi.CMInitQPAttr, &abi.InitQPAttr{ID: id, QPState: qpsInit},
		&abi.QPAttr{})
	c.destroy(id, 0)

	id = c.createID(2)
	c.must(abi.CMResolveIP, resolveIP(id, local, at), nil)
	c.event(id, 2, cmAddrResolvedEvent)
	c.fails(syscall.EINVAL, abi.CMResolveRoute, &abi.ResolveRoute{ID: id}, nil)
	c.fails(syscall.EINVAL, abi.CMResolveIP, resolveIP(id, local, at), nil)
	c.fails(syscall.EINVAL, abi.CMBindIP, bindIP(id, local), nil)
	c.fails(syscall.EINVAL, abi.CMListen, &abi.Listen{ID: id}, nil)
	c.all(needBound("resolved", id, qpn)[1:])
	c.must(abi.CMResolveRoute, &abi.ResolveRoute{ID: id, TimeoutMS: 100}, nil)
	c.event(id, 2, cmRouteResolvedEvent)
	c.all(append(needBound("routed", id, 0xfffff0)[:1], needBound("routed", id, 0xfffff0)...))
	deep := param(qpn, "")
	deep.ResponderResources = 200
	c.fails(syscall.ENOMEM, abi.CMConnect, &abi.Connect{ID: id, ConnParam: deep}, nil)
	invalid := param(qpn, "")
	invalid.Valid = 0
	c.fails(syscall.EINVAL, abi.CMConnect, &abi.Connect{ID: id, ConnParam: invalid}, nil)

	// None of them had an effect.
	c.must(abi.CMConnect, &abi.Connect{ID: id, ConnParam: param(qpn, "")}, nil)
	req, _ := c.request(9)
	c.destroy(req, 0)
	c.destroy(l, 1)
}

// TestCMGarbled: invalid ids, lengths and addresses.
func TestCMGarbled(t *testing.T) {
	host := newHost(t, nil)
	c, other := host.open(), host.open()
	foreign := other.createID(7)
	for id, want := range map[uint32]syscall.Errno{foreign: syscall.EINVAL, 9999: syscall.ENOENT,
		1 << 31: syscall.ENOENT, ^uint32(0): syscall.ENOENT} {
		c.all([]cmStory{
			{"id", want, abi.CMDestroyID, &abi.DestroyID{ID: id}, &abi.DestroyResp{}},
			{"id", want, abi.CMBindIP, bindIP(id, netip.AddrPortFrom(localAddr(), 0)), nil},
			{"id", want, abi.CMResolveIP, resolveIP(id, netip.AddrPort{},
				netip.AddrPortFrom(localAddr(), 1)), nil},
			{"id", want, abi.CMResolveRoute, &abi.ResolveRoute{ID: id}, nil},
			{"id", want, abi.CMQueryRoute, &abi.Query{ID: id}, &abi.QueryRouteResp{}},
			{"id", want, abi.CMQuery, &abi.Query{ID: id, Option: 77}, &abi.QueryAddrResp{}},
			{"id", want, abi.CMConnect, &abi.Connect{ID: id, ConnParam: param(1, "")}, nil},
			{"id", want, abi.CMListen, &abi.Listen{ID: id}, nil},
			{"id", want, abi.CMAccept, &abi.Accept{ID: id}, nil},
			{"id", want, abi.CMReject, &abi.Reject{ID: id}, nil},
			{"id", want, abi.CMDisconnect, &abi.Disconnect{ID: id}, nil},
			{"id", want, abi.CMInitQPAttr, &abi.InitQPAttr{ID: id}, &abi.QPAttr{}},
			{"id", want, abi.CMSetOption, &abi.SetOption{ID: id, Level: 99}, nil},
			{"id", want, abi.CMNotify, &abi.Notify{ID: id}, nil},
		})
	}
	id := c.createID(1)
	var family abi.BindIP
	family.ID = id
	binary.NativeEndian.PutUint16(family.Addr[:], 1)
	bind := func(size int, reserved uint16, ap string) *abi.Bind {
		cmd := &abi.Bind{ID: id, AddrSize: uint16(size), Reserved: reserved}
		cmd.Addr.Set(netip.MustParseAddrPort(ap))
		return cmd
	}
	resolve := &abi.ResolveAddr{ID: id, DstSize: 28}
	resolve.DstAddr.Set(netip.MustParseAddrPort("127.0.0.1:1"))
	bad := int(-1)
	c.all([]cmStory{
		{"family", syscall.EINVAL, abi.CMBindIP, &family, nil},
		{"size", syscall.EINVAL, abi.CMBind, bind(28, 0, "127.0.0.1:0"), nil},
		{"size 0", syscall.EINVAL, abi.CMBind, bind(0, 0, "127.0.0.1:0"), nil},
		{"reserved", syscall.EINVAL, abi.CMBind, bind(16, 1, "127.0.0.1:0"), nil},
		{"size", syscall.EINVAL, abi.CMResolveAddr, resolve, nil},
		{"no destination", syscall.EINVAL, abi.CMResolveIP, &abi.ResolveIP{ID: id}, nil},
		{"link-local without scope", syscall.EINVAL, abi.CMBind, bind(28, 0, "[fe80::1]:0"), nil},
		{"no address of ours", syscall.EADDRNOTAVAIL, abi.CMBind, bind(16, 0, "203.0.113.7:0"),
			nil},
		{"mapped address", syscall.EADDRNOTAVAIL, abi.CMBind, bind(28, 0, "[::ffff:127.0.0.1]:0"),
			nil},
		{"port space", syscall.EINVAL, abi.CMCreateID, &abi.CreateID{PS: 1}, &abi.CreateIDResp{}},
		{"query", syscall.ENOSYS, abi.CMQuery, &abi.Query{ID: id, Option: 77},
			&abi.QueryAddrResp{}},
		{"level", syscall.ENOSYS, abi.CMSetOption, &abi.SetOption{ID: id, Level: 99}, nil},
		{"option", syscall.ENOSYS, abi.CMSetOption, &abi.SetOption{ID: id, OptName: 99}, nil},
		{"length", syscall.EINVAL, abi.CMSetOption, &abi.SetOption{ID: id,
			OptName: abi.OptionIDTOS}, nil},
		{"much too long", syscall.EINVAL, abi.CMSetOption, &abi.SetOption{ID: id, OptLen: 1 << 30},
			nil},
		{"no memory", syscall.EFAULT, abi.CMSetOption, &abi.SetOption{ID: id, OptLen: 1, OptVal: 8},
			nil},
		{"no descriptor", syscall.ENOENT, abi.CMMigrateID, &abi.MigrateID{ID: id, FD: uint32(bad)},
			&abi.DestroyResp{}},
		{"a descriptor of another kind", syscall.EINVAL, abi.CMMigrateID, &abi.MigrateID{ID: id,
			FD: 1}, &abi.DestroyResp{}},
		{"an id of another", syscall.EINVAL, abi.CMMigrateID, &abi.MigrateID{ID: id,
			FD: uint32(other.fd)}, &abi.DestroyResp{}},
		{"no such id", syscall.ENOENT, abi.CMMigrateID, &abi.MigrateID{ID: 9999,
			FD: uint32(other.fd)}, &abi.DestroyResp{}},
		{"no group", syscall.ENOENT, abi.CMLeaveMcast, &abi.DestroyID{ID: id}, &abi.DestroyResp{}},
		{"no event", syscall.EAGAIN, abi.CMGetEvent, &abi.Response{}, &abi.EventResp{}},
		{"option of the kernel's past", syscall.ENOSYS, abi.CMGetOption, &abi.DestroyID{}, nil},
		{"no command", syscall.EINVAL, abi.CMJoinMcast + 40, &abi.DestroyID{}, nil},
	})
	for cmd, x := range map[uint32]struct{ req, resp any }{
		abi.CMCreateID:   {&abi.CreateID{PS: abi.PortSpaceTCP}, &abi.CreateIDResp{}},
		abi.CMDestroyID:  {&abi.DestroyID{ID: id}, &abi.DestroyResp{}},
		abi.CMQueryRoute: {&abi.Query{ID: id}, &abi.QueryRouteResp{}},
		abi.CMQuery:      {&abi.Query{ID: id}, &abi.QueryAddrResp{}},
		abi.CMInitQPAttr: {&abi.InitQPAttr{ID: id}, &abi.QPAttr{}},
		abi.CMGetEvent:   {&abi.Response{}, &abi.EventResp{}},
		abi.CMLeaveMcast: {&abi.DestroyID{ID: id}, &abi.DestroyResp{}},
	} {
		if err := c.commandRoom(cmd, x.req, x.resp, 3); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("%s with room for 3 bytes: %v", abi.CMCommands[cmd].Name, err)
		}
	}
	// The header counts more than was written, or is cut off.
	b := abi.Append(nil, &abi.CMHeader{Cmd: abi.CMDestroyID, In: 17, Out: 4})
	for _, b := range [][]byte{append(b, make([]byte, 16)...), b[:7]} {
		if _, err := c.write(b); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%d bytes: %v", len(b), err)
		}
	}
	// The header counts less than was written: only CONNECT and ACCEPT return an error.
	body := abi.Append(nil, &abi.Listen{ID: id})
	if n, err := c.write(append(abi.Append(nil, &abi.CMHeader{Cmd: abi.CMListen}),
		body...)); err != nil || n != 16 {
		t.Errorf("listen that counts 0 bytes: %d, %v", n, err)
	}
	body = abi.Append(nil, &abi.Accept{ID: 9999})
	if _, err := c.write(append(abi.Append(nil, &abi.CMHeader{Cmd: abi.CMAccept, In: 287}),
		body...)); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("accept that counts 287 bytes: %v", err)
	}
	// If the answer cannot be written, the command's effect remains.
	head := func(cmd uint32, in int) []byte {
		return abi.Append(nil, &abi.CMHeader{Cmd: cmd, In: uint16(in), Out: 336})
	}
	create := &abi.CreateID{PS: abi.PortSpaceTCP, Response: 8}
	if _, err := c.write(abi.Append(head(abi.CMCreateID, 24), create)); !errors.Is(err,
		syscall.EFAULT) {
		t.Errorf("create without memory: %v", err)
	}
	if _, err := c.write(abi.Append(head(abi.CMDestroyID, 16), &abi.DestroyID{ID: id,
		Response: 8})); !errors.Is(err, syscall.EFAULT) {
		t.Errorf("destroy without memory: %v", err)
	}
	c.fails(syscall.ENOENT, abi.CMListen, &abi.Listen{ID: id}, nil)
}

// TestCMBindConflicts: addresses that another id has bound.
func TestCMBindConflicts(t *testing.T) {
	c := newHost(t, nil).open()
	anyAt := func(ap netip.AddrPort) netip.AddrPort {
		return netip.AddrPortFrom(netip.IPv4Unspecified(), ap.Port())
	}
	l, at := c.listen(1, 1)
	id := c.createID(2)
	conflict := syscall.EADDRINUSE
	if at.Addr().IsLoopback() {
		conflict = syscall.EADDRNOTAVAIL
	}
	c.fails(conflict, abi.CMBindIP, bindIP(id, at), nil)
	c.fails(syscall.EADDRNOTAVAIL, abi.CMBindIP, bindIP(id, anyAt(at)), nil)
	c.destroy(l, 0)
	c.must(abi.CMBindIP, bindIP(id, anyAt(at)), nil)
	second := c.createID(3)
	c.fails(syscall.EADDRNOTAVAIL, abi.CMBindIP, bindIP(second, at), nil)
	c.destroy(id, 0)

	// With REUSEADDR both may be bound, and only one may listen.
	on := abi.Append(nil, &abi.DestroyResp{EventsReported: 1})
	id = c.createID(2)
	for _, x := range []uint32{id, second} {
		if err := c.setOption(x, abi.OptionID, abi.OptionIDReuseaddr, on); err != nil {
			t.Fatal(err)
		}
		c.must(abi.CMBindIP, bindIP(x, at), nil)
	}
	third := c.createID(4)
	c.fails(conflict, abi.CMBindIP, bindIP(third, at), nil)
	c.fails(conflict, abi.CMListen, &abi.Listen{ID: id}, nil)
	c.destroy(second, 0)
	c.must(abi.CMListen, &abi.Listen{ID: id}, nil)
	if src, _ := c.addresses(id); src != at {
		t.Errorf("the listener is at %s, want %s", src, at)
	}
}

// setOption sets an option to a value.
func (c *libCM) setOption(id, level, name uint32, value []byte) error {
	c.t.Helper()
	mem, addr := c.prog.alloc(max(len(value), 1))
	copy(mem, value)
	return c.command(abi.CMSetOption, &abi.SetOption{OptVal: addr, ID: id, Level: level,
		OptName: name, OptLen: uint32(len(value))}, nil)
}

// TestCMOptions: the permitted values of each option, and when it can be set.
func TestCMOptions(t *testing.T) {
	c := newHost(t, nil).open()
	u32 := func(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }
	try := func(what string, want error, id, level, name uint32, value []byte) {
		t.Helper()
		if err := c.setOption(id, level, name, value); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", what, err, want)
		}
	}
	id := c.createID(1)
	try("TOS", nil, id, abi.OptionID, abi.OptionIDTOS, []byte{0x28})
	try("TOS of 4 bytes", syscall.EINVAL, id, abi.OptionID, abi.OptionIDTOS, u32(1))
	try("REUSEADDR", nil, id, abi.OptionID, abi.OptionIDReuseaddr, u32(1))
	try("no REUSEADDR", nil, id, abi.OptionID, abi.OptionIDReuseaddr, u32(0))
	try("REUSEADDR of 1 byte", syscall.EINVAL, id, abi.OptionID, abi.OptionIDReuseaddr, []byte{1})
	try("AFONLY", nil, id, abi.OptionID, abi.OptionIDAfonly, u32(77))
	try("ACK timeout", nil, id, abi.OptionID, abi.OptionIDAckTimeout, []byte{14})
	try("ACK timeout of 2 bytes", syscall.EINVAL, id, abi.OptionID, abi.OptionIDAckTimeout,
		[]byte{1, 2})
	udp := c.createPS(5, abi.PortSpaceUDP)
	try("ACK timeout of datagrams", syscall.EINVAL, udp, abi.OptionID, abi.OptionIDAckTimeout,
		[]byte{14})

	c.must(abi.CMBindIP, bindIP(id, netip.AddrPortFrom(localAddr(), 0)), nil)
	try("REUSEADDR of a bound id", nil, id, abi.OptionID, abi.OptionIDReuseaddr, u32(1))
	try("no REUSEADDR of a bound id", syscall.EINVAL, id, abi.OptionID, abi.OptionIDReuseaddr,
		u32(0))
	try("AFONLY of a bound id", nil, id, abi.OptionID, abi.OptionIDAfonly, u32(1))
	c.must(abi.CMListen, &abi.Listen{ID: id}, nil)
	try("REUSEADDR of a listener", syscall.EINVAL, id, abi.OptionID, abi.OptionIDReuseaddr, u32(1))
	try("AFONLY of a listener", syscall.EINVAL, id, abi.OptionID, abi.OptionIDAfonly, u32(1))
	try("TOS of a listener", nil, id, abi.OptionID, abi.OptionIDTOS, []byte{0})

	// A path instead of a route: the kernel accepts one for iWARP too.
	_, at := c.listen(2, 1)
	id = c.createID(3)
	path := abi.Append(nil, &abi.PathRecData{Flags: abi.PathPrimary})
	other := abi.Append(nil, &abi.PathRecData{Flags: 1})
	const pathOption = abi.OptionIBPath
	try("a path without device", syscall.EINVAL, id, abi.OptionIB, pathOption, path)
	c.must(abi.CMResolveIP, resolveIP(id, netip.AddrPort{}, at), nil)
	c.event(id, 3, cmAddrResolvedEvent)
	try("half a path", syscall.EINVAL, id, abi.OptionIB, pathOption, path[:71])
	try("no path", syscall.EINVAL, id, abi.OptionIB, pathOption, nil)
	try("no primary path", syscall.EINVAL, id, abi.OptionIB, pathOption, other)
	try("an option of InfiniBand", syscall.ENOSYS, id, abi.OptionIB, 2, path)
	try("a path", nil, id, abi.OptionIB, pathOption, append(other, path...))
	c.event(id, 3, cmRouteResolvedEvent)
	try("a second path", syscall.EINVAL, id, abi.OptionIB, pathOption, path)
	var resp abi.QueryPathResp
	c.must(abi.CMQuery, &abi.Query{ID: id, Option: abi.QueryPath}, &resp)
	if resp.NumPaths != 1 {
		t.Errorf("%d paths", resp.NumPaths)
	}
}
