// Package catalogue is the list of requirements that the RFCs of iWARP make,
// each with a stable id, for scenarios, tests and code to name.
//
// The README beside it says what its columns mean, how ids are made and where the
// rows come from.
package catalogue

import (
	_ "embed"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// Level is how binding a requirement is, in the words of RFC 2119.
type Level string

// The levels. Info is for statements of a document that require nothing.
const (
	Must      Level = "MUST"
	MustNot   Level = "MUST NOT"
	Should    Level = "SHOULD"
	ShouldNot Level = "SHOULD NOT"
	May       Level = "MAY"
	Info      Level = "INFO"
)

// Binding reports whether the level is MUST or MUST NOT.
func (l Level) Binding() bool { return l == Must || l == MustNot }

var levels = []Level{Must, MustNot, Should, ShouldNot, May, Info}

// A Requirement is one row of the catalogue.
type Requirement struct {
	ID       string // "MPA-4.1-01"
	Document string // "RFC 5044"
	Section  string // "4.1", "C.2" for an appendix
	Text     string // a paraphrase; the RFC's own words bind
	Brief    string // Text in at most MaxBrief characters, for comments; empty if it has no short form
	Level    Level

	// Side is "tx", "rx" or "both": which side has to do it.
	Side string

	// Observable is where it shows: "wire", "local", "terminate" or
	// "environment"; Observe says how, Negative which test would show its breach.
	Observable, Observe, Negative string

	// Basis is "rfc-text" where a sentence of the document says it, "rfc-derived"
	// where it follows from several, "recalled" where it comes from practice and
	// no sentence was found, or the name of an older document.
	Basis string

	Note string // what is known of siw, and other remarks
}

// MaxBrief is the length of the longest Brief. A citation with a Brief of this length fits into 100
// columns wherever code stands.
const MaxBrief = 60

// Where returns document and section: "RFC 5044 §4.1".
func (r *Requirement) Where() string { return r.Document + " §" + r.Section }

// A Section is a section of a document that has requirements.
type Section struct {
	Document, Section string
	Requirements      []*Requirement
}

// A Catalogue is a set of requirements with distinct ids. It is not changed
// after it was made, and may be used by many goroutines.
type Catalogue struct {
	all  []*Requirement
	byID map[string]*Requirement
}

//go:embed requirements.tsv
var table string

// briefs has the Brief of requirements whose Text is too long for one, or needs the row
// before it to be understood.
//
//go:embed briefs.tsv
var briefs string

var load = sync.OnceValues(func() (*Catalogue, error) {
	c, err := Parse(table)
	if err == nil {
		err = c.addBriefs(briefs)
	}
	return c, err
})

// Load returns the catalogue of this version of govs, with its briefs. It returns an
// error if an embedded table is malformed, which a test excludes.
func Load() (*Catalogue, error) { return load() }

// addBriefs takes Briefs from a table of ids and texts, with a line of column names.
func (c *Catalogue) addBriefs(tsv string) error {
	seen := make(map[string]bool)
	for i, line := range strings.Split(strings.TrimSuffix(tsv, "\n"), "\n")[1:] {
		id, brief, _ := strings.Cut(line, "\t")
		r := c.byID[id]
		switch {
		case r == nil:
			return fmt.Errorf("briefs: line %d: %s is not in the catalogue", i+2, id)
		case seen[id]:
			return fmt.Errorf("briefs: line %d: id %s is there already", i+2, id)
		case brief == "" || len(brief) > MaxBrief || strings.TrimSpace(brief) != brief:
			return fmt.Errorf("briefs: line %d: %s: %d characters instead of 1 to %d", i+2, id,
				len(brief), MaxBrief)
		}
		seen[id] = true
		r.Brief = brief
	}
	return nil
}

// columns are the table's, in order.
var columns = []string{
	"id", "document_section", "requirement_paraphrase", "level", "side", "observable", "observe_how", "negative_test_idea", "basis", "siw_or_other_note",
}

// idForm is what ids look like: a prefix that stands for the document, the
// section, and a number of two digits.
var idForm = regexp.MustCompile(`^[A-Z][A-Z0-9]*-[A-Za-z0-9.-]+-[0-9]{2}$`)

// Parse reads a table of tab-separated values with a line of column names. It
// returns an error about the first row that is malformed or repeats an id.
func Parse(tsv string) (*Catalogue, error) {
	lines := strings.Split(strings.TrimSuffix(tsv, "\n"), "\n")
	if got := strings.Split(lines[0], "\t"); !slices.Equal(got, columns) {
		return nil, fmt.Errorf("catalogue: the columns are %q instead of %q", got, columns)
	}
	c := &Catalogue{byID: make(map[string]*Requirement)}
	for i, line := range lines[1:] {
		r, err := parseRow(line)
		if err == nil && c.byID[r.ID] != nil {
			err = fmt.Errorf("id %s is there already", r.ID)
		}
		if err != nil {
			return nil, fmt.Errorf("catalogue: line %d: %w", i+2, err)
		}
		c.all = append(c.all, r)
		c.byID[r.ID] = r
	}
	return c, nil
}

func parseRow(line string) (*Requirement, error) {
	cells := strings.Split(line, "\t")
	if len(cells) != len(columns) {
		return nil, fmt.Errorf("%d columns instead of %d", len(cells), len(columns))
	}
	r := &Requirement{
		ID: cells[0], Text: cells[2], Level: Level(cells[3]), Side: cells[4],
		Observable: cells[5], Observe: cells[6], Negative: cells[7], Basis: cells[8], Note: cells[9],
	}
	r.Document, r.Section = splitSection(cells[1])
	if len(r.Text) <= MaxBrief {
		r.Brief = r.Text
	}
	switch {
	case !idForm.MatchString(r.ID):
		return nil, fmt.Errorf("id %q is not of the form PREFIX-SECTION-NN", r.ID)
	case r.Document == "" || r.Section == "":
		return nil, fmt.Errorf("%s: section %q names no document and section", r.ID, cells[1])
	case r.Text == "":
		return nil, errors.New(r.ID + ": no text")
	case !slices.Contains(levels, r.Level):
		return nil, fmt.Errorf("%s: level %q", r.ID, r.Level)
	case r.Side != "tx" && r.Side != "rx" && r.Side != "both":
		return nil, fmt.Errorf("%s: side %q", r.ID, r.Side)
	}
	return r, nil
}

// splitSection takes "RFC 5044 §4.1" and "RFC 5044 App.C.2" apart.
func splitSection(s string) (document, section string) {
	document, section, ok := strings.Cut(s, " §")
	if !ok {
		document, section, _ = strings.Cut(s, " App.")
	}
	return document, section
}

// All returns the requirements in the order of the table. The slice is the
// caller's, the requirements are not.
func (c *Catalogue) All() []*Requirement { return slices.Clone(c.all) }

// ByID returns the requirement with an id, nil if there is none.
func (c *Catalogue) ByID(id string) *Requirement { return c.byID[id] }

// Sections returns the requirements by section, in the order of the table.
func (c *Catalogue) Sections() []Section {
	var out []Section
	index := make(map[string]int)
	for _, r := range c.all {
		at, ok := index[r.Where()]
		if !ok {
			at = len(out)
			index[r.Where()] = at
			out = append(out, Section{Document: r.Document, Section: r.Section})
		}
		out[at].Requirements = append(out[at].Requirements, r)
	}
	return out
}
