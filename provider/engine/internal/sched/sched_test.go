//go:build schedules

package sched

import (
	"strings"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
)

type (
	lockA struct{ First }
	lockB struct{ After[lockA] }
	lockC struct {
		After[lockB]
		Leaf
	}
)

// search runs actors in one schedule after the other, until try reports false or all schedules with
// that many preemptions were tried. It returns how many ran.
func search(preemptions int, try func(s *Search) bool) (n int) {
	s := &Search{Preemptions: preemptions}
	for n = 1; try(s) && s.Next(); n++ {
	}
	return n
}

// failing searches for a schedule in which actors fail, and wants the error to say what.
func failing(t *testing.T, what string, actors func() []func()) {
	t.Helper()
	var err error
	search(1, func(s *Search) bool {
		err = Run(s, actors()...)
		return err == nil
	})
	if err == nil || !strings.Contains(err.Error(), what) {
		t.Errorf("error %v, want %q", err, what)
	}
}

// note is the protocol of a tried lock with a note, as the engine's transmit side has it. The
// faulty one releases the lock without looking at the note.
type note struct {
	mu     Mutex[lockA]
	work   Bool
	todo   Int64
	done   int64
	faulty bool
}

func (n *note) post() {
	n.todo.Add(1)
	if !n.mu.TryLock() {
		n.work.Store(true)
		if !n.mu.TryLock() {
			return
		}
	}
	for {
		n.work.Store(false)
		n.done = n.todo.Load()
		n.mu.Unlock()
		if n.faulty || !n.work.Load() || !n.mu.TryLock() {
			return
		}
	}
}

// TestSearchFindsLostWakeUp: three actors post, and one that does not get the lock leaves a note. A
// search with two preemptions finds a schedule in which a faulty holder misses the note, and the
// schedule's text repeats the fault. In the correct protocol the search finds no such schedule.
func TestSearchFindsLostWakeUp(t *testing.T) {
	lost := func(c Chooser, faulty bool) bool {
		n := &note{faulty: faulty}
		testkit.OK(t, Run(c, n.post, n.post, n.post))
		return n.done != 3
	}
	schedules := func(faulty bool) (n int, found string) {
		n = search(2, func(s *Search) bool {
			if lost(s, faulty) {
				found = s.String()
			}
			return found == ""
		})
		return n, found
	}
	repeats := func(found string) {
		replay, err := NewReplay(found)
		if err != nil || !lost(replay, true) {
			t.Errorf("schedule %s does not repeat the lost wake-up, error %v", found, err)
		}
	}
	n, found := schedules(true)
	if found == "" {
		t.Fatalf("no lost wake-up in %d schedules", n)
	}
	repeats(found)
	if n, found := schedules(false); found != "" || n < 100 {
		t.Errorf("the correct protocol: %d schedules, want at least 100; lost wake-up %q, want "+
			"none", n, found)
	}
	for seed := range uint64(1000) {
		if r := NewRandom(seed); lost(r, true) {
			repeats(r.String())
			return
		}
	}
	t.Error("1000 random schedules have no lost wake-up")
}

// TestSearchCountsSchedules compares the number of schedules with the one known from combinatorics.
func TestSearchCountsSchedules(t *testing.T) {
	// Two actors have two steps each, and can be interrupted before each step. So the schedules are
	// the interleavings of the three parts of one actor with the three parts of the other.
	var b Bool
	two := func() { b.Store(true); b.Store(true) }
	seen := map[string]bool{}
	search(9, func(s *Search) bool {
		testkit.OK(t, Run(s, two, two))
		if seen[s.String()] {
			t.Fatalf("schedule %s twice", s)
		}
		seen[s.String()] = true
		return true
	})
	testkit.Equal(t, "schedules", len(seen), 20) // 6 over 3
}

type lockNested struct {
	After[lockC]
	Nests
}

