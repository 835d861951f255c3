package scenarios_test

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/govs-rdma/govs/ibverbs/rdmacm"
	"github.com/govs-rdma/govs/provider/conformance"
	"github.com/govs-rdma/govs/provider/conformance/capture"
	"github.com/govs-rdma/govs/provider/conformance/onengine"
	"github.com/govs-rdma/govs/provider/conformance/scenarios"
)

// target listens on the engine, and accepts every client, each with one receive of 16 octets. It
// does nothing else, like a program that waits for its clients.
func target(t *testing.T) netip.AddrPort {
	side := onengine.Side{Name: "engine", Addr: onengine.ProcessAddr()}
	ep, err := side.Opener()([]string{"startup=1s"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	l, err := rdmacm.Listen(ctx, ep.Context, netip.AddrPortFrom(ep.Addr, 0), nil)
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			req, err := l.Accept(ctx)
			if err != nil {
				return
			}
			serving.Go(func() {
				conn, err := req.Accept(ctx, &rdmacm.ConnConfig{Receives: 1, ReceiveSize: 16})
				if err != nil {
					return
				}
				select {
				case <-conn.Done():
				case <-ctx.Done():
				}
				if err := conn.Close(); err != nil {
					t.Errorf("closing a connection: %v", err)
				}
			})
		}
	})
	t.Cleanup(func() {
		stop()
		serving.Wait()
		if err := errors.Join(l.Close(), ep.Context.Close()); err != nil {
			t.Error(err)
		}
	})
	return l.Addr()
}

// TestRawOverTarget plays the raw scenarios to a program that is not under the suite's control.
// Scenarios that need no more than it has pass. The others say what is missing.
func TestRawOverTarget(t *testing.T) {
	suite := scenarios.Suite()
	tap := &capture.Tap{}
	col := &conformance.Collection{Schema: conformance.CollectionSchema, Seed: 1}
	dir := t.TempDir()
	at := target(t)
	var err error
	col.Outcomes, err = conformance.Run(t.Context(), conformance.Config{
		Suite: suite, Seed: col.Seed, Scale: 2,
		Pairings: []conformance.Pairing{{Initiator: conformance.Raw, Responder: conformance.TargetName}},
		Target: &conformance.Target{
			Name: conformance.TargetName, Addr: at, Offers: conformance.NeedsReceive,
		},
		Capture: tap, Tap: tap, Dir: dir,
	})
	if err != nil {
		t.Fatal(err)
	}
	judge := conformance.Judge{Suite: suite, Dir: dir, Reference: "engine"}
	report, err := judge.Judge(t.Context(), col)
	if err != nil {
		t.Fatal(err)
	}
	passed := make(map[conformance.Needs]int)
	for _, res := range report.Results {
		sc := suite.Find(res.Scenario)
		alone := sc.Needs == conformance.NeedsProgram || sc.Needs == conformance.NeedsConnect
		switch {
		case !alone && res.Verdict == conformance.Pass:
			passed[sc.Needs]++
		case !alone:
			t.Errorf("%s, which needs %q: %s: %s\n%s", sc.Slug, sc.Needs, res.Verdict, res.Why,
				strings.Join(append(res.Log, res.Ladder...), "\n"))
		case res.Verdict != conformance.Unsupported || !strings.Contains(res.Why, "needs a program that"):
			t.Errorf("%s, which needs %q: %s: %s", sc.Slug, sc.Needs, res.Verdict, res.Why)
		}
	}
	for needs, least := range map[conformance.Needs]int{
		conformance.NeedsListener: 15, conformance.NeedsAccept: 40, conformance.NeedsReceive: 15,
	} {
		if passed[needs] < least {
			t.Errorf("%d scenarios that need %q have passed, %d at least should have", passed[needs],
				needs, least)
		}
	}
}

// TestNeeds: each scenario of the scripted peer says what it needs of the other side. A scenario
// that runs against a target needs no options of a provider, because nobody sets them there.
// Options that only shorten a wait don't count.
func TestNeeds(t *testing.T) {
	counts := make(map[conformance.Needs]int)
	for _, sc := range scenarios.Suite().All() {
		counts[sc.Needs]++
		if (sc.Needs == "") != (sc.Kind() == "verbs") {
			t.Errorf("%s, a %s scenario, needs %q", sc.Slug, sc.Kind(), sc.Needs)
		}
		if sc.Needs == "" || sc.Needs == conformance.NeedsProgram ||
			sc.Needs == conformance.NeedsConnect {
			continue
		}
		for _, o := range sc.Options {
			if !strings.HasPrefix(o, "startup=") {
				t.Errorf("%s needs %q, and the option %s", sc.Slug, sc.Needs, o)
			}
		}
	}
	t.Logf("scenarios by what they need: %v", counts)
}
