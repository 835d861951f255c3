package conformance

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
)

// stuck is a run that does not end until the test does.
type stuck struct {
	over    atomic.Bool
	release chan struct{}
	left    chan struct{} // closed when it has ended
}

// ignores waits for something that does not come.
func (s *stuck) ignores(r *VerbsRun) {
	defer close(s.left)
	r.Check(true, "it begins")
	<-s.release
	r.Check(false, "a run that was abandoned is recorded no more")
}

// spins makes no call that blocks. It ends at the first call of a method of its T.
func (s *stuck) spins(r *VerbsRun) {
	defer close(s.left)
	for n := 0; !s.over.Load(); n++ {
	}
	_ = r.Context() // ends this goroutine
	s.over.Store(false)
}

// lingers has a cleanup that does not end.
func (s *stuck) lingers(r *VerbsRun) {
	r.Check(true, "its body ends")
	r.Cleanup(func() {
		defer close(s.left)
		<-s.release
	})
}

// starts starts a goroutine of its own that does not end.
func (s *stuck) starts(r *VerbsRun) {
	go s.ignores(r)
	<-s.left
}

// TestRunAbandoned: a run that does not end fails, the runs after it are tried, and the log shows
// where its goroutines are.
func TestRunAbandoned(t *testing.T) {
	for _, c := range []struct {
		name string
		body func(*stuck) func(*VerbsRun)
		at   string   // the function that the check's detail and the log name
		log  []string // those that the log names besides
	}{
		{"ignores its context", func(s *stuck) func(*VerbsRun) { return s.ignores },
			"(*stuck).ignores (abandon_test.go:", nil},
		{"spins", func(s *stuck) func(*VerbsRun) { return s.spins },
			"(*stuck).spins (abandon_test.go:", nil},
		{"does not clean up", func(s *stuck) func(*VerbsRun) { return s.lingers },
			"(*stuck).lingers.func1 (abandon_test.go:", nil},
		{"waits for a goroutine", func(s *stuck) func(*VerbsRun) { return s.starts },
			"(*stuck).starts (abandon_test.go:", []string{"(*stuck).ignores (abandon_test.go:"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var s *stuck
			var out []Outcome
			var limit time.Duration
			testkit.Scaled(t, 20*time.Millisecond, func(unit time.Duration) error {
				limit = unit
				s, out = abandoned(t, limit, c.body)
				return stands(&out[0], c.at, c.log)
			})
			<-s.left
			o := &out[0]
			last := o.Checks[len(o.Checks)-1]
			if last.OK || last.What != "the run ends by itself" || !strings.HasPrefix(last.Got,
				fmt.Sprintf("it took longer than %v, and %[1]v after that it was in ", limit)) {
				t.Fatalf("the last check is %+v", last)
			}
			log := strings.Join(o.Log, "\n")
			if strings.Contains(log, "testing.tRunner") || strings.Contains(last.Got, "runtime.") {
				t.Errorf("what is not the run's is shown: %s\n%s", last.Got, log)
			}
			for _, check := range o.Checks {
				if check.What == "a run that was abandoned is recorded no more" {
					t.Error("the outcome has changed afterwards")
				}
			}
			// The grace has to be in it. The time limit began before the run did.
			if o.DurationMillis < limit.Milliseconds() || o.Capture == "" {
				t.Errorf("it took %d ms, capture %q", o.DurationMillis, o.Capture)
			}
			if c.name == "spins" && !s.over.Load() {
				t.Error("the run went on after it had called a method of its T")
			}
		})
	}
}

// abandoned runs a scenario with a body that does not end, and then another. It gives the first
// limit for its time and once more for its cleanups, and then makes the body end.
func abandoned(t *testing.T, limit time.Duration, body func(*stuck) func(*VerbsRun)) (*stuck,
	[]Outcome) {
	s := &stuck{release: make(chan struct{}), left: make(chan struct{})}
	sc := verbs("a/stuck", body(s))
	sc.Timeout = limit
	next := verbs("a/next", func(r *VerbsRun) { r.Check(true, "it runs") })
	cfg := config(t, suite(sc, next), Pairing{"engine", "engine"})
	cfg.Grace = limit
	cfg.Capture = &recorder{}
	out := testkit.Must(Run(context.Background(), cfg))(t)
	s.over.Store(true)
	close(s.release)
	if len(out) != 2 || out[1].State() != "ok" {
		t.Fatalf("outcomes %+v", out)
	}
	return s, out
}

// stands returns an error unless the last check of o names the function at, and the log of o has at
// and log. The time may have been over before the run got there.
func stands(o *Outcome, at string, log []string) error {
	got, text := o.Checks[len(o.Checks)-1].Got, strings.Join(o.Log, "\n")
	if !strings.Contains(got, at) {
		return fmt.Errorf("the check does not name %s: %s", at, got)
	}
	for _, name := range append(log, at) {
		if !strings.Contains(text, name) {
			return fmt.Errorf("the log does not name %s:\n%s", name, text)
		}
	}
	return nil
}

