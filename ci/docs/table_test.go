// Package docs checks what the project's documents say against the tree.
package docs

import (
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

// row is a row of the README's tables in "What is supported".
type row struct {
	feature, engine, kernel, shown string
	names                          []string // in backquotes, in the last column
}

var quoted = regexp.MustCompile("`([^`]+)`")

// supportTable reads the tables.
func supportTable(t *testing.T) (rows []row) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, ok := strings.Cut(string(text), "\n## What is supported\n")
	section, _, more := strings.Cut(section, "\n## ")
	if !ok || !more {
		t.Fatal("README.md has no section \"What is supported\"")
	}
	for line := range strings.Lines(section) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "|") {
			continue
		}
		if strings.HasPrefix(line, "|---") || strings.HasSuffix(line, "| shown by |") {
			continue
		}
		cells := strings.Split(strings.Trim(line, "|"), "|")
		if len(cells) != 4 {
			t.Errorf("README.md: a row of %d cells, want 4: %s", len(cells), line)
			continue
		}
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		r := row{feature: cells[0], engine: cells[1], kernel: cells[2], shown: cells[3]}
		for _, m := range quoted.FindAllStringSubmatch(r.shown, -1) {
			r.names = append(r.names, m[1])
		}
		rows = append(rows, r)
	}
	if len(rows) < 90 {
		t.Fatalf("README.md: only %d rows", len(rows))
	}
	return rows
}

// tests finds all tests and examples of the tree: the folders that have one of a
// name, below root.
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

var testName = regexp.MustCompile(`^(Test|Example|Fuzz)`)

// TestSupportTableNamesTests: each row of the table names what shows it, and that
// exists: a scenario, or a test or example by its name, with its package in front
// where several packages have one of the name.
func TestSupportTableNamesTests(t *testing.T) {
	suite := make(map[string]bool)
	for _, s := range scenarios.Suite().All() {
		suite[s.Slug] = true
	}
	have := tests(t)
	for _, r := range supportTable(t) {
		if len(r.names) == 0 && !(r.engine == "no" && r.kernel == "no") {
			t.Errorf("%q: nothing shows it: name a test or a scenario", r.feature)
		}
		for _, name := range r.names {
			pkg, test, ok := strings.Cut(name, ".")
			if !ok {
				pkg, test = "", name
			}
			switch {
			case !testName.MatchString(test):
				if !suite[name] {
					t.Errorf("%q: there is no scenario %q", r.feature, name)
				}
			case pkg == "" && len(have[test]) > 1:
				t.Errorf("%q: %s is in %v: say which, as in engine.%s", r.feature, name, have[test], test)
			case !slices.ContainsFunc(have[test], func(dir string) bool { return pkg == "" || filepath.Base(dir) == pkg }):
				t.Errorf("%q: there is no test %s", r.feature, name)
			}
		}
	}
}
