package report

import (
	"bytes"
	"encoding/xml"
	"io"
	"math"
	"regexp"
	"strings"
	"testing"

	"github.com/govs-rdma/govs/provider/conformance"
)

func html(t *testing.T, rep *conformance.Report) string {
	t.Helper()
	var b bytes.Buffer
	if err := HTML(&b, rep); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

var (
	ids       = regexp.MustCompile(` id="([^"]*)"`)
	hrefs     = regexp.MustCompile(`href="([^"]*)"`)
	resources = regexp.MustCompile(`(?i)(src=|url\(|@import|https?://|<link|<img|<iframe)`)
)

func TestHTMLIsWholeByItself(t *testing.T) {
	page := html(t, synthetic(t, t.TempDir()))
	if m := resources.FindString(page); m != "" {
		t.Errorf("the page needs something from elsewhere: %q", m)
	}
	if strings.Contains(page, "ZgotmplZ") {
		t.Error("the template refused something")
	}
	anchors := make(map[string]int)
	for _, m := range ids.FindAllStringSubmatch(page, -1) {
		anchors[m[1]]++
	}
	for id, n := range anchors {
		if n > 1 {
			t.Errorf("%d elements have id %q", n, id)
		}
	}
	links := 0
	for _, m := range hrefs.FindAllStringSubmatch(page, -1) {
		target, internal := strings.CutPrefix(m[1], "#")
		switch {
		case !internal && !strings.HasSuffix(target, ".pcapng"):
			t.Errorf("a link to %q", target)
		case internal && anchors[target] == 0 && target != "req--X-1-01":
			t.Errorf("a link to #%s, which is not there", target)
		}
		links++
	}
	if links < 50 {
		t.Errorf("only %d links", links)
	}
}

func TestHTMLSaysEverything(t *testing.T) {
	rep := synthetic(t, t.TempDir())
	page := html(t, rep)
	for _, want := range []string{
		"NOT PASSED", "v0.1.0 0123456789ab", "6.1.0-50-amd64", "TShark 4.0.17", ">default<", "2026-01-02 03:04:05 UTC",
		"5 PASS", "2 XFAIL", "1 UNSUPPORTED", "1 FAIL", "1 XPASS", "1 SETUP",
		"siw-terminate-layout", "kernel-notes/terminate-layout.md", "6.1 to 6.12",
		"the engine has no shared receive queues", "no siw0",
		"wire:to-initiator:terminate:layout", "differs: ",
		"RFC 5044 §4.4", "X-1-01</code></a> is not in the catalogue",
		"govs-verbs-test run --only queue/receive-empty --seed 7",
		"tshark agrees about 5 frames", "initiator.send.wc", "2 of 3 checks hold",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page does not say %q", want)
		}
	}
	if strings.Contains(page, "<script>alert") {
		t.Error("text became markup")
	}
	// Each verdict is written as a word, not shown by colour alone.
	for _, v := range verdictOrder {
		if !strings.Contains(page, ">"+string(v)+"</a>") {
			t.Errorf("no cell says %s", v)
		}
	}
}

// The two ladders stand side by side and only what differs is marked.
func TestHTMLLadders(t *testing.T) {
	rep := synthetic(t, t.TempDir())
	var view *runView
	for _, s := range scenarioViews(rep) {
		for _, r := range s.Runs {
			if r.Scenario == "queue/receive-empty" && r.Pairing == "engine->kernel" {
				view = r
			}
		}
	}
	if view.Against != "engine->engine" || len(view.Rows) != 7 {
		t.Fatalf("against %q, %d rows", view.Against, len(view.Rows))
	}
	for i, row := range view.Rows {
		if len(row.Left) != 1 || len(row.Right) != 1 {
			t.Fatalf("row %d is %q", i, row)
		}
		terminate := strings.Contains(row.Right[0], "Terminate")
		if terminate != (len(row.Keys) > 0) {
			t.Errorf("row %d (%s) is marked with %q", i, row.Right[0], row.Keys)
		}
		if terminate && (!strings.Contains(row.Left[0], "RFC layout") || !strings.Contains(row.Right[0], "siw layout")) {
			t.Errorf("row %d has %q and %q", i, row.Left[0], row.Right[0])
		}
	}
}

