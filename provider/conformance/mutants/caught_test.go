//go:build !race

package mutants_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/govs-rdma/govs/provider/conformance"
	"github.com/govs-rdma/govs/provider/conformance/mutants"
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
