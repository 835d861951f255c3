package remote_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/conformance/remote"
	"github.com/govs-rdma/govs/provider/engine"
	"github.com/govs-rdma/govs/provider/engine/transport"
)

// failing is a listener whose first connection can be written to once, for the hello.
type failing struct {
	net.Listener
	accepted atomic.Int32
}

func (l *failing) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil && l.accepted.Add(1) == 1 {
		c = &onceWritten{Conn: c}
	}
	return c, err
}

type onceWritten struct {
	net.Conn
	writes atomic.Int32
}

func (c *onceWritten) Write(b []byte) (int, error) {
	if c.writes.Add(1) > 1 {
		return 0, errors.New("the client has gone")
	}
	return c.Conn.Write(b)
}

// TestClientLostAtStart: a client whose connection breaks while it is welcomed does not keep
// another run from beginning.
func TestClientLostAtStart(t *testing.T) {
	l := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	a := &remote.Agent{Open: func(string, []string) (provider.Provider, error) {
		return engine.New(nil), nil
	}}
	go func() { served <- a.Serve(ctx, &failing{Listener: l}) }()
	addr := l.Addr().String()
	if s, err := remote.Dial(t.Context(), addr, remote.Options{}); err == nil {
		t.Errorf("the first client is served: %v", s.Close())
	}
	s, err := remote.Dial(t.Context(), addr, remote.Options{})
	if err != nil {
		t.Errorf("the second client: %v", err)
	} else {
		testkit.OK(t, s.Close())
	}
	cancel()
	testkit.OK(t, <-served)
}

// stuck is a provider whose devices cannot be closed until the test permits it.
type stuck struct {
	provider.Provider
	called, release chan struct{}
}

func (p *stuck) Open(name string) (provider.Device, error) {
	d, err := p.Provider.Open(name)
	return &stuckDevice{d, p.called, p.release}, err
}

type stuckDevice struct {
	provider.Device
	called, release chan struct{}
}

func (d *stuckDevice) AllocPD() (provider.PD, error) {
	close(d.called)
	<-d.release
	return d.Device.AllocPD()
}

// TestStuckProvider: a provider that does not return from a call prevents neither another run from
// beginning nor the agent from ending.
func TestStuckProvider(t *testing.T) {
	called, release := make(chan struct{}), make(chan struct{})
	var l log
	addr, stop := stoppable(t, &remote.Agent{Log: l.add, Patience: 100 * time.Millisecond,
		Open: func(string, []string) (provider.Provider, error) {
			return &stuck{engine.New(nil), called, release}, nil
		}})
	t.Cleanup(func() { close(release) })
	s := dial(t, addr)
	vctx, _ := open(t, s)
	allocating := make(chan error, 1)
	go func() { allocating <- second(vctx.AllocPD()) }()
	<-called
	testkit.OK(t, s.Close())
	// Either end may close the connection first.
	if err := <-allocating; err == nil {
		t.Error("AllocPD returned no error")
	}
	l.await(t, "a provider has not returned from a call")
	open(t, dial(t, addr))
	stop()
}

// TestStuckRunCounts: what a run holds counts in the memory of the next run until its provider has
// returned from all calls.
func TestStuckRunCounts(t *testing.T) {
	testkit.Scaled(t, 250*time.Millisecond, func(unit time.Duration) error {
		called, release := make(chan struct{}), make(chan struct{})
		let := sync.OnceFunc(func() { close(release) })
		defer let()
		var l log
		addr, _ := stoppable(t, &remote.Agent{Log: l.add, Patience: unit, MaxMemory: 384 << 10,
			Open: func(string, []string) (provider.Provider, error) {
				return &stuck{engine.New(nil), called, release}, nil
			}})
		// run begins a run and opens a device in it, which counts as 256 KiB.
		run := func() (*remote.Session, provider.Device, error) {
			s, err := remote.Dial(t.Context(), addr, remote.Options{Patience: unit})
			for end := time.Now().Add(patience); errors.Is(err, remote.ErrBusy) && time.Now().Before(end); {
				time.Sleep(time.Millisecond)
				s, err = remote.Dial(t.Context(), addr, remote.Options{Patience: unit})
			}
			if err != nil {
				return nil, nil, err
			}
			t.Cleanup(func() { _ = s.Close() })
			d, err := s.Provider("engine", nil).Open("")
			return s, d, err
		}
		s, d, err := run()
		if err != nil {
			return err
		}
		go func() { _, _ = d.AllocPD() }()
		select {
		case <-called:
		case <-s.Done():
			return s.Err()
		}
		testkit.OK(t, s.Close())
		l.await(t, "a provider has not returned from a call")
		s, _, err = run()
		if !errors.Is(err, syscall.ENOMEM) {
			return fmt.Errorf("a device of the next run: %v, want ENOMEM", err)
		}
		let()
		for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
			_, err = s.Provider("engine", nil).Open("")
			if !errors.Is(err, syscall.ENOMEM) || time.Now().After(end) {
				return err
			}
		}
	})
}

