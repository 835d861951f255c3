package report

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"encoding/xml"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider/conformance"
)

// filesURL is where the pages of tests have their files.
const filesURL = blobs + "main/"

func html(t *testing.T, rep *conformance.Report) string {
	t.Helper()
	var b bytes.Buffer
	testkit.OK(t, HTML(&b, rep, filesURL))
	return b.String()
}

var (
	ids       = regexp.MustCompile(` id="([^"]*)"`)
	hrefs     = regexp.MustCompile(`href="([^"]*)"`)
	resources = regexp.MustCompile(`(?i)( src=|url\(|@import|https?://|<link|<img|<iframe|fetch\(|XMLHttpRequest|WebSocket)`)
	island    = regexp.MustCompile(`<script type="text/plain" id="data">([A-Za-z0-9+/=]+)</script>`)
	scripts   = regexp.MustCompile(`(?s)<script[^>]*>(.*?)</script>`)
)

// unpacked returns the data of a page, read as the page's script reads it.
func unpacked(t *testing.T, page string) pageData {
	t.Helper()
	m := island.FindStringSubmatch(page)
	if m == nil {
		t.Fatal("the page has no data, or some that is not base64 alone")
	}
	packed := testkit.Must(base64.StdEncoding.DecodeString(m[1]))(t)
	text := testkit.Must(gzip.NewReader(bytes.NewReader(packed)))(t)
	d := json.NewDecoder(text)
	d.DisallowUnknownFields()
	var data pageData
	testkit.OK(t, d.Decode(&data))
	return data
}

// routes are the addresses that the script opens.
func routes(data *pageData) map[string]bool {
	out := make(map[string]bool)
	for _, s := range data.Scenarios {
		out["area/"+s.Area] = true
		out["scenario/"+s.Slug] = true
		for _, r := range s.Runs {
			out["run/"+s.Slug+"/"+r.Initiator+"/"+r.Responder] = true
		}
	}
	for _, r := range data.Requirements {
		out["requirement/"+r.ID] = true
	}
	for _, d := range data.Documents {
		out["document/"+d.Document] = true
	}
	for _, e := range data.Entries {
		out["entry/"+e.ID], out["showing/"+e.ID] = true, true
	}
	return out
}

func TestHTMLIsWholeByItself(t *testing.T) {
	page := strings.ReplaceAll(html(t, synthetic(t, t.TempDir())), filesURL, "repository:")
	if m := resources.FindString(page); m != "" {
		t.Errorf("the page needs something from elsewhere: %q", m)
	}
	if strings.Contains(page, "ZgotmplZ") {
		t.Error("the template refused something")
	}
	data := unpacked(t, page)
	targets := routes(&data)
	seen := make(map[string]bool)
	for _, m := range ids.FindAllStringSubmatch(page, -1) {
		if seen[m[1]] {
			t.Errorf("two elements have id %q", m[1])
		}
		seen[m[1]], targets[m[1]] = true, true
	}
	links := 0
	for _, m := range hrefs.FindAllStringSubmatch(page, -1) {
		if name, is := strings.CutPrefix(m[1], "repository:"); is {
			if _, err := os.Stat("../../../" + name); err != nil {
				t.Errorf("a link to a file that the repository lacks: %v", err)
			}
			continue
		}
		target, internal := strings.CutPrefix(m[1], "#")
		target = testkit.Must(url.PathUnescape(target))(t)
		if !internal || !targets[target] && target != "requirement/X-1-01" {
			t.Errorf("a link to %q, which is not there", m[1])
		}
		links++
	}
	if links < 20 {
		t.Errorf("only %d links", links)
	}
}

