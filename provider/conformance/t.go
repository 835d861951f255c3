package conformance

import (
	"context"
	"fmt"
	"runtime"
	"runtime/pprof"
	"sync"
	"sync/atomic"
	"time"
)

// T records one run of a scenario: what was checked, what was observed, and why
// it stopped. Its methods may be called from several goroutines; Require and
// the other methods that stop the run only from the scenario's own.
//
// After the runner has abandoned the run, because it did not end, each method ends
// the goroutine that calls it.
type T struct {
	ctx   context.Context
	scale float64

	// labels has the profiler labels of the run's goroutines; nil for none.
	labels context.Context

	// unsettled says that something which had to complete did not: a provider may
	// still be placing octets.
	unsettled atomic.Bool

	mu        sync.Mutex
	outcome   *Outcome
	cleanups  []func()
	started   time.Time
	tried     bool // the body has checked something; checks of cleanups don't count
	abandoned bool // outcome is the runner's
}

// lock begins a use of the record. unlock ends it.
func (t *T) lock() {
	t.mu.Lock()
	if t.abandoned {
		t.mu.Unlock()
		runtime.Goexit()
	}
}

func (t *T) unlock() { t.mu.Unlock() }

// Context ends when the run's time is up. Everything that waits takes it.
func (t *T) Context() context.Context {
	t.lock()
	defer t.unlock()
	return t.ctx
}

// Scaled stretches a wait to the machine: under emulation things take longer.
// Use it for how long to wait for something that must happen, or to watch that
// nothing does.
func (t *T) Scaled(d time.Duration) time.Duration {
	return time.Duration(float64(d) * t.scale)
}

// Check records an expectation, said in English, and whether it held. The run
// goes on. The detail (a format and its arguments) says what was found instead.
func (t *T) Check(ok bool, what string, detail ...any) bool {
	c := Check{What: what, OK: ok}
	if !ok && len(detail) > 0 {
		c.Got = fmt.Sprintf(detail[0].(string), detail[1:]...)
	}
	t.lock()
	t.outcome.Checks = append(t.outcome.Checks, c)
	t.unlock()
	return ok
}

// Require records an expectation, as Check does, and ends the run if it did not hold.
func (t *T) Require(ok bool, what string, detail ...any) {
	if !t.Check(ok, what, detail...) {
		runtime.Goexit()
	}
}

// NoError requires that err is nil.
func (t *T) NoError(err error, what string) {
	t.Require(err == nil, what, "%v", err)
}

// Equal checks that got is want.
func Equal[V comparable](t *T, got, want V, what string) bool {
	return t.Check(got == want, what, "got %v, want %v", got, want)
}

// Setup ends a run that could not be tried, and says why. The verdict is SETUP.
func (t *T) Setup(format string, args ...any) {
	t.lock()
	t.outcome.Setup = fmt.Sprintf(format, args...)
	t.unlock()
	runtime.Goexit()
}

// Unsupported ends a run that needs something which a provider lacks. The verdict is
// UNSUPPORTED.
func (t *T) Unsupported(format string, args ...any) {
	t.lock()
	t.outcome.Unsupported = fmt.Sprintf(format, args...)
	t.unlock()
	runtime.Goexit()
}

// Observe records a fact that is compared between pairings: a completion's status, an
// event, an errno. Values must not contain what differs in every run (keys, ports,
// times). Observing a key twice makes a sequence of its values.
func (t *T) Observe(key string, format string, args ...any) {
	t.lock()
	defer t.unlock()
	t.outcome.Observations = append(t.outcome.Observations, Observation{Key: key, Value: fmt.Sprintf(format, args...)})
}

// Log records a line for readers of the report; it is not compared.
func (t *T) Log(format string, args ...any) {
	t.lock()
	defer t.unlock()
	t.outcome.Log = append(t.outcome.Log, fmt.Sprintf("%8.3f ms  ", float64(time.Since(t.started).Microseconds())/1000)+fmt.Sprintf(format, args...))
}

// Cleanup makes the run call f when it has ended. The last f is called first.
func (t *T) Cleanup(f func()) {
	t.lock()
	t.cleanups = append(t.cleanups, f)
	t.unlock()
}

// Failed reports whether a check has failed so far.
func (t *T) Failed() bool {
	t.lock()
	defer t.unlock()
	return t.outcome.failed()
}

// run calls body on a goroutine of its own, so that Require can end it, and then the
// cleanups. A panic of the body or a cleanup is a failed check: one scenario does not end
// the suite.
func (t *T) run(body func()) {
	t.guarded(body)
	t.mu.Lock()
	t.tried = len(t.outcome.Checks) > 0
	t.mu.Unlock()
	for f := t.nextCleanup(); f != nil; f = t.nextCleanup() {
		t.guarded(f)
	}
	t.mu.Lock()
	if !t.abandoned {
		t.outcome.DurationMillis = time.Since(t.started).Milliseconds()
	}
	t.mu.Unlock()
}

// nextCleanup takes the last cleanup off the list. It is nil if there is none.
func (t *T) nextCleanup() func() {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := len(t.cleanups)
	if n == 0 {
		return nil
	}
	f := t.cleanups[n-1]
	t.cleanups = t.cleanups[:n-1]
	return f
}

func (t *T) guarded(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		if t.labels != nil {
			pprof.SetGoroutineLabels(t.labels)
		}
		defer func() {
			if p := recover(); p != nil {
				stack := make([]byte, 4096)
				stack = stack[:runtime.Stack(stack, false)]
				t.Check(false, checkPanics, "%v\n%s", p, stack)
			}
		}()
		f()
	}()
	<-done
}
