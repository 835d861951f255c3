package engine

import (
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/frames"
	"github.com/govs-rdma/govs/provider/engine/internal/sched"
)

// Simulation of whole worlds. A world is a few engines on one simulated network, each with a
// program that makes, uses and closes objects of all kinds at any time. A model says which
// completions there have to be and which bytes may change.
//
// A seed fixes the engines' options, the objects, and the network: delays, segments, and readiness
// that is reported late, in another order or without cause, as far as that follows from the order
// of calls. It also fixes the decisions of the driver, one goroutine: the calls of each round,
// their arguments and the faults. The calls of one round run at the same time.
//
// A seed does not fix the order in which the Go scheduler runs goroutines of a bubble that are
// ready at the same time, or how a select chooses. With more than one CPU, it does not fix what
// really happens at the same time. The driver's later decisions depend on the results of its
// earlier ones, such as a refused connection or a full queue, so two runs of a seed may differ.
// Therefore a failure says how to run its seed again and again.
//
// Time is the bubble's: no sleep takes real time.

var (
	worldsTime = flag.Duration("worlds.time", envDuration("GOVS_WORLDS_TIME", 3*time.Second),
		"how long TestWorlds runs worlds (GOVS_WORLDS_TIME)")
	worldsSeed = flag.Uint64("worlds.seed", envUint("GOVS_WORLDS_SEED"),
		"seed of the first world; the others have those that follow; 0: a random one "+
			"(GOVS_WORLDS_SEED)")
	worldsRepeat = flag.Bool("worlds.repeat", false, "run the world of worlds.seed again and again")
	worldsCPUs   = flag.Int("worlds.cpus", 0,
		"how many worlds run at the same time; 0: one for each CPU")
	worldsNow = flag.String("worlds.now", "",
		"a file for the seeds of the worlds that are running, which remains if the process dies")
	worldsTrace = flag.Bool("worlds.trace", false, "print what each world does")
)

func envDuration(name string, otherwise time.Duration) time.Duration {
	if d, err := time.ParseDuration(os.Getenv(name)); err == nil {
		return d
	}
	return otherwise
}

func envUint(name string) uint64 {
	var v uint64
	if n, err := fmt.Sscan(os.Getenv(name), &v); n == 1 && err == nil {
		return v
	}
	return 0
}

// worldPatience is how long a world may take, in real time. After that the process prints all
// its stacks and ends, which is the only way out if something in a bubble runs forever.
const worldPatience = 2 * time.Minute

// TestWorlds runs worlds for as long as worlds.time says, or until one fails.
func TestWorlds(t *testing.T) {
	first := *worldsSeed
	if first == 0 {
		first = rand.Uint64()
	}
	cpus := *worldsCPUs
	if cpus == 0 {
		cpus = runtime.GOMAXPROCS(0)
	}
	yieldAtSteps(first)
	defer sched.Yield(nil)
	s := &soak{next: first, until: time.Now().Add(*worldsTime), began: time.Now()}
	s.told = s.began
	t.Run("cpus", func(t *testing.T) { // returns when all parallel tests in it have ended
		for i := range cpus {
			t.Run(fmt.Sprint(i), func(t *testing.T) {
				t.Parallel()
				s.run(t, i)
			})
		}
	})
	if !t.Failed() {
		s.reached.everything(t, s.worlds.Load())
		t.Logf("%d worlds from seed %d on, %.0f a minute: %s", s.worlds.Load(), first, s.rate(), s.reached.String())
	}
}

