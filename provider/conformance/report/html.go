package report

import (
	"embed"
	"fmt"
	"html/template"
	"io"
	"slices"
	"strings"

	"github.com/govs-rdma/govs/provider/conformance"
)

//go:embed page
var pageFiles embed.FS

var pageTemplate = template.Must(template.New("").Funcs(template.FuncMap{
	"lower": func(v any) string { return strings.ToLower(fmt.Sprint(v)) },
	"css": func() (template.CSS, error) {
		b, err := pageFiles.ReadFile("page/style.css")
		return template.CSS(b), err
	},
	"script":  func() (template.JS, error) { b, err := pageFiles.ReadFile("page/open.js"); return template.JS(b), err },
	"percent": percent,
	"anchor":  anchor,
}).ParseFS(pageFiles, "page/*.html"))

// HTML writes a report as one page that refers to no other file.
func HTML(w io.Writer, rep *conformance.Report) error {
	return pageTemplate.ExecuteTemplate(w, "index.html", newPage(rep))
}

// percent returns part of whole in percent, for widths and for text; 0 if whole is 0.
func percent(part, whole int) int {
	if whole == 0 {
		return 0
	}
	return part * 100 / whole
}

// page is what the templates see.
type page struct {
	*conformance.Report
	Summary    string
	Counted    []verdictCount
	Conditions []condition
	Matrices   []matrix
	Wrong      []*runView // all runs that are neither PASS nor XFAIL
	Ledger     []ledgerUse
	Coverage   []documentCoverage
	Providers  []string // that the coverage has columns for
	Scenarios  []*scenarioView
}

type verdictCount struct {
	Verdict conformance.Verdict
	N       int
}

type condition struct{ Name, Value string }

// verdictOrder is the order in which verdicts are summed up.
var verdictOrder = []conformance.Verdict{
	conformance.Pass, conformance.XFail, conformance.Unsupported, conformance.Fail, conformance.XPass, conformance.Setup,
}

// kernel is the kernel's name, and which release it was built of.
func kernel(rep *conformance.Report) string {
	if rep.KernelVersion == "" || strings.HasPrefix(rep.Kernel, rep.KernelVersion) {
		return rep.Kernel
	}
	return rep.Kernel + " (" + rep.KernelVersion + ")"
}

func newPage(rep *conformance.Report) *page {
	p := &page{Report: rep, Summary: Summary(rep), Ledger: ledgerUses(rep)}
	for _, v := range verdictOrder {
		if n := rep.Counts[v]; n > 0 {
			p.Counted = append(p.Counted, verdictCount{v, n})
		}
	}
	p.Conditions = []condition{
		{"started", rep.Started.UTC().Format("2006-01-02 15:04:05 UTC")},
		{"govs", rep.Version},
		{"kernel", kernel(rep)},
		{"siw", or(rep.Siw, "no guest's")},
		{"placement by the engine", or(rep.Placement, "not known")},
		{"CPUs", fmt.Sprint(rep.CPUs)},
		{"seed", fmt.Sprint(rep.Seed)},
		{"compared with", or(rep.Reference, "nothing")},
		{"second witness", or(rep.Tshark, "not asked")},
	}
	for _, kind := range []string{"verbs", "raw"} {
		if m := newMatrix(rep, kind); len(m.Rows) > 0 {
			p.Matrices = append(p.Matrices, m)
		}
	}
	p.Providers = providersOf(rep)
	p.Coverage = coverageByDocument(rep.Requirements, p.Providers)
	p.Scenarios = scenarioViews(rep)
	for _, s := range p.Scenarios {
		for _, r := range s.Runs {
			if r.Verdict != conformance.Pass && r.Verdict != conformance.XFail {
				p.Wrong = append(p.Wrong, r)
			}
		}
	}
	return p
}

func or(s, other string) string {
	if s == "" {
		return other
	}
	return s
}

// providersOf returns the providers that took part, sorted.
func providersOf(rep *conformance.Report) []string {
	var out []string
	for i := range rep.Results {
		for _, name := range []string{rep.Results[i].Initiator, rep.Results[i].Responder} {
			if name != conformance.Raw && !slices.Contains(out, name) {
				out = append(out, name)
			}
		}
	}
	slices.Sort(out)
	return out
}

// A scenarioView is a scenario with its runs.
type scenarioView struct {
	ID           string
	Slug, Title  string
	Kind         string
	Level        conformance.Level
	Requirements []*conformance.Coverage
	Capture      string
	Runs         []*runView
	Good         bool
}

