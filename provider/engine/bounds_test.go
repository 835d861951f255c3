//go:build linux

package engine

import (
	"errors"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/cm"
	"github.com/govs-rdma/govs/provider/engine/transport"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
)

// The tests of docs/bounds.md: they bring many connections, over the system's TCP, into each
// state in which a peer can leave one, and count what the process holds then.

// held is what the process holds.
type held struct {
	goroutines, descriptors int
	octets, stacks          int64 // of the heap, and of goroutines' stacks
}

func holding(t testing.TB) held {
	t.Helper()
	var m runtime.MemStats
	for range 2 { // only the second frees what pools keep
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	entries := testkit.Must(os.ReadDir("/proc/self/fd"))(t)
	return held{runtime.NumGoroutine(), len(entries), int64(m.HeapAlloc), int64(m.StackInuse)}
}

// minus is what h holds beside o.
func (h held) minus(o held) held {
	return held{h.goroutines - o.goroutines, h.descriptors - o.descriptors, h.octets - o.octets, h.stacks - o.stacks}
}

// within reports whether h is within a limit. The race detector takes bytes of its own.
func (h held) within(limit held) bool {
	return h.goroutines <= limit.goroutines && h.descriptors <= limit.descriptors &&
		(testkit.Race || h.octets <= limit.octets && h.stacks <= limit.stacks)
}

func (h held) wantAtMost(t testing.TB, limit held) {
	t.Helper()
	if !h.within(limit) {
		t.Errorf("held are %+v, and should be at most %+v", h, limit)
	}
}

// ownAddr is a loopback address of this process alone.
func ownAddr() netip.Addr {
	pid := os.Getpid()
	return netip.AddrFrom4([4]byte{127, byte(1 + pid>>16&0x7f), byte(pid >> 8), byte(pid)})
}

// plainPeers are peers of which this process has a descriptor each, and nothing else.
type plainPeers struct {
	t   testing.TB
	fds []int
}

// connect makes n connections to dst, and sends b on each.
func (p *plainPeers) connect(n int, dst netip.AddrPort, b []byte) {
	p.t.Helper()
	for range n {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err == nil {
			p.fds = append(p.fds, fd)
			err = unix.Connect(fd, &unix.SockaddrInet4{Addr: dst.Addr().As4(), Port: int(dst.Port())})
			if errors.Is(err, unix.ECONNRESET) { // the server may have no place, and be quick to say so
				err = nil
			}
		}
		if err != nil {
			p.t.Fatal(err)
		}
		p.send(fd, b)
	}
}

// send sends b, unless the connection is over.
func (p *plainPeers) send(fd int, b []byte) { _ = unix.Send(fd, b, unix.MSG_NOSIGNAL) }

// read reads n bytes, unless the connection is over.
func (p *plainPeers) read(fd, n int) { recvAll(fd, make([]byte, n), patience, 0) }

// recvAll fills b, unless the connection ends or no byte comes within limit. A signal may end
// recv early or with EINTR where a time limit is set (signal(7)), and the Go runtime sends some.
func recvAll(fd int, b []byte, limit time.Duration, flags int) {
	tv := unix.NsecToTimeval(limit.Nanoseconds())
	_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv)
	for len(b) > 0 {
		n, _, err := unix.Recvfrom(fd, b, flags)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || n == 0 {
			return
		}
		b = b[n:]
	}
}

func (p *plainPeers) close(reset bool) {
	for _, fd := range p.fds {
		if reset {
			_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
		}
		_ = unix.Close(fd)
	}
	p.fds = nil
}

// boundsServer is a program that has a listener, and one CQ for all connections.
type boundsServer struct {
	*cmHost
	l     *cm.ID
	mu    sync.Mutex
	ids   []*cm.ID
	ended int // connections that have ended, all of which are in ids
}

