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

	// Tests are the tests that claim to show it in a comment, as "engine.TestFaults". Scenarios
	// name their requirements themselves.
	Tests []string

	// Reason says why neither a test nor a scenario shows it, and begins with one of the kinds
	// that the README explains: "exception: ", "not testable: " or "not used: ". It is empty if
	// one does.
	Reason string
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

// reasons has the Reason of each requirement that neither a test nor a scenario shows.
//
//go:embed reasons.tsv
var reasons string

// tests has the Tests, separated by spaces. Command ci/rfc writes it.
//
//go:embed tests.tsv
var tests string

var load = sync.OnceValues(func() (*Catalogue, error) {
	c, err := Parse(table)
	if err != nil {
		return nil, err
	}
	return c, errors.Join(c.add("briefs", briefs, setBrief), c.add("reasons", reasons, setReason),
		c.add("tests", tests, func(r *Requirement, names string) error {
			r.Tests = strings.Fields(names)
			return nil
		}))
})

// Load returns the catalogue of this version of govs, with its briefs, reasons and tests. It
// returns an error if an embedded table is malformed, which a test excludes.
func Load() (*Catalogue, error) { return load() }

// add calls set for each row of a table of ids and texts, after its line of column names. It
// returns an error, with the name of the table, for the first row that set refuses, or whose id is
// unknown or there already.
func (c *Catalogue) add(name, tsv string, set func(*Requirement, string) error) error {
	seen := make(map[string]bool)
	for i, line := range strings.Split(strings.TrimSuffix(tsv, "\n"), "\n")[1:] {
		id, text, _ := strings.Cut(line, "\t")
		r := c.byID[id]
		var err error
		switch {
		case r == nil:
			err = errors.New("it is not in the catalogue")
		case seen[id]:
			err = errors.New("the id is there already")
		case text == "" || strings.TrimSpace(text) != text:
			err = errors.New("no text, or spaces around it")
		default:
			err = set(r, text)
		}
		if err != nil {
			return fmt.Errorf("%s: line %d: %s: %w", name, i+2, id, err)
		}
		seen[id] = true
	}
	return nil
}

func setBrief(r *Requirement, brief string) error {
	if len(brief) > MaxBrief {
		return fmt.Errorf("%d characters instead of at most %d", len(brief), MaxBrief)
	}
	r.Brief = brief
	return nil
}

func setReason(r *Requirement, reason string) error {
	switch kind, _, _ := strings.Cut(reason, ": "); {
	case kind == "not used" && r.Level != May:
		return fmt.Errorf("a %s is no permission that may stay unused", r.Level)
	case kind != "not used" && kind != "exception" && kind != "not testable":
		return fmt.Errorf("a reason of the kind %q", kind)
	}
	r.Reason = reason
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
