//go:build schedules

package sched

import (
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
)

// active is the present run, nil outside of one. There is at most one.
var active atomic.Pointer[run]

// mostSteps ends a run whose actors never end.
const mostSteps = 1 << 16

// A Chooser decides which actor takes the next step. Actor 0 is the one that took the last step, if
// it can go on (mayGoOn); the others follow in the order in which they were started. It returns a
// number below options, of which there are at least two.
type Chooser interface {
	choose(options int, mayGoOn bool) int
}

// run is one execution of actors.
type run struct {
	chooser Chooser
	actors  []*actor
	current *actor
	over    chan struct{} // closed when no actor can go on
	steps   int
	err     error
	options []*actor // scratch
}

// actor is a goroutine of a run.
type actor struct {
	holding
	wake    chan struct{}
	blocked func() bool // reports whether it may go on; nil: it may
	done    bool
}

// errStuck ends the goroutines of actors that can't go on.
var errStuck = errors.New("stuck")

// Run runs the actors to their end, one step at a time. Goroutines that they start with Go are
// actors, too. Other goroutines must not touch what the actors use during the run. The error says
// that actors wait for each other or do not end, that one has panicked, or that a leaf lock was
// contended.
func Run(c Chooser, actors ...func()) error {
	x := &run{chooser: c, over: make(chan struct{})}
	for _, f := range actors {
		x.add(f)
	}
	if !active.CompareAndSwap(nil, x) {
		panic("sched: a run is under way")
	}
	x.next(false)
	<-x.over
	active.Store(nil)
	for _, a := range x.actors {
		if !a.done {
			a.wake <- struct{}{} // it sees that the run is over and leaves
		}
	}
	return x.err
}

// add makes f an actor.
func (x *run) add(f func()) {
	a := &actor{wake: make(chan struct{})}
	x.actors = append(x.actors, a)
	go func() {
		<-a.wake
		if active.Load() != x {
			return
		}
		defer func() {
			if p := recover(); p != nil {
				if p == any(errStuck) {
					return
				}
				var stack [8 << 10]byte
				x.fail("an actor panics: %v\n%s", p, stack[:runtime.Stack(stack[:], false)])
			}
			a.done = true
			x.next(false)
		}()
		f()
	}()
}

// step lets another actor go first, if the chooser says so.
func (x *run) step() {
	if x.steps++; x.steps > mostSteps {
		x.fail("no end after %d steps", mostSteps)
		x.stop()
	}
	x.switchTo(true)
}

// wait lets other actors go until ready returns true.
func (x *run) wait(ready func() bool) {
	a := x.current
	a.blocked = ready
	x.switchTo(false)
	a.blocked = nil
}

// switchTo lets the chosen actor go on, and returns when the calling one is chosen.
func (x *run) switchTo(mayGoOn bool) {
	a := x.current
	if !x.next(mayGoOn) {
		return
	}
	<-a.wake
	if active.Load() != x {
		panic(errStuck)
	}
}

// next hands over to the actor that the chooser picks, and reports whether that is another actor
// than the current one.
func (x *run) next(mayGoOn bool) bool {
	options := x.options[:0]
	if mayGoOn {
		options = append(options, x.current)
	}
	left := false
	for _, a := range x.actors {
		switch {
		case a.done, mayGoOn && a == x.current:
			continue
		case a.blocked == nil || a.blocked():
			options = append(options, a)
		}
		left = left || !a.done
	}
	x.options = options
	switch {
	case len(options) == 0 && left:
		var stacks [64 << 10]byte
		x.fail("%d actors wait for each other\n%s", x.waiting(), stacks[:runtime.Stack(stacks[:], true)])
		fallthrough
	case len(options) == 0:
		close(x.over)
		return true
	}
	pick := 0
	if len(options) > 1 {
		pick = x.chooser.choose(len(options), mayGoOn)
	}
	to := options[pick]
	if to == x.current && !to.done {
		return false
	}
	x.current = to
	to.wake <- struct{}{}
	return true
}

func (x *run) waiting() int {
	n := 0
	for _, a := range x.actors {
		if !a.done {
			n++
		}
	}
	return n
}

// stop ends the run from inside an actor.
func (x *run) stop() {
	close(x.over)
	<-x.current.wake
	panic(errStuck)
}

// fail records why the run has failed. Only the first reason counts.
func (x *run) fail(format string, args ...any) {
	if x.err == nil {
		x.err = fmt.Errorf(format, args...)
	}
}
