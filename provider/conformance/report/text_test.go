package report

import (
	"bytes"
	"encoding/xml"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider/conformance"
)

func TestMatrix(t *testing.T) {
	var b bytes.Buffer
	rep := synthetic(t, t.TempDir())
	if err := Matrix(&b, rep); err != nil {
		t.Fatal(err)
	}
	text := b.String()
	for _, want := range []string{
		"verbs scenarios      engine->engine  engine->kernel  kernel->engine  kernel->kernel\n" +
			"queue/receive-empty  PASS            XFAIL           PASS            XPASS\n" +
			"send/one             PASS            FAIL            SETUP           -\n" +
			"srq/limit            UNSUPPORTED     -               -               -\n",
		"raw scenarios  engine  kernel\n" +
			"mpa/crc-wrong  PASS    XFAIL\n" +
			"mpa/reply-cut  PASS    -\n",
		"FAIL        send/one  engine->kernel\n            not so: the receive completes",
		"            scenario: a Send of one message arrives ",
		"            requirement: RDMAP-5.3-01, MUST (RFC 5040 section 5.3): Send untagged\n" +
			"            requirement: X-1-01, which is not in the catalogue\n",
		"            wire:to-initiator:terminate:header, compared with engine->engine:\n" +
			"            expected: untagged QN 0 MSN 1 MO 0\n            actual:   untagged QN 0 MSN 3 MO 0\n",
		"            wire:to-responder:send:extra, compared with engine->engine:\n            expected: nothing\n",
		"            expected: the receive completes\n            actual:   it did not, ",
		"            seed: 7\n            again: govs-verbs-test run --only send/one --seed 7\n\n",
		"Not tried (UNSUPPORTED):\n  the engine has no shared receive queues (docs/support.md), in 1 run: srq/limit\n",
		"Known divergences that showed (XFAIL):\n  siw-terminate-layout, in 2 runs: ",
		"the last 8 of 8 frames, the initiator on the left:",
		"5 PASS, 2 XFAIL, 1 UNSUPPORTED, 1 FAIL, 1 XPASS, 1 SETUP: the suite did not pass\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the matrix does not have\n%s\nbut is\n%s", want, text)
		}
	}
}

// TestAreasText: the text has a row for each area, and the rest as in Matrix.
func TestAreasText(t *testing.T) {
	var areas, matrix bytes.Buffer
	rep := synthetic(t, t.TempDir())
	testkit.OK(t, Areas(&areas, rep))
	testkit.OK(t, Matrix(&matrix, rep))
	const want = "area   runs  PASS  XFAIL  UNSUPPORTED  FAIL  XPASS  SETUP\n" +
		"queue  4     2     1      -            -     1      -\n" +
		"send   3     1     -      -            1     -      1\n" +
		"srq    1     -     -      1            -     -      -\n" +
		"mpa    3     2     1      -            -     -      -\n\n"
	rest, ok := strings.CutPrefix(areas.String(), want)
	if !ok {
		t.Errorf("got\n%s\nwant\n%s", &areas, want)
	}
	if !strings.HasPrefix(rest, "FAIL        send/one") || !strings.HasSuffix(matrix.String(), rest) {
		t.Errorf("the rest is\n%s", rest)
	}
}

