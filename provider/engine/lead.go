package engine

import (
	"context"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/govs-rdma/govs/provider/engine/internal/sched"
)

// A goroutine that sleeps until a completion comes, and that is soon back each time, leads the lane
// of its stream: it waits in the lane's poller itself, and serves what comes until its own event is
// there. So it is the one that Go's netpoller wakes, and no progress goroutine has to wake it in
// turn, which with more than one P takes a second thread: a third of a round trip.
//
// The lane's progress goroutine is aside meanwhile. As it waits nowhere near the poller, nobody
// does from the moment in which the leader leaves with its event to the one in which it is back.
// What comes then waits for leadLook or so: so often the progress goroutine polls, and it takes
// the seat, the right to wait in the poller, if nobody has waited there since the last time. A
// program that computes for long after a completion so delays its stream, and the start-ups in the
// first lane, by leadLook once; one that computes for less than leadAway each time, by so much each
// time, as if it polled. Others are not delayed, because a waiter leads only if its stream is the
// only one of the lane, and as long as no other goroutine sleeps on a channel of the device.
const (
	leadLook  = time.Millisecond       // how often the progress goroutine polls while it is aside
	leadAfter = 8                      // short absences, one after the other, before a waiter leads
	leadAway  = 100 * time.Microsecond // the longest short absence
	leadKeeps = 64                     // waits that a waiter has to lead for its next question to be at once
	leadFails = 10                     // bounds how many waits there are before another question: 8192
)

// seat says who waits in a lane's poller. The progress goroutine holds it, but while it is aside.
type seat struct {
	asked  sched.Pointer[compChannel] // one whose waiter is soon back each time, and wants to lead
	aside  sched.Bool                 // the progress goroutine does not wait in the poller
	wanted sched.Bool                 // it is about to: nobody leads any more
	held   sched.Bool                 // by a leader, or after it was aside by the progress goroutine
	waits  sched.Uint32               // of leaders, that have ended
	recall chan struct{}              // capacity 1: to take the seat at once, or to try again
}

func (s *seat) init() {
	s.held.Store(true)
	s.recall = make(chan struct{}, 1)
}

// callBack has the progress goroutine take the seat.
func (s *seat) callBack() {
	select {
	case s.recall <- struct{}{}:
	default:
	}
}

// take makes the caller the leader, unless there is one, or the progress goroutine has the seat.
// The caller looks at wanted before each wait.
func (s *seat) take() bool { return !s.wanted.Load() && s.held.CompareAndSwap(false, true) }

// leave ends the leading.
func (s *seat) leave() {
	s.held.Store(false)
	if s.wanted.Load() {
		s.callBack()
	}
}

// offer lets others have the seat. Only the progress goroutine calls it, and takeBack afterwards.
func (s *seat) offer() {
	select {
	case <-s.recall: // of an earlier time
	default:
	}
	s.held.Store(false)
	s.aside.Store(true)
}

// takeBack returns with the seat. wake ends the wait of a leader, who then calls back.
func (s *seat) takeBack(wake func()) {
	s.wanted.Store(true)
	for !s.held.CompareAndSwap(false, true) {
		wake()
		sched.Await(s.recall)
	}
	s.asked.Store(nil) // by one that has not seen yet that it could have led
	s.aside.Store(false)
	s.wanted.Store(false)
}

// fallAsleep counts a goroutine that is about to sleep until a channel is signalled, and then calls
// back the progress goroutines that are aside. One that steps aside does these two in the other
// order: it is aside first, and then reads the count. So one of both sees the other.
func (d *device) fallAsleep() {
	d.sleepers.Add(1)
	for _, l := range d.poller.all {
		if l.seat.aside.Load() {
			l.seat.callBack()
		}
	}
}

// stepAside has a waiter lead until nobody has waited in the poller for leadLook, a goroutine
// sleeps on a channel, or ctx ends. It returns with the seat.
func (d *device) stepAside(ctx context.Context, l *lane, first bool) {
	s := &l.seat
	asker := s.asked.Swap(nil)
	if asker == nil || d.sleepers.Load() > 1 {
		return
	}
	s.offer()
	timer := time.NewTimer(leadLook)
	defer timer.Stop()
	asker.wake.set() // its waiter finds no event, and leads
	// The asker may still sleep, at first.
	for most := int64(1); d.sleepers.Load() <= most; most = 0 {
		waits := s.waits.Load()
		recalled := false
		select {
		case <-timer.C:
		case <-s.recall:
			recalled = true
		case <-ctx.Done():
			recalled = true
		}
		if first {
			d.prog.isAwake()
		}
		if recalled || s.waits.Load() == waits {
			break
		}
		l.poller.Serve()
		timer.Reset(leadLook)
	}
	s.takeBack(l.poller.Wake)
	if first {
		d.prog.isAwake() // who breathes has called back, and takeBack may have taken that for a leader's
	}
}

