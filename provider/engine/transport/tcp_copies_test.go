//go:build linux

package transport

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/govs-rdma/govs/ci/testkit"
)

// A child between fork and exec has a copy of each descriptor, and one of a C program may have it
// for as long as it lives. So closing a descriptor closes no socket. A duplicate stands for the
// copy here.

func copyOf(t *testing.T, fd int) {
	t.Helper()
	dup := testkit.Must(unix.Dup(fd))(t)
	t.Cleanup(func() { _ = unix.Close(dup) })
}

// copied makes a connection whose dialling end has a copy elsewhere, and returns both ends.
func copied(t *testing.T) (*tcpConn, *net.TCPConn) {
	t.Helper()
	l := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { _ = l.Close() })
	c := testkit.Must(NewTCP(nil).Dial(t.Context(), netip.AddrPort{}, l.Addr().(*net.TCPAddr).AddrPort()))(t)
	peer := testkit.Must(l.Accept())(t)
	t.Cleanup(func() { _ = peer.Close() })
	testkit.OK(t, peer.SetDeadline(time.Now().Add(patience)))
	conn := c.(*tcpConn)
	copyOf(t, conn.ref.fd)
	return conn, peer.(*net.TCPConn)
}

// TestClosedLeavesThePoller: epoll reports nothing of a stream that is closed, whoever has a copy
// of its descriptor. Nobody reads from it, so each wait would end at once.
func TestClosedLeavesThePoller(t *testing.T) {
	for name, end := range map[string]func(*tcpConn) error{"Close": (*tcpConn).Close, "Abort": (*tcpConn).Abort} {
		t.Run(name, func(t *testing.T) {
			c, peer := copied(t)
			made := testkit.Must(NewTCP(nil).NewPoller())(t)
			defer made.Close()
			p := made.(*tcpPoller)
			if err := p.Add(c, handlerFunc(func() {})); err != nil {
				t.Fatal(err)
			}
			var events [1]unix.EpollEvent
			testkit.Must(peer.Write([]byte("unread")))(t)
			for end := time.Now().Add(patience); epollNow(p.ep.fd, events[:]) == 0; {
				if time.Now().After(end) {
					t.Fatal("epoll does not report the stream")
				}
			}
			testkit.OK(t, end(c))
			if n := epollNow(p.ep.fd, events[:]); n != 0 {
				t.Error("epoll reports a stream that is closed")
			}
		})
	}
}

type handlerFunc func()

func (f handlerFunc) Ready(readable, writable bool) { f() }

// TestCloseReachesThePeer: the peer sees the end that Close and Abort promise, whoever has a copy
// of the descriptor.
func TestCloseReachesThePeer(t *testing.T) {
	for _, c := range []struct {
		name   string
		unread bool
		end    func(*tcpConn) error
		want   error
	}{
		{"Abort", false, (*tcpConn).Abort, unix.ECONNRESET},
		{"Abort after FIN", false, func(c *tcpConn) error { _ = c.CloseWrite(); return c.Abort() }, unix.ECONNRESET},
		{"Close", false, (*tcpConn).Close, io.EOF},
		{"Close with bytes unread", true, (*tcpConn).Close, unix.ECONNRESET},
	} {
		t.Run(c.name, func(t *testing.T) {
			conn, peer := copied(t)
			if c.unread {
				testkit.Must(peer.Write([]byte("unread")))(t)
				for n := 0; n == 0; {
					n, _ = unix.IoctlGetInt(conn.ref.fd, unix.SIOCINQ)
				}
			}
			testkit.OK(t, c.end(conn))
			_, err := peer.Read(make([]byte, 1))
			if c.want == unix.ECONNRESET && err == io.EOF { // the FIN was first
				_, err = peer.Write([]byte("x"))
				for end := time.Now().Add(patience); err == nil && time.Now().Before(end); {
					_, err = peer.Write([]byte("x"))
				}
				if errors.Is(err, unix.EPIPE) {
					err = unix.ECONNRESET
				}
			}
			if !errors.Is(err, c.want) {
				t.Errorf("the peer sees %v, want %v", err, c.want)
			}
		})
	}
}

// TestClosedListenerRefuses: nobody can connect to a listener that is closed, whoever has a copy of
// its descriptor: it would take connections that nobody serves.
func TestClosedListenerRefuses(t *testing.T) {
	tcp := NewTCP(nil)
	l := testkit.Must(tcp.Listen(netip.MustParseAddrPort("127.0.0.1:0"), 0))(t)
	copyOf(t, l.(*tcpListener).fd)
	accepted := make(chan error, 1)
	go func() {
		_, err := l.Accept(context.Background())
		accepted <- err
	}()
	testkit.OK(t, l.Close())
	if _, err := tcp.Dial(t.Context(), netip.AddrPort{}, l.Addr()); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("dialling it: %v, want ECONNREFUSED", err)
	}
	<-accepted
}
