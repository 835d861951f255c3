//go:build linux

package engine

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"github.com/govs-rdma/govs/provider/engine/transport"
)

// A briefWait is how a goroutine waits, and whether it polls before it sleeps.
type briefWait struct {
	what     string
	busyWait time.Duration
	brief    bool // the last wait was
	finds    bool
}

var briefWaits = []briefWait{
	{"after a short wait", patience, true, true},
	{"after a long wait", patience, false, false},
	{"switched off", -1, true, false},
}

// unserved returns two sides that are connected, of which b has a receive, and a device whose
// progress goroutine has ended.
func (c briefWait) unserved(t *testing.T) (a, b *side) {
	t.Helper()
	a, b = pair(t, transport.NewTCP(nil), tcpAddr, Options{BusyWait: c.busyWait},
		sideOptions{events: true}, params(true))
	b.recv(provider.RecvWR{}, provider.RecvWR{})
	a.send(provider.SendWR{Opcode: provider.WRSend})
	b.spin(1) // the connection is in use
	b.dev.prog.cancel()
	<-b.dev.prog.ended
	b.ch.pace.brief.Store(c.brief)
	return a, b
}

// TestBusyWait leaves a device to the goroutine that waits for a completion event. If that
// goroutine has waited briefly before, it polls for the event itself. If it has waited long, or is
// to sleep at once, it does not.
func TestBusyWait(t *testing.T) {
	for _, c := range briefWaits {
		t.Run(c.what, func(t *testing.T) {
			a, b := c.unserved(t)
			testkit.OK(t, b.cq.ReqNotify(false))
			a.send(provider.SendWR{Opcode: provider.WRSend})
			wait := patience
			if !c.finds {
				wait = 50 * time.Millisecond
			}
			ctx, cancel := context.WithTimeout(t.Context(), wait)
			defer cancel()
			got, err := b.ch.Next(ctx)
			if c.finds && (err != nil || got != provider.CQ(b.cq)) {
				t.Errorf("an event: %v, error %v", got != nil, err)
			}
			if !c.finds && !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("an event: %v, error %v; nobody should have polled", got != nil, err)
			}
			b.spin(1)
		})
	}
}

// TestBusyWaitFollowsWaits makes a wait that polling would have ended switch
// polling on, and a longer one switch it off.
func TestBusyWaitFollowsWaits(t *testing.T) {
	const limit = 100 * time.Millisecond
	a, b := pair(t, transport.NewTCP(nil), tcpAddr, Options{BusyWait: limit}, sideOptions{events: true}, params(true))
	// wait makes an event come after so long, and returns how long the wait for it was.
	wait := func(after time.Duration) time.Duration {
		b.recv(provider.RecvWR{})
		testkit.OK(t, b.cq.ReqNotify(false))
		began := time.Now()
		time.AfterFunc(after, func() { a.send(provider.SendWR{Opcode: provider.WRSend}) })
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		testkit.Must(b.ch.Next(ctx))(t)
		took := time.Since(began)
		b.spin(1)
		return took
	}
	for _, brief := range []bool{true, false, false, true} {
		if !brief {
			took := wait(2 * limit)
			testkit.Equal(t, fmt.Sprintf("the next begins with polling after a wait of %v", took),
				b.ch.pace.brief.Load(), false)
			continue
		}
		// On a busy machine the event may be there before it is waited for, or come too late.
		var waits []time.Duration
		for len(waits) < 10 && !b.ch.pace.brief.Load() {
			waits = append(waits, wait(limit/20))
		}
		testkit.Equal(t, fmt.Sprintf("the next begins with polling after waits of %v", waits),
			b.ch.pace.brief.Load(), true)
	}
}

// TestCQBusyWait leaves a device to a goroutine that polls for completions before it arms its CQ.
// It finds them after a short wait, and returns at once after a long one.
func TestCQBusyWait(t *testing.T) {
	for _, c := range briefWaits {
		t.Run(c.what, func(t *testing.T) {
			a, b := c.unserved(t)
			a.send(provider.SendWR{Opcode: provider.WRSend})
			began := time.Now()
			testkit.Equal(t, "BusyWait finds something", b.cq.BusyWait(t.Context()), c.finds)
			if !c.finds && time.Since(began) > patience/2 {
				t.Errorf("BusyWait took %v, and should have returned at once", time.Since(began))
			}
			b.spin(1)
		})
	}
}

