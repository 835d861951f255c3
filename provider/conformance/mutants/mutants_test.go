package mutants_test

import (
	"context"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/conformance"
	"github.com/govs-rdma/govs/provider/conformance/capture"
	"github.com/govs-rdma/govs/provider/conformance/mutants"
	"github.com/govs-rdma/govs/provider/conformance/scenarios"
	"github.com/govs-rdma/govs/provider/engine"
	"github.com/govs-rdma/govs/provider/engine/transport"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	// seed of everything that the scenarios draw.
	seed = 1

	// atOnce is how many runs are under way at a time. Most of them wait.
	atOnce = 6
)

// scales are the factors of time limits that are tried, one after the other,
// until a run shows what it should: waits for what never comes are most of what
// these tests do, and a loaded machine needs longer ones.
var scales = []float64{0.2, 1}

// engineName is the healthy engine's name in pairings.
const engineName = "engine"

// unproven are scenarios that no mutant makes fail, each with the reason.
var unproven = map[string]string{}

// nextPort gives every run a port of its own.
var nextPort atomic.Uint32

func init() { nextPort.Store(24000) }

// maker makes a provider as the options of a scenario say.
type maker func(*engine.Options) provider.Provider

func opener(name string, tap transport.Tap, make maker) conformance.Opener {
	return func(options []string) (*conformance.Endpoint, error) {
		opts := &engine.Options{Network: transport.NewTCP(&transport.TCPOptions{Tap: tap})}
		for _, o := range options {
			switch o {
			case "crc=off":
				opts.CRC = engine.CRCOff
			case "startup=1s":
				opts.StartupTimeout = time.Second
			default:
				return nil, fmt.Errorf("no option %q", o)
			}
		}
		vctx, err := ibverbs.Open(make(opts), "")
		if err != nil {
			return nil, err
		}
		return &conformance.Endpoint{Name: name, Context: vctx, Addr: netip.AddrFrom4([4]byte{127, 0, 0, 1})}, nil
	}
}

// play runs a scenario on the pairings that a mutant takes part in, or on those
// of the healthy engine alone if name is engineName.
func play(ctx context.Context, suite *conformance.Suite, slug, name string, make maker, scale float64, dir string) ([]conformance.Outcome, error) {
	pairings := []conformance.Pairing{{Initiator: engineName, Responder: engineName}}
	if name != engineName {
		pairings = []conformance.Pairing{{Initiator: name, Responder: engineName}, {Initiator: engineName, Responder: name}}
		if suite.Find(slug).Kind() == "raw" {
			pairings = []conformance.Pairing{{Initiator: name, Responder: name}}
		}
	}
	tap := &capture.Tap{}
	return conformance.Run(ctx, conformance.Config{
		Suite: suite, Only: slug, Pairings: pairings, Seed: seed, Scale: scale,
		FirstPort: uint16(nextPort.Add(2)),
		Open:      map[string]conformance.Opener{engineName: opener(engineName, tap, engine.New), name: opener(name, tap, make)},
		Capture:   tap, Tap: tap, Dir: dir,
	})
}

// judge judges outcomes by the suite's own judge and ledger.
func judge(ctx context.Context, suite *conformance.Suite, dir string, outcomes []conformance.Outcome) ([]conformance.Result, error) {
	j := conformance.Judge{Suite: suite, Ledger: scenarios.Ledger(), Dir: dir, Reference: engineName}
	report, err := j.Judge(ctx, &conformance.Collection{Schema: conformance.CollectionSchema, Seed: seed, Outcomes: outcomes})
	if err != nil {
		return nil, err
	}
	return report.Results, nil
}

// bench plays scenarios to the healthy engine once, for all that are compared
// with it.
type bench struct {
	suite *conformance.Suite
	dir   string

	mu    sync.Mutex
	plays map[string]*healthy
}

type healthy struct {
	once    sync.Once
	outcome conformance.Outcome
	why     string // it did not pass
}

// healthy returns how the healthy engine's run of a scenario went, which has to
// have passed.
func (b *bench) healthy(t *testing.T, slug string) conformance.Outcome {
	t.Helper()
	b.mu.Lock()
	h := b.plays[slug]
	if h == nil {
		h = &healthy{}
		b.plays[slug] = h
	}
	b.mu.Unlock()
	h.once.Do(func() {
		for _, scale := range scales {
			outcomes, err := play(t.Context(), b.suite, slug, engineName, engine.New, scale, b.dir)
			if err == nil {
				h.outcome = outcomes[0]
				var results []conformance.Result
				if results, err = judge(t.Context(), b.suite, b.dir, outcomes); err == nil {
					h.why = verdict(&results[0])
				}
			}
			if err != nil {
				h.why = err.Error()
			}
			if h.why == "" {
				return
			}
		}
	})
	if h.why != "" {
		t.Fatalf("the healthy engine does not pass %s: %s", slug, h.why)
	}
	return h.outcome
}

