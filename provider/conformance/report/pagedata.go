package report

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"html/template"
	"slices"

	"github.com/govs-rdma/govs/provider/conformance"
)

// pageData is the data from which the page's script makes its views.
type pageData struct {
	Columns      map[string][]string    `json:"columns"` // of the matrix, by kind of scenario
	Providers    []string               `json:"providers"`
	Areas        map[string]string      `json:"areas"` // what they are about
	Scenarios    []scenarioData         `json:"scenarios"`
	Requirements []conformance.Coverage `json:"requirements"`
	Documents    []documentCoverage     `json:"documents"`
	Entries      []entryUse             `json:"entries"`
}

// scenarioData is a scenario with its runs.
type scenarioData struct {
	Slug         string            `json:"slug"`
	Area         string            `json:"area"`
	Title        string            `json:"title"`
	Kind         string            `json:"kind"`
	Level        conformance.Level `json:"level"`
	Requirements []string          `json:"requirements"`
	Capture      string            `json:"capture"`
	AtPeer       string            `json:"captureAtPeer,omitempty"`
	Runs         []runData         `json:"runs"`
}

// runData is a result without what its scenario and Entries have. Column is its column of the
// matrix. Against is the pairing whose ladder stands beside its own, "" if none does. Cut is how
// many lines of the ladder are left out.
type runData struct {
	Initiator    string                    `json:"initiator"`
	Responder    string                    `json:"responder"`
	Column       int                       `json:"column"`
	Verdict      conformance.Verdict       `json:"verdict"`
	Why          string                    `json:"why,omitempty"`
	Millis       int64                     `json:"ms"`
	Checks       []conformance.Check       `json:"checks"`
	Observations []conformance.Observation `json:"observations"`
	Divergences  []conformance.Divergence  `json:"divergences"`
	Log          []string                  `json:"log"`
	Ladder       []string                  `json:"ladder"`
	Aligned      []conformance.Alignment   `json:"aligned"`
	Messages     []conformance.Message     `json:"messages"`
	Against      string                    `json:"against,omitempty"`
	Cut          int                       `json:"cut,omitempty"`
	Witness      conformance.Witness       `json:"witness"`
	Port         uint16                    `json:"port"`
	Interface    string                    `json:"interface,omitempty"`
	Source       string                    `json:"source,omitempty"`
	Replay       string                    `json:"replay"`
}

// ladderLines is how much of a ladder the page has; captures have the rest.
const ladderLines = 400

func newPageData(rep *conformance.Report, p *page) *pageData {
	d := &pageData{
		Columns: make(map[string][]string), Providers: p.Providers, Areas: make(map[string]string),
		Requirements: rep.Requirements, Documents: p.Coverage, Entries: p.Entries,
	}
	for _, a := range p.Areas {
		d.Areas[a.Name] = a.About
	}
	columns := make(map[*conformance.Result]int)
	for _, kind := range []string{"verbs", "raw"} {
		m := newMatrix(rep, kind)
		if len(m.Rows) == 0 {
			continue
		}
		d.Columns[kind] = m.Columns
		for _, row := range m.Rows {
			for i, res := range row.Cells {
				columns[res] = i
			}
		}
	}
	index := make(map[string]int)
	laddered := make(map[string]bool) // "scenario pairing" of the runs that have a ladder
	for i := range rep.Results {
		res := &rep.Results[i]
		laddered[res.Scenario+" "+pairingOf(res)] = len(res.Ladder) > 0
	}
	for i := range rep.Results {
		res := &rep.Results[i]
		at, ok := index[res.Scenario]
		if !ok {
			at = len(d.Scenarios)
			index[res.Scenario] = at
			d.Scenarios = append(d.Scenarios, scenarioData{
				Slug: res.Scenario, Area: conformance.Area(res.Scenario), Title: res.Title, Kind: res.Kind,
				Level: res.Level, Requirements: res.Requirements,
			})
		}
		s := &d.Scenarios[at]
		s.Capture, s.AtPeer = or(s.Capture, res.Capture), or(s.AtPeer, res.CaptureAtPeer)
		run := newRunData(res, columns[res])
		against := referenceOf(res, rep.Reference)
		if len(res.Aligned) > 0 && laddered[res.Scenario+" "+against] {
			run.Against = against
		}
		s.Runs = append(s.Runs, run)
	}
	for _, s := range d.Scenarios {
		slices.SortStableFunc(s.Runs, func(a, b runData) int { return a.Column - b.Column })
	}
	return d
}

func newRunData(res *conformance.Result, column int) runData {
	r := runData{
		Initiator: res.Initiator, Responder: res.Responder, Column: column,
		Verdict: res.Verdict, Why: res.Why, Millis: res.DurationMillis,
		Checks: res.Checks, Observations: res.Observations, Log: res.Log,
		Ladder: res.Ladder, Aligned: res.Aligned, Messages: res.Messages,
		Witness: res.Witness, Port: res.Port, Interface: res.Interface, Source: res.CaptureSource, Replay: res.Replay,
	}
	for _, d := range res.Divergences {
		d.Reason, d.Evidence, d.Kernels, d.Provider = "", "", "", "" // Entries has them, by d.Entry
		d.Requirements = nil
		r.Divergences = append(r.Divergences, d)
	}
	if r.Cut = max(0, len(r.Ladder)-ladderLines); r.Cut > 0 {
		r.cut(ladderLines)
	}
	return r
}

// cut leaves the first n lines of the ladder, and the messages and alignments that begin there.
func (r *runData) cut(n int) {
	within := func(lines []int) bool { return len(lines) == 0 || lines[0] < n }
	r.Ladder = r.Ladder[:n]
	messages, aligned := r.Messages, r.Aligned
	r.Messages, r.Aligned = nil, nil
	for _, m := range messages {
		if within(m.Lines) {
			r.Messages = append(r.Messages, m)
		}
	}
	for _, a := range aligned {
		if within(a.Got) && within(a.Reference) {
			r.Aligned = append(r.Aligned, a)
		}
	}
}

// referenceOf returns the pairing that a run is compared with.
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

// island returns an element of HTML with the data: JSON, compressed with gzip, in base64. So no
// octet of it can be markup.
func (d *pageData) island() (template.HTML, error) {
	var b bytes.Buffer
	text := base64.NewEncoder(base64.StdEncoding, &b)
	packed, err := gzip.NewWriterLevel(text, gzip.BestCompression)
	if err != nil {
		return "", err
	}
	enc := json.NewEncoder(packed)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(d); err != nil {
		return "", err
	}
	if err := packed.Close(); err != nil {
		return "", err
	}
	if err := text.Close(); err != nil {
		return "", err
	}
	return template.HTML(`<script type="text/plain" id="data">` + b.String() + `</script>`), nil
}