// everything checks that everything that worlds may come to has happened in one of many.
func (r *reached) everything(t *testing.T, worlds int64) {
	if worlds < 1000 || *worldsRepeat {
		return
	}
	for _, what := range []string{
		"IBV_WR_SEND", "IBV_WR_SEND_WITH_INV", "IBV_WR_SEND_WITH_IMM", "IBV_WR_RDMA_WRITE",
		"IBV_WR_RDMA_WRITE_WITH_IMM", "IBV_WR_RDMA_READ",
		"IBV_WR_ATOMIC_FETCH_AND_ADD", "IBV_WR_ATOMIC_CMP_AND_SWP",
		"IB_WR_MASKED_ATOMIC_CMP_AND_SWP",
		"IBV_WR_BIND_MW", "IBV_WR_LOCAL_INV", "IB_WR_REG_MR",
		"status IBV_WC_SUCCESS", "status IBV_WC_WR_FLUSH_ERR", "status IBV_WC_LOC_PROT_ERR",
		"status IBV_WC_REM_ACCESS_ERR", "receive IBV_WC_SUCCESS",
		"receive IBV_WC_WR_FLUSH_ERR", "receive IBV_WC_LOC_LEN_ERR",
		"memory work IBV_WC_SUCCESS", "memory work IBV_WC_WR_FLUSH_ERR",
		"RDMA_CM_EVENT_REJECTED", "RDMA_CM_EVENT_UNREACHABLE", "RDMA_CM_EVENT_DISCONNECTED",
		"disconnects", "goes to ERR", "goes to SQD", "goes to SQE",
		"QP reset", "QP closed", "region closed", "CQ overflow", "fault of the network",
		"process ended", "stranger", "connection checked",
	} {
		if r.n[what] == 0 {
			t.Errorf("%q has not happened in any of %d worlds", what, worlds)
		}
	}
}

// yieldAtSteps interrupts goroutines at some steps, in a build that has them (package sched), so
// that they meet where they would only by chance.
func yieldAtSteps(seed uint64) {
	var n atomic.Uint64
	sched.Yield(func() {
		i := n.Add(1)
		d := dice{seed + i}
		if d.oneIn(4 << (i >> 13 % 3 * 2)) { // for a while often, then seldom
			for range d.in(1, 10) {
				runtime.Gosched()
			}
		}
	})
}

// soak is what the goroutines that run worlds share.
type soak struct {
	until, began time.Time
	failed       atomic.Bool
	worlds       atomic.Int64
	reached      reached

	mu   sync.Mutex
	next uint64
	told time.Time
}

func (s *soak) rate() float64 { return float64(s.worlds.Load()) / time.Since(s.began).Minutes() }

// take returns the seed of the next world.
func (s *soak) take() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	seed := s.next
	if !*worldsRepeat {
		s.next++
	}
	if time.Since(s.told) > time.Minute {
		s.told = time.Now()
		fmt.Fprintf(os.Stderr, "worlds: %d, %.0f a minute, at seed %d\n", s.worlds.Load(), s.rate(), seed)
	}
	return seed
}

func (s *soak) run(t *testing.T, cpu int) {
	now := func(uint64) {}
	if *worldsNow != "" {
		f := testkit.Must(os.OpenFile(*worldsNow, os.O_CREATE|os.O_WRONLY, 0o600))(t)
		defer f.Close()
		now = func(seed uint64) { _, _ = f.WriteAt(fmt.Appendf(nil, "%20d\n", seed), int64(cpu)*21) }
	}
	for !s.failed.Load() && time.Now().Before(s.until) {
		seed := s.take()
		now(seed)
		if err := s.world(t, seed); err != nil {
			s.failed.Store(true)
			why := fmt.Sprintf("the world of seed %d, after %v and %d worlds: %v\n\n"+
				"Run it again with:\n\n"+
				"    go test ./provider/engine -run '^TestWorlds$' -worlds.seed=%d -worlds.repeat "+
				"-worlds.time=1m%s\n",
				seed, time.Since(s.began).Round(time.Millisecond), s.worlds.Load(), err, seed, withSteps())
			fmt.Fprintln(os.Stderr, why) // now, because the rest of the world may never end
			t.Error(why)
			return
		}
		s.worlds.Add(1)
	}
}

