package transporttest

import (
	"context"
	"errors"
	"io"
	"sync"
	"testing"

	"github.com/govs-rdma/govs/provider/engine/transport"
)

// Pair is a connection with both of its ends watched by one Poller, for tests that talk over a
// Network as blocking code would.
type Pair struct {
	Dialed, Accepted *End
	Listener         transport.Listener
	Poller           transport.Poller
}

// End is one end of a connection. Send and Receive drive the Poller until they
// are done.
type End struct {
	transport.Conn
	t      testing.TB
	poller transport.Poller

	mu                 sync.Mutex
	readable, writable bool
}

// NewPair listens on an address of the network, dials it and cleans up when the test ends.
func NewPair(t testing.TB, h Harness) *Pair {
	t.Helper()
	poller, err := h.Network.NewPoller()
	if err != nil {
		t.Fatalf("NewPoller: %v", err)
	}
	t.Cleanup(func() { _ = poller.Close() })
	l, err := h.Network.Listen(h.Local, 0)
	if err != nil {
		t.Fatalf("Listen: %v", err)
	}
	t.Cleanup(func() { _ = l.Close() })
	p := &Pair{Listener: l, Poller: poller}
	p.Dialed, p.Accepted = p.Connect(t, h)
	return p
}

// Connect makes another connection to the pair's listener.
func (p *Pair) Connect(t testing.TB, h Harness) (dialed, accepted *End) {
	t.Helper()
	type result struct {
		c   transport.Conn
		err error
	}
	results := make(chan result)
	go func() {
		c, err := p.Listener.Accept(t.Context())
		results <- result{c, err}
	}()
	c, err := h.Network.Dial(t.Context(), h.Local, p.Listener.Addr())
	r := <-results
	if err != nil || r.err != nil {
		t.Fatalf("dial: %v, accept: %v", err, r.err)
	}
	return p.watch(t, c), p.watch(t, r.c)
}

func (p *Pair) watch(t testing.TB, c transport.Conn) *End {
	t.Helper()
	e := &End{Conn: c, t: t, poller: p.Poller}
	if err := p.Poller.Add(c, e); err != nil {
		t.Fatalf("Add: %v", err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return e
}

// Ready implements transport.Handler. Reported readiness is not reported again until the test
// awaits it, because a test that waits for one end must not spin because of the other.
func (e *End) Ready(readable, writable bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if readable {
		e.readable = true
		_ = e.poller.WantRead(e.Conn, false) // ENOENT: removed since
	}
	if writable {
		e.writable = true
		_ = e.poller.WantWrite(e.Conn, false)
	}
}

// await polls until the stream was reported readable (or writable).
func (e *End) await(readable bool) {
	e.t.Helper()
	want := e.poller.WantWrite
	if readable {
		want = e.poller.WantRead
	}
	for !e.take(readable) {
		if err := want(e.Conn, true); err != nil {
			e.t.Fatalf("watching: %v", err)
		}
		if e.poller.Poll() == 0 {
			if err := e.poller.Wait(e.t.Context()); err != nil {
				e.t.Fatalf("Wait: %v", err)
			}
		}
	}
}

// take consumes what Ready reported.
func (e *End) take(readable bool) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	flag := &e.writable
	if readable {
		flag = &e.readable
	}
	was := *flag
	*flag = false
	return was
}

// Read waits for something to read and returns the result of Readv.
func (e *End) Read(bufs ...[]byte) (int, error) {
	e.t.Helper()
	for {
		n, err := e.Readv(bufs)
		if !errors.Is(err, transport.ErrWouldBlock) {
			return n, err
		}
		e.await(true)
	}
}

// Send writes all of b.
func (e *End) Send(b []byte) {
	e.t.Helper()
	for len(b) > 0 {
		n, err := e.Writev([][]byte{b})
		switch {
		case errors.Is(err, transport.ErrWouldBlock):
			e.await(false)
		case err != nil:
			e.t.Fatalf("Writev: %v", err)
		}
		b = b[n:]
	}
}

// Receive reads exactly n bytes.
func (e *End) Receive(n int) []byte {
	e.t.Helper()
	b := make([]byte, n)
	for done := 0; done < n; {
		m, err := e.Read(b[done:])
		if err != nil {
			e.t.Fatalf("Readv after %d of %d bytes: %v", done, n, err)
		}
		done += m
	}
	return b
}

// WantEOF reads and expects the peer's FIN.
func (e *End) WantEOF(why string) {
	e.t.Helper()
	var b [1]byte
	if n, err := e.Read(b[:]); n != 0 || !errors.Is(err, io.EOF) {
		e.t.Errorf("%s: read %d bytes, %v; want EOF", why, n, err)
	}
}

// ReadError returns the error of the first read that does not say ErrWouldBlock. No byte is
// expected.
func (e *End) ReadError() error {
	e.t.Helper()
	var b [1]byte
	n, err := e.Read(b[:])
	if n != 0 {
		e.t.Errorf("read byte %#x, want an error", b[0])
	}
	return err
}

// waitFor runs Wait in a goroutine and returns its result later.
func waitFor(ctx context.Context, p transport.Poller) <-chan error {
	done := make(chan error, 1)
	go func() { done <- p.Wait(ctx) }()
	return done
}
