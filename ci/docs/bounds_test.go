package docs

import (
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider/engine"
)

// state is an item of the list of states in docs/bounds.md: names in bold, the state that is held,
// the bound, and the tests.
var state = regexp.MustCompile(
	`^\*\*(.+?)\*\*: (nothing\.|[0-9].*\.) (?:.* )?Bound: .+ \(((?:` + "`[^`]+`" + `(?:, )?)+)\)\.$`)

// TestBoundsTable checks that each state of a connection in docs/bounds.md has the held state, its
// bound and the tests that show it, and that the options that it lists exist. TestNamesInDocuments
// checks that the tests exist.
func TestBoundsTable(t *testing.T) {
	text := document(t, "docs/bounds.md")
	states, _, _ := strings.Cut(section(t, text, "## By who can cause it"), "\n### What the bounds do not prevent\n")
	found := 0
	for _, item := range listItems(states) {
		m := state.FindStringSubmatch(item)
		if m == nil {
			t.Errorf("a state without what is held, its bound or its tests: %q", item)
			continue
		}
		found += len(strings.Split(m[1], "; "))
		for _, name := range quoted.FindAllStringSubmatch(m[3], -1) {
			if _, test, dot := strings.Cut(name[1], "."); !testName.MatchString(name[1]) && !(dot && testName.MatchString(test)) {
				t.Errorf("%q: %s is not the name of a test", m[1], name[1])
			}
		}
	}
	if found < 29 {
		t.Errorf("only %d states were found", found)
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

// TestBoundsTotal checks the sum in docs/bounds.md: each row is a number of things with so many
// KiB, in MiB, and the last row is the sum of the others.
func TestBoundsTotal(t *testing.T) {
	rows := tableRows(section(t, document(t, "docs/bounds.md"), "## A server on an open network"))
	if len(rows) < 5 {
		t.Fatalf("only %d rows were found", len(rows))
	}
	number := func(cell string) int { return testkit.Must(strconv.Atoi(cell))(t) }
	sum := 0
	for _, row := range rows[:len(rows)-1] {
		if len(row) != 4 {
			t.Fatalf("a row with %d cells, want 4: %q", len(row), row[0])
		}
		if want, got := (number(row[1])*number(row[2])+512)>>10, number(row[3]); got != want {
			t.Errorf("%q: %d MiB together, want %d", row[0], got, want)
		}
		sum += number(row[3])
	}
	if last := rows[len(rows)-1]; last[0] != "all" || number(last[3]) != sum {
		t.Errorf("the last row is %q, want the sum %d", last, sum)
	}
}

// section returns the text of a section up to the next one of its level.
func section(t *testing.T, text, title string) string {
	t.Helper()
	_, body, ok := strings.Cut(text, "\n"+title+"\n")
	if !ok {
		t.Fatalf("the document has no section %q", title)
	}
	body, _, _ = strings.Cut(body, "\n## ")
	return body
}

// listItems returns the items of the lists in text, each as one line.
func listItems(text string) (items []string) {
	open := false
	for line := range strings.Lines(text) {
		item, begins := strings.CutPrefix(line, "- ")
		switch {
		case begins:
			items = append(items, strings.TrimSpace(item))
			open = true
		case open && strings.HasPrefix(line, "  "):
			items[len(items)-1] += " " + strings.TrimSpace(line)
		default:
			open = false
		}
	}
	return items
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
