//go:build schedules

package sched

import (
	"strings"
	"testing"
)

type (
	lockA struct{ First }
	lockB struct{ After[lockA] }
	lockC struct {
		After[lockB]
		Leaf
	}
)

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
	n.pump()
}

func (n *note) pump() {
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
		if err := Run(c, n.post, n.post, n.post); err != nil {
			t.Fatal(err)
		}
		return n.done != 3
	}
	schedules := func(faulty bool) (n int, found string) {
		s := &Search{Preemptions: 2}
		for n = 1; ; n++ {
			if lost(s, faulty) {
				return n, s.String()
			}
			if !s.Next() {
				return n, ""
			}
		}
	}
	n, found := schedules(true)
	if found == "" {
		t.Fatalf("no lost wake-up in %d schedules", n)
	}
	replay, err := NewReplay(found)
	if err != nil || !lost(replay, true) {
		t.Errorf("schedule %s does not repeat the lost wake-up, error %v", found, err)
	}
	if n, found := schedules(false); found != "" || n < 100 {
		t.Errorf("the correct protocol: %d schedules, want at least 100; lost wake-up %q, want "+
			"none", n, found)
	}
	for seed := range uint64(1000) {
		r := NewRandom(seed)
		if lost(r, true) {
			if again, err := NewReplay(r.String()); err != nil || !lost(again, true) {
				t.Errorf("seed %d: schedule %s does not repeat the lost wake-up, error %v", seed, r,
					err)
			}
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
	for s := (&Search{Preemptions: 9}); ; {
		if err := Run(s, two, two); err != nil {
			t.Fatal(err)
		}
		if seen[s.String()] {
			t.Fatalf("schedule %s twice", s)
		}
		seen[s.String()] = true
		if !s.Next() {
			break
		}
	}
	if len(seen) != 20 { // 6 over 3
		t.Errorf("%d schedules, want 20", len(seen))
	}
}

func TestRunReportsDeadlock(t *testing.T) {
	var a, b Mutex[lockNested]
	s := &Search{Preemptions: 1}
	for {
		err := Run(s,
			func() { a.Lock(); b.Lock(); b.Unlock(); a.Unlock() },
			func() { b.Lock(); a.Lock(); a.Unlock(); b.Unlock() },
		)
		if err != nil {
			if !strings.Contains(err.Error(), "2 actors wait for each other") {
				t.Error(err)
			}
			return
		}
		if !s.Next() {
			t.Fatal("two locks in opposite order never deadlock")
		}
	}
}

type lockNested struct {
	After[lockC]
	Nests
}

func TestRunReportsEndlessLoopAndPanic(t *testing.T) {
	var b Bool
	if err := Run(&Search{}, func() {
		for !b.Load() {
		}
	}); err == nil || !strings.Contains(err.Error(), "no end") {
		t.Errorf("error %v", err)
	}
	err := Run(&Search{}, func() { panic("out of order") })
	if err == nil || !strings.Contains(err.Error(), "out of order") {
		t.Errorf("error %v", err)
	}
}

// TestRunReportsContendedLeaf: a run fails if a step is taken under the lock of a leaf, and its
// schedule can be printed.
func TestRunReportsContendedLeaf(t *testing.T) {
	for s := (&Search{Preemptions: 1}); ; {
		var c Mutex[lockC]
		locked := func() {
			c.Lock()
			Step()
			c.Unlock()
		}
		if err := Run(s, locked, locked); err != nil {
			if !strings.Contains(err.Error(), "lockC is contended") {
				t.Error(err)
			}
			return
		}
		if !s.Next() {
			t.Fatal("a leaf is never contended, though a step is taken under it")
		}
	}
}

// TestAwait has one actor wait for a token of another.
func TestAwait(t *testing.T) {
	c := make(chan struct{}, 1)
	woken := false
	for s := (&Search{Preemptions: 2}); ; {
		err := Run(s, func() { Await(c); woken = true },
			func() { Step(); Go(func() { c <- struct{}{} }) })
		if err != nil || !woken {
			t.Fatalf("error %v, woken %v", err, woken)
		}
		if woken = false; !s.Next() {
			return
		}
	}
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
		if !b.TryLock() {
			t.Error("TryLock of a lock that nobody holds reports false")
		}
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
	refused := func(what string, f func()) {
		defer func() {
			if p, _ := recover().(string); !strings.Contains(p, "order of locks") {
				t.Errorf("%s: panic %q", what, p)
			}
		}()
		f()
	}
	for _, f := range []func(){inOrder, tried} {
		f()
		if err := Run(&Search{}, f); err != nil {
			t.Error(err)
		}
	}
	reverse := func() { b.Lock(); defer b.Unlock(); a.Lock() }
	refused("the first after the second", reverse)
	refused("two of a rank", func() { c.Lock(); defer c.Unlock(); d.Lock() })
	if err := Run(&Search{}, reverse); err == nil ||
		!strings.Contains(err.Error(), "order of locks") {
		t.Errorf("in a run: %v", err)
	}
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
	if err := Run(&Search{}, held); err != nil {
		t.Error(err)
	}
	const want = "the caller does not hold lockA"
	func() {
		defer func() {
			if p, _ := recover().(string); !strings.Contains(p, want) {
				t.Errorf("panic %q, want %q", p, want)
			}
		}()
		AssertHeld[lockA](&a)
	}()
	a.Lock()
	defer a.Unlock()
	err := Run(&Search{}, func() { AssertHeld[lockA](&a) })
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("held by another: %v, want %q", err, want)
	}
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
	if n != 5 {
		t.Errorf("%d steps, want 5", n)
	}
	Yield(nil)
	flag.Load()
	if n != 5 {
		t.Error("a step after Yield(nil)")
	}
}
