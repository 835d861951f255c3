package docs

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/govs-rdma/govs/provider/engine"
)

// TestBoundsTable: the tests and options that docs/bounds.md names exist, and each state of a
// connection has a test.
func TestBoundsTable(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "docs", "bounds.md"))
	if err != nil {
		t.Fatal(err)
	}
	have := tests(t)
	for _, m := range quoted.FindAllStringSubmatch(string(text), -1) {
		if testName.MatchString(m[1]) && have[m[1]] == nil {
			t.Errorf("there is no test %s", m[1])
		}
	}
	states := section(t, string(text), "## By state of a connection")
	for _, row := range tableRows(states) {
		if len(row) != 7 {
			t.Errorf("a state with %d cells, want 7: %q", len(row), row[0])
		} else if !testName.MatchString(strings.Trim(row[6], "`")) {
			t.Errorf("the state %q has no test", row[0])
		}
	}
	options := reflect.TypeOf(engine.Options{})
	for _, row := range tableRows(section(t, string(text), "## Options")) {
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
