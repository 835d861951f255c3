package rsocket_test

import (
	"context"
	"errors"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rsocket"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine"
)

// hooked is the engine as the provider of a listener, with hooks in the answer to a request.
type hooked struct {
	provider.Provider
	creating sync.Once
	creates  func() // called when the first CQ is made, unless nil
	loses    bool   // the first connection is never established
	losing   sync.Once
}

type hookedDevice struct {
	provider.Device
	p *hooked
}

type hookedChannel struct {
	provider.EventChannel
	p *hooked
}

type hookedID struct {
	provider.ID
	lost bool
}

func (p *hooked) Open(name string) (provider.Device, error) {
	d, err := p.Provider.Open(name)
	return &hookedDevice{d, p}, err
}

func (d *hookedDevice) CreateCQ(init provider.CQInitAttr) (provider.CQ, error) {
	if d.p.creates != nil {
		d.p.creating.Do(d.p.creates)
	}
	return d.Device.CreateCQ(init)
}

func (d *hookedDevice) CreateEventChannel() (provider.EventChannel, error) {
	ch, err := d.Device.CreateEventChannel()
	return &hookedChannel{ch, d.p}, err
}

func (ch *hookedChannel) Next(ctx context.Context) (provider.CMEvent, error) {
	e, err := ch.EventChannel.Next(ctx)
	if err == nil && e.Type == provider.CMConnectRequest {
		id := &hookedID{ID: e.ID}
		if ch.p.loses {
			ch.p.losing.Do(func() { id.lost = true })
		}
		e.ID = id
	}
	return e, err
}

func (id *hookedID) Migrate(to provider.EventChannel) error {
	return id.ID.Migrate(to.(*hookedChannel).EventChannel)
}

func (id *hookedID) Accept(param provider.ConnParam) error {
	if id.lost {
		return nil
	}
	return id.ID.Accept(param)
}

// listenHooked listens on a device of p.
func listenHooked(t *testing.T, p *hooked) *rsocket.Listener {
	t.Helper()
	p.Provider = engine.New(nil)
	vctx := testkit.Must(ibverbs.Open(p, ""))(t)
	t.Cleanup(func() { closeDevice(t, vctx) })
	l := testkit.Must(rsocket.Listen(timeout(t), vctx, "tcp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// TestDeadlineDuringAnswer: a peer whose request Accept has taken gets its connection, although the
// deadline passes, or the context ends, before the answer is sent. A program that calls Accept in a
// loop with a deadline refuses nobody.
func TestDeadlineDuringAnswer(t *testing.T) {
	for _, what := range []string{"deadline", "context"} {
		t.Run(what, func(t *testing.T) {
			ctx, cancel := context.WithCancel(timeout(t))
			defer cancel()
			p := new(hooked)
			l := listenHooked(t, p)
			p.creates = cancel
			if what == "deadline" {
				p.creates = func() { _ = l.SetDeadline(time.Now()) }
			}
			vctx := testkit.Must(ibverbs.Open(engine.New(nil), ""))(t)
			t.Cleanup(func() { closeDevice(t, vctx) })
			dialled := make(chan error, 1)
			go func() {
				c, err := rsocket.Dial(timeout(t), vctx, "tcp", l.Addr().String())
				if err == nil {
					err = c.Close()
				}
				dialled <- err
			}()
			c, err := l.AcceptContext(ctx)
			if err != nil {
				t.Errorf("Accept: %v", err)
			} else {
				testkit.OK(t, c.Close())
			}
			if err := <-dialled; err != nil {
				t.Errorf("Dial: %v", err)
			}
			want := os.ErrDeadlineExceeded
			if what == "context" {
				want = context.Canceled
			}
			if _, err := l.AcceptContext(ctx); !errors.Is(err, want) {
				t.Errorf("the next Accept: %v, want %v", err, want)
			}
		})
	}
}

// TestAcceptOfLostConnection: a connection that is never established keeps the next peers waiting
// only for a limited time.
func TestAcceptOfLostConnection(t *testing.T) {
	ctx := timeout(t)
	l := listenHooked(t, &hooked{loses: true})
	l.SetAnswerLimit(time.Second)
	vctx := testkit.Must(ibverbs.Open(engine.New(nil), ""))(t)
	t.Cleanup(func() { closeDevice(t, vctx) })
	accepted := make(chan error, 1)
	go func() {
		c, err := l.AcceptContext(ctx)
		if err == nil {
			err = c.Close()
		}
		accepted <- err
	}()
	for {
		c, err := rsocket.Dial(ctx, vctx, "tcp", l.Addr().String())
		if err == nil {
			testkit.OK(t, c.Close())
			break
		}
		if !errors.Is(err, syscall.ECONNREFUSED) { // the first, and any that is too slow
			t.Fatal(err)
		}
	}
	testkit.OK(t, <-accepted)
}
