//go:build linux

package transport

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"golang.org/x/sys/unix"
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

// TestTrackDescriptors: the descriptors reported open are those of a connection, its listener and a
// poller, and all of them are reported closed again.
func TestTrackDescriptors(t *testing.T) {
	var mu sync.Mutex
	open, most, opens := map[int]bool{}, 0, 0
	TrackDescriptors(func(fd int, is bool) {
		mu.Lock()
		defer mu.Unlock()
		if !is {
			delete(open, fd)
			return
		}
		if open[fd] {
			t.Errorf("descriptor %d was opened twice", fd)
		}
		open[fd] = true
		opens++
		most = max(most, len(open))
	})
	defer tracker.Store(nil)
	n := NewTCP(nil)
	l := testkit.Must(n.Listen(netip.MustParseAddrPort("127.0.0.1:0"), 1))(t)
	a := testkit.Must(n.Dial(context.Background(), netip.AddrPort{}, l.Addr()))(t)
	b := testkit.Must(l.Accept(context.Background()))(t)
	if most != 3 {
		t.Errorf("a listener and both ends of a connection were %d descriptors, want 3", most)
	}
	if opens != 4 { // and while it waits, the end that connects has another one
		t.Errorf("a listener and a connection opened %d descriptors, want 4", opens)
	}
	testkit.OK(t, a.Close())
	testkit.OK(t, b.Close())
	testkit.OK(t, l.Close())
	most = 0
	p := testkit.Must(n.NewPoller())(t)
	if most != 4 {
		t.Errorf("a poller was %d descriptors, want 4", most)
	}
	testkit.OK(t, p.Close())
	if len(open) != 0 {
		t.Errorf("reported open after all was closed: %v", open)
	}
}