// TestNotTried: a reason appears once, with some of its scenarios.
func TestNotTried(t *testing.T) {
	rep := &conformance.Report{}
	for _, slug := range []string{"a/1", "a/1", "a/2", "a/3", "a/4", "a/5", "a/6"} {
		rep.Results = append(rep.Results,
			conformance.Result{Scenario: slug, Verdict: conformance.Unsupported,
				Why: "it has no such thing"})
	}
	var b bytes.Buffer
	testkit.OK(t, Matrix(&b, rep))
	const want = "  it has no such thing, in 7 runs: a/1, a/2, a/3, a/4, 2 more scenarios\n"
	if got := b.String(); strings.Count(got, "no such thing") != 1 || !strings.Contains(got, want) {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// TestMatrixUnshown lists what an author of a profile may have misspelled, and nothing else.
func TestMatrixUnshown(t *testing.T) {
	for want, unshown := range map[string][]conformance.Unshown{
		"nothing was run: the suite did not pass\n": {
			{Entry: "held", Scenario: "a/b", Key: "check:x"},
			{Entry: "often", Scenario: "a/b", Key: "check:x", Sometimes: true, Unknown: true},
		},
		"Entries of a profile with a key that no run has, misspelled or stale:\n" +
			"  one, in a/b: check:x\n  two, in a/*: observe:y\n\nnothing was run: the suite did not pass\n": {
			{Entry: "one", Scenario: "a/b", Key: "check:x", Unknown: true},
			{Entry: "two", Scenario: "a/*", Key: "observe:y", Unknown: true},
		},
	} {
		var b bytes.Buffer
		if err := Matrix(&b, &conformance.Report{Unshown: unshown}); err != nil || b.String() != want {
			t.Errorf("got %q, %v; want %q", &b, err, want)
		}
	}
}

func TestSummary(t *testing.T) {
	for want, rep := range map[string]*conformance.Report{
		"nothing was run: the suite did not pass": {},
		"3 PASS, 1 XFAIL: the suite passed":       {Passed: true, Counts: map[conformance.Verdict]int{conformance.Pass: 3, conformance.XFail: 1}},
	} {
		if got := Summary(rep); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestJUnit(t *testing.T) {
	name := filepath.Join(t.TempDir(), "junit.xml")
	rep := synthetic(t, t.TempDir())
	rep.Results[0].Log = nil
	rep.Results[5].Why = "octets that XML can't hold: \x00\x1f\ufffe"
	if err := WriteJUnit(name, rep); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	var doc junitSuites
	if err := xml.Unmarshal(data, &doc); err != nil {
		t.Fatalf("%v:\n%s", err, data)
	}
	if doc.Tests != 11 || doc.Failed != 2 || doc.Errors != 1 || doc.Skipped != 1 {
		t.Errorf("%d tests, %d failed, %d errors, %d skipped; want 11, 2, 1, 1", doc.Tests, doc.Failed, doc.Errors, doc.Skipped)
	}
	if len(doc.Suites) != 7 || doc.Suites[0].Name != "engine->engine" || doc.Suites[0].Tests != 3 {
		t.Errorf("%d suites, the first is %q with %d tests", len(doc.Suites), doc.Suites[0].Name, doc.Suites[0].Tests)
	}
	for _, s := range doc.Suites {
		for _, c := range s.Cases {
			switch {
			case s.Name == "engine->kernel" && c.Name == "queue/receive-empty":
				if c.Failure != nil || !strings.Contains(c.Out, "siw-terminate-layout") {
					t.Errorf("an explained divergence is %+v", c)
				}
			case s.Name == "engine->kernel" && c.Name == "send/one":
				if c.Failure == nil || !strings.HasPrefix(c.Failure.Message, "FAIL: octets that XML can't hold: ???") {
					t.Errorf("a failure is %+v", c.Failure)
				}
			}
		}
	}
}

// TestPrintable: texts of stacks and hosts can't control a terminal.
func TestPrintable(t *testing.T) {
	rep := synthetic(t, t.TempDir())
	for i := range rep.Results {
		rep.Results[i].Why += " \x1b[2J\u009b31m\a\r"
	}
	for name, print := range map[string]func(io.Writer, *conformance.Report) error{
		"matrix": Matrix, "areas": Areas} {
		var b bytes.Buffer
		testkit.OK(t, print(&b, rep))
		if text := b.String(); strings.ContainsAny(text, "\x1b\u009b\a\r") ||
			!strings.Contains(text, ` \x1b[2J\x9b31m\x07\x0d`) {
			t.Errorf("%s: %q", name, text)
		}
	}
}
