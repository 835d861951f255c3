//go:build linux

package transport

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"golang.org/x/sys/unix"
)

// These streams wait in the queue, or in epoll where there are too few for one.
var waitingIn = map[string]int{"epoll": policy.Few / 2, "queue": 2*policy.Few + 4}

// busy is a Sharer that always has more to do, for several goroutines.
type busy struct {
	in   atomic.Bool
	slow atomic.Int64 // turns that took so long that another goroutine was preempted
	turn func()
}

func (b *busy) Ready(bool, bool) { panic("a Sharer has turns") }

func (b *busy) ReadyTurn(_, _ bool, budget int) (int, bool) {
	if !b.in.CompareAndSwap(false, true) { // another goroutine is at it
		return 0, false
	}
	defer b.in.Store(false)
	began := time.Now()
	b.turn()
	if time.Since(began) > 8*time.Millisecond {
		b.slow.Add(1)
	}
	return budget, true
}

// lone is a crew of which one stream is left after all have become long, so that it is the only
// one where it waits. Its turns call f.
func lone(t *testing.T, streams int, f func()) (*crew, *busy) {
	t.Helper()
	c := newCrew(t, streams)
	b := &busy{turn: func() {}}
	c.p.Remove(c.conns[0])
	testkit.OK(t, c.p.Add(c.conns[0], b))
	for _, w := range c.workers[1:] {
		w.work = much
	}
	c.poll(20)
	for _, conn := range c.conns[1:] {
		testkit.OK(t, conn.Close())
	}
	c.poll(5)
	if in := c.p.queue.count.Load() == 1; in != (streams > policy.Few) {
		t.Fatalf("the one of %d streams that is left is in the queue: %v", streams, in)
	}
	b.turn = f
	return c, b
}

// TestQueueGivesWay: with one P, a goroutine that loses it in the turn of the only stream has it
// back soon, because who waits for the poller finds nothing to do and lets others run.
func TestQueueGivesWay(t *testing.T) {
	for in, streams := range waitingIn {
		t.Run(in, func(t *testing.T) {
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
			c, b := lone(t, streams, runtime.Gosched)
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() { // as the engine's progress goroutine does
				defer close(done)
				for c.p.Wait(ctx) == nil {
					for n := 0; n < 64 && c.p.Poll() > 0; n++ {
						runtime.Gosched()
					}
				}
			}()
			const polls = 100
			testkit.Once(t, func() error {
				before := b.slow.Load()
				for range polls {
					c.p.Poll()
					runtime.Gosched()
				}
				// The machine may pause this process occasionally.
				if n := b.slow.Load() - before; n > polls/10 {
					return fmt.Errorf("in %d of %d turns a goroutine had no P until another was preempted", n, polls)
				}
				return nil
			})
			cancel()
			<-done
		})
	}
}

// TestQueueLetsSleep: who waits for the poller sleeps while the turn of the only stream takes long
// and nothing is unread.
func TestQueueLetsSleep(t *testing.T) {
	for in, streams := range waitingIn {
		t.Run(in, func(t *testing.T) {
			begun, end := make(chan struct{}, 1), make(chan struct{})
			var conn Conn
			c, _ := lone(t, streams, func() {
				var b [1]byte
				_, _ = conn.Readv([][]byte{b[:]})
				begun <- struct{}{}
				<-end
			})
			conn = c.conns[0]
			done := make(chan struct{})
			go func() {
				defer close(done)
				c.p.Poll()
			}()
			<-begun
			woken := 0
			for until := time.Now().Add(50 * time.Millisecond); time.Now().Before(until); woken++ {
				ctx, cancel := context.WithDeadline(t.Context(), until)
				if c.p.Wait(ctx) == nil {
					c.p.Poll()
				}
				cancel()
			}
			close(end)
			<-done
			if woken > 20 {
				t.Errorf("Wait has returned %d times in 50 ms, and nothing was ready", woken)
			}
		})
	}
}

