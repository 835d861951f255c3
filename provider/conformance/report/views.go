package report

import (
	"slices"

	"github.com/govs-rdma/govs/provider/conformance"
	"github.com/govs-rdma/govs/provider/conformance/catalogue"
)

// matrix is a table of verdicts: a row per scenario, a column per pairing of
// verbs scenarios, and per tested provider of raw ones.
type matrix struct {
	Kind    string
	Columns []string
	Rows    []matrixRow
}

type matrixRow struct {
	Scenario string
	Cells    []*conformance.Result // nil where nothing was run
}

// newMatrix makes the matrix of one kind of scenarios.
func newMatrix(rep *conformance.Report, kind string) matrix {
	m := matrix{Kind: kind}
	for i := range rep.Results {
		if res := &rep.Results[i]; res.Kind == kind && !slices.Contains(m.Columns, columnOf(res)) {
			m.Columns = append(m.Columns, columnOf(res))
		}
	}
	for i, name := range m.Columns { // the reference is first
		if name == rep.Reference || name == rep.Reference+"->"+rep.Reference {
			m.Columns = slices.Insert(slices.Delete(m.Columns, i, i+1), 0, name)
			break
		}
	}
	index := make(map[string]int)
	for i := range rep.Results {
		res := &rep.Results[i]
		if res.Kind != kind {
			continue
		}
		at, ok := index[res.Scenario]
		if !ok {
			at = len(m.Rows)
			index[res.Scenario] = at
			m.Rows = append(m.Rows, matrixRow{res.Scenario, make([]*conformance.Result, len(m.Columns))})
		}
		m.Rows[at].Cells[slices.Index(m.Columns, columnOf(res))] = res
	}
	return m
}

// columnOf returns the pairing of a run, or only the provider for a raw scenario, because the
// scenario decides the raw peer's role.
func columnOf(res *conformance.Result) string {
	switch {
	case res.Kind != "raw":
		return pairingOf(res)
	case res.Responder == conformance.Raw:
		return res.Initiator
	}
	return res.Responder
}

// entryUse is an entry of a profile that explained something, and how often.
type entryUse struct {
	ID       string                `json:"id"`
	Reason   string                `json:"reason"`
	Kernels  string                `json:"kernels"`
	Evidence string                `json:"evidence"`
	Provider string                `json:"provider"`
	Runs     []*conformance.Result `json:"-"`
}

// entryUses returns the entries that were used, in the order of their first
// use.
func entryUses(rep *conformance.Report) []entryUse {
	var out []entryUse
	index := make(map[string]int)
	for i := range rep.Results {
		res := &rep.Results[i]
		for k := range res.Divergences {
			d := &res.Divergences[k]
			if d.Entry == "" {
				continue
			}
			at, ok := index[d.Entry]
			if !ok {
				at = len(out)
				index[d.Entry] = at
				out = append(out, entryUse{ID: d.Entry, Reason: d.Reason, Kernels: d.Kernels,
					Evidence: d.Evidence, Provider: d.Provider})
			}
			if u := &out[at]; !slices.Contains(u.Runs, res) {
				u.Runs = append(u.Runs, res)
			}
		}
	}
	return out
}

// documentCoverage is the coverage of one RFC.
type documentCoverage struct {
	Document string            `json:"document"`
	Sections []sectionCoverage `json:"sections"`
	Total    sectionCoverage   `json:"-"`
}

// sectionCoverage is the coverage of one section of it.
type sectionCoverage struct {
	Section string  `json:"section"`
	Musts   int     `json:"musts"` // MUST and MUST NOT
	Tallies []tally `json:"tallies"`
}

// tally is how many MUSTs one provider has in each state.
type tally struct {
	Provider string `json:"provider"`
	Shown    int    `json:"shown"`
	Excepted int    `json:"excepted"`
	Failed   int    `json:"failed"`
	Other    int    `json:"other"` // no scenario names it: tests of govs show it, or it has a reason
	Open     int    `json:"open"`
}

func (t *tally) count(c *conformance.Coverage) {
	s := c.Providers[t.Provider]
	switch {
	case s == nil && c.Scenarios == nil && (c.Tests != nil || c.Reason != ""):
		t.Other++
	case s == nil:
		t.Open++
	case s.State == conformance.Failed:
		t.Failed++
	case s.State == conformance.Excepted:
		t.Excepted++
	default:
		t.Shown++
	}
}

// coverageByDocument groups requirements by document and section, in order.
func coverageByDocument(list []conformance.Coverage, providers []string) []documentCoverage {
	var out []documentCoverage
	for i := range list {
		c := &list[i]
		at := slices.IndexFunc(out, func(d documentCoverage) bool { return d.Document == c.Document })
		if at < 0 {
			at = len(out)
			out = append(out, documentCoverage{Document: c.Document, Total: newSection("", providers)})
		}
		d := &out[at]
		at = slices.IndexFunc(d.Sections, func(s sectionCoverage) bool { return s.Section == c.Section })
		if at < 0 {
			at = len(d.Sections)
			d.Sections = append(d.Sections, newSection(c.Section, providers))
		}
		d.Sections[at].add(c)
		d.Total.add(c)
	}
	return out
}

func newSection(name string, providers []string) sectionCoverage {
	s := sectionCoverage{Section: name}
	for _, p := range providers {
		s.Tallies = append(s.Tallies, tally{Provider: p})
	}
	return s
}

func (s *sectionCoverage) add(c *conformance.Coverage) {
	if !isMust(c) {
		return
	}
	s.Musts++
	for i := range s.Tallies {
		s.Tallies[i].count(c)
	}
}

// isMust reports whether a requirement binds.
func isMust(c *conformance.Coverage) bool { return catalogue.Level(c.Level).Binding() }

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