// After mostAbandoned runs no other is tried.
func TestRunAbandonedOften(t *testing.T) {
	release := make(chan struct{})
	left := make(chan struct{}, mostAbandoned)
	var begun atomic.Int32 // on a busy machine a run's time may be over before it begins
	var scenarios []*Scenario
	for _, slug := range []string{"a/one", "a/two", "a/three"}[:mostAbandoned] {
		sc := verbs(slug, func(*VerbsRun) {
			begun.Add(1)
			defer func() { left <- struct{}{} }()
			<-release
		})
		sc.Timeout = 50 * time.Millisecond
		scenarios = append(scenarios, sc)
	}
	scenarios = append(scenarios, verbs("a/last", func(*VerbsRun) { t.Error("it was tried") }))
	cfg := config(t, suite(scenarios...), Pairing{"engine", "engine"})
	cfg.Grace = time.Millisecond
	out := testkit.Must(Run(context.Background(), cfg))(t)
	close(release)
	for range begun.Load() {
		<-left
	}
	if len(out) != mostAbandoned+1 {
		t.Fatalf("%d outcomes", len(out))
	}
	for k := range out[:mostAbandoned] {
		if out[k].State() != "differs" {
			t.Errorf("%s: %s", out[k].Scenario, out[k].State())
		}
	}
	if o := out[mostAbandoned]; !strings.HasPrefix(o.Setup,
		"not tried: 3 runs before it did not end") {
		t.Errorf("the last outcome is %+v", o)
	}
}

// TestWireAbandoned: a check of a capture that spins, or waits forever, fails its run, with its
// place and goroutines in the log. The other runs are judged, until mostAbandoned are abandoned.
func TestWireAbandoned(t *testing.T) {
	var over atomic.Bool
	release := make(chan struct{})
	var begun atomic.Int32
	ended := make(chan struct{}, 100)
	leave := func() { ended <- struct{}{} }
	spins := func(w *WireRun) {
		begun.Add(1)
		defer leave()
		w.Check(true, "it begins")
		for n := 0; !over.Load(); n++ {
		}
	}
	waits := func(w *WireRun) {
		begun.Add(1)
		defer leave()
		<-release
		w.Check(false, "a run that was abandoned is recorded no more")
	}
	for name, body := range map[string]func(*WireRun){"spins": spins, "waits": waits} {
		over.Store(false)
		stuck, good := verbs("a/stuck", nothing), verbs("a/good", nothing)
		stuck.Wire, good.Wire = body, func(w *WireRun) { w.Check(true, "it is judged") }
		dir := t.TempDir()
		file := writeSYN(t, dir, 20001)
		c := collection()
		add := func(slug, responder string) {
			o := outcome(slug, "engine", responder, check(true))
			o.Capture, o.Port = file, 20001
			c.Outcomes = append(c.Outcomes, o)
		}
		add("a/stuck", "engine")
		add("a/good", "engine")
		// On a busy machine the good one may need longer, too.
		limit := 50 * time.Millisecond
		j := &Judge{Suite: suite(stuck, good), Dir: dir, WireTime: limit}
		r := reportOf(t, j, c)
		for ; r.Results[1].Verdict != Pass && limit < 10*time.Second; r = reportOf(t, j, c) {
			limit *= 4
			j = &Judge{Suite: suite(stuck, good), Dir: dir, WireTime: limit}
		}
		res := &r.Results[0]
		place := "TestWireAbandoned.func" // of the closures above
		last := res.Checks[len(res.Checks)-1]
		if res.Verdict != Fail || last.What != "the run ends by itself" ||
			!strings.Contains(last.Got, fmt.Sprintf("took longer than %v: it was in ", limit)) ||
			!strings.Contains(last.Got, place) ||
			!strings.Contains(strings.Join(res.Log, "\n"), place) {
			t.Errorf("%s: %s (%s), last check %+v, log %q", name, res.Verdict, res.Why, last, res.Log)
		}
		if r.Results[1].Verdict != Pass {
			t.Errorf("%s: the other run is %s: %s", name, r.Results[1].Verdict, r.Results[1].Why)
		}
		const more = 20 // as many as there are CPUs begin before the others are abandoned
		for i := range mostAbandoned + more {
			add("a/stuck", fmt.Sprint("other", i))
		}
		c.Outcomes = c.Outcomes[2:]
		r = reportOf(t, j, c)
		if r.Counts[Fail] < mostAbandoned-1 || r.Counts[Setup] == 0 {
			t.Errorf("%s: after %d that did not end: %v", name, mostAbandoned, r.Counts)
		}
		over.Store(true)
		if name == "waits" {
			close(release)
		}
		for n := begun.Swap(0); n > 0; n-- {
			<-ended
		}
	}
}
