//go:build schedules

package engine

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/sched"
	"github.com/govs-rdma/govs/provider/engine/memnet"
	"github.com/govs-rdma/govs/provider/engine/transport"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
)

// The tests of the files schedules_*_test.go run the protocols between goroutines under chosen
// schedules (package sched): first all schedules with few preemptions, then random ones. A failure
// prints the schedule, and -schedule repeats it.

var (
	scheduleFlag = flag.String("schedule", "",
		"run this schedule only, which a failure of TestSchedules has printed")
	scheduleTime = flag.Duration("schedules.time", time.Second/2,
		"how long TestSchedules explores each protocol")
)

// protocol is a protocol between goroutines. Its world is made anew for each schedule.
type protocol struct {
	name string

	// All schedules with up to so many preemptions are tried, those with fewer first, until half of
	// the time is up; random ones follow.
	preemptions int

	// begin makes the world. It returns the actors, and a check of what must hold when they have
	// ended and the pollers have served what is ready.
	begin func(w *stage) (actors []func(), check func() error)
}

// stage is where a protocol is played: devices without progress goroutines. Only the actors, and
// serve at the end, call their pollers.
type stage struct {
	t       testing.TB
	network *memnet.Network
	devs    []*device
}

// protocols are added by the files schedules_*_test.go.
var protocols []protocol

func TestSchedules(t *testing.T) {
	for _, p := range protocols {
		t.Run(p.name, func(t *testing.T) {
			if *scheduleFlag != "" {
				if !p.play(t, testkit.Must(sched.NewReplay(*scheduleFlag))(t),
					"the schedule that was asked for") {
					t.Fail()
				}
				return
			}
			p.explore(t)
		})
	}
}

// explore tries schedules until the time is up: at least those without preemptions, and 99 random
// ones.
func (p *protocol) explore(t *testing.T) {
	began, n := time.Now(), 0
	play := func(c schedule) {
		t.Helper()
		n++
		if !p.play(t, c, fmt.Sprintf("schedule %d, after %s", n, time.Since(began).Round(time.Millisecond))) {
			t.FailNow()
		}
	}
	for most := 0; most <= p.preemptions; most++ {
		for s := (&sched.Search{Preemptions: most}); ; {
			play(s)
			if !s.Next() {
				t.Logf("%6d schedules: all with at most %d preemptions", n, most)
				break
			}
			if most > 0 && time.Since(began) > *scheduleTime/2 {
				break
			}
		}
	}
	for seed := uint64(1); time.Since(began) < *scheduleTime || seed < 100; seed++ {
		play(sched.NewRandom(seed))
	}
	t.Logf("%6d schedules in all", n)
}

// schedule is a Chooser that can be repeated.
type schedule interface {
	sched.Chooser
	fmt.Stringer
}

// play runs one schedule, and reports whether the check at its end holds. If not, it prints the
// fault and ends the process, because the world may not be closable. For example, Close would wait,
// or spin, forever for a region that stays in use.
func (p *protocol) play(t *testing.T, c schedule, which string) (sound bool) {
	synctest.Test(t, func(t *testing.T) {
		w := &stage{t: t}
		actors, check := p.begin(w)
		err := sched.Run(c, actors...)
		if err == nil {
			w.serve()
			err = check()
		}
		if sound = err == nil; !sound {
			fmt.Fprintf(os.Stderr,
				"%s: %s: %v\nrepeat with go test -tags schedules -run '^TestSchedules$/^%s$' "+
					"-schedule=%s\n",
				p.name, which, err, strings.ReplaceAll(p.name, " ", "_"), c)
			os.Exit(1)
		}
	})
	return sound
}

// serve does what progress goroutines would do: it calls the pollers of all devices until nothing
// is ready, and has goroutines that they start run to their end.
func (w *stage) serve() {
	w.t.Helper()
	busy := true
	poll := func() {
		for _, d := range w.devs {
			busy = d.poller.Poll() > 0 || busy
		}
	}
	for rounds := 0; busy; rounds++ {
		busy = false
		testkit.OK(w.t, sched.Run(&sched.Search{}, poll))
		if rounds == 1000 {
			w.t.Fatal("a poller reports the same readiness again and again, and its handler does " +
				"nothing about it")
		}
	}
}

// pair connects two sides on devices of their own; a is the initiator.
func (w *stage) pair(net memnet.Options, opts Options, so sideOptions, p mpa.Params) (a, b *side) {
	w.t.Helper()
	w.network = memnet.New(&net)
	a, b = pair(w.t, stillNetwork{w.network}, memAddr, opts, so, p)
	w.devs = append(w.devs, a.dev, b.dev)
	w.serve()
	return a, b
}

// stillNetwork is a memnet whose pollers are served only by those who call Poll.
type stillNetwork struct{ *memnet.Network }

func (n stillNetwork) NewPoller() (transport.Poller, error) {
	p, err := n.Network.NewPoller()
	return stillPoller{p}, err
}

type stillPoller struct{ transport.Poller }

func (stillPoller) Wait(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

// completions takes the completions out of the side's CQ, without making progress.
func (s *side) completions() []provider.WC {
	var wc [64]provider.WC
	all := append([]provider.WC(nil), wc[:s.cq.pop(wc[:])]...)
	if s.recvCQ != nil {
		all = append(all, wc[:s.recvCQ.pop(wc[:])]...)
	}
	return all
}

// wantSuccesses returns an error unless the side's CQ has successes of these work requests, in this
// order, and nothing else.
func (s *side) wantSuccesses(wrids ...uint64) error {
	got := s.completions()
	for i, wc := range got {
		if wc.Status != provider.WCSuccess || i >= len(wrids) || wc.WRID != wrids[i] {
			return fmt.Errorf("completion %d of %d is %+v, want successes of %d", i+1, len(got), wc, wrids)
		}
	}
	if len(got) != len(wrids) {
		return fmt.Errorf("%d completions, want %d: a work request was not sent, or an arrival "+
			"was not taken",
			len(got), len(wrids))
	}
	return nil
}