// A runView is a result with what is shown of it.
type runView struct {
	*conformance.Result
	ID      string
	Pairing string
	Passed  int // checks
	Decode  string
	Rows    []ladderRow
	Cut     int    // lines of the ladder that are not shown
	Against string // the pairing whose ladder is on the left; empty if there is none
}

func pairingOf(res *conformance.Result) string { return res.Initiator + "->" + res.Responder }

func anchor(parts ...string) string {
	return strings.NewReplacer("/", "-", "->", "-to-", " ", "-").Replace(strings.Join(parts, "--"))
}

func scenarioViews(rep *conformance.Report) []*scenarioView {
	requirements := make(map[string]*conformance.Coverage, len(rep.Requirements))
	for i := range rep.Requirements {
		requirements[rep.Requirements[i].ID] = &rep.Requirements[i]
	}
	var out []*scenarioView
	index := make(map[string]*scenarioView)
	runs := make(map[string]*conformance.Result)
	for i := range rep.Results {
		res := &rep.Results[i]
		runs[res.Scenario+" "+pairingOf(res)] = res
		s := index[res.Scenario]
		if s == nil {
			s = &scenarioView{ID: anchor("scenario", res.Scenario), Slug: res.Scenario, Title: res.Title, Kind: res.Kind, Level: res.Level, Good: true}
			for _, id := range res.Requirements {
				if c := requirements[id]; c != nil {
					s.Requirements = append(s.Requirements, c)
				} else {
					s.Requirements = append(s.Requirements, &conformance.Coverage{ID: id})
				}
			}
			index[res.Scenario] = s
			out = append(out, s)
		}
		s.Good = s.Good && res.Verdict.Good()
		s.Capture = or(s.Capture, res.Capture)
		s.Runs = append(s.Runs, newRunView(res))
	}
	for _, s := range out {
		for _, r := range s.Runs {
			r.ladder(runs[r.Scenario+" "+referenceOf(r.Result, rep.Reference)])
		}
	}
	return out
}

// referenceOf is the pairing that a run is compared with.
func referenceOf(res *conformance.Result, reference string) string {
	p := conformance.Pairing{Initiator: reference, Responder: reference}
	if res.Initiator == conformance.Raw {
		p.Initiator = conformance.Raw
	}
	if res.Responder == conformance.Raw {
		p.Responder = conformance.Raw
	}
	return p.String()
}

func newRunView(res *conformance.Result) *runView {
	r := &runView{Result: res, ID: anchor("run", res.Scenario, pairingOf(res)), Pairing: pairingOf(res)}
	for _, c := range res.Checks {
		if c.OK {
			r.Passed++
		}
	}
	if res.Capture != "" {
		r.Decode = fmt.Sprintf("govs-verbs-test decode --port %d %s", res.Port, res.Capture)
	}
	return r
}

// ladderLines is how much of a ladder a page shows; captures have the rest.
const ladderLines = 300

// ladderRow is a message on the left, as the reference pairing has it, and on
// the right.
type ladderRow struct {
	Left, Right []string
	Keys        []string // of the divergences; none if the two are the same
}

// ladder makes the rows of a run's two ladders, or of its one if there is no
// reference.
func (r *runView) ladder(ref *conformance.Result) {
	if ref == nil || len(r.Aligned) == 0 {
		n := min(len(r.Ladder), ladderLines)
		r.Cut = len(r.Ladder) - n
		for _, line := range r.Ladder[:n] {
			r.Rows = append(r.Rows, ladderRow{Right: []string{line}})
		}
		return
	}
	r.Against = pairingOf(ref)
	left := ladderLines
	for _, a := range r.Aligned {
		n := max(len(a.Reference), len(a.Got))
		if left -= n; left < 0 {
			r.Cut += n
			continue
		}
		r.Rows = append(r.Rows, ladderRow{Left: pick(ref.Ladder, a.Reference), Right: pick(r.Ladder, a.Got), Keys: a.Keys})
	}
}

// pick returns lines by their numbers. Numbers that there are no lines for are
// left out: reports are also read from files.
func pick(lines []string, numbers []int) []string {
	out := make([]string, 0, len(numbers))
	for _, n := range numbers {
		if n >= 0 && n < len(lines) {
			out = append(out, lines[n])
		}
	}
	return out
}
