//go:build !race

package mutants_test

import (
	"errors"
	"testing"

	"github.com/govs-rdma/govs/provider/conformance"
	"github.com/govs-rdma/govs/provider/conformance/mutants"
)

// Two broken engines race with their programs in more ways than one: all of this
// is for builds without the race detector.

// TestCaughtAlone shows that the suite notices a mutant also where there is nothing else:
// on both sides, and without a sound engine to compare with. So it would notice if the
// engine itself had this fault.
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
