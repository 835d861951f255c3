package engine

import (
	"context"
	"errors"
	"math"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/transport"
)

// leadPoller is a poller whose streams are what the test makes of them.
type leadPoller struct {
	transport.Poller
	woken  chan struct{}
	waits  atomic.Int32 // goroutines in Wait
	polls  atomic.Int32
	onPoll atomic.Pointer[func()] // is called once
}

func (p *leadPoller) Wait(ctx context.Context) error {
	p.waits.Add(1)
	defer p.waits.Add(-1)
	select {
	case <-p.woken:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (p *leadPoller) Wake() {
	select {
	case p.woken <- struct{}{}:
	default:
	}
}

func (p *leadPoller) Serve() int {
	p.polls.Add(1)
	if f := p.onPoll.Swap(nil); f != nil {
		(*f)()
	}
	return 0
}

// ledLane is a device of one lane whose progress goroutine is aside, for ch, until back is closed.
func ledLane(t *testing.T) (d *device, ch *compChannel, p *leadPoller, back chan struct{}, stop func()) {
	t.Helper()
	p = &leadPoller{woken: make(chan struct{}, 1)}
	d = &device{poller: lanes{all: []*lane{newLane(p)}}}
	d.prog.awake = make(chan struct{}, 1)
	d.prog.breath.Store(math.MinInt64 / 2) // epoch is after the time that a bubble has
	ch = &compChannel{dev: d}
	ch.wake.init()
	l := d.poller.all[0]
	ctx, stop := context.WithCancel(context.Background())
	l.seat.asked.Store(ch)
	back = make(chan struct{})
	go func() {
		defer close(back)
		d.stepAside(ctx, l, true)
	}()
	synctest.Wait()
	ch.wake.take() // stepAside has woken the waiter
	return d, ch, p, back, stop
}

func isClosed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// TestSeatIsTakenBack: if nobody leads, or the leader's wait was over before it waited in the
// poller, the progress goroutine has the seat after leadLook.
func TestSeatIsTakenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, ch, _, back, stop := ledLane(t)
		defer stop()
		for range 3 {
			ch.wake.set()
			if done, err := ch.lead(t.Context(), d.poller.all[0]); !done || err != nil {
				t.Fatalf("lead: %v, %v", done, err)
			}
		}
		time.Sleep(leadLook)
		synctest.Wait()
		if !isClosed(back) || !d.poller.all[0].seat.held.Load() {
			t.Error("the progress goroutine has not taken the seat")
		}
	})
}

// TestAwayIsServed: while a leader comes and goes, the lane is polled every leadLook, as it is for
// a socket that has room again. A leader that waits for long loses the seat.
func TestAwayIsServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, ch, p, back, stop := ledLane(t)
		defer stop()
		lead := func() {
			go func() {
				p.Wake()
				for p.waits.Load() == 0 && len(p.woken) > 0 {
					runtime.Gosched()
				}
				ch.wake.set()
				ch.wakeLeader()
			}()
			testkit.Must(ch.lead(t.Context(), d.poller.all[0]))(t)
		}
		for range 5 {
			lead()
			before := p.polls.Load()
			time.Sleep(leadLook)
			synctest.Wait()
			if p.polls.Load() == before || isClosed(back) {
				t.Fatalf("polls %d, before %d; back %v", p.polls.Load(), before, isClosed(back))
			}
		}
		select {
		case <-ch.wake.pending:
		default:
		}
		began := time.Now()
		done, err := ch.lead(t.Context(), d.poller.all[0])
		if took := time.Since(began); done || err != nil || took > 2*leadLook {
			t.Errorf("lead without an event: %v, %v after %v", done, err, took)
		}
		<-back
	})
}

