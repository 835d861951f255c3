package catalogue

import (
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func loaded(t *testing.T) *Catalogue {
	t.Helper()
	c, err := Load()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// documents are the documents that ids' prefixes stand for; the README says so too.
var documents = map[string][]string{
	"MPA": {"RFC 5044"}, "MPA2": {"RFC 6581"}, "DDP": {"RFC 5041"}, "RDMAP": {"RFC 5040"}, "EXT": {"RFC 7306"}, "SEC": {"RFC 5042"},
	"IANA": {"RFC 6580"}, "RDMAC": {"RFC 5044", "draft-shah-iwarp-ddp-v1.0", "draft-ietf-rddp-rdmap-00"},
}

func TestTable(t *testing.T) {
	c := loaded(t)
	if n := len(c.All()); n != 527 {
		t.Errorf("%d requirements, want 527: rows are never lost", n)
	}
	counts := make(map[Level]int)
	for _, r := range c.All() {
		counts[r.Level]++
		if c.ByID(r.ID) != r {
			t.Errorf("%s is not found by its id", r.ID)
		}
		prefix, rest, _ := strings.Cut(r.ID, "-")
		if !slices.Contains(documents[prefix], r.Document) {
			t.Errorf("%s is of %s", r.ID, r.Document)
		}
		// The id has the section, but for drafts that are named in it.
		section := rest[:strings.LastIndex(rest, "-")]
		if r.Section != section && prefix != "RDMAC" {
			t.Errorf("%s is of section %s", r.ID, r.Section)
		}
		if !slices.Contains([]string{"wire", "local", "terminate", "environment"}, r.Observable) {
			t.Errorf("%s is observable in %q", r.ID, r.Observable)
		}
		if len(r.Tests) > 0 && r.Reason != "" {
			t.Errorf("%s has both tests and a reason why none can show it", r.ID)
		}
		if r.Observe == "" || r.Basis == "" {
			t.Errorf("%s does not say how it is observed, or what it is based on", r.ID)
		}
	}
	if counts[Must] < 350 || counts[MustNot] < 30 || counts[Should] < 40 {
		t.Errorf("levels are %v", counts)
	}
	if c.ByID("MPA-0-00") != nil {
		t.Error("there is a requirement that is not there")
	}
}

func TestOneRow(t *testing.T) {
	r := loaded(t).ByID("MPA-4.1-03")
	if r == nil {
		t.Fatal("MPA-4.1-03 is not there")
	}
	want := Requirement{
		ID: "MPA-4.1-03", Document: "RFC 5044", Section: "4.1",
		Text:  "Pad 0-3 octets so the FPDU is a multiple of 4",
		Brief: "Pad 0-3 octets so the FPDU is a multiple of 4",
		Level: Must, Side: "tx", Observable: "wire", Observe: "wire",
		Negative: "All payload sizes mod 4", Basis: "rfc-text",
		Tests: r.Tests,
	}
	if !reflect.DeepEqual(*r, want) || r.Where() != "RFC 5044 §4.1" {
		t.Errorf("got %+v, want %+v", *r, want)
	}
	if r := loaded(t).ByID("RDMAC-C.1-01"); r == nil || r.Section != "C.1" || r.Level.Binding() {
		t.Errorf("a row of an appendix, for information, is %+v", r)
	}
}

func TestSections(t *testing.T) {
	c := loaded(t)
	n := 0
	seen := make(map[string]bool)
	for _, s := range c.Sections() {
		if seen[s.Document+s.Section] {
			t.Errorf("%s §%s comes twice", s.Document, s.Section)
		}
		seen[s.Document+s.Section] = true
		for _, r := range s.Requirements {
			n++
			if r.Document != s.Document || r.Section != s.Section {
				t.Errorf("%s is in %s §%s", r.ID, s.Document, s.Section)
			}
		}
	}
	if n != len(c.All()) {
		t.Errorf("sections have %d requirements", n)
	}
	all := c.All()
	all[0] = nil
	if c.All()[0] == nil {
		t.Error("what All returns is the catalogue's own")
	}
}

func TestParseRefuses(t *testing.T) {
	head := strings.Join(columns, "\t") + "\n"
	row := func(change func(cells []string)) string {
		cells := []string{"MPA-1-01", "RFC 5044 §1", "text", "MUST", "tx", "wire", "how", "idea", "rfc-text", ""}
		change(cells)
		return head + strings.Join(cells, "\t") + "\n"
	}
	good := row(func([]string) {})
	if c, err := Parse(good); err != nil || len(c.All()) != 1 {
		t.Fatalf("a good table is refused: %v", err)
	}
	for name, tc := range map[string]struct{ tsv, want string }{
		"nothing":              {"", "the columns are"},
		"other columns":        {strings.ReplaceAll(good, "level", "Level"), "the columns are"},
		"a column too few":     {head + "MPA-1-01\tRFC 5044 §1\n", "line 2: 2 columns instead of 10"},
		"an empty line":        {good + "\n", "line 3: 1 columns"},
		"an id twice":          {good + strings.TrimPrefix(good, head), "line 3: id MPA-1-01 is there already"},
		"no number in the id":  {row(func(c []string) { c[0] = "MPA-1" }), "is not of the form"},
		"no section":           {row(func(c []string) { c[1] = "RFC 5044" }), "names no document and section"},
		"no text":              {row(func(c []string) { c[2] = "" }), "no text"},
		"a level that is none": {row(func(c []string) { c[3] = "must" }), `level "must"`},
		"a side that is none":  {row(func(c []string) { c[4] = "all" }), `side "all"`},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := Parse(tc.tsv); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("the error is %v, want one with %q", err, tc.want)
			}
		})
	}
}

func TestReadme(t *testing.T) {
	data, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, column := range columns {
		if !strings.Contains(string(data), "| `"+column+"` |") {
			t.Errorf("the README does not explain column %s", column)
		}
	}
	for prefix, list := range documents {
		if !strings.Contains(string(data), "| `"+prefix+"-` | "+list[0]) {
			t.Errorf("the README does not say what %s- stands for", prefix)
		}
	}
}

// TestBriefs checks that a Brief comes from the table of briefs, else from the Text if that
// is short enough.
func TestBriefs(t *testing.T) {
	for id, want := range map[string]string{
		"MPA-4.1-02":   "ULPDU_Length counts the ULPDU only",
		"RDMAP-5.3-01": "Send untagged",
		"RDMAP-5.3-06": "Send on QN 0",
	} {
		if got := loaded(t).ByID(id).Brief; got != want {
			t.Errorf("%s has the brief %q, want %q", id, got, want)
		}
	}
}

// TestAdd checks what the tables beside the catalogue may not have.
func TestAdd(t *testing.T) {
	for name, tc := range map[string]struct {
		row string
		set func(*Requirement, string) error
	}{
		"unknown id":      {"MPA-99-01\twords", setBrief},
		"no words":        {"MPA-4.1-02\t", setBrief},
		"too long":        {"MPA-4.1-02\t" + strings.Repeat("x", MaxBrief+1), setBrief},
		"space":           {"MPA-4.1-02\twords ", setBrief},
		"twice":           {"MPA-4.1-02\twords\nMPA-4.1-02\twords", setBrief},
		"no kind":         {"MPA-4.1-02\tit is hard", setReason},
		"an unknown kind": {"MPA-4.1-02\tlater: it is hard", setReason},
		"a MUST not used": {"MPA-4.1-02\tnot used: it is a MUST", setReason},
	} {
		c, err := Parse(table)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.add("rows", "id\ttext\n"+tc.row+"\n", tc.set); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
