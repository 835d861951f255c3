//go:build linux

package transport

import (
	"errors"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/govs-rdma/govs/ci/testkit"
)

var loopback = netip.MustParseAddrPort("127.0.0.1:0")

// TestFdRef has goroutines use a descriptor while others close it. It must be
// open as long as anybody uses it, and be closed once: a second close could hit
// somebody else's descriptor.
func TestFdRef(t *testing.T) {
	for range 200 {
		var pipe [2]int
		testkit.OK(t, unix.Pipe2(pipe[:], unix.O_CLOEXEC))
		r := fdRef{fd: pipe[0]}
		var closes, uses atomic.Int64
		var wg sync.WaitGroup
		for i := range 6 {
			wg.Go(func() {
				for range 50 {
					if i < 4 && r.acquire() {
						if _, err := unix.FcntlInt(uintptr(r.fd), unix.F_GETFD, 0); err != nil {
							t.Errorf("in use and closed: %v", err)
						}
						uses.Add(1)
						r.release()
					}
				}
				if i >= 4 && r.close() {
					closes.Add(1)
				}
			})
		}
		wg.Wait()
		if r.acquire() || r.close() {
			t.Error("usable after close")
		}
		if closes.Load() != 1 {
			t.Errorf("closed %d times", closes.Load())
		}
		if _, err := unix.FcntlInt(uintptr(pipe[0]), unix.F_GETFD, 0); err != unix.EBADF {
			t.Errorf("still open: %v", err)
		}
		_ = unix.Close(pipe[1])
	}
}

// TestCloseWhileInUse closes streams under the hands of their reader and writer.
func TestCloseWhileInUse(t *testing.T) {
	network := NewTCP(nil)
	l := testkit.Must(network.Listen(loopback, 0))(t)
	defer func() { _ = l.Close() }()
	for range 50 {
		c := testkit.Must(network.Dial(t.Context(), loopback, l.Addr()))(t)
		peer := testkit.Must(l.Accept(t.Context()))(t)
		p := testkit.Must(network.NewPoller())(t)
		if err := p.Add(c, nothing{}); err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		run := func(f func()) {
			wg.Go(func() {
				for range 20 {
					f()
				}
			})
		}
		b := [][]byte{make([]byte, 10)}
		run(func() { _, _ = c.Readv([][]byte{make([]byte, 10)}) })
		run(func() { _, _ = c.Writev(b) })
		run(func() { p.Poll() })
		run(func() { _ = p.WantWrite(c, true) })
		run(func() { p.Remove(c); _ = p.Add(c, nothing{}) })
		wg.Go(func() { _ = c.Close() })
		wg.Go(func() { _ = c.Abort() })
		wg.Wait()
		if c.(*tcpConn).reg != nil {
			t.Error("closed and still watched")
		}
		_, _ = p.Close(), peer.Close()
	}
}

type nothing struct{}

func (nothing) Ready(bool, bool) {}

// TestResetBeforeItIsLookedAt: a peer that resets what it has just accepted is one
// that reset the connection, and not one that was never there.
func TestResetBeforeItIsLookedAt(t *testing.T) {
	l := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	fd := testkit.Must(unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0))(t)
	addr := l.Addr().(*net.TCPAddr).AddrPort()
	if err := unix.Connect(fd, &unix.SockaddrInet4{Addr: addr.Addr().As4(), Port: int(addr.Port())}); err != nil {
		t.Fatal(err)
	}
	c, err := l.Accept()
	if err == nil {
		err = errors.Join(c.(*net.TCPConn).SetLinger(0), c.Close()) // RST
	}
	testkit.OK(t, err)
	if _, err := NewTCP(nil).newConn(fd, true); err != syscall.ECONNRESET {
		t.Errorf("error %v, want ECONNRESET", err)
	}
}