// TestBusyWaitInVain: after polling that found nothing the next wait begins without it, however
// short the sleep was.
func TestBusyWaitInVain(t *testing.T) {
	a, b := pair(t, transport.NewTCP(nil), tcpAddr, Options{BusyWait: patience}, sideOptions{events: true},
		params(true))
	b.recv(provider.RecvWR{})
	b.ch.pace.brief.Store(true)
	b.ch.polledInVain.Store(int64(time.Since(epoch))) // in vain, and has returned
	testkit.OK(t, b.cq.ReqNotify(false))
	slept := make(chan error)
	go func() {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		_, err := b.ch.Next(ctx)
		slept <- err
	}()
	waitFor(t, "the waiter knows of the polling", func() bool { return b.ch.polledInVain.Load() == 0 })
	a.send(provider.SendWR{Opcode: provider.WRSend})
	testkit.OK(t, <-slept)
	b.spin(1)
	testkit.Equal(t, "the next wait begins with polling", b.ch.pace.brief.Load(), false)
}

// TestPace counts how many of a hundred waits poll.
func TestPace(t *testing.T) {
	const waits = 100
	type wait struct {
		finds bool // if it polls
		short bool // the sleep after polling in vain, or without polling
	}
	for _, c := range []struct {
		what        string
		wait        func(i int) wait
		least, most int // waits that poll
	}{
		{"each finds something", func(int) wait { return wait{true, true} }, waits - 1, waits - 1},
		{"the peer needs the CPU", func(int) wait { return wait{false, true} }, 5, 8},
		{"long waits", func(int) wait { return wait{false, false} }, 0, 0},
		{"every other wait is long", func(i int) wait { return wait{false, i%2 == 0} }, 1, 2},
		{"first the peer needs the CPU, then not",
			func(i int) wait { return wait{i >= waits/4, true} }, waits / 2, waits},
		{"a long wait after every ten", func(i int) wait { return wait{i%10 != 0, i%10 != 0} },
			waits * 3 / 4, waits * 9 / 10},
	} {
		var p pace
		polls := 0
		for i := range waits {
			w := c.wait(i)
			polled := p.brief.Load()
			if polled {
				polls++
			}
			if polled && w.finds {
				p.found()
			} else {
				p.waited(w.short && !polled, polled)
			}
		}
		testkit.Within(t, c.what+": waits that poll", polls, c.least, c.most)
	}
}

// endsAt is a context that ends when it has been asked n times whether it has.
type endsAt struct {
	context.Context
	n     int
	asked int
}

func (c *endsAt) Err() error {
	if c.asked++; c.asked > c.n {
		return context.Canceled
	}
	return nil
}

// TestBusyWaitEnds: polling ends with its context, and does not count as a short wait.
func TestBusyWaitEnds(t *testing.T) {
	_, b := pair(t, transport.NewTCP(nil), tcpAddr, Options{BusyWait: patience}, sideOptions{events: true}, params(true))
	b.ch.pace.brief.Store(true)
	for _, n := range []int{0, 3} {
		ctx := &endsAt{Context: t.Context(), n: n}
		if b.cq.BusyWait(ctx) || ctx.asked != n+1 {
			t.Errorf("of a context that ends after %d polls: asked %d times", n, ctx.asked)
		}
	}
	testkit.Equal(t, "when polling that its context ended was in vain", b.ch.polledInVain.Load(), 0)

	b.ch.pace.brief.Store(false)
	testkit.OK(t, b.cq.ReqNotify(false))
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	testkit.WantErr(t, "the wait", errOf(b.ch.Next(ctx)), context.DeadlineExceeded)
	testkit.Equal(t, "a wait that its context ended counts as short", b.ch.pace.brief.Load(), false)
}

// TestBusyWaitLeavesOneP: one goroutine of the process may poll, and more only as long as one P is
// left to others.
func TestBusyWaitLeavesOneP(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	for _, c := range []struct{ procs, others, finds int }{
		{1, 0, 1}, {1, 1, 0}, {2, 0, 1}, {2, 1, 0}, {3, 1, 1}, {3, 2, 0},
	} {
		runtime.GOMAXPROCS(c.procs)
		a, b := pair(t, transport.NewTCP(nil), tcpAddr, Options{BusyWait: patience}, sideOptions{events: true}, params(true))
		b.recv(provider.RecvWR{}, provider.RecvWR{})
		a.send(provider.SendWR{Opcode: provider.WRSend})
		b.spin(1) // the connection is in use
		b.ch.pace.brief.Store(true)
		for range c.others {
			testkit.Equal(t, fmt.Sprintf("%d goroutines may poll with %d Ps", c.others, c.procs),
				beginPolling(), true)
		}
		a.send(provider.SendWR{Opcode: provider.WRSend})
		testkit.Equal(t, fmt.Sprintf("BusyWait finds something: %d Ps, %d others poll", c.procs, c.others),
			b.cq.BusyWait(t.Context()), c.finds > 0)
		for range c.others {
			endPolling()
		}
		b.spin(1)
		testkit.Equal(t, "goroutines that poll", polling.Load(), 0)
	}
}