// serve calls answer for every event until the channel is closed. If answer is nil, no event
// is fetched.
func (s *boundsServer) serve(answer func(s *boundsServer, e provider.CMEvent)) {
	if answer == nil {
		return
	}
	go func() {
		for {
			e, err := s.ch.Next(s.t.Context())
			if err != nil {
				return
			}
			answer(s, e)
		}
	}()
}

func (s *boundsServer) note(e provider.CMEvent) *cm.ID {
	id := e.ID.(*cm.ID)
	s.mu.Lock()
	s.ids = append(s.ids, id)
	s.mu.Unlock()
	return id
}

func (s *boundsServer) reject(e provider.CMEvent) {
	_ = e.ID.Reject(nil)
	_ = e.ID.Close()
}

func (s *boundsServer) accept(e provider.CMEvent) {
	switch e.Type {
	case provider.CMConnectRequest:
		id := s.note(e)
		s.qp(id)
		if id.Accept(provider.ConnParam{}) != nil {
			s.count()
		}
	case provider.CMDisconnected, provider.CMConnectError:
		s.count()
	}
}

func (s *boundsServer) count() {
	s.mu.Lock()
	s.ended++
	s.mu.Unlock()
}

// wantEnded waits until n connections have ended.
func (s *boundsServer) wantEnded(n int) {
	waitFor(s.t, "all have ended", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.ended == n
	})
}

// bound is a state of a connection in docs/bounds.md.
type bound struct {
	name  string
	opts  Options
	serve func(s *boundsServer, e provider.CMEvent)                // nil: events are not fetched
	come  func(s *boundsServer, p *plainPeers, dst netip.AddrPort) // nil: 3*boundsLimit that send
	sends []byte
	reads int // bytes of the answer that each of them reads

	most       int // connections of which something is held, however many come
	goroutines int // each
	octets     int // each, at most, of the heap
	files      int // each
}

const (
	boundsLimit = 100
	boundsStack = 8 << 10 // of a goroutine that waits for a peer
)

// pendingOpts permit one peer to have all places.
var pendingOpts = Options{MaxPending: boundsLimit, MaxPendingPerPeer: boundsLimit}

// closingOpts permit one peer to have all places of connections that wait for its end.
var closingOpts = Options{
	MaxClosing: boundsLimit, MaxClosingPerPeer: boundsLimit, CloseTimeout: time.Minute,
}

