package bridge

import (
	"errors"
	"net/netip"
	"os"
	"reflect"
	"runtime"
	"syscall"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider/bridge/abi"
	"github.com/govs-rdma/govs/provider/engine"
	"golang.org/x/sys/unix"
)

// The code below does what librdmacm does in a program. The same tests run on the bridge and, in
// the guest, on the kernel with siw (TestCMOnSiw).

// onSiw is set if the kernel is behind the descriptors.
var onSiw = os.Getenv("GOVS_BRIDGE_TEST") == "siw"

// localAddr is an address of the device.
func localAddr() netip.Addr {
	if onSiw {
		return netip.MustParseAddr("192.0.2.1")
	}
	return netip.MustParseAddr("127.0.0.1")
}

// libHost is a program.
type libHost struct {
	t    *testing.T
	prog *testProgram
	b    *Bridge // nil on siw
}

func newHost(t *testing.T, opts *engine.Options) *libHost {
	t.Helper()
	if onSiw {
		return &libHost{t: t, prog: newProgram(t)}
	}
	b, prog := newBridge(t, opts)
	return &libHost{t: t, prog: prog, b: b}
}

// rawFile is a descriptor of the kernel.
type rawFile int

// Write passes a command to the kernel with signals blocked, including the Go runtime's own,
// because a CONNECT that a signal interrupts ends the peer's listener
// (kernel-notes/siw-listener-lost.md).
func (f rawFile) Write(b []byte) (n int, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var all, before unix.Sigset_t
	for i := range all.Val {
		all.Val[i] = ^all.Val[i]
	}
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &all, &before); err != nil {
		return 0, err
	}
	n, err = unix.Write(int(f), b)
	if unmasked := unix.PthreadSigmask(unix.SIG_SETMASK, &before, nil); unmasked != nil {
		return 0, unmasked
	}
	return n, err
}

func (f rawFile) Close() {}

// open opens rdma_cm. It is closed at the end of the test if it is still open.
func (h *libHost) open() *libCM {
	h.t.Helper()
	var fd int
	var err error
	if h.b == nil {
		if fd, err = unix.Open("/dev/infiniband/rdma_cm",
			unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0); err == nil {
			err = h.prog.Adopt(fd, rawFile(fd))
		}
	} else {
		fd, err = h.b.OpenCM(unix.O_RDWR | unix.O_CLOEXEC | unix.O_NONBLOCK)
	}
	if err != nil {
		h.t.Fatal(err)
	}
	c := &libCM{libHost: h, fd: fd}
	h.t.Cleanup(c.close)
	return c
}

// queuePair makes a QP and returns its number. The QP is freed at the end of the test.
func (h *libHost) queuePair() uint32 {
	h.t.Helper()
	var d *libDevice
	if h.b == nil {
		fd, err := unix.Open("/dev/infiniband/uverbs0", unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			h.t.Fatal(err)
		}
		testkit.OK(h.t, h.prog.Adopt(fd, rawFile(fd)))
		var resp abi.GetContextResp
		d = &libDevice{t: h.t, prog: h.prog, fd: fd}
		d.must(abi.UverbsGetContext, &abi.Response{}, nil, &resp, &abi.SiwAllocCtxResp{})
		d.async = int(resp.AsyncFD)
	} else {
		d = openDevice(h.t, h.b, h.prog)
	}
	h.t.Cleanup(d.close)
	cq := d.createCQ(16, -1, 0)
	return d.createQP(abi.CreateQP{PDHandle: d.allocPD(), SendCQHandle: cq.handle,
		RecvCQHandle: cq.handle, MaxSendWR: 4,
		MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1, QPType: typeRC}).qpn
}

// libCM is an open rdma_cm.
type libCM struct {
	*libHost
	fd     int
	closed bool
}

func (c *libCM) close() {
	if !c.closed {
		c.closed = true
		c.prog.close(c.fd)
	}
}

// command writes a command whose answer has the layout of resp, nil for none. req and resp are
// pointers.
func (c *libCM) command(cmd uint32, req, resp any) error {
	c.t.Helper()
	size := 0
	if resp != nil {
		size = abi.Size(resp)
	}
	return c.commandRoom(cmd, req, resp, size)
}

// commandRoom writes a command with size bytes of room for the answer.
func (c *libCM) commandRoom(cmd uint32, req, resp any, size int) error {
	c.t.Helper()
	var room []byte
	if resp != nil {
		var addr uint64
		room, addr = c.prog.alloc(abi.Size(resp))
		reflect.ValueOf(req).Elem().FieldByName("Response").SetUint(addr)
	}
	body := abi.Append(nil, req)
	b := abi.Append(nil, &abi.CMHeader{Cmd: cmd, In: uint16(len(body)), Out: uint16(size)})
	n, err := c.write(append(b, body...))
	if err != nil {
		return err
	}
	if n != len(b)+len(body) {
		c.t.Errorf("%s: %d of %d bytes were taken", abi.CMCommands[cmd].Name, n, len(b)+len(body))
	}
	if resp != nil {
		_, err = abi.Decode(room, resp)
	}
	return err
}

func (c *libCM) write(b []byte) (int, error) { return c.prog.File(c.fd).Write(b) }

// must writes a command that must succeed.
func (c *libCM) must(cmd uint32, req, resp any) {
	c.t.Helper()
	if err := c.command(cmd, req, resp); err != nil {
		c.t.Fatalf("%s %s: %v", abi.CMCommands[cmd].Name, abi.Format(req), err)
	}
}

