//go:build !race

package mutants_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/provider/conformance"
	"github.com/govs-rdma/govs/provider/conformance/mutants"
	"github.com/govs-rdma/govs/provider/conformance/onengine"
	"github.com/govs-rdma/govs/provider/engine"
	"github.com/govs-rdma/govs/provider/engine/memnet"
)

// A broken engine may race with its program: it writes to a region that the program has again, or
// reports a sink complete too early. The race detector would notice such mutants before the
// scenarios do, so this file is for builds without it.

// TestEveryMutantIsCaught shows that the scenarios that a mutant names fail on it
// and pass on the same engine without its fault, and that every scenario of the
// suite fails on some mutant.
func TestEveryMutantIsCaught(t *testing.T) {
	b := newBench(t)
	var trials []*trial
	for _, m := range mutants.All() {
		for _, slug := range m.CaughtBy {
			trials = append(trials, &trial{mutant: m, slug: slug, done: make(chan struct{})})
		}
	}
	start(trials, func(tr *trial) { tr.why, tr.err = b.catch(tr.slug, tr.mutant) })
	caught := make(map[string][]string) // mutants by scenario
	for _, tr := range trials {
		t.Run(tr.mutant.Name+"/"+tr.slug, func(t *testing.T) {
			<-tr.done
			if tr.err != nil {
				t.Fatalf("it %s: %v", tr.mutant.What, tr.err)
			}
			t.Log(tr.why)
			caught[tr.slug] = append(caught[tr.slug], tr.mutant.Name)
		})
	}
	if t.Failed() {
		return // what is not proven is a consequence
	}
	for _, sc := range b.suite.All() {
		by, reason := caught[sc.Slug], unproven[sc.Slug]
		switch {
		case len(by) == 0 && reason == "":
			t.Errorf("%s: no mutant makes it fail: a check that can't fail proves nothing", sc.Slug)
		case len(by) > 0 && reason != "":
			t.Errorf("%s: fails on %s, and is excepted: %s", sc.Slug, by, reason)
		case reason != "":
			t.Logf("%-40s excepted: %s", sc.Slug, reason)
		default:
			t.Logf("%-40s %s", sc.Slug, strings.Join(by, " "))
		}
	}
}

// TestCaughtAlone shows that the suite notices a mutant even if there is nothing else: on
// both sides, and without a sound engine to compare with. So it would notice if the engine
// itself had this fault.
func TestCaughtAlone(t *testing.T) {
	b := newBench(t)
	var trials []*trial
	for _, m := range mutants.All() {
		trials = append(trials, &trial{mutant: m, done: make(chan struct{})})
	}
	start(trials, func(tr *trial) { tr.why, tr.err = b.catchAlone(tr.mutant) })
	for _, tr := range trials {
		t.Run(tr.mutant.Name, func(t *testing.T) {
			<-tr.done
			if tr.err != nil {
				t.Fatalf("it %s: %v", tr.mutant.What, tr.err)
			}
			t.Log(tr.why)
		})
	}
}

// catchAlone runs the scenarios that a mutant names on it, on both sides and without a
// reference, until one fails.
func (b *bench) catchAlone(m *mutants.Mutant) (string, error) {
	var missed []error
	for _, scale := range scales() {
		for _, slug := range m.CaughtBy {
			o, err := b.play(slug, conformance.Pairing{Initiator: m.Name, Responder: m.Name}, m, scale)
			if err != nil {
				return "", err
			}
			r, err := b.judge(o)
			if err != nil {
				return "", err
			}
			if r.Verdict == conformance.Fail {
				return slug + ": " + summary(r), nil
			}
			missed = append(missed, errors.New(slug+": "+summary(r)))
		}
	}
	return "", errors.Join(missed...)
}

// TestNarrowStreams shows that a mutant's streams are streams whatever the network makes of
// them. With windows shorter than an FPDU, writes that are taken in part and reads that end
// anywhere, everything still arrives, in order and once, and the end comes after it. Most of the
// work is cutting octets, which needs no race detector: TestDecoratorsAreSound runs the decorators
// under it.
func TestNarrowStreams(t *testing.T) {
	for _, window := range []int{700, 5000} {
		t.Run(fmt.Sprint("window ", window), func(t *testing.T) {
			t.Parallel()
			seed := rand.Uint64()
			t.Logf("seed %d", seed)
			b := newBench(t)
			sound := &mutants.Mutant{Name: soundName}
			n := memnet.New(&memnet.Options{Seed: seed, MSS: 400, Window: window, Cut: true})
			open := func(options []string) (*conformance.Endpoint, error) {
				opts := &engine.Options{Network: n}
				if err := onengine.Set(opts, options); err != nil {
					return nil, err
				}
				vctx, err := ibverbs.Open(sound.New(opts), "")
				if err != nil {
					return nil, err
				}
				return &conformance.Endpoint{Name: soundName, Context: vctx,
					Addr: netip.MustParseAddr("192.0.2.1")}, nil
			}
			only := "send/*,write/*,read/one-fpdu,read/one-mib,read/both-ways,read/depth-3," +
				"order/write-then-send,order/mixed-both-ways," +
				"conn/shutdown,conn/disconnect-responder,conn/many-at-once,protection/write-bad-key"
			var failed []error
			for _, scale := range []float64{5, 40} { // what ran out of time has more, for a busy machine
				outcomes, err := conformance.Run(t.Context(), conformance.Config{
					Suite: b.suite, Seed: seed, Scale: scale, Only: only,
					Pairings: []conformance.Pairing{{Initiator: soundName, Responder: soundName}},
					Open:     map[string]conformance.Opener{soundName: open},
				})
				testkit.OK(t, err)
				failed = nil
				var again []string
				for k := range outcomes {
					if err := b.passes(outcomes[k]); err != nil {
						t.Logf("with time limits of %v times the usual: %v", scale, err)
						failed = append(failed, err)
						if !ranOut(outcomes[k]) {
							t.Fatal("it did not run out of time")
						}
						again = append(again, outcomes[k].Scenario)
					}
				}
				if only = strings.Join(again, ","); only == "" {
					return
				}
			}
			t.Error(errors.Join(failed...))
		})
	}
}

// ranOut reports whether time ran out in a run: then the first check that failed says so.
func ranOut(o conformance.Outcome) bool {
	for _, c := range o.Checks {
		if !c.OK {
			return strings.Contains(c.Got, context.DeadlineExceeded.Error()) || strings.Contains(c.Got, "took longer")
		}
	}
	return false
}