// bounds are rows of the table. In each, at least three times as many connections come as
// may be held, but in the last, whose bound is the program.
var bounds = []bound{
	{
		name: "TCP only", opts: pendingOpts,
		most: boundsLimit, goroutines: 1, octets: 3 << 10, files: 1,
	},
	{
		name: "TCP only, each peer", opts: Options{MaxPendingPerPeer: boundsLimit},
		most: boundsLimit, goroutines: 1, octets: 3 << 10, files: 1,
	},
	{
		name: "half a Request", opts: pendingOpts, sends: rawRequest(nil)[:mpa.KeyLen+3],
		most: boundsLimit, goroutines: 1, octets: 3 << 10, files: 1,
	},
	{
		name: "a Request that nobody fetches", opts: pendingOpts, sends: longRequest(),
		most: boundsLimit, goroutines: 1, octets: 3 << 10, files: 1,
	},
	{
		name: "a Request that nobody answers", opts: pendingOpts, sends: longRequest(),
		serve: func(s *boundsServer, e provider.CMEvent) { s.note(e) },
		most:  boundsLimit, goroutines: 1, octets: 3 << 10, files: 1,
	},
	{
		name: "a Request whose peer left, fetched by nobody", opts: pendingOpts,
		come: func(_ *boundsServer, p *plainPeers, dst netip.AddrPort) {
			for range 30 {
				p.connect(boundsLimit/10, dst, longRequest())
				p.close(false)
			}
			p.wantAccepted(dst)
		},
	},
	{
		name: "a Request whose peer left, answered by nobody", opts: pendingOpts,
		serve: func(s *boundsServer, e provider.CMEvent) { s.note(e) },
		come: func(s *boundsServer, p *plainPeers, dst netip.AddrPort) {
			for range 3 {
				p.connect(boundsLimit, dst, longRequest())
				waitFor(s.t, "all are fetched", func() bool {
					s.mu.Lock()
					defer s.mu.Unlock()
					return len(s.ids) == boundsLimit
				})
				p.close(false)
			}
		},
		most: boundsLimit, octets: 2 << 10,
	},
	{
		name: "reset at once", opts: pendingOpts,
		come: func(_ *boundsServer, p *plainPeers, dst netip.AddrPort) {
			for range 3 * boundsLimit {
				p.connect(1, dst, nil)
				p.close(true)
			}
			p.wantAccepted(dst)
		},
	},
	{
		name: "refused", opts: closingOpts,
		sends: rawRequest(func(f *mpa.Frame) { f.Revision = 0 }), reads: 1,
		most: boundsLimit, octets: 2 << 10, files: 1,
	},
	{
		name: "rejected", opts: closingOpts, sends: longRequest(), reads: 1,
		serve: (*boundsServer).reject,
		most:  boundsLimit, octets: 2 << 10, files: 1,
	},
	{
		name: "accepted and silent", opts: Options{MaxAccepted: boundsLimit},
		serve: (*boundsServer).accept,
		come: func(s *boundsServer, p *plainPeers, dst netip.AddrPort) {
			p.connect(boundsLimit, dst, longRequest())
			p.wantAnswers(20)
			p.connect(2*boundsLimit, dst, longRequest())
		},
		most: boundsLimit, octets: 4 << 10, files: 1,
	},
	{
		name: "ended, and the peer doesn't hang up", opts: closingOpts,
		serve: func(s *boundsServer, e provider.CMEvent) {
			s.accept(e)
			if e.Type == provider.CMDisconnected {
				s.closeID(e.ID.(*cm.ID))
			}
		},
		come: func(s *boundsServer, p *plainPeers, dst netip.AddrPort) {
			p.connect(3*boundsLimit, dst, longRequest())
			p.wantAnswers(20)
			for _, fd := range p.fds {
				p.send(fd, make([]byte, 64)) // no FPDU
			}
			s.wantEnded(3 * boundsLimit)
			s.mu.Lock()
			s.ids = nil
			s.mu.Unlock()
		},
		most: boundsLimit, octets: 3 << 10, files: 1,
	},
	{
		// Only the program bounds these, because it has not closed the ids.
		name: "ended, and the program doesn't close the id", opts: Options{MaxAccepted: boundsLimit},
		serve: (*boundsServer).accept,
		come: func(s *boundsServer, p *plainPeers, dst netip.AddrPort) {
			for i := range 3 {
				p.connect(boundsLimit, dst, longRequest())
				p.wantAnswers(20)
				p.close(false)
				s.wantEnded((i + 1) * boundsLimit)
			}
		},
		most: 3 * boundsLimit, octets: 3 << 10,
	},
}

// longRequest returns a Request with as much private data as there can be.
func longRequest() []byte {
	return rawRequest(func(f *mpa.Frame) {
		f.PrivateData = append(f.PrivateData, octets(mpa.MaxPrivateData-mpa.EnhancedLen)...)
	})
}

// wantAnswers reads from every connection until it has n bytes or has ended.
func (p *plainPeers) wantAnswers(n int) {
	for _, fd := range p.fds {
		p.read(fd, n)
	}
}

// wantAccepted waits until the server has accepted all connections that came before, because TCP
// hands them over in order: what waits in the backlog would be held for a moment later on.
func (p *plainPeers) wantAccepted(dst netip.AddrPort) {
	last := &plainPeers{t: p.t}
	last.connect(1, dst, nil)
	_ = unix.Shutdown(last.fds[0], unix.SHUT_WR)
	last.wantAnswers(1) // the server closes it
	last.close(false)
}