// TestBusyWaitAndNetpoller: beside a goroutine that polls all the time on the only P, others that
// wait in Go's netpoller are not held up until the runtime asks it, every 10 ms.
func TestBusyWaitAndNetpoller(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	_, b := pair(t, transport.NewTCP(nil), tcpAddr, Options{}, sideOptions{events: true}, params(true))
	r, w := testkit.Must2(os.Pipe())(t)
	defer r.Close()
	defer w.Close()
	var stop atomic.Bool
	var group sync.WaitGroup
	defer group.Wait()
	defer stop.Store(true)
	group.Go(func() {
		for !stop.Load() {
			b.ch.pace.brief.Store(true)
			b.cq.BusyWait(t.Context())
		}
	})
	came := make(chan time.Time)
	group.Go(func() {
		var buf [1]byte
		for {
			if _, err := r.Read(buf[:]); err != nil {
				return
			}
			came <- time.Now()
		}
	})
	defer w.Close()
	const most = 4 * time.Millisecond
	testkit.Once(t, func() error {
		var took []time.Duration
		for range 25 {
			time.Sleep(100 * time.Microsecond) // the reader is in the netpoller
			began := time.Now()
			testkit.Must(w.Write([]byte{1}))(t)
			took = append(took, (<-came).Sub(began))
		}
		slices.Sort(took)
		if median := took[len(took)/2]; median > most {
			return fmt.Errorf("a goroutine in the netpoller waits %v beside one that polls (%v)", median, took)
		}
		return nil
	})
}

// TestPollNetpoller makes several goroutines call pollNetpoller repeatedly: each one goes on.
func TestPollNetpoller(t *testing.T) {
	_, b := pair(t, transport.NewTCP(nil), tcpAddr, Options{}, sideOptions{events: true}, params(true))
	done := make(chan struct{})
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			for range 3000 {
				b.dev.prog.netpolled.Store(math.MinInt64 / 2) // it is time
				b.dev.pollNetpoller()
			}
		})
	}
	go func() {
		group.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatal("a goroutine in pollNetpoller waits for a token that another has taken")
	}
}

// TestTimerOfManyQPs: if all Ps compute, the timer's goroutine transmits the deferred posts of many
// QPs as soon as it runs. It yields after a turn, not after each QP, because that would take 100 ms
// of computing and more, instead of 20 to 60. The time that others have the CPU does not count.
func TestTimerOfManyQPs(t *testing.T) {
	const n, most = 64, 80 * time.Millisecond
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	testkit.Once(t, func() error {
		_, _, qps := waitingQPs(t, transport.NewTCP(nil), tcpAddr, n, signalledSend(), nil)
		first, last := time.Duration(0), time.Duration(0)
		for began := time.Now(); time.Since(began) < patience; { // it computes
			sent := 0
			for _, s := range qps {
				if s.qp.sq.free.Load() == 3 {
					sent++
				}
			}
			if sent > 0 && first == 0 {
				first = cpuTime(t)
			}
			if sent == n {
				last = cpuTime(t)
				break
			}
		}
		if last == 0 || last-first > most {
			return fmt.Errorf("between the first QP that has sent and the last were %v of computing", last-first)
		}
		return nil
	})
}

// TestLoopsOfFewDescriptors: on a machine with many CPUs the progress goroutines take no more than
// an eighth of the descriptors that the process may have, so that connections have theirs.
func TestLoopsOfFewDescriptors(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(40))
	var old unix.Rlimit
	testkit.OK(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &old))
	defer func() { testkit.OK(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &old)) }()
	for files, want := range map[uint64]int{16: 1, 64: 2, 256: 8, 1024: policy.MostLoops} {
		testkit.OK(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: files, Max: old.Max}))
		var o Options
		testkit.OK(t, o.complete())
		testkit.Equal(t, fmt.Sprintf("progress goroutines for %d descriptors", files),
			o.ProgressGoroutines, want)
	}
}
