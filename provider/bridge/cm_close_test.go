package bridge

import (
	"context"
	"math/rand/v2"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider/bridge/abi"
	"github.com/govs-rdma/govs/provider/engine"
	"github.com/govs-rdma/govs/provider/engine/transport"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

// TestCMClose closes the descriptor with ids in every state. Nothing of them remains, and peers see
// their connections end.
func TestCMClose(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	t.Run("stories", func(t *testing.T) {
		server, client := newHost(t, nil), newHost(t, nil)
		sq := server.queuePair()
		s, c := server.open(), client.open()
		_, at := s.listen(1, 8)
		s.createID(2)
		s.must(abi.CMBindIP, bindIP(s.createID(3), netip.AddrPortFrom(localAddr(), 0)), nil)
		s.must(abi.CMResolveIP, resolveIP(s.createID(4), netip.AddrPort{}, at), nil)
		s.event(s.resolveTo(at), 5, cmRouteResolvedEvent)
		c.connect(at, 3)
		established, _ := s.requestAfterOthers(1)
		s.must(abi.CMAccept, &abi.Accept{ID: established, UID: 6, ConnParam: param(sq, "")}, nil)
		c.untilEvent(cmEstablishedEvent)
		s.requestAfterOthers(1)
		s.close() // with a fetched request and an unfetched one
		ends := make(map[uint32]int)
		for range 3 {
			ends[c.next().Event]++
		}
		if ends[cmRejectedEvent] != 2 || ends[cmDisconnectedEvent] != 1 {
			t.Errorf("the peer has events of kinds %v, want 2 rejections and a disconnection", ends)
		}

		// The same program starts again, and numbers begin at 0.
		if id := server.open().createID(1); id != 0 {
			t.Errorf("id %d", id)
		}
	})
}

// resolveTo resolves address and route; the caller waits for the route's event.
func (c *libCM) resolveTo(at netip.AddrPort) uint32 {
	c.t.Helper()
	id := c.createID(5)
	c.must(abi.CMResolveIP, resolveIP(id, netip.AddrPort{}, at), nil)
	for c.next().ID != id {
	}
	c.must(abi.CMResolveRoute, &abi.ResolveRoute{ID: id, TimeoutMS: 100}, nil)
	return id
}

// requestAfterOthers waits for a CONNECT_REQUEST and skips other events.
func (c *libCM) requestAfterOthers(uid uint64) (id uint32, e abi.EventResp) {
	c.t.Helper()
	if e = c.untilEvent(cmRequestEvent); e.UID != uid {
		c.t.Fatalf("event %s, want uid %d", abi.Format(e), uid)
	}
	return e.ID, e
}

// untilEvent waits for an event of a kind, and drops others.
func (c *libCM) untilEvent(kind uint32) (e abi.EventResp) {
	c.t.Helper()
	for {
		if e = c.next(); e.Event == kind {
			return e
		}
	}
}

// TestCMWaits: the descriptor is readable while there are events, also with edge-triggered epoll,
// and its flags are open's.
func TestCMWaits(t *testing.T) {
	host := newHost(t, nil)
	c := host.open()
	flags, err := unix.FcntlInt(uintptr(c.fd), unix.F_GETFL, 0)
	if err != nil || flags&unix.O_NONBLOCK == 0 {
		t.Errorf("flags %#x: %v", flags, err)
	}
	blocking, err := host.b.OpenCM(unix.O_RDWR)
	if err != nil {
		t.Fatal(err)
	}
	defer host.prog.close(blocking)
	flags, err = unix.FcntlInt(uintptr(blocking), unix.F_GETFL, 0)
	if err != nil || flags&unix.O_NONBLOCK != 0 {
		t.Errorf("flags %#x of a descriptor that blocks: %v", flags, err)
	}
	flags, err = unix.FcntlInt(uintptr(blocking), unix.F_GETFD, 0)
	if err != nil || flags&unix.FD_CLOEXEC != 0 {
		t.Errorf("flags %#x of a descriptor for exec: %v", flags, err)
	}

	epoll, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(epoll) }()
	if err := unix.EpollCtl(epoll, unix.EPOLL_CTL_ADD, c.fd,
		&unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET}); err != nil {
		t.Fatal(err)
	}
	edge := func() bool { return epollWait(t, epoll, patience) == 1 }
	// More events than fit into the socket.
	_, at := c.listen(1, 1)
	const many = 700
	for i := range many {
		id := c.createID(uint64(i + 10))
		c.must(abi.CMResolveIP, resolveIP(id, netip.AddrPort{}, at), nil)
		if !edge() && i < 100 {
			t.Fatalf("no edge with event %d", i)
		}
		if i == 250 { // from here on without waiting
			break
		}
	}
	for i := 251; i < many; i++ {
		c.must(abi.CMResolveIP, resolveIP(c.createID(uint64(i+10)), netip.AddrPort{}, at), nil)
	}
	for i := range many {
		if e := c.next(); e.UID != uint64(i+10) {
			t.Fatalf("event %s, want uid %d", abi.Format(e), i+10)
		}
	}
	if c.readable(0) {
		t.Error("the descriptor can be read, and there are no events")
	}
}