// withSteps returns the flag that the command needs if this build has steps.
func withSteps() string {
	if sched.Explored {
		return " -tags schedules"
	}
	return ""
}

// world runs one world in a bubble.
func (s *soak) world(t *testing.T, seed uint64) (err error) {
	w := newWorld(seed)
	dog := time.AfterFunc(worldPatience, func() {
		fmt.Fprintf(os.Stderr, "the world of seed %d has not ended after %v:\n%v\n", seed, worldPatience, w.failure())
		buf := make([]byte, 4<<20)
		fmt.Fprintf(os.Stderr, "%s\n", buf[:runtime.Stack(buf, true)])
		os.Exit(2)
	})
	defer dog.Stop()
	defer func() {
		v := recover()
		if failed := w.failure(); failed != nil {
			err = failed
		} else if v != nil { // a deadlock of the bubble
			err = fmt.Errorf("%v\n%s", v, w.story())
		}
	}()
	synctest.Test(t, func(t *testing.T) {
		defer func() {
			if v := recover(); v != nil && v != any(errWorldEnds) {
				w.failLater("panic: %v\n%s", v, debug.Stack())
			}
		}()
		w.live()
	})
	s.reached.add(w)
	return nil
}

// dice gives numbers that follow from a seed (splitmix64).
type dice struct{ x uint64 }

func (d *dice) next() uint64 {
	d.x += 0x9e3779b97f4a7c15
	z := d.x
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// upTo returns a number from 0 to n, or 0 if n is negative.
func (d *dice) upTo(n int) int {
	if n <= 0 {
		return 0
	}
	return int(d.next() % uint64(n+1))
}

func (d *dice) in(lo, hi int) int { return lo + d.upTo(hi-lo) }

func (d *dice) oneIn(n int) bool { return d.upTo(n-1) == 0 }

func (d *dice) fork() *dice { return &dice{d.next()} }

// one picks an element of a list, the zero value if it has none.
func one[T any](d *dice, list []T) (v T) {
	if len(list) > 0 {
		v = list[d.upTo(len(list)-1)]
	}
	return v
}

// weighed picks an index as often as its weight says.
func (d *dice) weighed(weights []int) int {
	sum := 0
	for _, w := range weights {
		sum += w
	}
	n := d.upTo(sum - 1)
	for i, w := range weights {
		if n -= w; n < 0 {
			return i
		}
	}
	return 0
}

// bytes returns the length of a message: mostly it is short, sometimes about that of a
// segment, sometimes long.
func (d *dice) octets(most int) int {
	n := 0
	switch d.upTo(9) {
	case 0:
	case 1, 2, 3:
		n = d.in(1, 64)
	case 4, 5:
		n = d.in(65, 1200)
	case 6:
		n = d.in(1380, 1470)
	case 7, 8:
		n = d.in(1, 6000)
	default:
		n = d.in(1, most)
	}
	return min(n, most)
}

// fillWith fills b with bytes that follow from id.
func fillWith(b []byte, id uint64) {
	d := dice{id * 0x2545f4914f6cdd1d}
	for len(b) >= 8 {
		binary.LittleEndian.PutUint64(b, d.next())
		b = b[8:]
	}
	for i, x := 0, d.next(); i < len(b); i++ {
		b[i] = byte(x >> (8 * i))
	}
}

// wordAligned makes n bytes, a multiple of 8, aligned to a word.
func wordAligned(n int) []byte {
	words := make([]uint64, n/8)
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(words))), n)
}

// Checks of a world in which nothing moves any more, and the functions that look into the
// engine.

// quietly waits until all goroutines of the bubble wait.
func (w *world) quietly() {
	synctest.Wait()
	if w.err.Load() != nil {
		panic(errWorldEnds)
	}
}

