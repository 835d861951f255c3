package mutants_test

import (
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

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

	// engineName and soundName are, in pairings, the engine that nothing stands
	// in front of, and the one with a mutant's decorators and no fault.
	engineName = "engine"
	soundName  = "sound"
)

// scales are the factors of time limits that are tried, one after the other,
// until a run shows what it should: a loaded machine needs longer ones.
//
// A scenario whose time is up reads its memory while the engine may still be placing
// octets in it, which the race detector reports: with it no limit may be too short.
func scales() []float64 {
	if raceEnabled {
		return []float64{2, 8} // the second where other tests keep the CPUs busy
	}
	return []float64{0.2, 1}
}

// racing are mutants whose fault is a data race between the engine and its
// program, each with the reason. The race detector would notice them before the
// suite does.
var racing = map[string]string{
	"completion-invented":    "the program looks at the sink of a Read that it was told is complete",
	"write-overtaken":        "the program looks at the sink of a Write that it was told is complete",
	"deregistration-ignored": "the peer writes to a region that the program has again",
	"neighbour-touched":      "octets beside a region are written",
	"receive-overrun":        "octets beside a region are written",
	"bounds-loose":           "octets beside a region are written",
	"rights-ignored":         "the peer writes to a region that the program looks at, and has not let it write to",
	"pd-ignored":             "the peer writes to a region that the program looks at, and has not let it write to",
	"key-octet-unchecked":    "the peer writes to a region that the program looks at, and has not given it the key of",
}

// unproven are scenarios that no mutant makes fail, each with the reason.
var unproven = map[string]string{}

// TestEveryMutantIsCaught shows that the scenarios that a mutant names fail on it
// and pass on the same engine without its fault, and that every scenario of the
// suite fails on some mutant.
func TestEveryMutantIsCaught(t *testing.T) {
	b := newBench(t)
	var trials []*trial
	for _, m := range mutants.All() {
		slugs := m.CaughtBy
		switch {
		case raceEnabled && racing[m.Name] != "":
			continue
		case raceEnabled:
			slugs = slugs[:1] // what is proven is proven without the detector
		}
		for _, slug := range slugs {
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
	if t.Failed() || raceEnabled {
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

// TestDecoratorsAreSound shows that the layers between a mutant and its engine do no harm
// by themselves: without a fault every scenario passes, in either role.
func TestDecoratorsAreSound(t *testing.T) {
	b := newBench(t)
	var trials []*trial
	for _, sc := range b.suite.All() {
		trials = append(trials, &trial{slug: sc.Slug, done: make(chan struct{})})
	}
	start(trials, func(tr *trial) { _, tr.err = b.control(tr.slug) })
	for _, tr := range trials {
		t.Run(tr.slug, func(t *testing.T) {
			<-tr.done
			if tr.err != nil {
				t.Error(tr.err)
			}
		})
	}
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
	for name := range racing {
		if !seen[name] {
			t.Errorf("exception for mutant %q, which there is not", name)
		}
	}
	for slug := range unproven {
		if suite.Find(slug) == nil {
			t.Errorf("exception for scenario %q, which there is not", slug)
		}
	}
}
