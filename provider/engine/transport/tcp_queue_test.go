//go:build linux

package transport

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"golang.org/x/sys/unix"
)

// laborer is a Sharer with work that needs turns and no bytes of its stream, which stay unread.
type laborer struct {
	work     int
	turns    int
	writable int // turns in which the stream could be written
	then     func()
}

func (l *laborer) Ready(bool, bool) { panic("a Sharer has turns") }

func (l *laborer) ReadyTurn(_, writable bool, budget int) (int, bool) {
	l.turns++
	if writable {
		l.writable++
	}
	if l.then != nil {
		l.then()
	}
	used := min(budget, l.work)
	l.work -= used
	return used, l.work > 0
}

// much is more work than a test gives turns for.
const much = 1 << 30

// patience is how long a test waits for what must happen, however slow and busy the machine is.
const patience = 2 * time.Minute

// crew is a poller with streams that all have a byte to read, and the peers of these streams.
type crew struct {
	t       *testing.T
	p       *tcpPoller
	conns   []Conn
	peers   []Conn
	workers []*laborer
}

func newCrew(t *testing.T, streams int) *crew {
	t.Helper()
	network := NewTCP(nil)
	c := &crew{t: t, p: testkit.Must(network.NewPoller())(t).(*tcpPoller)}
	t.Cleanup(func() { _ = c.p.Close() })
	l := testkit.Must(network.Listen(loopback, 0))(t)
	defer l.Close()
	for range streams {
		peer := testkit.Must(network.Dial(t.Context(), loopback, l.Addr()))(t)
		conn := testkit.Must(l.Accept(t.Context()))(t)
		t.Cleanup(func() { _, _ = peer.Close(), conn.Close() })
		w := new(laborer)
		testkit.OK(t, c.p.Add(conn, w))
		testkit.Must(peer.Writev([][]byte{{1}}))(t)
		c.conns, c.peers, c.workers = append(c.conns, conn), append(c.peers, peer), append(c.workers, w)
	}
	for _, conn := range c.conns {
		fds := []unix.PollFd{{Fd: int32(conn.(*tcpConn).ref.fd), Events: unix.POLLIN}}
		if n, err := unix.Poll(fds, int(patience.Milliseconds())); n != 1 {
			t.Fatal("the byte has not come: ", err)
		}
	}
	return c
}

// poll polls n times.
func (c *crew) poll(n int) {
	for range n {
		c.p.Poll()
	}
}

// queued is how many of the first n streams are in the queue.
func (c *crew) queued(n int) (queued int) {
	for _, conn := range c.conns[:n] {
		if conn.(*tcpConn).reg.queued.Load() {
			queued++
		}
	}
	return queued
}

// toil gives the first n streams much to do, and polls until all of them are in the queue.
func (c *crew) toil(n int) {
	c.t.Helper()
	for _, w := range c.workers[:n] {
		w.work = much
	}
	for range 100 {
		if c.p.Poll(); c.queued(n) == n {
			return
		}
	}
	c.t.Fatalf("%d of %d streams that have much to do are in the queue", c.queued(n), n)
}

// ready reports whether epoll has something to report, as goroutines see it that wait for that.
func (c *crew) ready() bool {
	fds := []unix.PollFd{{Fd: int32(c.p.ep.fd), Events: unix.POLLIN}}
	return testkit.Must(unix.Poll(fds, 0))(c.t) > 0
}

// TestQueueGoesRound: streams with much to do wait in the queue and have turns one after the
// other, of which all that one Poll gives come to no more than a long turn and a quarter.
func TestQueueGoesRound(t *testing.T) {
	const streams = 100
	c := newCrew(t, streams)
	c.toil(streams)
	for _, w := range c.workers {
		w.turns, w.work = 0, much
	}
	for c.workers[0].turns < 5 {
		before := c.left()
		if c.p.Poll() == 0 {
			t.Fatal("a Poll has served no stream")
		}
		if used := before - c.left(); used > policy.BudgetLong*5/4 {
			t.Fatalf("a Poll has given turns of %d bytes", used)
		}
	}
	for i, w := range c.workers {
		if w.turns < 4 || w.turns > 5 {
			t.Errorf("stream %d has had %d turns, the first 5", i, w.turns)
		}
	}
}

// left is what the workers have to do.
func (c *crew) left() (octets int) {
	for _, w := range c.workers {
		octets += w.work
	}
	return octets
}

// TestQueueLetsShortStreamsPass: a stream with one message has its turn in the next Poll, however
// many have much to do, and these have turns in every other Poll at least.
func TestQueueLetsShortStreamsPass(t *testing.T) {
	const long = 3 * policy.Round
	c := newCrew(t, long+1)
	short := c.workers[long]
	testkit.OK(t, c.p.WantRead(c.conns[long], false))
	c.toil(long)
	testkit.OK(t, c.p.WantRead(c.conns[long], true))
	for poll := range 20 {
		short.work = 100
		before := c.left()
		c.p.Poll()
		if short.turns != poll+1 || short.work != 0 {
			t.Fatalf("after %d Polls the stream with one message has had %d turns", poll+1, short.turns)
		}
		long := before - c.left() - 100
		if most := poll % 2 * policy.BudgetLong * 5 / 4; long > most || long < most/2 {
			t.Fatalf("Poll %d has given turns of %d bytes to those that have much to do", poll, long)
		}
	}
}

