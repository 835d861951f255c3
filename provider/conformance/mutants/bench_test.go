package mutants_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/conformance"
	"github.com/govs-rdma/govs/provider/conformance/capture"
	"github.com/govs-rdma/govs/provider/conformance/mutants"
	"github.com/govs-rdma/govs/provider/conformance/onengine"
	"github.com/govs-rdma/govs/provider/conformance/scenarios"
	"github.com/govs-rdma/govs/provider/engine"
	"github.com/govs-rdma/govs/provider/engine/transport"
)

// trial is one run of a scenario, and its result.
type trial struct {
	mutant *mutants.Mutant
	slug   string

	done chan struct{}
	why  string // what the scenario noticed
	err  error
}

// start works through trials in the background, atOnce at a time.
func start(trials []*trial, work func(*trial)) {
	next := make(chan *trial)
	for range atOnce {
		go func() {
			for tr := range next {
				work(tr)
				close(tr.done)
			}
		}()
	}
	go func() {
		for _, tr := range trials {
			next <- tr
		}
		close(next)
	}()
}

// bench plays scenarios of the suite, and judges them with its judge. It uses no profile, because
// none is about the engine.
type bench struct {
	ctx   context.Context
	suite *conformance.Suite
	dir   string // for captures

	mu       sync.Mutex
	controls map[string]*control
}

// control is the result of a scenario without a fault.
type control struct {
	once      sync.Once
	reference conformance.Outcome // engine to engine, or raw peer to engine
	err       error               // it, or the same with the decorators of a mutant, does not pass
}

func newBench(t *testing.T) *bench {
	return &bench{ctx: t.Context(), suite: scenarios.Suite(), dir: t.TempDir(), controls: make(map[string]*control)}
}

// nextPort gives every run a port of its own.
var nextPort atomic.Uint32

func init() { nextPort.Store(24000) }

// opener opens providers as the options of a scenario say. CloseTimeout is a second by default, and
// is stretched as the scenario's time limits are, because a busy machine may not run the peer that
// an ended connection waits for within a second.
func opener(name string, tap transport.Tap, create func(*engine.Options) provider.Provider,
	scale float64) conformance.Opener {
	patient := func(o *engine.Options) provider.Provider {
		if o.CloseTimeout == 0 && scale > 1 {
			longer := *o
			longer.CloseTimeout = time.Duration(scale * float64(time.Second))
			o = &longer
		}
		return create(o)
	}
	return onengine.Side{
		Name: name, Addr: onengine.ProcessAddr(), Tap: tap, New: patient,
	}.Opener()
}

// play runs a scenario once.
func (b *bench) play(slug string, p conformance.Pairing, m *mutants.Mutant, scale float64) (conformance.Outcome, error) {
	tap := &capture.Tap{}
	outcomes, err := conformance.Run(b.ctx, conformance.Config{
		Suite: b.suite, Only: slug, Pairings: []conformance.Pairing{p}, Seed: seed, Scale: scale,
		FirstPort: uint16(nextPort.Add(2)),
		Open: map[string]conformance.Opener{
			engineName: opener(engineName, tap, engine.New, scale),
			m.Name:     opener(m.Name, tap, m.New, scale),
		},
		Capture: tap, Tap: tap, Dir: b.dir,
	})
	if err != nil {
		return conformance.Outcome{}, err
	}
	return outcomes[0], nil
}

// pairings returns the pairings that a mutant takes part in.
func (b *bench) pairings(slug, name string) []conformance.Pairing {
	if b.suite.Find(slug).Kind() == "raw" {
		return []conformance.Pairing{{Initiator: name, Responder: name}}
	}
	return []conformance.Pairing{{Initiator: name, Responder: engineName}, {Initiator: engineName, Responder: name}}
}

// judge judges the first of some outcomes of one scenario.
func (b *bench) judge(outcomes ...conformance.Outcome) (*conformance.Result, error) {
	j := conformance.Judge{Suite: b.suite, Dir: b.dir, Reference: engineName}
	report, err := j.Judge(b.ctx, &conformance.Collection{Schema: conformance.CollectionSchema, Seed: seed, Outcomes: outcomes})
	if err != nil {
		return nil, err
	}
	return &report.Results[0], nil
}

// scales are the factors of time limits. They are tried one after another until a run shows
// what it should, because a loaded machine needs longer limits.
//
// A scenario whose time is up reads its memory while the engine may still be placing octets
// in it. The race detector reports that, so with it no limit may be too short.
func scales() []float64 {
	if testkit.Race {
		return []float64{2, 8, 40} // the later ones where other tests keep the CPUs busy
	}
	return []float64{0.2, 1, 8, 40}
}

// control runs a scenario without a fault: on the engine alone, which gives the reference, and on
// one with the decorators of a mutant. Both have to pass.
func (b *bench) control(slug string) (conformance.Outcome, error) {
	b.mu.Lock()
	c := b.controls[slug]
	if c == nil {
		c = &control{}
		b.controls[slug] = c
	}
	b.mu.Unlock()
	c.once.Do(func() {
		for _, scale := range scales() {
			if c.reference, c.err = b.tryControl(slug, scale); c.err == nil {
				return
			}
		}
	})
	return c.reference, c.err
}

func (b *bench) tryControl(slug string, scale float64) (conformance.Outcome, error) {
	sound := &mutants.Mutant{Name: soundName}
	reference, err := b.play(slug, conformance.Pairing{Initiator: engineName, Responder: engineName}, sound, scale)
	if err != nil {
		return reference, err
	}
	errs := []error{b.passes(reference)}
	for _, p := range b.pairings(slug, soundName) {
		o, err := b.play(slug, p, sound, scale)
		if err != nil {
			return reference, err
		}
		errs = append(errs, b.passes(o, reference))
	}
	return reference, errors.Join(errs...)
}

// passes returns nil if the first of some outcomes passes, and otherwise an error with
// all details.
func (b *bench) passes(outcomes ...conformance.Outcome) error {
	r, err := b.judge(outcomes...)
	if err != nil || r.Verdict == conformance.Pass {
		return err
	}
	return fmt.Errorf("%s, which is not broken: %s\n%s", outcomes[0].Scenario, summary(r), strings.Join(append(r.Log, r.Ladder...), "\n"))
}

func summary(r *conformance.Result) string {
	return fmt.Sprintf("%s->%s %s: %s", r.Initiator, r.Responder, r.Verdict, r.Why)
}

// catch runs a scenario on a mutant until it fails, and returns what failed.
func (b *bench) catch(slug string, m *mutants.Mutant) (string, error) {
	if b.suite.Find(slug) == nil {
		return "", fmt.Errorf("the suite has no scenario %q", slug)
	}
	reference, err := b.control(slug)
	if err != nil {
		return "", err
	}
	missed := fmt.Errorf("%s does not notice", slug)
	for _, scale := range scales() {
		for _, p := range b.pairings(slug, m.Name) {
			o, err := b.play(slug, p, m, scale)
			if err != nil {
				return "", err
			}
			r, err := b.judge(o, reference)
			if err != nil {
				return "", err
			}
			if r.Verdict == conformance.Fail && itself(r) {
				return summary(r), nil
			}
			missed = errors.Join(missed, errors.New(summary(r)))
		}
	}
	return "", missed
}

// itself reports whether a scenario's own checks find the fault, because a comparison with an
// engine that has the same fault would show no difference.
func itself(r *conformance.Result) bool {
	return slices.ContainsFunc(r.Divergences, func(d conformance.Divergence) bool {
		return d.Entry == "" && (strings.HasPrefix(d.Key, "check:") || strings.HasPrefix(d.Key, "witness:"))
	})
}