// habit says whether a goroutine that waits on a channel waits briefly and is soon back each time.
// It is a guess, so that what several goroutines do to it at the same time does not matter.
type habit struct {
	done  atomic.Value // of the context of the last wait: a <-chan struct{}
	left  atomic.Int64 // when the last wait ended, as a time since epoch
	brief atomic.Int32 // such waits so far, one after the other, up to leadAfter
	skip  atomic.Int32 // waits before it asks again
	fails atomic.Int32 // times that it has asked since it led for leadKeeps waits
	leads atomic.Int32 // waits that it has led since it asked
}

// back is called when a wait begins, and reports whether the waiter may lead. One with another
// context each time does not: to have its end wake the poller takes an allocation, and the end of
// the last one, with which the program is through, would wake the poller, too.
func (h *habit) back(ctx context.Context, now time.Time) bool {
	if done := ctx.Done(); h.done.Load() != any(done) {
		h.done.Store(done)
		h.brief.Store(0)
		return false
	}
	if now.Sub(epoch)-time.Duration(h.left.Load()) > leadAway {
		h.brief.Store(0)
		return false
	}
	n := min(h.brief.Load()+1, leadAfter)
	h.brief.Store(n)
	return n == leadAfter
}

// leave is called when a wait that began at that time has ended.
func (h *habit) leave(began time.Time) {
	now := time.Now()
	if now.Sub(began) > leadLook/2 {
		h.brief.Store(0)
	}
	h.left.Store(int64(now.Sub(epoch)))
}

// ask reports whether the waiter asks for the seat. Where it does not get to lead, or not for long,
// each time doubles how many waits there are before the next, so that two waiters don't take turns
// in calling the progress goroutine away and back.
func (h *habit) ask() bool {
	if n := h.skip.Load(); n > 0 {
		h.skip.Store(n - 1)
		return false
	}
	n := h.fails.Load()
	h.skip.Store(leadAfter << n)
	h.fails.Store(min(n+1, leadFails))
	h.leads.Store(0)
	return true
}

// led is called when the waiter has led.
func (h *habit) led() {
	if h.leads.Add(1) == leadKeeps {
		h.skip.Store(0)
		h.fails.Store(0)
	}
}

// lane returns the one that the waiter can lead, nil for none.
func (ch *compChannel) lane() *lane {
	c := ch.armed.Load()
	if c == nil {
		return nil
	}
	direct := *c.direct.Load()
	if len(direct) != 1 {
		return nil
	}
	s := direct[0].stream.Load()
	if s == nil || s.hasFinished() || s.lane == nil || s.lane.streams.Load() != 1 {
		return nil
	}
	return s.lane
}

// park waits for an event, or returns the error of ctx.
func (ch *compChannel) park(ctx context.Context, now time.Time) error {
	defer ch.habit.leave(now)
	if ch.habit.back(ctx, now) && ch.dev.sleepers.Load() == 0 {
		if l := ch.lane(); l != nil {
			if !l.seat.aside.Load() {
				ch.ask(l)
			} else if done, err := ch.lead(ctx, l); done || err != nil {
				return err
			}
		}
	}
	if ch.wake.take() {
		return nil
	}
	ch.dev.fallAsleep()
	defer ch.dev.sleepers.Add(-1)
	return ch.wake.wait(ctx)
}

// ask has the progress goroutine step aside when it has served what comes next. With one P a waiter
// that leads is no faster.
func (ch *compChannel) ask(l *lane) {
	if runtime.GOMAXPROCS(0) > 1 && ch.habit.ask() {
		l.seat.asked.Store(ch)
	}
}

// lead waits for an event in the poller of l. It returns false if nobody leads any more, or another
// goroutine does: this lane, or with this channel another one.
func (ch *compChannel) lead(ctx context.Context, l *lane) (done bool, err error) {
	if !ch.leading.CompareAndSwap(false, true) {
		return false, nil
	}
	defer ch.leading.Store(false)
	s := &l.seat
	if !s.take() {
		return false, nil
	}
	// What runs in Poll may panic, or end the goroutine.
	defer s.leave()
	defer ch.leads.Store(nil)
	first := l == ch.dev.poller.all[0]
	for !s.wanted.Load() {
		// Who sets the signal looks afterwards whether somebody leads.
		ch.leads.Store(l)
		if ch.wake.take() || ch.wake.isClosed() {
			return true, nil
		}
		if err := l.poller.Wait(ctx); err != nil {
			if ctx.Err() != nil {
				return false, ctx.Err()
			}
			s.callBack() // the progress goroutine meets the same, and ends the device
			return false, nil
		}
		ch.leads.Store(nil)
		s.waits.Add(1)
		ch.habit.led()
		if first {
			ch.dev.prog.isAwake()
		}
		for busy := 0; busy < pollsPerWait && l.poller.Serve() > 0; busy++ {
			if ch.wake.take() {
				return true, nil
			}
			runtime.Gosched() // as in serve
		}
	}
	return false, nil
}

// wakeLeader is called after the channel's signal was set, or closed.
func (ch *compChannel) wakeLeader() {
	if l := ch.leads.Load(); l != nil {
		l.poller.Wake()
	}
}