// quiet waits until nothing happens any more and all time limits have run out, and compares
// everything with the model.
func (w *world) quiet() {
	w.note("quiet")
	w.seen("quiet")
	for _, d := range []time.Duration{time.Millisecond, 100 * time.Millisecond, 3 * time.Second} {
		w.pass(d)
	}
	told := w.net.Told()
	for n := 0; w.pass(20*time.Second) > 0 || w.net.Told() != told; n++ { // time limits run out
		if told = w.net.Told(); n == 20 {
			w.fail("the driver does nothing, but for minutes something completes, or handlers " +
				"are called")
		}
	}
	w.late()
	w.checkNever()
	for _, c := range w.conns {
		w.checkConnection(c)
	}
	for _, p := range w.procs {
		for _, c := range p.cqs {
			w.checkOverflow(c)
		}
		for _, q := range p.qps {
			if err := q.q.ringInOrder(); err != nil {
				w.fail("%s: %v", q, err)
			}
			if q.closed || q.state() == provider.QPErr {
				if q.closed && q.scq.closed {
					continue
				}
				w.accounted(q)
			}
		}
		if p.ended {
			continue
		}
		for _, r := range p.rights {
			if err := r.unused(); err != nil && (r.object == nil || r.object.busy == 0) {
				w.fail("%s: nothing moves, but %v", p, err)
			}
		}
		if err := p.dev.freeListsAreClean(); err != nil {
			w.fail("%s: %v", p, err)
		}
	}
	for _, p := range w.procs {
		p.mem.check(w)
	}
}

// pass lets time pass, and takes completions and events. It returns how many there were.
func (w *world) pass(d time.Duration) int {
	time.Sleep(d)
	w.quietly()
	happened := w.events()
	for _, p := range w.procs {
		for _, c := range p.cqs {
			for n := w.drain(c); n > 0; n = w.drain(c) {
				happened += n
			}
		}
	}
	return happened
}

// late freezes the spans that objects might still have changed; the objects' calls are over.
func (w *world) late() {
	for _, s := range w.lates {
		if s.late == nil || s.frozen {
			continue
		}
		s.freeze(w, s.look())
		s.drop()
	}
	w.lates = nil
}

// checkOverflow checks that a CQ that has lost completions has raised an event.
func (w *world) checkOverflow(c *complQueue) {
	if !c.lossy || c.closed {
		return
	}
	a := &c.p.dev.async
	a.mu.Lock()
	told := a.lost > 0 || slices.ContainsFunc(a.events, func(e provider.AsyncEvent) bool {
		return e.Type == provider.EventCQErr && e.CQ == provider.CQ(c.cq)
	})
	a.mu.Unlock()
	if !told {
		w.fail("%s: a CQ has lost completions, and has raised no event", c.p)
	}
}

// checkConnection checks a connection: if the network did nothing to it, everything that was
// posted is done, and it has ended if it was ended.
func (w *world) checkConnection(c *connection) {
	var s [2]*stream
	for side, q := range c.qps {
		if q.conn != c {
			continue
		}
		if s[side] = q.q.stream.Load(); s[side] == nil && q.state() == provider.QPErr {
			w.connectionOver(c, side)
		}
	}
	for side, q := range c.qps {
		if q.conn != c || s[side] == nil || c.spoiled || w.spoiled(s[side]) {
			continue
		}
		switch {
		case c.ending:
			w.fail("connection %d was ended, but %s is in %v", c.no, q, q.state())
		case s[1-side] == nil:
			w.fail("connection %d: %s is in %v, but its peer has no connection", c.no, q, q.state())
		}
		w.checkIdle(c, q, s[side])
	}
}

