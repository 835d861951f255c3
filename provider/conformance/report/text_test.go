package report

import (
	"bytes"
	"encoding/xml"
	"os"
	"path/filepath"
	"strings"
	"testing"

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
		"Known divergences that showed (XFAIL):\n  siw-terminate-layout, in 2 runs: ",
		"the last 8 of 8 frames:",
		"5 PASS, 2 XFAIL, 1 UNSUPPORTED, 1 FAIL, 1 XPASS, 1 SETUP: the suite did not pass\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the matrix does not have\n%s\nbut is\n%s", want, text)
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