// TestCMv6: IPv6 addresses.
func TestCMv6(t *testing.T) {
	server, client := newHost(t, nil), newHost(t, nil)
	sq, cq := server.queuePair(), client.queuePair()
	s, c := server.open(), client.open()
	l := s.createID(1)
	s.must(abi.CMBindIP, bindIP(l, netip.AddrPortFrom(netip.IPv6Unspecified(), 0)), nil)
	s.must(abi.CMListen, &abi.Listen{ID: l}, nil)
	any6, _ := s.addresses(l)
	if !any6.Addr().Is6() || any6.Port() == 0 {
		t.Fatalf("the listener is at %s", any6)
	}
	at := netip.AddrPortFrom(netip.IPv6Loopback(), any6.Port())
	id := c.resolve(2, at)
	src, dst := c.addresses(id)
	if src.Addr() != at.Addr() || src.Port() == 0 || dst != at {
		t.Errorf("from %s to %s, want %s", src, dst, at)
	}
	c.must(abi.CMConnect, &abi.Connect{ID: id, ConnParam: param(cq, "")}, nil)
	req, _ := s.request(1)
	if local, peer := s.addresses(req); local != at || peer != src {
		t.Errorf("the request is from %s to %s", peer, local)
	}
	s.must(abi.CMAccept, &abi.Accept{ID: req, UID: 3, ConnParam: param(sq, "")}, nil)
	c.event(id, 2, cmEstablishedEvent)

	// An IPv4 address on an IPv6 listener.
	id = c.resolve(4, netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), at.Port()))
	c.must(abi.CMConnect, &abi.Connect{ID: id, ConnParam: param(client.queuePair(), "")}, nil)
	s.event(req, 3, cmEstablishedEvent)
	req, _ = s.request(1)
	if local, _ := s.addresses(req); local.Addr() != netip.MustParseAddr("::ffff:127.0.0.1") {
		t.Errorf("the request is to %s", local)
	}

	// The unspecified address as the destination means this machine.
	id = c.createID(7)
	c.must(abi.CMResolveIP, resolveIP(id, netip.AddrPort{}, any6), nil)
	c.event(id, 7, cmAddrResolvedEvent)
	if src, dst := c.addresses(id); src.Addr() != netip.IPv6Loopback() || dst != any6 {
		t.Errorf("from %s to %s", src, dst)
	}
}

// TestCMPeerLeaves: a peer that gives up before it is answered.
func TestCMPeerLeaves(t *testing.T) {
	server, client := newHost(t, nil), newHost(t, nil)
	sq := server.queuePair()
	s, c := server.open(), client.open()
	_, at := s.listen(1, 8)
	ids := c.connect(at, 1)
	req, _ := s.request(1)
	c.destroy(ids[0], 2)
	var err error
	eventually(t, "the peer's end", func() bool {
		// Every ACCEPT but the first is out of order.
		err = s.command(abi.CMAccept, &abi.Accept{ID: req, UID: 3, ConnParam: param(sq, "")}, nil)
		return true
	})
	switch errnoOf(err) {
	case syscall.ECONNRESET:
		s.fails(syscall.EINVAL, abi.CMAccept, &abi.Accept{ID: req, UID: 3, ConnParam: param(sq,
			"")}, nil)
	case 0: // accepted before the end was noticed: the event is a failure or an end
		for e := s.next(); e.Event == cmEstablishedEvent; e = s.next() {
		}
	default:
		t.Errorf("accept: %v", err)
	}
}

// TestCMTimeout: a peer that accepts the TCP connection and sends nothing.
func TestCMTimeout(t *testing.T) {
	client := newHost(t, &engine.Options{StartupTimeout: 50 * time.Millisecond})
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Listen(fd, 1); err != nil {
		t.Fatal(err)
	}
	sa, err := unix.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	c := client.open()
	at := netip.AddrPortFrom(localAddr(), uint16(sa.(*unix.SockaddrInet4).Port))
	id := c.connect(at, 1)[0]
	const unreachable = 7
	if e := c.event(id, 0x99, unreachable); int32(e.Status) != -int32(syscall.ETIMEDOUT) {
		t.Errorf("event %s", abi.Format(e))
	}
	// An address on which another program listens cannot be bound.
	l := c.createID(1)
	c.fails(syscall.EADDRNOTAVAIL, abi.CMBindIP, bindIP(l, at), nil)
}