// TestLeadEnds: the end of a context, a sleeper on another channel, the end of the device's
// progress and the close of the channel end the leading at once.
func TestLeadEnds(t *testing.T) {
	for what, c := range map[string]struct {
		end  func(d *device, ch *compChannel, cancel, stop func())
		done bool
		err  error
		seat bool // the progress goroutine has it afterwards
	}{
		"context": {func(_ *device, _ *compChannel, cancel, _ func()) { cancel() }, false, context.Canceled, false},
		"channel": {func(d *device, ch *compChannel, _, _ func()) {
			d.refs.Hold()
			_ = ch.Close()
		}, true, nil, false},
		"device": {func(_ *device, _ *compChannel, _, stop func()) { stop() }, false, nil, true},
		"event": {func(_ *device, ch *compChannel, _, _ func()) {
			c := &cq{ch: ch}
			ch.fire(c)
		}, true, nil, false},
		"sleeper": {func(d *device, _ *compChannel, _, _ func()) {
			other := &compChannel{dev: d}
			other.wake.init()
			go func() { _ = other.park(context.Background(), time.Now()) }()
			synctest.Wait()
			other.wake.set()
		}, false, nil, true},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d, ch, p, back, stop := ledLane(t)
				defer stop()
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				began := time.Now()
				ended := make(chan struct{})
				var done bool
				var err error
				go func() {
					defer close(ended)
					done, err = ch.lead(ctx, d.poller.all[0])
				}()
				synctest.Wait()
				if p.waits.Load() != 1 {
					t.Fatal("nobody leads")
				}
				c.end(d, ch, cancel, stop)
				<-ended
				synctest.Wait()
				if done != c.done || !errors.Is(err, c.err) || time.Since(began) > 0 {
					t.Errorf("lead: %v, %v after %v", done, err, time.Since(began))
				}
				if got := isClosed(back); got != c.seat {
					t.Errorf("the progress goroutine has the seat: %v", got)
				}
				if ch.leads.Load() != nil {
					t.Error("the channel still counts as led")
				}
				stop()
				<-back
			})
		})
	}
}

// TestLeadPanics: a leader that panics, or whose goroutine ends, leaves the seat.
func TestLeadPanics(t *testing.T) {
	for what, f := range map[string]func(){"panic": func() { panic("a test") }, "Goexit": runtime.Goexit} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d, ch, p, back, stop := ledLane(t)
				defer stop()
				p.onPoll.Store(&f)
				p.Wake()
				ended := make(chan struct{})
				go func() {
					defer close(ended)
					defer func() { _ = recover() }()
					_, _ = ch.lead(t.Context(), d.poller.all[0])
				}()
				<-ended
				if d.poller.all[0].seat.held.Load() || ch.leads.Load() != nil {
					t.Error("nobody leads, and the seat is taken")
				}
				<-back
			})
		})
	}
}

// TestLeadOnce: a channel has one leader. A second one, in another lane, would take from the first
// what wakes it.
func TestLeadOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, ch, p, back, stop := ledLane(t)
		defer stop()
		other := newLane(&leadPoller{woken: make(chan struct{}, 1)})
		other.seat.offer()
		go func() { _, _ = ch.lead(t.Context(), d.poller.all[0]) }()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if done, err := ch.lead(ctx, other); done || err != nil || p.waits.Load() != 1 {
			t.Errorf("a second leader: %v, %v", done, err)
		}
		<-back
		synctest.Wait()
		if !ch.leading.CompareAndSwap(false, true) {
			t.Error("nobody leads, and nobody may")
		}
	})
}

// TestOldQuestion: a question from the time in which the progress goroutine was aside is void, as
// the one that asked may have ended.
func TestOldQuestion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, ch, _, back, stop := ledLane(t)
		defer stop()
		d.poller.all[0].seat.asked.Store(ch)
		<-back
		if d.poller.all[0].seat.asked.Load() != nil {
			t.Error("the question is still there")
		}
	})
}

