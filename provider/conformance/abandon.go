package conformance

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"
	"runtime/pprof"
	"strings"
	"time"
)

// A run that does not end is abandoned: the runner takes its outcome away, with the stacks of
// its goroutines, and goes on. Nothing in Go ends a goroutine from outside, so what is left of the
// run stays until the process ends, or until it calls a method of its T. That does no harm to the
// runs after it, because each opens devices of its own and has a port of its own; but a goroutine
// that spins keeps a CPU, and with several of them the limits of later runs would mean little.
// Therefore no more runs are begun after mostAbandoned of them.
const mostAbandoned = 3

// runLabel is the profiler label with which the goroutines of a run are found: those that it
// starts, and the devices' that it opens, inherit it.
const runLabel = "conformance run"

// grace returns how long a run with this time limit may go on after its time is up.
func (cfg *Config) grace(limit time.Duration) time.Duration {
	if cfg.Grace > 0 {
		return cfg.Grace
	}
	return time.Minute + limit
}

// runWithin runs body and the cleanups as the run called name. It reports false if they have not
// ended when grace has passed since the end of t's context.
func (t *T) runWithin(body func(), name string, grace time.Duration) bool {
	t.labels = pprof.WithLabels(context.Background(), pprof.Labels(runLabel, name))
	ended := make(chan struct{})
	t.started = time.Now()
	go func() {
		defer close(ended)
		t.run(body)
	}()
	select {
	case <-ended:
		return true
	case <-t.ctx.Done():
	}
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-ended:
		return true
	case <-timer.C:
		return false
	}
}

// abandon takes the outcome away from the run called name, and says where its goroutine stands.
// The log has the stacks of all goroutines of the run.
func (t *T) abandon(name string) (o *Outcome, where string) {
	stacks := goroutinesOf(name)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.abandoned = true
	taken := *t.outcome
	taken.DurationMillis = time.Since(t.started).Milliseconds()
	taken.Log = append(taken.Log, "the run was abandoned; these are its goroutines, innermost call "+
		"first:")
	for _, s := range stacks {
		taken.Log = append(taken.Log, s.lines()...)
	}
	return &taken, standsAt(stacks)
}

// A stack is the calls of goroutines that are at the same place.
type stack struct {
	count  string // how many
	frames []frame
}

// frame is a call: the function with its package's path, and where in it.
type frame struct{ function, at string }

func (f frame) String() string { return f.function + " (" + f.at + ")" }

// goroutinesOf returns the stacks of the goroutines with a value of runLabel.
func goroutinesOf(name string) []stack {
	var profile bytes.Buffer
	if err := pprof.Lookup("goroutine").WriteTo(&profile, 1); err != nil {
		return nil
	}
	label := fmt.Sprintf("%q:%q", runLabel, name)
	var out []stack
	for record := range strings.SplitSeq(profile.String(), "\n\n") {
		if strings.Contains(record, label) {
			out = append(out, parseStack(record))
		}
	}
	return out
}

// parseStack reads a record of a goroutine profile as runtime/pprof writes it with debug=1: a line
// "count @ addresses", one with the labels, and for each call "#", address, function and place.
func parseStack(record string) stack {
	var s stack
	for line := range strings.Lines(record) {
		fields := strings.Split(strings.TrimSpace(line), "\t")
		if count, _, ok := strings.Cut(line, " @ "); ok {
			s.count = count
		}
		if len(fields) < 4 || fields[0] != "#" {
			continue
		}
		function, _, _ := strings.Cut(fields[2], "+0x")
		s.frames = append(s.frames, frame{function, filepath.Base(fields[len(fields)-1])})
	}
	return s
}

func (s *stack) lines() []string {
	lines := []string{s.count + " at"}
	for _, f := range s.frames {
		lines = append(lines, "    "+f.String())
	}
	return lines
}

// standsAt returns the innermost calls of the goroutine that runs the body or a cleanup. It leaves
// out calls of the runtime, of locks and of the network poller.
func standsAt(stacks []stack) string {
	for _, s := range stacks {
		var calls []string
		for _, f := range s.frames {
			if strings.Contains(f.function, "conformance.(*T).guarded") {
				return strings.Join(calls, ", called by ")
			}
			if len(calls) < 3 && !strings.HasPrefix(f.function, "runtime.") &&
				!strings.HasPrefix(f.function, "sync.") && !strings.HasPrefix(f.function, "internal/") {
				calls = append(calls, f.String())
			}
		}
	}
	return "a place that its stack does not show"
}
