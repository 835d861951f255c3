package engine

import (
	"context"
	"errors"
	"math"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/memnet"
	"github.com/govs-rdma/govs/provider/engine/transport"
)

// brittle is a network whose pollers fail when the test says so.
type brittle struct {
	transport.Network
	fail chan struct{}
}

type brittlePoller struct {
	transport.Poller
	fail chan struct{}
}

func (n brittle) NewPoller() (transport.Poller, error) {
	p, err := n.Network.NewPoller()
	return brittlePoller{p, n.fail}, err
}

func (p brittlePoller) Wait(ctx context.Context) error {
	inner, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-p.fail:
			cancel()
		case <-inner.Done():
		}
	}()
	err := p.Poller.Wait(inner)
	select {
	case <-p.fail:
		return syscall.EBADF
	default:
		return err
	}
}

// TestDeviceFatal: a device whose poller has failed raises one event, and leaves nobody waiting.
// Posted work is flushed, connections end, new ones are refused, and the device can be closed.
func TestDeviceFatal(t *testing.T) {
	net := brittle{memnet.New(nil), make(chan struct{})}
	s := newSide(t, Options{Network: net}, sideOptions{events: true})
	mine, theirs := connectTransport(t, net, memAddr)
	defer theirs.Close()
	s.start(mine, params(true))
	s.recv(provider.RecvWR{WRID: 7})
	idle := s.newQP(sideOptions{cap: provider.QPCap{MaxSendWR: 1}})
	testkit.OK(t, s.cq.ReqNotify(false))
	close(net.fail)
	if err := s.wantDown("the device has failed"); !errors.Is(err, syscall.EIO) || !errors.Is(err, syscall.EBADF) {
		t.Errorf("ended with %v", err)
	}
	testkit.Must(s.ch.Next(t.Context()))(t)
	s.wantWC("the receive", provider.WC{WRID: 7, Status: provider.WCWRFlushErr})
	e := testkit.Must(s.dev.AsyncEvent(t.Context()))(t)
	testkit.Equal(t, "the event", e, provider.AsyncEvent{Type: provider.EventDeviceFatal})
	if e, _, ok, _ := s.dev.async.pop(); ok {
		t.Errorf("another event: %v", e.Type)
	}
	again, peer := connectTransport(t, net, memAddr)
	defer peer.Close()
	testkit.WantErr(t, "a new connection", idle.start(again, params(true), nil), syscall.EIO)
	testkit.OK(t, again.Close())
	testkit.OK(t, idle.Close())
}

// firstBrittle is a network of which only the first poller fails.
type firstBrittle struct {
	transport.Network
	fail chan struct{}
	n    *int // pollers so far
}

func (n firstBrittle) NewPoller() (transport.Poller, error) {
	p, err := n.Network.NewPoller()
	if *n.n++; *n.n == 1 {
		p = brittlePoller{p, n.fail}
	}
	return p, err
}

// TestBusyWaitAfterFailure: a goroutine that polls before it sleeps is not kept there when the
// first loop's poller has failed and the others' have not.
func TestBusyWaitAfterFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		net := firstBrittle{memnet.New(nil), make(chan struct{}), new(int)}
		s := newSide(t, Options{Network: net, ProgressGoroutines: 3}, sideOptions{events: true})
		close(net.fail)
		testkit.Must(s.dev.AsyncEvent(t.Context()))(t)
		s.dev.prog.netpolled.Store(math.MinInt64 / 2) // the bubble's time is before epoch
		s.dev.pollNetpoller()                         // a goroutine that waits forever fails the test
	})
}