// TestQueueIsFirst: streams that begin to have much to do come after those in the queue.
func TestQueueIsFirst(t *testing.T) {
	const queued, late = 20, 3
	c := newCrew(t, queued+late)
	for _, conn := range c.conns[queued:] {
		testkit.OK(t, c.p.WantRead(conn, false))
	}
	c.toil(queued)
	had := c.workers[queued-1].turns
	for i, conn := range c.conns[queued:] {
		testkit.OK(t, c.p.WantRead(conn, true))
		c.workers[queued+i].work = much
	}
	c.poll(2 * (queued + late))
	for i, w := range c.workers[queued:] {
		if w.turns > 5 {
			t.Errorf("stream %d has had %d turns", queued+i, w.turns)
		}
	}
	if w := c.workers[queued-1]; w.turns == had {
		t.Error("the last stream in the queue had no turn")
	}
}

// TestQueueEnds: streams that have no more to do are watched again, and report what is unread.
func TestQueueEnds(t *testing.T) {
	const streams = 20
	c := newCrew(t, streams)
	c.toil(streams)
	for _, w := range c.workers {
		w.work = 1
	}
	c.poll(2)
	if n := c.queued(streams); n > 0 || c.p.queue.count.Load() != 0 {
		t.Fatalf("%d streams are in the queue, and it counts %d", n, c.p.queue.count.Load())
	}
	before := c.workers[0].turns
	if n := c.p.Poll(); n != streams || c.workers[0].turns != before+1 {
		t.Errorf("Poll has served %d streams that can be read, want %d", n, streams)
	}
	for _, conn := range c.conns {
		var b [1]byte
		testkit.Must(conn.Readv([][]byte{b[:]}))(t)
	}
	if c.p.Poll() != 0 || c.ready() {
		t.Error("epoll reports something when there is nothing to do")
	}
}

// TestQueueKeepsEpollReady: goroutines that wait for the epoll instance find it ready while the
// queue has streams, although none of these is watched.
func TestQueueKeepsEpollReady(t *testing.T) {
	const streams = 10
	c := newCrew(t, streams)
	c.toil(streams)
	for range 3 {
		testkit.OK(t, c.p.Wait(t.Context()))
	}
	for i, conn := range c.conns {
		if !c.ready() {
			t.Fatalf("epoll is not ready, and %d streams are in the queue", streams-i)
		}
		c.p.Remove(conn)
	}
	c.p.Poll()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := c.p.Wait(ctx); err == nil {
		t.Error("Wait returns when nothing is in the queue")
	}
}

// TestQueueFollowsWants: what a stream in the queue wants counts for its turns, and after them.
func TestQueueFollowsWants(t *testing.T) {
	const streams = 20
	c := newCrew(t, streams)
	c.toil(streams)
	w := c.workers[0]
	testkit.OK(t, c.p.WantWrite(c.conns[0], true))
	for had := w.turns; w.turns == had; {
		c.p.Poll()
	}
	if w.writable == 0 {
		t.Error("a stream that wants to write was not told that it may be able to")
	}
	testkit.OK(t, c.p.WantWrite(c.conns[0], false))
	testkit.OK(t, c.p.WantRead(c.conns[0], false))
	for _, w := range c.workers {
		w.work = 1
	}
	c.poll(3)
	had := w.turns
	c.poll(3)
	if w.turns != had {
		t.Errorf("a stream that wants nothing was called %d times", w.turns-had)
	}
	testkit.OK(t, c.p.WantRead(c.conns[0], true))
	c.poll(3) // there are more than one round serves
	if w.turns == had {
		t.Error("a stream that wants to read again is not watched")
	}
}

// TestQueueForgetsWhoLeaves: a stream that was removed or closed in the queue, or in its turn, is
// not called again, and one that is added again, also in its turn, is watched for its last handler.
func TestQueueForgetsWhoLeaves(t *testing.T) {
	const streams = 20
	c := newCrew(t, streams)
	c.toil(streams)
	var had [streams]int
	for i, w := range c.workers {
		had[i] = w.turns
	}
	c.p.Remove(c.conns[0])
	testkit.OK(t, c.conns[1].Close())
	c.workers[2].then = func() { c.p.Remove(c.conns[2]) }
	c.workers[3].then = func() { _ = c.conns[3].Close() }
	for c.workers[2].turns == had[2] || c.workers[3].turns == had[3] {
		c.p.Poll()
	}
	for i, w := range c.workers {
		had[i] = w.turns
	}
	c.poll(4 * streams)
	for i, w := range c.workers {
		if again := w.turns > had[i]; again != (i > 3) {
			t.Errorf("stream %d: called again: %v", i, again)
		}
	}
	if n := c.p.queue.count.Load(); n != streams-4 {
		t.Errorf("the queue counts %d streams, want %d", n, streams-4)
	}
	again, inTurn := new(laborer), new(laborer)
	testkit.OK(t, c.p.Add(c.conns[0], again))
	c.workers[4].work, c.workers[4].then = 1, func() {
		c.p.Remove(c.conns[4])
		testkit.OK(t, c.p.Add(c.conns[4], inTurn))
	}
	for n := c.workers[4].turns; c.workers[4].turns == n; {
		c.p.Poll()
	}
	c.poll(2)
	if again.turns == 0 || inTurn.turns == 0 {
		t.Errorf("streams that were added again have %d turns, and %d if that was in a turn", again.turns, inTurn.turns)
	}
}