// TestQueueOutlivesPanics: a stream whose turn panics, or ends the goroutine, is served by others.
func TestQueueOutlivesPanics(t *testing.T) {
	for how, end := range map[string]func(){
		"panic": func() { panic("in a turn") }, "Goexit": runtime.Goexit,
	} {
		for in, streams := range waitingIn {
			t.Run(how+" in "+in, func(t *testing.T) {
				c := newCrew(t, streams)
				for _, w := range c.workers {
					w.work = much
				}
				c.poll(20)
				w := c.workers[0]
				w.then = func() { w.then = nil; end() }
				for w.then != nil {
					done := make(chan struct{})
					go func() {
						defer close(done)
						defer func() { _ = recover() }()
						c.p.Poll()
					}()
					<-done
				}
				had := w.turns
				c.poll(10 * streams)
				if w.turns == had {
					t.Error("the stream has no turns any more")
				}
				for _, conn := range c.conns {
					testkit.OK(t, conn.Close())
				}
				c.poll(10)
				if n := c.p.queue.count.Load(); n != 0 || c.ready() {
					t.Errorf("all streams are closed; the queue counts %d, epoll is ready: %v", n, c.ready())
				}
			})
		}
	}
}

// TestQueueAsksAgain: a stream that is not ready when it would have its turn has none, and is
// watched.
func TestQueueAsksAgain(t *testing.T) {
	const streams = 20
	c := newCrew(t, streams)
	c.toil(streams)
	for _, conn := range c.conns {
		var b [1]byte
		testkit.Must(conn.Readv([][]byte{b[:]}))(t)
	}
	before := c.left()
	if c.p.Poll() == 0 {
		t.Error("Poll says that there was nothing to do, when others may be ready")
	}
	c.p.Poll()
	if n := c.queued(streams); n != 0 || c.left() != before {
		t.Errorf("%d streams that are not ready are in the queue, and had turns of %d bytes", n, before-c.left())
	}
	testkit.Must(c.peers[0].Writev([][]byte{{1}}))(t)
	for had := c.workers[0].turns; c.workers[0].turns == had; {
		c.p.Poll()
	}
}

// TestQueueTakesOnlyItsOwn: a Poll that has found a stream before that was removed and added again
// does not take it out of epoll.
func TestQueueTakesOnlyItsOwn(t *testing.T) {
	c := newCrew(t, 1)
	before, again := c.conns[0].(*tcpConn).reg, new(laborer)
	c.p.Remove(c.conns[0])
	testkit.OK(t, c.p.Add(c.conns[0], again))
	c.p.enqueue(before)
	if c.p.Poll(); again.turns != 1 {
		t.Errorf("the stream had %d turns from its last handler, want 1", again.turns)
	}
}

// TestQueueHearsOfHangupsOnce: epoll reports the reset of a stream in the queue once at most, not
// in each Poll.
func TestQueueHearsOfHangupsOnce(t *testing.T) {
	const streams = 20
	c := newCrew(t, streams)
	c.toil(streams)
	for i, peer := range c.peers {
		testkit.OK(t, peer.(*tcpConn).Abort())
		fds := []unix.PollFd{{Fd: int32(c.conns[i].(*tcpConn).ref.fd)}}
		if n, err := unix.Poll(fds, int(patience.Milliseconds())); n != 1 {
			t.Fatal("the reset has not come: ", err)
		}
	}
	var events [policy.Round]unix.EpollEvent
	epollNow(c.p.ep.fd, events[:])
	if n := epollNow(c.p.ep.fd, events[:]); n != 1 || events[0].Fd != noSlot {
		t.Errorf("epoll reports %d again, want the queue only", n)
	}
}

// TestQueueLeavesNoDescriptor: a poller that was closed with streams in its queue has none.
func TestQueueLeavesNoDescriptor(t *testing.T) {
	open := func() int { return len(testkit.Must(os.ReadDir("/proc/self/fd"))(t)) }
	c := newCrew(t, 20)
	before := open()
	c.toil(20)
	testkit.OK(t, c.p.Close())
	if n := before - open(); n < 4 {
		t.Errorf("Close has closed %d descriptors, want 4", n)
	}
}

// unmoved says that it has more to do, but does nothing.
type unmoved struct{ t *testing.T }

func (unmoved) Ready(bool, bool) {}

func (u unmoved) ReadyTurn(bool, bool, int) (int, bool) {
	if u.t.Context().Err() != nil {
		panic("a Poll without end")
	}
	return 0, true
}

// TestQueueEndsPoll: a Poll ends although no stream uses anything of its turns.
func TestQueueEndsPoll(t *testing.T) {
	c := newCrew(t, 20)
	for _, conn := range c.conns {
		c.p.Remove(conn)
		testkit.OK(t, c.p.Add(conn, unmoved{t}))
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.poll(5)
	}()
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatal("a Poll does not end")
	}
}