// checkIdle checks that everything that was posted to q is done, unless q may not send.
func (w *world) checkIdle(c *connection, q *queuePair, s *stream) {
	if !s.maySend.Load() {
		return
	}
	x := s.idle()
	if x.unsent != 0 || x.reads != 0 || x.unreported != 0 || x.batch || x.context {
		w.fail("%s: nothing moves and the connection is whole, but %d work requests are not sent, "+
			"%d not answered and %d not reported; it keeps a batch: %v, a context: %v",
			q, x.unsent, x.reads, x.unreported, x.batch, x.context)
	}
	for _, o := range q.sends {
		if q.signaled(o) && !q.lossy() {
			w.fail("%s: nothing moves, but %s has no completion", q, o)
		}
		if o.badLocal {
			w.fail("%s: %s succeeded, but one of its SGEs names memory that can't be used", q, o)
		}
		w.retire(o, !q.lossy(), nil)
	}
	q.sends = nil
	if refused := c.refused[q.side]; len(refused) > 0 {
		w.fail("%s: %s had to be refused, but the connection lives", q, refused[0])
	}
	w.placed(c, q.side, func(*op) bool { return true })
	if peer := q.peer(); !peer.lossy() && c.taken[1-q.side] < len(c.msgs[q.side]) {
		w.fail("%s: nothing moves, but %s was not received", q, c.msgs[q.side][c.taken[1-q.side]])
	}
	w.seen("connection checked")
}

// ringInOrder checks the indexes of a send queue.
func (q *qp) ringInOrder() error {
	s := q.stream.Load()
	if s != nil {
		s.tx.mu.Lock()
		defer s.tx.mu.Unlock()
	}
	q.sq.done.Lock()
	defer q.sq.done.Unlock()
	free, head, out, tail := q.sq.free.Load(), q.sq.head, q.sq.out, q.sq.tail.Load()
	next := tail
	if s != nil && !s.hasFinished() {
		next = s.tx.next
	}
	if int32(head-free) < 0 || s != nil && (int32(out-head) < 0 || int32(next-out) < 0) || int32(tail-next) < 0 {
		return fmt.Errorf("the send queue's indexes are out of order: free %d, head %d, out %d, "+
			"next %d, tail %d",
			free, head, out, next, tail)
	}
	return nil
}

// listed returns how many QPs and streams are in the device's lists, and one more if the watch
// over stalls was not stopped.
func (d *device) listed() int {
	l, st := &d.closing, &d.stalls
	l.mu.Lock()
	n := len(l.places)
	l.mu.Unlock()
	d.qpnMu.Lock()
	n += len(d.qpns)
	d.qpnMu.Unlock()
	st.mu.Lock()
	if !st.stopped {
		n++
	}
	st.mu.Unlock()
	return n
}

func (d *device) acceptedNow() int {
	return max(d.cm.Accepted(), d.cm.AcceptedPeers())
}

// freeListsAreClean checks that the objects in the free lists, which the next stream gets, refer to
// nothing of the last one.
func (d *device) freeListsAreClean() error {
	for _, c := range d.prog.contexts.All() {
		if c.m != nil || c.nplace != 0 || c.nspans != 0 || c.pieces != nil {
			return fmt.Errorf("a receive context in the free list has a region: %v, %d places, %d spans, "+
				"%d pieces",
				c.m != nil, c.nplace, c.nspans, len(c.pieces))
		}
	}
	for _, b := range d.prog.batches.All() {
		if !b.Idle() {
			return errors.New("a batch in the free list is not idle")
		}
	}
	return nil
}

// Contexts and batches are large, and worlds are short. So one world gets another's, with the bytes
// written in them.
var (
	oldContexts = sync.Pool{New: func() any { return newRxContext() }}
	oldBatches  = sync.Pool{New: func() any { return frames.New(nil) }}
)

func (d *device) lendFromStore() {
	d.prog.contexts.New = func() *rxContext { return oldContexts.Get().(*rxContext) }
	d.prog.batches.New = func() *frames.Batch {
		b := oldBatches.Get().(*frames.Batch)
		b.SetPool(&d.chunks)
		return b
	}
}

func (d *device) giveToStore() {
	for _, c := range d.prog.contexts.All() {
		oldContexts.Put(c)
	}
	for _, b := range d.prog.batches.All() {
		oldBatches.Put(b)
	}
}
