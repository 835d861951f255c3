package transporttest

import (
	"context"
	"errors"
	"os"
	"syscall"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider/engine/transport"
)

func testWantRead(t *testing.T, h Harness) {
	p := NewPair(t, h)
	testkit.OK(t, p.Poller.WantRead(p.Accepted.Conn, false))
	testkit.OK(t, p.Poller.WantRead(p.Accepted.Conn, false))
	p.Dialed.Send([]byte("x"))
	dialed, accepted := p.Connect(t, h)
	dialed.Send([]byte("y"))
	accepted.await(true) // what was sent before must have arrived by now as well
	p.Poller.Poll()
	if p.Accepted.take(true) {
		t.Error("reported as readable though nobody wants to read")
	}
	testkit.OK(t, p.Poller.WantRead(p.Accepted.Conn, true))
	p.Accepted.await(true)
	p.Accepted.Receive(1)
}

func testRemove(t *testing.T, h Harness) {
	p := NewPair(t, h)
	p.Dialed.Send([]byte("x"))
	p.Accepted.await(true)
	testkit.OK(t, p.Poller.WantRead(p.Accepted.Conn, true))
	p.Poller.Remove(p.Accepted.Conn)
	p.Poller.Remove(p.Accepted.Conn)
	p.Accepted.take(true)
	p.Poller.Poll()
	if p.Accepted.take(true) {
		t.Error("Ready after Remove")
	}
	if err := p.Poller.WantWrite(p.Accepted.Conn, true); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("WantWrite of a stream not watched: %v, want ENOENT", err)
	}
	testkit.OK(t, p.Poller.Add(p.Accepted.Conn, p.Accepted))
	p.Accepted.await(true)
	testkit.OK(t, p.Poller.WantRead(p.Accepted.Conn, true))
	_ = p.Accepted.Close()
	p.Accepted.take(true)
	p.Poller.Poll()
	if p.Accepted.take(true) {
		t.Error("Ready after Close")
	}
}

func testAddRefuses(t *testing.T, h Harness) {
	p := NewPair(t, h)
	if err := p.Poller.Add(p.Dialed.Conn, p.Dialed); !errors.Is(err, syscall.EEXIST) {
		t.Errorf("second Add: %v, want EEXIST", err)
	}
	other := testkit.Must(h.Network.NewPoller())(t)
	defer func() { _ = other.Close() }()
	if err := other.Add(p.Dialed.Conn, p.Dialed); !errors.Is(err, syscall.EEXIST) {
		t.Errorf("Add to a second poller: %v, want EEXIST", err)
	}
	if err := other.WantRead(p.Dialed.Conn, true); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("WantRead by a second poller: %v, want ENOENT", err)
	}
	other.Remove(p.Dialed.Conn) // not its own: stays where it is
	p.Accepted.Send([]byte("x"))
	p.Dialed.await(true)
	foreign := struct{ transport.Conn }{p.Dialed.Conn}
	if err := p.Poller.Add(foreign, p.Dialed); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("Add of another network's stream: %v, want EINVAL", err)
	}
}

func testWait(t *testing.T, h Harness) {
	p := NewPair(t, h)
	p.Poller.Wake()
	testkit.OK(t, p.Poller.Wait(t.Context())) // a Wake before counts

	ctx, cancel := context.WithCancel(t.Context())
	first := waitFor(ctx, p.Poller)
	cancel()
	if err := <-first; !errors.Is(err, context.Canceled) {
		t.Errorf("Wait: %v, want the context's error", err)
	}
	if err := p.Poller.Wait(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Wait: %v, want the context's error at once", err)
	}
	// The end of a context may leave a Wake; consume it.
	p.Poller.Wake()
	testkit.OK(t, p.Poller.Wait(t.Context()))

	second := waitFor(t.Context(), p.Poller)
	p.Poller.Wake()
	testkit.OK(t, <-second)

	third := waitFor(t.Context(), p.Poller)
	p.Dialed.Send([]byte("x"))
	testkit.OK(t, <-third)
	testkit.OK(t, p.Poller.Wait(t.Context())) // still readable, because nobody read
	if p.Poller.Poll() == 0 || !p.Accepted.take(true) {
		t.Error("Wait returned and nothing was ready")
	}
}

func testClosedPoller(t *testing.T, h Harness) {
	p := NewPair(t, h)
	waiting := waitFor(t.Context(), p.Poller)
	testkit.OK(t, p.Poller.Close())
	testkit.OK(t, p.Poller.Close())
	if err := <-waiting; !errors.Is(err, os.ErrClosed) {
		t.Errorf("Wait in progress: %v, want ErrClosed", err)
	}
	if err := p.Poller.Wait(t.Context()); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Wait: %v, want ErrClosed", err)
	}
	p.Dialed.Send([]byte("x"))
	if n := p.Poller.Poll(); n != 0 {
		t.Errorf("Poll found %d", n)
	}
	p.Poller.Wake()
	p.Poller.BeforeSleep()
	p.Poller.Remove(p.Dialed.Conn)
	other := testkit.Must(h.Network.NewPoller())(t)
	defer func() { _ = other.Close() }()
	testkit.OK(t, other.Add(p.Accepted.Conn, p.Accepted)) // forgotten by the closed one
	p.Accepted.poller = other
	p.Accepted.await(true)
	third := testkit.Must(h.Network.NewPoller())(t)
	testkit.OK(t, third.Close())
	other.Remove(p.Accepted.Conn)
	if err := third.Add(p.Accepted.Conn, p.Accepted); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Add: %v, want ErrClosed", err)
	}
}

// testMany has more streams than a Poll serves and than there are slots at first, removes some, and
// adds others.
func testMany(t *testing.T, h Harness) {
	p := NewPair(t, h)
	const count = 150
	var ends []*End
	for i := range count {
		dialed, accepted := p.Connect(t, h)
		dialed.Send([]byte{byte(i)})
		ends = append(ends, accepted)
		if i%3 == 0 {
			_ = dialed.Close()
		}
	}
	for i, e := range ends {
		if got := e.Receive(1); got[0] != byte(i) {
			t.Errorf("stream %d received %d", i, got[0])
		}
		if i%3 == 0 {
			e.WantEOF("closed by the peer")
			_ = e.Close()
		}
	}
	for range count / 3 {
		dialed, accepted := p.Connect(t, h)
		accepted.Send([]byte{0xa5})
		if got := dialed.Receive(1); got[0] != 0xa5 {
			t.Errorf("received %#x", got[0])
		}
	}
}
