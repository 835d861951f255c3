package engine

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
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