// TestQueueCloses: a poller is closed while its queue has streams, and while one of them has its
// turn.
func TestQueueCloses(t *testing.T) {
	const streams = 20
	c := newCrew(t, streams)
	c.toil(streams)
	for _, w := range c.workers {
		w.then = func() { _ = c.p.Close() }
	}
	c.poll(3)
	total := 0
	for _, w := range c.workers {
		w.then = nil
		total += w.turns
	}
	c.p.Poll()
	for _, w := range c.workers {
		total -= w.turns
	}
	if total != 0 {
		t.Error("a stream was called after Close")
	}
}

// eater reads what arrives, a few bytes in each turn.
type eater struct {
	c    Conn
	p    Poller
	mu   sync.Mutex
	rnd  *rand.Rand
	want uint64 // the next bytes, as a number
	got  atomic.Int64
	bad  atomic.Bool
}

func (e *eater) Ready(bool, bool) { panic("a Sharer has turns") }

func (e *eater) ReadyTurn(readable, _ bool, budget int) (used int, more bool) {
	if !readable || !e.mu.TryLock() {
		return 0, false
	}
	defer e.mu.Unlock()
	var b [8]byte
	for range 1 + e.rnd.IntN(3) {
		n, err := e.c.Readv([][]byte{b[:]})
		if err != nil {
			return 1, false
		}
		if n != len(b) || binary.NativeEndian.Uint64(b[:]) != e.want {
			e.bad.Store(true)
			return 1, false
		}
		e.want++
		e.got.Add(1)
	}
	if e.rnd.IntN(8) == 0 { // a stream may want nothing for a while, and another goroutine ends that
		_ = e.p.WantRead(e.c, false)
		time.AfterFunc(50*time.Microsecond, func() { _ = e.p.WantRead(e.c, true) })
	}
	return budget, true // as one that has used up its turn
}

// TestQueueLosesNothing has goroutines poll at once, some of which stop to, while streams have
// more and less to do. All bytes are read, and then nothing is left to report.
func TestQueueLosesNothing(t *testing.T) {
	const streams, messages, pollers = 60, 200, 3
	network := NewTCP(nil)
	p := testkit.Must(network.NewPoller())(t).(*tcpPoller)
	defer p.Close()
	l := testkit.Must(network.Listen(loopback, 0))(t)
	defer l.Close()
	var eaters [streams]*eater
	var writers sync.WaitGroup
	for i := range eaters {
		peer := testkit.Must(network.Dial(t.Context(), loopback, l.Addr()))(t)
		conn := testkit.Must(l.Accept(t.Context()))(t)
		defer peer.Close()
		defer conn.Close()
		e := &eater{c: conn, p: p, rnd: rand.New(rand.NewPCG(1, uint64(i)))}
		testkit.OK(t, p.Add(conn, e))
		eaters[i] = e
		rnd := rand.New(rand.NewPCG(2, uint64(i)))
		writers.Go(func() {
			for n := uint64(0); n < messages; {
				var some []byte
				for range min(1+rnd.Uint64N(20), messages-n) {
					some = binary.NativeEndian.AppendUint64(some, n)
					n++
				}
				_, _ = peer.Writev([][]byte{some})
				time.Sleep(time.Duration(rnd.Int64N(int64(200 * time.Microsecond))))
			}
		})
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var polling sync.WaitGroup
	for i := range pollers {
		polling.Go(func() {
			for n := 0; n < 2000*(i+1); n++ {
				p.Poll()
			}
		})
	}
	polling.Go(func() { // as the engine's progress goroutine does
		for p.Wait(ctx) == nil {
			p.Poll()
		}
	})
	writers.Wait()
	for _, e := range eaters {
		for e.got.Load() < messages && ctx.Err() == nil && !e.bad.Load() {
			time.Sleep(time.Millisecond)
		}
	}
	time.Sleep(10 * time.Millisecond) // what was switched off is on again
	for range 2 * streams {
		p.Poll()
	}
	cancel()
	polling.Wait()
	for i, e := range eaters {
		if got := e.got.Load(); got != messages || e.bad.Load() {
			t.Errorf("stream %d has %d messages of %d, in the wrong order: %v", i, got, messages, e.bad.Load())
		}
	}
	if n := p.queue.count.Load(); n != 0 {
		t.Errorf("%d streams are in the queue at the end", n)
	}
}