func TestHTMLSaysEverything(t *testing.T) {
	page := html(t, synthetic(t, t.TempDir()))
	for _, want := range []string{
		"✗ NOT PASSED", "v0.1.0 0123456789ab", "6.1.0-50-amd64", "TShark 4.0.17", ">default<", "2026-01-02 03:04:05 UTC",
		"✓ 5 PASS", "≈ 2 XFAIL", "– 1 UNSUPPORTED", "✗ 1 FAIL", "! 1 XPASS", "? 1 SETUP",
		"siw-terminate-layout", ">kernel-notes/siw-terminate-layout.md</a>", "6.1 to 6.12", ">2 runs</a>",
		"1 run: the engine has no shared receive queues (<a", "docs/support.md</a>)", "Stack: kernel.",
		`engine</th><td class="n">6 of 7, <a href="#look">1 failed</a></td><td>none</td>`,
		`kernel (siw)</th><td class="n">1 of 5, <a href="#look">2 failed</a></td>` +
			`<td><a href="#divergences">1</a>, of which 1 breaks a MUST</td>`,
		"no siw0", "work queues and completion queues",
		"<dt>expected</dt><dd>the receive completes</dd><dt>actual</dt><dd>it did not, &lt;script&gt;",
		"RFC 5041 §7.1u2", "X-1-01</code></a> is not in the catalogue",
		"govs-verbs-test run --only queue/receive-empty --seed 7",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page does not say %q", want)
		}
	}
	// The script has the same verdicts with the same signs.
	for _, v := range verdictOrder {
		if want := string(v) + `: "` + sign(v) + `"`; !strings.Contains(pageScript, want) {
			t.Errorf("the script has no %s", want)
		}
	}
	if i, j := strings.Index(page, "✗ FAIL</a>"), strings.Index(page, "! XPASS</a>"); i < 0 || j < i {
		t.Errorf("FAIL at %d, XPASS at %d of what to look at", i, j)
	}
}

// TestPageData: the data have all that the script shows of a run.
func TestPageData(t *testing.T) {
	rep := synthetic(t, t.TempDir())
	data := unpacked(t, html(t, rep))
	if got := data.Columns["raw"]; !slices.Equal(got, []string{"engine", "kernel"}) {
		t.Errorf("raw scenarios have columns %q", got)
	}
	runs := 0
	for _, s := range data.Scenarios {
		for _, r := range s.Runs {
			runs++
			want := r.Initiator + "->" + r.Responder
			if s.Kind == "raw" {
				want = strings.Trim(strings.ReplaceAll(want, "raw", ""), "->")
			}
			if got := data.Columns[s.Kind][r.Column]; got != want {
				t.Errorf("%s %s->%s is in column %q", s.Slug, r.Initiator, r.Responder, got)
			}
			for _, d := range r.Divergences {
				known := func(u entryUse) bool { return u.ID == d.Entry && u.Reason != "" }
				if d.Entry != "" && !slices.ContainsFunc(data.Entries, known) {
					t.Errorf("the profiles have no %s", d.Entry)
				}
			}
		}
	}
	if runs != len(rep.Results) {
		t.Errorf("%d runs, want %d", runs, len(rep.Results))
	}
	r := data.Scenarios[0].Runs[1] // queue/receive-empty, engine->kernel
	sizes := []int{len(r.Ladder), len(r.Aligned), len(r.Messages), len(r.Checks)}
	if r.Against != "engine->engine" || !slices.Equal(sizes, []int{7, 7, 7, 2}) {
		t.Fatalf("against %q, %d lines, alignments, messages and checks", r.Against, sizes)
	}
	for i, a := range r.Aligned {
		terminate := strings.Contains(r.Ladder[a.Got[0]], "Terminate")
		if terminate != slices.Equal(a.Keys, []string{"wire:to-initiator:terminate:layout"}) {
			t.Errorf("row %d (%s) differs in %q", i, r.Ladder[a.Got[0]], a.Keys)
		}
		if m := r.Messages[i]; terminate && !slices.Contains(m.Fields, "layout=siw") {
			t.Errorf("the Terminate has fields %q", m.Fields)
		}
	}
	if first := data.Scenarios[0].Runs[0]; first.Against != "" {
		t.Errorf("the reference is set against %q", first.Against)
	}
}

// TestPageDataCutsLadders: captures have the rest.
func TestPageDataCutsLadders(t *testing.T) {
	res := &conformance.Result{
		Ladder:   make([]string, 1000),
		Aligned:  []conformance.Alignment{{Reference: []int{5}, Got: []int{ladderLines - 1}}, {Got: []int{ladderLines}}, {}},
		Messages: []conformance.Message{{Lines: []int{0}}, {Lines: []int{ladderLines}}, {Kind: "end"}},
	}
	r := newRunData(res, 0)
	sizes := []int{len(r.Ladder), r.Cut, len(r.Aligned), len(r.Messages)}
	if !slices.Equal(sizes, []int{ladderLines, 1000 - ladderLines, 2, 2}) {
		t.Errorf("%d lines, lines cut, alignments and messages", sizes)
	}
	if len(res.Ladder) != 1000 || len(res.Aligned) != 3 {
		t.Error("the result was changed")
	}
}