// Long ladders are cut, and numbers of lines that are not there do no harm.
func TestHTMLOddLadders(t *testing.T) {
	line := strings.Repeat("x", 100)
	ref := &conformance.Result{Ladder: []string{"one"}, Initiator: "a", Responder: "a"}
	r := newRunView(&conformance.Result{Ladder: make([]string, 1000), Initiator: "a", Responder: "b"})
	r.ladder(nil)
	if len(r.Rows) != ladderLines || r.Cut != 1000-ladderLines {
		t.Errorf("%d rows, %d cut", len(r.Rows), r.Cut)
	}
	r = newRunView(&conformance.Result{
		Ladder:  []string{line},
		Aligned: []conformance.Alignment{{Reference: []int{-1, 0, 5}, Got: []int{0, math.MaxInt}}, {Got: []int{7}}},
	})
	r.ladder(ref)
	if len(r.Rows) != 2 || len(r.Rows[0].Left) != 1 || len(r.Rows[0].Right) != 1 || len(r.Rows[1].Right) != 0 {
		t.Errorf("rows %q", r.Rows)
	}
}

func TestHTMLOfNothing(t *testing.T) {
	page := html(t, &conformance.Report{})
	for _, want := range []string{"NOT PASSED", "Nothing was run."} {
		if !strings.Contains(page, want) {
			t.Errorf("the page does not say %q", want)
		}
	}
}

// Tags are closed in order. (HTML has elements without an end tag, which the
// page writes so rarely that they can be named.)
func TestHTMLIsWellFormed(t *testing.T) {
	page := html(t, synthetic(t, t.TempDir()))
	d := xml.NewDecoder(strings.NewReader(page))
	d.Strict, d.AutoClose, d.Entity = false, []string{"meta", "br"}, xml.HTMLEntity
	var open []string
	for {
		tok, err := d.Token()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		switch e := tok.(type) {
		case xml.StartElement:
			open = append(open, e.Name.Local)
		case xml.EndElement:
			if last := open[len(open)-1]; last != e.Name.Local {
				t.Fatalf("</%s> closes <%s>", e.Name.Local, last)
			}
			open = open[:len(open)-1]
		}
	}
	if len(open) != 0 {
		t.Errorf("left open: %q", open)
	}
}

func TestPercent(t *testing.T) {
	for _, tc := range [][3]int{{0, 0, 0}, {0, 7, 0}, {7, 7, 100}, {1, 3, 33}, {999, 1000, 99}} {
		if got := percent(tc[0], tc[1]); got != tc[2] {
			t.Errorf("%d of %d is %d %%, want %d", tc[0], tc[1], got, tc[2])
		}
	}
}

func TestCoverageCountsOnlyMusts(t *testing.T) {
	shown := map[string]*conformance.Standing{"engine": {State: conformance.Shown}}
	docs := coverageByDocument([]conformance.Coverage{
		{Document: "RFC 1", Section: "1", Level: "MUST", Providers: shown},
		{Document: "RFC 1", Section: "1", Level: "MUST NOT"},
		{Document: "RFC 1", Section: "1", Level: "SHOULD", Providers: shown},
		{Document: "RFC 1", Section: "2", Level: "MUST", Providers: map[string]*conformance.Standing{"engine": {State: conformance.Failed}}},
		{Document: "RFC 2", Section: "1", Level: "MUST", Providers: map[string]*conformance.Standing{"engine": {State: conformance.Excepted}}},
	}, []string{"engine"})
	if len(docs) != 2 || len(docs[0].Sections) != 2 || len(docs[1].Sections) != 1 {
		t.Fatalf("%+v", docs)
	}
	for _, tc := range []struct {
		got   sectionCoverage
		musts int
		want  tally
	}{
		{docs[0].Sections[0], 2, tally{"engine", 1, 0, 0, 1}},
		{docs[0].Total, 3, tally{"engine", 1, 0, 1, 1}},
		{docs[1].Total, 1, tally{"engine", 0, 1, 0, 0}},
	} {
		if tc.got.Musts != tc.musts || tc.got.Tallies[0] != tc.want {
			t.Errorf("%d MUSTs, %+v; want %d, %+v", tc.got.Musts, tc.got.Tallies[0], tc.musts, tc.want)
		}
	}
}