// TestBreatheWhileAside: a goroutine that looks does not wait for a progress goroutine that is
// aside, and not for one that waits for its seat any longer than for that.
func TestBreatheWhileAside(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, _, _, back, stop := ledLane(t)
		defer stop()
		began := time.Now()
		d.breathe()
		if <-back; time.Since(began) > 0 {
			t.Errorf("a breath takes %v", time.Since(began))
		}

		d, ch, p, back, stop := ledLane(t)
		defer stop()
		held := make(chan struct{})
		f := func() { <-held }
		p.onPoll.Store(&f)
		go func() { _, _ = ch.lead(t.Context(), d.poller.all[0]) }()
		p.Wake()
		synctest.Wait()
		d.poller.all[0].seat.callBack()
		synctest.Wait() // for the seat
		done := make(chan struct{})
		go func() {
			defer close(done)
			d.breathe()
		}()
		synctest.Wait()
		close(held)
		<-back
		synctest.Wait()
		if !isClosed(done) {
			t.Error("the progress goroutine has run, and the breath has not ended")
		}
	})
}

// TestHabit: long absences and long waits keep a waiter from leading, and one that never gets to
// lead asks ever less often.
func TestHabit(t *testing.T) {
	var h habit
	now := time.Now()
	leads := 0
	for i := range 100 {
		away := leadAway / 4
		if i%10 == 9 {
			away = 900 * time.Microsecond
		}
		now = now.Add(away)
		if h.back(t.Context(), now) {
			leads++
		}
		h.left.Store(int64(now.Sub(epoch)))
	}
	if leads < 10 || leads > 30 {
		t.Errorf("it may lead in %d of 100 waits, of which each 10th begins late", leads)
	}
	h.brief.Store(leadAfter)
	h.leave(time.Now().Add(-leadLook))
	if h.back(t.Context(), time.Now()) {
		t.Error("it may lead after a long wait")
	}
	for range 2 * leadAfter {
		ctx, cancel := context.WithCancel(t.Context())
		if h.back(ctx, time.Now()) {
			t.Error("it may lead with another context each time")
		}
		h.leave(time.Now())
		cancel()
	}
	asks := 0
	for range 1000 {
		if h.ask() {
			asks++
		}
	}
	if asks > 8 {
		t.Errorf("it asks in %d of 1000 waits", asks)
	}
	if h.led(); h.ask() {
		t.Error("it asks at once after it has led once")
	}
	for range leadKeeps {
		h.led()
	}
	if !h.ask() {
		t.Error("it does not ask after it has led for long")
	}
}

// TestLeads: two ends that sleep at once lead, and when they stop, the progress goroutines serve.
func TestLeads(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	a, b := pair(t, transport.NewTCP(nil), tcpAddr, Options{BusyWait: -1, ProgressGoroutines: 1},
		sideOptions{events: true}, params(true))
	seat := &b.dev.poller.all[0].seat
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	recvs, sends := []provider.RecvWR{{}}, []provider.SendWR{{Opcode: provider.WRSend}}
	round := func() {
		if err := ctx.Err(); err != nil {
			t.Fatalf("after %d waits that a goroutine led: %v", seat.waits.Load(), err)
		}
		// However slow the machine is, the waiter was back soon, and asks at once.
		h := &b.ch.habit
		h.brief.Store(leadAfter)
		h.left.Store(int64(time.Since(epoch) + time.Minute))
		h.skip.Store(0)
		b.recv(recvs...)
		testkit.OK(t, b.cq.ReqNotify(false))
		a.send(sends...)
		testkit.Must(b.ch.Next(ctx))(t)
		b.spin(1)
	}
	for seat.waits.Load() < 10 {
		round()
	}
	var before, after runtime.MemStats
	const rounds = 1000
	began := time.Now()
	runtime.ReadMemStats(&before)
	for waits := seat.waits.Load(); seat.waits.Load()-waits < rounds; {
		round()
	}
	runtime.ReadMemStats(&after)
	// To lead again after an interruption costs a few, which on a slow machine is each time.
	fast := time.Since(began) < rounds*leadAway
	if n := after.Mallocs - before.Mallocs; n > rounds && fast && !raceEnabled {
		t.Errorf("%d allocations in %d waits", n, rounds)
	}
	for seat.aside.Load() {
		testkit.OK(t, ctx.Err())
		if ctx.Err() != nil {
			return
		}
		time.Sleep(leadLook)
	}
	b.recv(provider.RecvWR{})
	a.send(provider.SendWR{Opcode: provider.WRSend})
	b.arrives(1)
}