// verdict is empty for PASS.
func verdict(r *conformance.Result) string {
	if r.Verdict == conformance.Pass {
		return ""
	}
	return fmt.Sprintf("%s -> %s: %s: %s", r.Initiator, r.Responder, r.Verdict, r.Why)
}

// against plays a scenario to a mutant, and returns the results of the mutant's
// runs.
func (b *bench) against(t *testing.T, slug, name string, make maker, scale float64) []conformance.Result {
	t.Helper()
	reference := b.healthy(t, slug)
	outcomes, err := play(t.Context(), b.suite, slug, name, make, scale, b.dir)
	if err != nil {
		t.Fatal(err)
	}
	results, err := judge(t.Context(), b.suite, b.dir, append(outcomes, reference))
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(results, func(r conformance.Result) bool { return r.Initiator != name && r.Responder != name })
}

// slots bounds how many subtests are under way.
type slots chan struct{}

func (s slots) take(t *testing.T) {
	s <- struct{}{}
	t.Cleanup(func() { <-s })
}

// TestEveryMutantIsCaught shows that the scenarios that a mutant names fail on it
// and pass on the engine that it was made from, and that every scenario of the
// suite fails on some mutant.
func TestEveryMutantIsCaught(t *testing.T) {
	b := &bench{suite: scenarios.Suite(), dir: t.TempDir(), plays: make(map[string]*healthy)}
	free := make(slots, atOnce)
	var mu sync.Mutex
	catches := make(map[string][]string) // by scenario
	t.Run("mutant", func(t *testing.T) {
		for _, m := range mutants.All() {
			for _, slug := range m.CaughtBy {
				t.Run(m.Name+"/"+slug, func(t *testing.T) {
					t.Parallel()
					free.take(t)
					if b.suite.Find(slug) == nil {
						t.Fatalf("the suite has no scenario %q", slug)
					}
					why := ""
					for _, scale := range scales {
						for _, r := range b.against(t, slug, m.Name, m.New, scale) {
							if r.Verdict == conformance.Fail {
								t.Log(verdict(&r))
								mu.Lock()
								catches[slug] = append(catches[slug], m.Name)
								mu.Unlock()
								return
							}
							why += "\n" + r.Initiator + " -> " + r.Responder + ": " + string(r.Verdict)
						}
					}
					t.Errorf("it %s, and %s does not notice:%s", m.What, slug, why)
				})
			}
		}
	})
	if t.Failed() {
		return // what is not proven is a consequence
	}
	for _, sc := range b.suite.All() {
		by := catches[sc.Slug]
		reason, excepted := unproven[sc.Slug]
		switch {
		case len(by) == 0 && !excepted:
			t.Errorf("%s: no mutant makes it fail: a check that can't fail proves nothing", sc.Slug)
		case len(by) > 0 && excepted:
			t.Errorf("%s: fails on %s, and is excepted: %s", sc.Slug, by, reason)
		case excepted:
			t.Logf("%-40s excepted: %s", sc.Slug, reason)
		default:
			slices.Sort(by)
			t.Logf("%-40s %s", sc.Slug, strings.Join(by, " "))
		}
	}
}

// TestNothingInBetween shows that what stands between a mutant and its engine
// does no harm by itself: without a fault every scenario passes.
func TestNothingInBetween(t *testing.T) {
	b := &bench{suite: scenarios.Suite(), dir: t.TempDir(), plays: make(map[string]*healthy)}
	free := make(slots, atOnce)
	sound := &mutants.Mutant{Name: "sound"}
	for _, sc := range b.suite.All() {
		t.Run(sc.Slug, func(t *testing.T) {
			t.Parallel()
			free.take(t)
			var why string
			for _, scale := range scales {
				why = ""
				for _, r := range b.against(t, sc.Slug, sound.Name, sound.New, scale) {
					if v := verdict(&r); v != "" {
						why += v + "\n" + strings.Join(append(r.Log, r.Ladder...), "\n") + "\n"
					}
				}
				if why == "" {
					return
				}
			}
			t.Error(why)
		})
	}
}

// TestMutantsAreDistinct checks what All promises.
func TestMutantsAreDistinct(t *testing.T) {
	seen := make(map[string]bool)
	for _, m := range mutants.All() {
		if m.Name == "" || m.What == "" || len(m.CaughtBy) == 0 || seen[m.Name] || filepath.Base(m.Name) != m.Name {
			t.Errorf("mutant %q: it needs a name of its own, what it does wrong, and a scenario", m.Name)
		}
		seen[m.Name] = true
		if found := mutants.Find(m.Name); found == nil || found.What != m.What {
			t.Errorf("Find(%q) does not find it", m.Name)
		}
	}
	if mutants.Find("no such mutant") != nil {
		t.Error("Find finds what is not there")
	}
}
