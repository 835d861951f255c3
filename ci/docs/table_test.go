// Package docs checks what the project's documents say against the tree.
package docs

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/govs-rdma/govs/provider/conformance/scenarios"
)

const root = "../.."

// row is a row of the table in docs/support.md or docs/api-coverage.md.
type row struct {
	file, feature, engine, kernel, shown string
	names                                []string // in backquotes, in the last column
}

var quoted = regexp.MustCompile("`([^`]+)`")

// document returns the text of a file of the project.
func document(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// supportTable reads the table in a file, which must have at least the given number of rows.
func supportTable(t *testing.T, file string, atLeast int) (rows []row) {
	t.Helper()
	for _, cells := range tableRows(document(t, file)) {
		if len(cells) != 4 {
			t.Errorf("%s: a row of %d cells, want 4: %q", file, len(cells), cells)
			continue
		}
		r := row{file: file, feature: cells[0], engine: cells[1], kernel: cells[2], shown: cells[3]}
		for _, m := range quoted.FindAllStringSubmatch(r.shown, -1) {
			r.names = append(r.names, m[1])
		}
		rows = append(rows, r)
	}
	if len(rows) < atLeast {
		t.Fatalf("%s: only %d rows, want %d", file, len(rows), atLeast)
	}
	return rows
}

// tests finds all tests and examples of the tree. For each name it returns the folders below root
// that have one.
func tests(t *testing.T) map[string][]string {
	t.Helper()
	found := make(map[string][]string)
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "out" || d.Name() == "testdata" || d.Name() == ".git"):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		dir, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if ok && f.Recv == nil && testName.MatchString(f.Name.Name) && !slices.Contains(found[f.Name.Name], dir) {
				found[f.Name.Name] = append(found[f.Name.Name], dir)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

var testName = regexp.MustCompile(`^([Tt]est[A-Z]|Example|Fuzz)`)

// TestSupportTableNamesTests checks that each row of the tables names what shows it, and that this
// exists: a scenario, or a test or example by its name. The package precedes the name if several
// packages have it.
func TestSupportTableNamesTests(t *testing.T) {
	suite := suiteSlugs()
	have := tests(t)
	rows := slices.Concat(supportTable(t, "docs/support.md", 50), supportTable(t, "docs/api-coverage.md", 50))
	for _, r := range rows {
		if len(r.names) == 0 && !(r.engine == "no" && r.kernel == "no") {
			t.Errorf("%s: %q: nothing shows it: name a test or a scenario", r.file, r.feature)
		}
		for _, name := range r.names {
			if why := unresolved(name, suite, have); why != "" {
				t.Errorf("%s: %q: %s", r.file, r.feature, why)
			}
		}
	}
}

// suiteSlugs returns the names of all scenarios.
func suiteSlugs() map[string]bool {
	suite := make(map[string]bool)
	for _, s := range scenarios.Suite().All() {
		suite[s.Slug] = true
	}
	return suite
}

// unresolved returns what is wrong with the name of a test or a scenario, or "".
func unresolved(name string, suite map[string]bool, have map[string][]string) string {
	pkg, test, ok := strings.Cut(name, ".")
	if !ok {
		pkg, test = "", name
	}
	switch {
	case !testName.MatchString(test):
		if !suite[name] {
			return "there is no scenario " + name
		}
	case pkg == "" && len(have[test]) > 1:
		return fmt.Sprintf("%s is in %v: say which, as in engine.%s", name, have[test], test)
	case !slices.ContainsFunc(have[test], func(dir string) bool { return pkg == "" || filepath.Base(dir) == pkg }):
		return "there is no test " + name
	}
	return ""
}