// TestRunReports: a run fails if its actors wait for each other, do not end or panic, or if a step
// is taken under the lock of a leaf, which then may be contended.
func TestRunReports(t *testing.T) {
	failing(t, "2 actors wait for each other", func() []func() {
		var a, b Mutex[lockNested]
		return []func(){
			func() { a.Lock(); b.Lock(); b.Unlock(); a.Unlock() },
			func() { b.Lock(); a.Lock(); a.Unlock(); b.Unlock() },
		}
	})
	failing(t, "no end", func() []func() {
		var b Bool
		return []func(){func() {
			for !b.Load() {
			}
		}}
	})
	failing(t, "out of order", func() []func() { return []func(){func() { panic("out of order") }} })
	failing(t, "lockC is contended", func() []func() {
		var c Mutex[lockC]
		locked := func() { c.Lock(); Step(); c.Unlock() }
		return []func(){locked, locked}
	})
}

// TestAwait has one actor wait for a token of another.
func TestAwait(t *testing.T) {
	c := make(chan struct{}, 1)
	woken := false
	search(2, func(s *Search) bool {
		err := Run(s, func() { Await(c); woken = true },
			func() { Step(); Go(func() { c <- struct{}{} }) })
		if err != nil || !woken {
			t.Fatalf("error %v, woken %v", err, woken)
		}
		woken = false
		return true
	})
}

// TestLockOrder takes locks in the order of the ranks and in the opposite order, inside and outside
// of a run.
func TestLockOrder(t *testing.T) {
	var a Mutex[lockA]
	var b Mutex[lockB]
	var c, d Mutex[lockC]
	inOrder := func() {
		a.Lock()
		b.Lock()
		c.Lock()
		c.Unlock()
		b.Unlock()
		a.Unlock()
		testkit.Equal(t, "TryLock of a lock that nobody holds", b.TryLock(), true)
		c.Lock()
		b.Unlock()
		c.Unlock()
	}
	tried := func() { // TryLock may take a lock while one that comes later is held
		b.Lock()
		if a.TryLock() {
			a.Unlock()
		}
		b.Unlock()
	}
	for _, f := range []func(){inOrder, tried} {
		f()
		testkit.OK(t, Run(&Search{}, f))
	}
	reverse := func() { b.Lock(); defer b.Unlock(); a.Lock() }
	const want = "order of locks"
	panics(t, want, reverse)
	panics(t, want, func() { c.Lock(); defer c.Unlock(); d.Lock() }) // two of a rank
	failing(t, want, func() []func() { return []func(){reverse} })
}

// panics wants f to panic with a text that contains want.
func panics(t *testing.T, want string, f func()) {
	t.Helper()
	defer func() {
		t.Helper()
		if p, _ := recover().(string); !strings.Contains(p, want) {
			t.Errorf("panic %q, want %q", p, want)
		}
	}()
	f()
}

// TestAssertHeld asks for a lock that the caller holds, inside and outside of a run, and for locks
// that nobody or another actor holds.
func TestAssertHeld(t *testing.T) {
	var a Mutex[lockA]
	var b Mutex[lockB]
	held := func() {
		a.Lock()
		defer a.Unlock()
		if b.TryLock() {
			AssertHeld[lockB](&b)
			b.Unlock()
		}
		AssertHeld[lockA](&a)
	}
	held()
	testkit.OK(t, Run(&Search{}, held))
	const want = "the caller does not hold lockA"
	again := func() { AssertHeld[lockA](&a) }
	panics(t, want, again)
	a.Lock()
	defer a.Unlock()
	failing(t, want, func() []func() { return []func(){again} }) // this goroutine holds it
}

// TestYield: outside of a run each step calls the function that Yield was given. Taking a leaf is
// no step.
func TestYield(t *testing.T) {
	n := 0
	Yield(func() { n++ })
	defer Yield(nil)
	var a Mutex[lockA]
	var c Mutex[lockC]
	var flag Bool
	a.Lock()         // 1
	a.Unlock()       // 2
	flag.Load()      // 3
	if a.TryLock() { // 4
		a.Unlock() // 5
	}
	c.Lock()
	c.Unlock()
	testkit.Equal(t, "steps", n, 5)
	Yield(nil)
	flag.Load()
	testkit.Equal(t, "steps after Yield(nil)", n, 5)
}
