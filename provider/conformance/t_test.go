package conformance

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// runT runs a body as the body of a scenario, and returns what was recorded.
func runT(body func(*T)) *Outcome {
	o := &Outcome{}
	t := &T{ctx: context.Background(), scale: 1, outcome: o, started: time.Now()}
	t.run(func() { body(t) })
	return o
}

func TestCheckGoesOn(t *testing.T) {
	after := false
	o := runT(func(r *T) {
		if r.Check(false, "the sky is green", "it is %s", "blue") {
			t.Error("a check that does not hold returns true")
		}
		if !r.Check(true, "water is wet", "not shown: %d", 1) {
			t.Error("a check that holds returns false")
		}
		Equal(r, 2+2, 5, "the sum is right")
		if !r.Failed() {
			t.Error("a failed check is not told of")
		}
		after = true
	})
	want := []Check{{"the sky is green", false, "it is blue"}, {"water is wet", true, ""}, {"the sum is right", false, "got 4, want 5"}}
	if !after || !slices.Equal(o.Checks, want) || o.State() != "differs" {
		t.Errorf("went on %v, state %s, checks %+v", after, o.State(), o.Checks)
	}
}

func TestRequireEnds(t *testing.T) {
	for name, end := range map[string]func(*T){
		"Require":     func(r *T) { r.Require(false, "it holds", "it %s", "does not") },
		"NoError":     func(r *T) { r.NoError(context.Canceled, "it works") },
		"Setup":       func(r *T) { r.Setup("no %s", "device") },
		"Unsupported": func(r *T) { r.Unsupported("no %s", "SRQ") },
	} {
		t.Run(name, func(t *testing.T) {
			after, cleaned := false, false
			o := runT(func(r *T) {
				r.Cleanup(func() { cleaned = true })
				r.Require(true, "this holds")
				end(r)
				after = true
			})
			if after || !cleaned {
				t.Errorf("the body went on %v, the cleanup ran %v", after, cleaned)
			}
			want := map[string]string{"Require": "differs", "NoError": "differs", "Setup": "setup", "Unsupported": "lacking"}[name]
			if o.State() != want {
				t.Errorf("the state is %q, want %q", o.State(), want)
			}
			if name == "Setup" && o.Setup != "no device" || name == "Unsupported" && o.Unsupported != "no SRQ" {
				t.Errorf("outcome %+v", o)
			}
		})
	}
}

// A cleanup may register others and end early; all run, last first, and each on
// its own.
func TestCleanupOrder(t *testing.T) {
	var order []string
	add := func(s string) { order = append(order, s) }
	o := runT(func(r *T) {
		r.Cleanup(func() { add("first") })
		r.Cleanup(func() {
			add("second")
			r.Cleanup(func() { add("registered by the second") })
			r.Require(false, "a cleanup can stop itself")
			add("never")
		})
		r.Cleanup(func() { add("third"); panic("in a cleanup") })
		add("body")
	})
	if want := "body third second registered by the second first"; strings.Join(order, " ") != want {
		t.Errorf("the order is %q, want %q", order, want)
	}
	if len(o.Checks) != 2 || o.Checks[0].OK || o.Checks[1].OK {
		t.Errorf("checks %+v, want two that failed", o.Checks)
	}
}

func TestPanicIsAFailedCheck(t *testing.T) {
	cleaned := false
	o := runT(func(r *T) {
		r.Cleanup(func() { cleaned = true })
		var m map[string]int
		m["x"] = 1 //nolint:staticcheck // the panic is what is tried
	})
	if len(o.Checks) != 1 || o.Checks[0].OK || o.Checks[0].What != "nothing panics" {
		t.Fatalf("checks %+v", o.Checks)
	}
	for _, want := range []string{"assignment to entry in nil map", "TestPanicIsAFailedCheck"} {
		if !strings.Contains(o.Checks[0].Got, want) {
			t.Errorf("the check's detail does not say %q:\n%s", want, o.Checks[0].Got)
		}
	}
	if !cleaned {
		t.Error("the cleanup did not run")
	}
}

func TestObserveAndLog(t *testing.T) {
	o := runT(func(r *T) {
		r.Observe("b", "%d", 1)
		r.Observe("a", "x")
		r.Observe("b", "2")
		r.Log("log %d", 3)
	})
	want := []Observation{{"b", "1"}, {"a", "x"}, {"b", "2"}}
	if !slices.Equal(o.Observations, want) {
		t.Errorf("observations %+v", o.Observations)
	}
	if len(o.Log) != 1 || !strings.HasSuffix(o.Log[0], " ms  log 3") {
		t.Errorf("log %q", o.Log)
	}
	if o.State() != "ok" {
		t.Errorf("state %s", o.State())
	}
}

func TestScaled(t *testing.T) {
	r := &T{scale: 2.5}
	if got := r.Scaled(2 * time.Second); got != 5*time.Second {
		t.Errorf("got %v", got)
	}
}

// The recording methods may be called from anywhere.
func TestConcurrentRecording(t *testing.T) {
	o := runT(func(r *T) {
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for range 50 {
					r.Check(true, "it holds")
					r.Observe("key", "value")
					r.Log("line")
					r.Cleanup(func() {})
					r.Failed()
				}
			})
		}
		wg.Wait()
	})
	if len(o.Checks) != 400 || len(o.Observations) != 400 || len(o.Log) != 400 {
		t.Errorf("%d checks, %d observations, %d lines; want 400 of each", len(o.Checks), len(o.Observations), len(o.Log))
	}
}
