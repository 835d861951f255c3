//go:build linux

package transport_test

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"github.com/govs-rdma/govs/provider/engine/transport"
	"github.com/govs-rdma/govs/provider/engine/transport/transporttest"
	"golang.org/x/sys/unix"
)

// patience is how long a test waits for what must happen, however slow and busy the machine is.
const patience = 2 * time.Minute

// reader takes what arrives, unless another goroutine is at it.
type reader struct {
	conn transport.Conn
	mu   sync.Mutex
	got  atomic.Int64
}

func (r *reader) Ready(bool, bool) {
	if !r.mu.TryLock() {
		return
	}
	defer r.mu.Unlock()
	var b [64]byte
	n, _ := r.conn.Readv([][]byte{b[:]})
	r.got.Add(int64(n))
}

// newReader makes a connection whose accepting end a reader reads.
func newReader(t *testing.T) (*transporttest.Pair, *reader) {
	t.Helper()
	p := transporttest.NewPair(t, harness("127.0.0.1", nil))
	p.Poller.Remove(p.Accepted.Conn)
	r := &reader{conn: p.Accepted.Conn}
	testkit.OK(t, p.Poller.Add(r.conn, r))
	return p, r
}

// background runs what an engine's progress goroutine does, and counts how often
// it wakes.
func background(t *testing.T, p transport.Poller) (wakes *atomic.Int64) {
	t.Helper()
	wakes = new(atomic.Int64)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for p.Wait(ctx) == nil {
			wakes.Add(1)
			p.Serve()
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return wakes
}

// TestSpinnersAreLeftAlone has one goroutine poll all the time: the one that
// waits must not wake for each message.
func TestSpinnersAreLeftAlone(t *testing.T) {
	p, r := newReader(t)
	wakes := background(t, p.Poller)
	const messages = 2000
	// A spinner that the system pauses does not spin, and who waits is right to
	// take over. Such messages show by the time they take.
	const pause = 200 * time.Microsecond
	var woken, paused int64
	for try := 0; ; try++ {
		before := wakes.Load()
		paused = 0
		for range messages {
			had, start := r.got.Load(), time.Now()
			p.Dialed.Send([]byte{1})
			for r.got.Load() == had {
				p.Poller.Poll()
			}
			if time.Since(start) > pause {
				paused++
			}
		}
		if woken = wakes.Load() - before; woken <= messages/4+4*paused {
			break
		}
		if try == 4 {
			t.Errorf("%d wake-ups for %d messages that somebody polled for, who was paused %d times", woken, messages, paused)
			break
		}
	}
	t.Logf("%d wake-ups for %d messages, %d of which took more than %v", woken, messages, paused, pause)

	// When the spinning stops, what arrives is noticed nevertheless.
	for range 20 {
		before := r.got.Load()
		p.Dialed.Send([]byte{1})
		for deadline := time.Now().Add(patience); r.got.Load() == before; {
			if time.Now().After(deadline) {
				t.Fatal("nobody noticed what arrived")
			}
			time.Sleep(10 * time.Microsecond)
		}
	}
}

// TestRarePollersHaveNoLease: where a program pauses between its Polls, the other goroutine takes
// what arrives.
func TestRarePollersHaveNoLease(t *testing.T) {
	p, _ := newReader(t)
	wakes := background(t, p.Poller)
	const polls = 200
	testkit.Once(t, func() error {
		before := wakes.Load()
		for range polls {
			p.Dialed.Send(make([]byte, 1000)) // more than both read
			rest := unix.NsecToTimespec(int64(4 * policy.LeaseTime))
			_ = unix.Nanosleep(&rest, nil)
			p.Poller.Poll()
		}
		if n := wakes.Load() - before; n < polls {
			return fmt.Errorf("the other goroutine woke %d times for %d arrivals", n, polls)
		}
		return nil
	})
}

// TestBeforeSleep makes a goroutine spin and then go to sleep: what comes next has to be noticed,
// after BeforeSleep and without it. How long that takes, is reported only.
func TestBeforeSleep(t *testing.T) {
	p, r := newReader(t)
	background(t, p.Poller)
	var prepared, unprepared time.Duration
	const rounds = 60
	for i := range int64(2 * rounds) {
		for range 300 {
			p.Poller.Poll()
		}
		if i%2 == 0 {
			p.Poller.BeforeSleep()
		}
		start := time.Now()
		p.Dialed.Send([]byte{1})
		for r.got.Load() <= i {
			if time.Since(start) > patience {
				t.Fatalf("arrival %d is not noticed, with BeforeSleep: %v", i+1, i%2 == 0)
			}
			time.Sleep(5 * time.Microsecond)
		}
		if i%2 == 0 {
			prepared += time.Since(start)
		} else {
			unprepared += time.Since(start)
		}
	}
	t.Logf("with BeforeSleep %s, without %s", prepared/rounds, unprepared/rounds)
}

// TestWaitWithOneP: a goroutine that parks sees what comes before and while it parks, with the one
// P for which the scheduler sees its last poll.
func TestWaitWithOneP(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	p, r := newReader(t)
	p.Dialed.Send([]byte{1})
	wakes := background(t, p.Poller)
	for i := range int64(100) {
		for deadline := time.Now().Add(patience); r.got.Load() <= i; time.Sleep(100 * time.Microsecond) {
			if time.Now().After(deadline) {
				t.Fatalf("after %d wake-ups nobody has noticed arrival %d", wakes.Load(), i+1)
			}
		}
		p.Dialed.Send([]byte{1})
	}
	if n := wakes.Load(); n < 100 || n > 1000 {
		t.Errorf("%d wake-ups for 100 arrivals", n)
	}
}

// TestWaitHoldsNoThread parks many pollers, with several Ps and with one.
func TestWaitHoldsNoThread(t *testing.T) {
	t.Run("several", testWaitHoldsNoThread)
	t.Run("one", func(t *testing.T) {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
		testWaitHoldsNoThread(t)
	})
}

func testWaitHoldsNoThread(t *testing.T) {
	h := harness("127.0.0.1", nil)
	before := threads(t)
	for range 100 {
		p := testkit.Must(h.Network.NewPoller())(t)
		t.Cleanup(func() { _ = p.Close() })
		background(t, p)
	}
	time.Sleep(50 * time.Millisecond)
	if n := threads(t) - before; n > 20 {
		t.Errorf("%d more threads for 100 goroutines in Wait", n)
	}
}

func threads(t *testing.T) int {
	t.Helper()
	b := testkit.Must(os.ReadFile("/proc/self/status"))(t)
	_, rest, _ := strings.Cut(string(b), "Threads:")
	line, _, _ := strings.Cut(rest, "\n")
	n := testkit.Must(strconv.Atoi(strings.TrimSpace(line)))(t)
	return n
}
