package docs

import (
	"reflect"
	"strings"
	"testing"

	"github.com/govs-rdma/govs/provider/engine"
)

// TestBoundsTable checks that each state of a connection in docs/bounds.md has a test, and that
// the options that it lists exist. TestNamesInDocuments looks for the tests.
func TestBoundsTable(t *testing.T) {
	text := document(t, "docs/bounds.md")
	states := section(t, text, "## By state of a connection")
	for _, row := range tableRows(states) {
		if len(row) != 7 {
			t.Errorf("a state with %d cells, want 7: %q", len(row), row[0])
		} else if !testName.MatchString(strings.Trim(row[6], "`")) {
			t.Errorf("the state %q has no test", row[0])
		}
	}
	options := reflect.TypeOf(engine.Options{})
	for _, row := range tableRows(section(t, text, "## Options")) {
		name, sub, nested := strings.Cut(row[0], ".")
		field, ok := options.FieldByName(name)
		if ok && nested {
			_, ok = field.Type.FieldByName(sub)
		}
		if !ok {
			t.Errorf("there is no option %s", row[0])
		}
	}
}

// section returns the text of a section up to the next one of its level.
func section(t *testing.T, text, title string) string {
	t.Helper()
	_, body, ok := strings.Cut(text, "\n"+title+"\n")
	if !ok {
		t.Fatalf("docs/bounds.md has no section %q", title)
	}
	body, _, _ = strings.Cut(body, "\n## ")
	return body
}

// tableRows returns the cells of the tables in text, without their heads.
func tableRows(text string) (rows [][]string) {
	head := true
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		switch {
		case !strings.HasPrefix(line, "|"):
			head = true
		case strings.HasPrefix(line, "|---"):
			head = false
		case !head:
			cells := strings.Split(strings.Trim(line, "|"), "|")
			for i := range cells {
				cells[i] = strings.TrimSpace(cells[i])
			}
			rows = append(rows, cells)
		}
	}
	return rows
}