// TestCMAtOnce: several threads of a program use the same descriptors while events arrive and ids
// are destroyed.
func TestCMAtOnce(t *testing.T) {
	server, client := newHost(t, nil), newHost(t, nil)
	files := []*libCM{server.open(), server.open(), client.open(), client.open()}
	_, at := files[0].listen(1, 4)
	qpns := []uint32{server.queuePair(), client.queuePair(), client.queuePair(), 0xfffff0}
	var wg sync.WaitGroup
	for worker := range 8 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(worker), 1))
			for range 300 {
				c := files[r.IntN(len(files))]
				id := uint32(r.IntN(6))
				p := param(qpns[r.IntN(len(qpns))], "")
				other := files[r.IntN(len(files))]
				switch r.IntN(12) {
				case 0, 1:
					_ = c.command(abi.CMCreateID, &abi.CreateID{UID: 5, PS: abi.PortSpaceTCP},
						&abi.CreateIDResp{})
				case 2:
					_ = c.command(abi.CMDestroyID, &abi.DestroyID{ID: id}, &abi.DestroyResp{})
				case 3, 4:
					_ = c.command(abi.CMResolveIP, resolveIP(id, netip.AddrPort{}, at), nil)
				case 5, 6:
					_ = c.command(abi.CMResolveRoute, &abi.ResolveRoute{ID: id, TimeoutMS: 100},
						nil)
				case 7, 8:
					_ = c.command(abi.CMConnect, &abi.Connect{ID: id, ConnParam: p}, nil)
				case 9:
					var e abi.EventResp
					if c.command(abi.CMGetEvent, &abi.Response{}, &e) == nil &&
						e.Event == cmRequestEvent {
						_ = c.command(abi.CMAccept, &abi.Accept{ID: e.ID, UID: 6, ConnParam: p},
							nil)
					}
				case 10:
					_ = c.command(abi.CMMigrateID, &abi.MigrateID{ID: id, FD: uint32(other.fd)},
						&abi.DestroyResp{})
				case 11:
					_ = c.command(abi.CMQuery, &abi.Query{ID: id}, &abi.QueryAddrResp{})
					_ = c.command(abi.CMDisconnect, &abi.Disconnect{ID: id}, nil)
				}
			}
		})
	}
	wg.Wait()
	for _, c := range files {
		for {
			var e abi.EventResp
			if err := c.command(abi.CMGetEvent, &abi.Response{}, &e); err != nil {
				break
			}
		}
		c.close()
	}
}

// unanswered is a network whose hosts do not answer.
type unanswered struct {
	transport.Network
	dials chan struct{}
}

func (u *unanswered) Bind(local netip.AddrPort) (transport.Binding, error) {
	b, err := u.Network.Bind(local)
	return unansweredFrom{b, u.dials}, err
}

// unansweredFrom is a port of such a network.
type unansweredFrom struct {
	transport.Binding
	dials chan struct{}
}

func (u unansweredFrom) Dial(ctx context.Context, _ netip.AddrPort) (transport.Conn, error) {
	defer u.Binding.Close()
	u.dials <- struct{}{}
	<-ctx.Done()
	return nil, ctx.Err()
}

// TestCMCloseWhileConnecting: neither DESTROY_ID nor the end of the descriptor waits for another
// thread's CONNECT whose peer does not answer.
func TestCMCloseWhileConnecting(t *testing.T) {
	if onSiw {
		t.Skip("the network without answers is the engine's")
	}
	for name, end := range map[string]func(c *libCM, id uint32){
		"DESTROY_ID": func(c *libCM, id uint32) { c.destroy(id, 2) },
		"close":      func(c *libCM, _ uint32) { c.close() },
	} {
		t.Run(name, func(t *testing.T) {
			dead := &unanswered{transport.NewTCP(nil), make(chan struct{}, 1)}
			client := newHost(t, &engine.Options{Network: dead, StartupTimeout: time.Hour})
			q, c := client.queuePair(), client.open()
			id := c.resolve(1, netip.AddrPortFrom(localAddr(), 1))
			connected, ended := make(chan error, 1), make(chan struct{})
			go func() { connected <- c.command(abi.CMConnect, &abi.Connect{ID: id, ConnParam: param(q, "")}, nil) }()
			select {
			case <-dead.dials:
			case err := <-connected:
				t.Fatalf("CONNECT returns %v at once", err)
			}
			go func() {
				defer close(ended)
				end(c, id)
			}()
			select {
			case <-ended:
				testkit.OK(t, <-connected)
			case <-time.After(patience):
				t.Fatal("it waits")
			}
		})
	}
}