// TestBounds brings connections into each state, and compares what is held with the row's bounds.
//
//rfc:5042 SEC-6.4.1-01 Scarce resources under a manager
//rfc:5042 SEC-6.4.2-01 Idle ULPs cannot hold resources forever
func TestBounds(t *testing.T) {
	for _, b := range bounds {
		t.Run(b.name, func(t *testing.T) {
			leavesNothing(t)
			addr := netip.AddrPortFrom(ownAddr(), 0).String()
			w := newCMWorld(t, transport.NewTCP(nil), addr, b.opts, false)
			s := &boundsServer{cmHost: w.server}
			s.l = s.id()
			testkit.OK(t, s.l.BindAddr(w.addr))
			testkit.OK(t, s.l.Listen(4*boundsLimit)) // those that wait in TCP's backlog are the kernel's
			p := &plainPeers{t: t}
			before := s.holding()
			s.serve(b.serve)
			if b.come != nil {
				b.come(s, p, s.l.LocalAddr())
			} else {
				p.connect(3*boundsLimit, s.l.LocalAddr(), b.sends)
				if b.reads > 0 {
					p.wantAnswers(b.reads)
				}
			}
			got := s.settled(before, b, len(p.fds))
			per := max(1, b.most)
			t.Logf("%d connections: %d goroutines with %d bytes of stacks, %d descriptors, %d bytes; each %d bytes", per,
				got.goroutines, got.stacks, got.descriptors, got.octets, got.octets/int64(per))
			if got.descriptors < b.most*b.files {
				t.Errorf("%d descriptors, want %d of %d each", got.descriptors, b.most, b.files)
			}
			got.wantAtMost(t, b.limit())
			p.close(true)
			s.stop()
		})
	}
}

// What may be held besides, for the runtime and the test itself.
const (
	slackGoroutines = 3
	slackOctets     = 64 << 10
	slackStacks     = 160 << 10 // a thread has one of 16 KiB, too, and a busy machine has more of them
)

// openPoller makes the runtime open the descriptors with which it waits, and which it keeps.
var openPoller = sync.OnceFunc(func() {
	if r, w, err := os.Pipe(); err == nil {
		_, _ = r.Close(), w.Close()
	}
})

// leavesNothing lets the test end only when all descriptors that it adds are closed, after all
// other cleanup. The last sockets of a closed server may linger for a second, and would count for
// the next test.
func leavesNothing(t *testing.T) {
	openPoller()
	before := holding(t).descriptors
	t.Cleanup(func() {
		var now int
		for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			if now = holding(t).descriptors; now <= before {
				return
			}
		}
		t.Errorf("%d descriptors are left open", now-before)
	})
}

// holding returns what the process holds, without the receive contexts, which are not held for
// single connections.
func (s *boundsServer) holding() held {
	h := holding(s.t)
	for _, d := range []*device{s.dev, s.w.active.dev} {
		h.octets -= int64(d.prog.contexts.Made()) * contextOctets
	}
	return h
}

// limit is what may be held at most.
func (b *bound) limit() held {
	return held{
		b.most*b.goroutines + slackGoroutines, b.most * b.files,
		int64(b.most*b.octets + slackOctets), int64(b.most*b.goroutines*boundsStack + slackStacks),
	}
}

// settled waits until what is held is within the bounds, and returns what is held in addition to
// before. A busy machine may end connections, and free what they held, a moment later.
func (s *boundsServer) settled(before held, b bound, peers int) held {
	more := func() held {
		now := s.holding().minus(before)
		now.descriptors -= peers
		return now
	}
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if got := more(); got.descriptors == b.most*b.files && got.within(b.limit()) {
			break
		}
	}
	time.Sleep(50 * time.Millisecond) // the bound must still hold then
	return more()
}

// stop closes what the program has.
func (s *boundsServer) stop() {
	testkit.OK(s.t, s.l.Close())
	s.mu.Lock()
	ids := s.ids
	s.mu.Unlock()
	for _, id := range ids {
		s.closeID(id)
	}
	for {
		if e, more := cm.Poll(s.ch); !more {
			break
		} else if e.Type == provider.CMConnectRequest {
			testkit.OK(s.t, e.ID.Close())
		}
	}
}
