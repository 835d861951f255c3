package mutants_test

import (
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider/conformance"
	"github.com/govs-rdma/govs/provider/conformance/mutants"
	"github.com/govs-rdma/govs/provider/conformance/scenarios"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	// seed of everything that the scenarios draw.
	seed = 1

	// atOnce is how many runs are under way at a time. Most of them wait for events that
	// never come.
	atOnce = 12

	// engineName and soundName are the names, in pairings, of the bare engine and of the
	// engine with a mutant's decorators and no fault.
	engineName = "engine"
	soundName  = "sound"
)

// unproven are scenarios that no mutant makes fail, each with the reason.
var unproven = map[string]string{}

// TestDecoratorsAreSound shows that the layers between a mutant and its engine do no harm by
// themselves: every verbs scenario passes with the layers, but no fault, on both sides.
// TestEveryMutantIsCaught shows that it passes beside a bare engine, too, with the same results.
// It also shows that raw scenarios, which have one engine and one connection, pass.
func TestDecoratorsAreSound(t *testing.T) {
	b := newBench(t)
	var trials []*trial
	// Their megabytes take most of the time under the race detector; ci/test runs them without it.
	long := []string{"protection/local-fault-last", "send/one-mib", "write/one-mib", "read/one-mib"}
	for _, sc := range b.suite.All() {
		if sc.Kind() != "raw" && !(testkit.Race && slices.Contains(long, sc.Slug)) {
			trials = append(trials, &trial{slug: sc.Slug, done: make(chan struct{})})
		}
	}
	start(trials, func(tr *trial) { tr.err = b.soundAlone(tr.slug) })
	for _, tr := range trials {
		t.Run(tr.slug, func(t *testing.T) {
			<-tr.done
			if tr.err != nil {
				t.Error(tr.err)
			}
		})
	}
}

// soundAlone runs a scenario with decorators without a fault on both sides.
func (b *bench) soundAlone(slug string) (err error) {
	sound := &mutants.Mutant{Name: soundName}
	for _, scale := range scales() {
		var o conformance.Outcome
		o, err = b.play(slug, conformance.Pairing{Initiator: soundName, Responder: soundName}, sound, scale)
		if err == nil {
			err = b.passes(o)
		}
		if err == nil {
			return nil
		}
	}
	return err
}

// TestAll checks what All and Find promise.
func TestAll(t *testing.T) {
	suite := scenarios.Suite()
	seen := make(map[string]bool)
	for _, m := range mutants.All() {
		if m.Name == "" || strings.ContainsAny(m.Name, " /.>") || m.What == "" || len(m.CaughtBy) == 0 || seen[m.Name] {
			t.Errorf("mutant %q: it needs a name of its own, what it does wrong, and a scenario", m.Name)
		}
		seen[m.Name] = true
		if found := mutants.Find(m.Name); found == nil || found.What != m.What {
			t.Errorf("Find(%q) does not find it", m.Name)
		}
		for k, slug := range m.CaughtBy {
			if suite.Find(slug) == nil || slices.Contains(m.CaughtBy[:k], slug) {
				t.Errorf("mutant %s: no scenario %q, or named twice", m.Name, slug)
			}
		}
	}
	if mutants.Find("no such mutant") != nil {
		t.Error("Find finds what is not there")
	}
	for slug := range unproven {
		if suite.Find(slug) == nil {
			t.Errorf("exception for scenario %q, which there is not", slug)
		}
	}
}