// fails writes a command that must fail.
func (c *libCM) fails(want syscall.Errno, cmd uint32, req, resp any) {
	c.t.Helper()
	if err := c.command(cmd, req, resp); !errors.Is(err, want) {
		c.t.Errorf("%s %s: %v, want %v", abi.CMCommands[cmd].Name, abi.Format(req), err, want)
	}
}

func (c *libCM) createID(uid uint64) uint32 {
	c.t.Helper()
	return c.createPS(uid, abi.PortSpaceTCP)
}

func (c *libCM) createPS(uid uint64, ps uint16) uint32 {
	c.t.Helper()
	var resp abi.CreateIDResp
	c.must(abi.CMCreateID, &abi.CreateID{UID: uid, PS: ps, QPType: typeRC}, &resp)
	return resp.ID
}

// destroy destroys an id of which the program must have fetched reported events.
func (c *libCM) destroy(id, reported uint32) {
	c.t.Helper()
	var resp abi.DestroyResp
	c.must(abi.CMDestroyID, &abi.DestroyID{ID: id}, &resp)
	if resp.EventsReported != reported {
		c.t.Errorf("id %d: %d events were reported, want %d", id, resp.EventsReported, reported)
	}
}

func bindIP(id uint32, ap netip.AddrPort) *abi.BindIP {
	cmd := &abi.BindIP{ID: id}
	cmd.Addr.Set(ap)
	return cmd
}

func resolveIP(id uint32, src, dst netip.AddrPort) *abi.ResolveIP {
	cmd := &abi.ResolveIP{ID: id, TimeoutMS: 2000}
	cmd.SrcAddr.Set(src)
	cmd.DstAddr.Set(dst)
	return cmd
}

// listen makes a listener on the local address and returns its address and port.
func (c *libCM) listen(uid uint64, backlog uint32) (id uint32, at netip.AddrPort) {
	c.t.Helper()
	id = c.createID(uid)
	c.must(abi.CMBindIP, bindIP(id, netip.AddrPortFrom(localAddr(), 0)), nil)
	c.must(abi.CMListen, &abi.Listen{ID: id, Backlog: backlog}, nil)
	at, _ = c.addresses(id)
	return id, at
}

// resolve makes an id that can connect to an address.
func (c *libCM) resolve(uid uint64, to netip.AddrPort) (id uint32) {
	c.t.Helper()
	id = c.createID(uid)
	c.must(abi.CMResolveIP, resolveIP(id, netip.AddrPort{}, to), nil)
	c.event(id, uid, cmAddrResolvedEvent)
	c.must(abi.CMResolveRoute, &abi.ResolveRoute{ID: id, TimeoutMS: 2000}, nil)
	c.event(id, uid, cmRouteResolvedEvent)
	return id
}

// addresses returns the answer to QUERY_ROUTE.
func (c *libCM) addresses(id uint32) (src, dst netip.AddrPort) {
	c.t.Helper()
	var resp abi.QueryRouteResp
	c.must(abi.CMQueryRoute, &abi.Query{ID: id}, &resp)
	src, err := resp.SrcAddr.AddrPort()
	if err == nil {
		dst, err = resp.DstAddr.AddrPort()
	}
	if err != nil {
		c.t.Errorf("addresses of id %d: %v", id, err)
	}
	return src, dst
}

// Kinds of events (enum rdma_cm_event_type).
const (
	cmAddrResolvedEvent  = 0
	cmAddrErrorEvent     = 1
	cmRouteResolvedEvent = 2
	cmRequestEvent       = 4
	cmRejectedEvent      = 8
	cmEstablishedEvent   = 9
	cmDisconnectedEvent  = 10
)

// readable waits for an event.
func (c *libCM) readable(ms int) bool {
	return pollIn(c.fd, ms)
}

// next waits for the next event.
func (c *libCM) next() (e abi.EventResp) {
	c.t.Helper()
	if !c.readable(int(patience.Milliseconds())) {
		c.t.Fatal("no event")
	}
	c.must(abi.CMGetEvent, &abi.Response{}, &e)
	return e
}

// event waits for the next event, which must have the given id and kind.
func (c *libCM) event(id uint32, uid uint64, kind uint32) abi.EventResp {
	c.t.Helper()
	e := c.next()
	if e.ID != id || e.UID != uid || e.Event != kind {
		c.t.Fatalf("event %s, want kind %d of id %d, uid %d", abi.Format(e), kind, id, uid)
	}
	return e
}

// request waits for a CONNECT_REQUEST.
func (c *libCM) request(uid uint64) (id uint32, e abi.EventResp) {
	c.t.Helper()
	e = c.next()
	if e.UID != uid || e.Event != cmRequestEvent {
		c.t.Fatalf("event %s, want a request with uid %d", abi.Format(e), uid)
	}
	return e.ID, e
}

// param makes the parameters of a connection.
func param(qpn uint32, private string) (p abi.ConnParam) {
	p = abi.ConnParam{QPNum: qpn, Valid: 1, ResponderResources: 4, InitiatorDepth: 3, RetryCount: 7,
		PrivateDataLen: uint8(len(private))}
	copy(p.PrivateData[:], private)
	return p
}

// private returns the private data of an event.
func private(e abi.EventResp) string { return string(e.Param.PrivateData[:e.Param.PrivateDataLen]) }
