package scenarios_test

import (
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/govs-rdma/govs/provider/conformance"
	"github.com/govs-rdma/govs/provider/conformance/capture"
	"github.com/govs-rdma/govs/provider/conformance/onengine"
	"github.com/govs-rdma/govs/provider/conformance/scenarios"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestTitles checks titles for what readers of the reports stumble over.
func TestTitles(t *testing.T) {
	for _, sc := range scenarios.Suite().All() {
		if title := " " + sc.Title; strings.Contains(title, " 1 octets") || strings.Contains(title, "  ") || strings.HasSuffix(title, ".") {
			t.Errorf("%s: %q", sc.Slug, sc.Title)
		}
	}
}

// TestRawOverEngine plays every raw scenario to the engine, including the scenarios that
// are not for kernels.
func TestRawOverEngine(t *testing.T) {
	suite := scenarios.Suite()
	var names []string
	for _, sc := range suite.All() {
		if sc.Kind() == "raw" {
			names = append(names, sc.Slug)
		}
	}
	overEngine(t, suite, strings.Join(names, ","))
}

// overEngine runs scenarios engine to engine, and raw peer to engine, and reports
// each as a subtest.
func overEngine(t *testing.T, suite *conformance.Suite, only string) {
	tap := &capture.Tap{}
	side := onengine.Side{Name: "engine", Addr: onengine.ProcessAddr(), Tap: tap}
	col := &conformance.Collection{Schema: conformance.CollectionSchema, Seed: 1}
	dir := t.TempDir()
	var err error
	col.Outcomes, err = conformance.Run(t.Context(), conformance.Config{
		Suite: suite, Only: only, Seed: col.Seed, Scale: 2, FirstPort: 21000,
		Pairings: []conformance.Pairing{{Initiator: "engine", Responder: "engine"}},
		Open:     map[string]conformance.Opener{"engine": side.Opener()},
		Capture:  tap, Tap: tap, Dir: dir,
	})
	if err != nil {
		t.Fatal(err)
	}
	// Nothing is known of the engine: it has no profile.
	judge := conformance.Judge{Suite: suite, Dir: dir, Reference: "engine"}
	report, err := judge.Judge(t.Context(), col)
	if err != nil {
		t.Fatal(err)
	}
	for _, res := range report.Results {
		t.Run(res.Scenario, func(t *testing.T) {
			if res.Verdict == conformance.Pass {
				return
			}
			t.Errorf("%s: %s", res.Verdict, res.Why)
			for _, d := range res.Divergences {
				t.Logf("%s: %s", d.Key, d.Got)
			}
			for _, o := range res.Observations {
				t.Logf("observed %s: %s", o.Key, o.Value)
			}
			t.Log("\n" + strings.Join(append(res.Log, res.Ladder...), "\n"))
		})
	}
}