// TestHTMLHasOneScript: nothing of a report becomes markup, the script makes no markup of texts,
// and the page's policy lets a browser run only this script.
func TestHTMLHasOneScript(t *testing.T) {
	rep := hostile(t)
	page := html(t, rep)
	found := scripts.FindAllStringSubmatch(page, -1)
	if len(found) != 2 || !island.MatchString(found[0][0]) || found[1][1] != pageScript {
		t.Fatalf("the page has %d scripts, or others than the data and its own", len(found))
	}
	if strings.Contains(strings.ToLower(page), "<img") {
		t.Error("text became markup")
	}
	sum := sha256.Sum256([]byte(found[1][1]))
	policy := "script-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
	if !strings.Contains(strings.NewReplacer("&#43;", "+", "&#39;", "'").Replace(page), policy) {
		t.Errorf("the page has no policy with %s", policy)
	}
	for _, word := range []string{"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "Function("} {
		if strings.Contains(pageScript, word) {
			t.Errorf("the script has %s", word)
		}
	}
}

func TestHTMLOfNothing(t *testing.T) {
	page := html(t, &conformance.Report{})
	for _, want := range []string{"NOT PASSED", "Nothing was run."} {
		if !strings.Contains(page, want) {
			t.Errorf("the page does not say %q", want)
		}
	}
	unpacked(t, page)
}

// A suite that fails almost everywhere has a page, too; its list of what to look at ends.
func TestHTMLOfFailures(t *testing.T) {
	rep := &conformance.Report{}
	for range wrongShown + 7 {
		res := conformance.Result{Scenario: "a/b", Verdict: conformance.Fail}
		res.Divergences = slices.Repeat([]conformance.Divergence{{Key: "check:x", Reference: "x"}}, differencesShown+2)
		rep.Results = append(rep.Results, res)
	}
	page := html(t, rep)
	n := strings.Count(page, `<article class="wrong`)
	if n != wrongShown || !strings.Contains(page, "And 7 more") {
		t.Errorf("%d failures are shown", n)
	}
	n = strings.Count(page, "<dt>actual")
	if n != wrongShown*differencesShown || !strings.Contains(page, "2 more differences") {
		t.Errorf("%d differences are shown", n)
	}
}

// Tags are closed in order. (HTML has elements without an end tag, of which the page has one.)
func TestHTMLIsWellFormed(t *testing.T) {
	page := scripts.ReplaceAllString(html(t, synthetic(t, t.TempDir())), "")
	d := xml.NewDecoder(strings.NewReader(page))
	d.Strict, d.AutoClose, d.Entity = false, []string{"meta"}, xml.HTMLEntity
	var open []string
	for {
		tok, err := d.Token()
		if err == io.EOF {
			break
		}
		testkit.OK(t, err)
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

// TestStacks: a divergence counts once, and against the stack that has it, on either host.
func TestStacks(t *testing.T) {
	known := []conformance.Divergence{
		{Entry: "layout", Provider: "kernel", Requirements: []string{"A-1-01"}},
		{Entry: "slow", Provider: "kernel", Requirements: []string{"A-1-02"}},
	}
	other := []conformance.Divergence{{Entry: "odd", Provider: "bridge"}}
	run := func(initiator, responder string, v conformance.Verdict,
		found []conformance.Divergence) conformance.Result {
		return conformance.Result{Initiator: initiator, Responder: responder, Verdict: v, Divergences: found}
	}
	rep := &conformance.Report{
		Reference: "engine",
		Peer:      &conformance.PeerHost{Siw: "crc"},
		Requirements: []conformance.Coverage{
			{ID: "A-1-01", Level: "MUST NOT"}, {ID: "A-1-02", Level: "SHOULD"}},
		Results: []conformance.Result{
			run("bridge", "engine", conformance.XFail, other),
			run("engine", "engine", conformance.Pass, nil),
			run("engine", "kernel@peer", conformance.XFail, known),
			run("engine", "kernel@peer", conformance.XFail, known[:1]),
			run("engine", "kernel@peer", conformance.Pass, nil),
			run("raw", "kernel@target", conformance.XFail, known[1:]),
			run("engine", "kernel@peer", conformance.Setup, nil),
			run("engine", "kernel@peer", conformance.Unsupported, nil),
		},
	}
	want := []stack{
		{Name: "engine", Runs: 5, Expected: 5},
		{Name: "bridge", Runs: 1, Known: 1},
		{Name: "kernel@peer (siw)", Runs: 3, Expected: 1, Known: 2, Musts: 1},
		{Name: "kernel@target", Runs: 1, Known: 1},
	}
	if got := stacks(rep); !slices.Equal(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
}

// TestFiles: the links of a page in a checkout lead to files of the checkout, and those of other
// pages to the release of the report.
func TestFiles(t *testing.T) {
	outside := t.TempDir()
	for _, tc := range []struct{ dir, version, want string }{
		{"page", "v1.2.3", "./../../../../"},
		{"../../../out/report", "devel", "./../../"},
		{"../../..", "devel", "./"},
		{outside, "v1.2.3", "https://github.com/govs-rdma/govs/blob/v1.2.3/"},
		{outside, "v1.2.4-0.20261130071727-4aa4e5f60000", "https://github.com/govs-rdma/govs/blob/main/"},
		{outside, "devel 4aa4e5f60000-dirty", "https://github.com/govs-rdma/govs/blob/main/"},
		{outside, "", "https://github.com/govs-rdma/govs/blob/main/"},
	} {
		if got := filesFor(tc.dir, tc.version); got != tc.want {
			t.Errorf("%s, version %q: %s, want %s", tc.dir, tc.version, got, tc.want)
		}
	}
	if up, ok := checkoutAbove("page"); !ok {
		t.Error("this checkout is not found")
	} else if _, err := os.Stat(filepath.Join("page", up, "kernel-notes", "README.md")); err != nil {
		t.Error(err)
	}
}

// TestLinks: notes and URLs are links, and nothing else is.
func TestLinks(t *testing.T) {
	p := &page{Files: filesURL}
	const note = `<a href="` + filesURL + `kernel-notes/siw-srq.md">kernel-notes/siw-srq.md</a>`
	for text, want := range map[string]string{
		"":                        "",
		"kernel-notes/siw-srq.md": note,
		"<b> (kernel-notes/siw-srq.md), kernel-notes/siw-srq.md.": "&lt;b&gt; (" + note + "), " + note + ".",
		"https://example.org/a#1":                                 "https://example.org/a#1",
		"notes/mine.md":                                           "notes/mine.md",
		"javascript:alert(1)//.md":                                "javascript:alert(1)//.md",
	} {
		if got := string(p.Linked(text)); got != want {
			t.Errorf("%q becomes %s, want %s", text, got, want)
		}
	}
	for text, want := range map[string]string{
		"kernel-notes/siw-srq.md":     note,
		`https://example.org/a?b"&c`:  `<a href="https://example.org/a?b&#34;&amp;c">https://example.org/a?b&#34;&amp;c</a>`,
		"https://example.org/, or so": "https://example.org/, or so",
		"javascript:alert(1)":         "javascript:alert(1)",
	} {
		if got := string(p.EvidenceLink(text)); got != want {
			t.Errorf("evidence %q becomes %s, want %s", text, got, want)
		}
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
		{Document: "RFC 2", Section: "1", Level: "MUST", Tests: []string{"engine.TestFaults"}},
		{Document: "RFC 2", Section: "1", Level: "MUST", Reason: "not testable: no"},
		{Document: "RFC 2", Section: "1", Level: "MUST", Tests: []string{"engine.TestFaults"},
			Scenarios: []string{"a/b"}},
	}, []string{"engine"})
	if len(docs) != 2 || len(docs[0].Sections) != 2 || len(docs[1].Sections) != 1 {
		t.Fatalf("%+v", docs)
	}
	for _, tc := range []struct {
		got   sectionCoverage
		musts int
		want  tally
	}{
		{docs[0].Sections[0], 2, tally{Provider: "engine", Shown: 1, Open: 1}},
		{docs[0].Total, 3, tally{Provider: "engine", Shown: 1, Failed: 1, Open: 1}},
		{docs[1].Total, 4, tally{Provider: "engine", Excepted: 1, Other: 2, Open: 1}},
	} {
		if tc.got.Musts != tc.musts || tc.got.Tallies[0] != tc.want {
			t.Errorf("%d MUSTs, %+v; want %d, %+v", tc.got.Musts, tc.got.Tallies[0], tc.musts, tc.want)
		}
	}
}

func TestAreas(t *testing.T) {
	list := areas(synthetic(t, t.TempDir()))
	if len(list) != 4 || list[1].Name != "send" || list[1].Runs != 3 || list[1].About == "" {
		t.Fatalf("%+v", list)
	}
	want := []verdictCount{{conformance.Pass, 1}, {conformance.Fail, 1}, {conformance.Setup, 1}}
	if !slices.Equal(list[1].Counted, want) {
		t.Errorf("send has %v, want %v", list[1].Counted, want)
	}
}