// panicking is a provider whose devices panic when they are closed.
type panicking struct{ provider.Provider }

func (p panicking) Open(name string) (provider.Device, error) {
	d, err := p.Provider.Open(name)
	return &panickingDevice{d}, err
}

type panickingDevice struct{ provider.Device }

func (d *panickingDevice) Close() error {
	_ = d.Device.Close()
	panic("a fault of the provider")
}

// TestPanicAtEnd: a provider that panics while a run's objects are closed does not end the agent.
func TestPanicAtEnd(t *testing.T) {
	var l log
	addr := agent(t, &remote.Agent{Log: l.add,
		Open: func(string, []string) (provider.Provider, error) {
			return panicking{engine.New(nil)}, nil
		}})
	s := dial(t, addr)
	open(t, s)
	testkit.OK(t, s.Close())
	l.await(t, "not freed: closing a *remote_test.panickingDevice: the agent's provider panics: a fault")
	dial(t, addr)
}

// deadHosts is a network on which no host answers.
type deadHosts struct {
	transport.Network
	dialed chan struct{}
}

func (n *deadHosts) Dial(ctx context.Context, _, _ netip.AddrPort) (transport.Conn, error) {
	close(n.dialed)
	<-ctx.Done()
	return nil, ctx.Err()
}

// TestEndWhileConnecting: when a run ends while the agent connects to a host that does not answer,
// the agent is free for the next run at once.
func TestEndWhileConnecting(t *testing.T) {
	var l log
	network := &deadHosts{transport.NewTCP(nil), make(chan struct{})}
	addr := agent(t, &remote.Agent{Log: l.add, Open: func(string, []string) (provider.Provider, error) {
		return engine.New(&engine.Options{Network: network, StartupTimeout: time.Hour}), nil
	}})
	s := dial(t, addr)
	vctx, _ := open(t, s)
	failed := make(chan error, 1)
	go func() {
		failed <- second(rdmacm.Dial(t.Context(), vctx, netip.MustParseAddrPort("127.0.0.1:9"), nil))
	}()
	<-network.dialed
	testkit.OK(t, s.Close())
	if err := <-failed; err == nil {
		t.Error("Dial returned no error")
	}
	l.await(t, "the run has ended")
	l.mu.Lock()
	defer l.mu.Unlock()
	if text := strings.Join(l.lines, "\n"); strings.Contains(text, "has not returned") ||
		strings.Contains(text, "not freed") {
		t.Error(text)
	}
}

// TestNilAndZeroValues: calls on a session, device or agent that is nil, zero or closed return
// errors that say so; none panics or waits.
func TestNilAndZeroValues(t *testing.T) {
	empty := &testkit.Empty{Patience: patience}
	empty.Zeros(t, &remote.Session{}, &remote.Device{}, &remote.Agent{}, &remote.GoneError{})

	s := dial(t, agent(t, &remote.Agent{}))
	vctx, dev := open(t, s)
	testkit.OK(t, vctx.Close())
	testkit.OK(t, s.Close())
	empty.Closed(t, dev)
	empty.Fine = []string{"Close"}
	empty.Closed(t, s, s.Provider("engine", nil))

	empty = &testkit.Empty{Patience: patience}
	for _, zero := range []*remote.Session{nil, {}} {
		empty.Closed(t, zero.Provider("engine", nil))
		<-zero.Done() // closed, as for an ended session
		if zero.Beside(nil) != nil {
			t.Error("there is a provider beside nil")
		}
		near := testkit.Must(zero.Beside(engine.New(nil)).Open(""))(t)
		testkit.OK(t, near.Close())
	}
	l := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	empty.Func(t, "Serve of an agent without Open", func() error {
		return (&remote.Agent{}).Serve(t.Context(), l)
	})
	if _, err := l.Accept(); err == nil {
		t.Error("Serve has not closed the listener")
	}
}
