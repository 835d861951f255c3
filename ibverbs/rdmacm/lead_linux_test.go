package rdmacm_test

import (
	"context"
	"errors"
	"net/netip"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
	"github.com/govs-rdma/govs/provider/engine"
)

// leading are two ends, each on a device of its own, that send to each other and sleep until the
// other has: with more than one P they wait in the poller of the device themselves.
type leading struct {
	ctx    context.Context
	vctx   *ibverbs.Context // of the end that has accepted
	l      *rdmacm.Listener
	ends   [2]*rdmacm.Conn
	rounds atomic.Int64
}

func newLeading(t *testing.T) *leading {
	t.Helper()
	procs := runtime.GOMAXPROCS(2)
	t.Cleanup(func() { runtime.GOMAXPROCS(procs) })
	p := &leading{ctx: timeout(t)}
	open := func() *ibverbs.Context {
		vctx := testkit.Must(ibverbs.Open(engine.New(&engine.Options{BusyWait: -1}), ""))(t)
		t.Cleanup(func() { testkit.OK(t, vctx.Close()) })
		return vctx
	}
	p.vctx = open()
	other := open()
	p.l = testkit.Must(rdmacm.Listen(p.ctx, p.vctx, netip.MustParseAddrPort("127.0.0.1:0"), nil))(t)
	t.Cleanup(func() { testkit.OK(t, p.l.Close()) })
	a, b, err := connectIdle(p.ctx, other, p.l, nil)
	testkit.OK(t, err)
	p.ends = [2]*rdmacm.Conn{a, b}
	for _, c := range p.ends {
		t.Cleanup(func() { testkit.OK(t, c.Close()) })
	}
	return p
}

// play sends to and fro until the context ends.
func (p *leading) play(ctx context.Context) error {
	for _, c := range p.ends {
		if err := c.QP().PostRecv(ibverbs.RecvWR{}); err != nil {
			return err
		}
	}
	errs := make(chan error, len(p.ends))
	for _, c := range p.ends {
		go func() {
			var wc [1]ibverbs.WC
			for {
				if _, err := c.RecvCQ().PollWait(ctx, wc[:]); err != nil {
					errs <- err
					return
				}
				p.rounds.Add(1)
				err := errors.Join(c.QP().PostRecv(ibverbs.RecvWR{}),
					c.QP().PostSend(ibverbs.SendWR{Opcode: ibverbs.WRSend}))
				if err != nil {
					errs <- err
					return
				}
			}
		}()
	}
	err := p.ends[0].QP().PostSend(ibverbs.SendWR{Opcode: ibverbs.WRSend})
	for range p.ends {
		if e := <-errs; !errors.Is(e, context.Canceled) {
			err = errors.Join(err, e)
		}
	}
	return err
}

// wait waits for 3000 turns, or for as many as there are in 10 seconds if there is one.
func (p *leading) wait(t *testing.T) {
	t.Helper()
	at, began := p.rounds.Load(), time.Now()
	for n := at; n < at+3000 && (n == at || time.Since(began) < 10*time.Second); n = p.rounds.Load() {
		if p.ctx.Err() != nil {
			t.Error("the ends stand still")
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// TestLeadingCostsNoCPU: nothing looks and nothing ticks when two ends that have waited for each
// other briefly wait for long, or are gone.
func TestLeadingCostsNoCPU(t *testing.T) {
	p := newLeading(t)
	ctx, cancel := context.WithCancel(p.ctx)
	done := make(chan error, 1)
	go func() { done <- p.play(ctx) }()
	p.wait(t)
	cancel()
	testkit.OK(t, <-done)
	wantNoCPU(t, "two ends that have led")

	ctx, cancel = context.WithCancel(p.ctx)
	for _, c := range p.ends { // play leaves a message on its way
		for range 3 {
			testkit.OK(t, c.QP().PostRecv(ibverbs.RecvWR{}))
		}
	}
	go func() { done <- p.play(ctx) }()
	p.wait(t)
	cancel()
	testkit.OK(t, <-done)
	waiting, stop := context.WithCancel(p.ctx)
	for _, c := range p.ends {
		go func() {
			for {
				if _, err := c.RecvCQ().PollWait(waiting, make([]ibverbs.WC, 1)); err != nil {
					done <- err
					return
				}
			}
		}()
	}
	wantNoCPU(t, "two waiters that have led")
	stop()
	for range p.ends {
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("a waiter: %v, want %v", err, context.Canceled)
		}
	}
}

// TestConnectionsBesideLeaders: connections come, move data and end on a device whose waiter waits
// in the poller itself, and none of them waits for ever.
func TestConnectionsBesideLeaders(t *testing.T) {
	p := newLeading(t)
	ctx, cancel := context.WithCancel(p.ctx)
	done := make(chan error, 1)
	go func() { done <- p.play(ctx) }()
	vctx := testkit.Must(ibverbs.Open(engine.New(nil), ""))(t)
	defer func() { testkit.OK(t, vctx.Close()) }()
	const most, enough = 30, 15 * time.Second // on a busy machine 200 turns take a second
	began, conns := time.Now(), 0
	for ; conns < most && time.Since(began) < enough; conns++ {
		at := p.rounds.Load()
		for p.rounds.Load() < at+200 { // so that they lead again
			testkit.OK(t, p.ctx.Err())
			time.Sleep(100 * time.Microsecond)
		}
		a, b, err := connectIdle(p.ctx, vctx, p.l, nil)
		testkit.OK(t, err)
		testkit.OK(t, b.QP().PostRecv(ibverbs.RecvWR{}))
		testkit.OK(t, a.QP().PostSend(ibverbs.SendWR{Opcode: ibverbs.WRSend}))
		testkit.Must(b.RecvCQ().PollWait(p.ctx, make([]ibverbs.WC, 1)))(t)
		testkit.OK(t, errors.Join(a.Close(), b.Close()))
	}
	cancel()
	testkit.OK(t, <-done)
	t.Logf("%d connections in %v, beside %d turns", conns, time.Since(began), p.rounds.Load())
}
