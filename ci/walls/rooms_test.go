package walls

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
)

const engine = "provider/engine"

// TestRooms limits how entangled the files of the engine are. A figure that grows makes the test
// fail. After a change that lowers one for good, its limit is lowered, too.
//
// File A uses file B if A names an object that B declares. Methods and fields count where they are
// declared. The files are those without tests that this platform compiles without build tags, but
// all files count in "files" and "lines". TestLimits of package policy counts the constants of
// tuning.
func TestRooms(t *testing.T) {
	r := load(t)
	files, lines, _ := size(t, engine, false)
	_, _, code := sizes(t, false)
	_, _, tests := sizes(t, true)
	cycle, mutual := r.largestCycle(), r.mutual()
	rdmac := r.sites(func(o types.Object) bool { return o.Name() == "RDMAC" }, "conformance.go")
	objects := r.sites(func(o types.Object) bool {
		_, isType := o.(*types.TypeName) // a field of such a type calls nothing
		return !isType && o.Pkg() == r.pkg && strings.HasPrefix(r.at(o.Pos()), "object_")
	}, "object_fetch.go", "object_store.go")
	for _, f := range []struct {
		name      string
		got, most float64
		which     []string
	}{
		{"files", float64(files), 45, nil},
		{"lines, with comments", float64(lines), 10_000, nil},
		{"files in the largest cycle of uses", float64(len(cycle)), 27, cycle},
		{"files that a file uses, on average", r.average(), 6, nil},
		{"pairs of files that use each other", float64(len(mutual)), 35, mutual},
		{"places outside the options that ask for the RDMA Consortium's version",
			float64(len(rdmac)), 5, rdmac},
		{"places outside object_*.go that call what is in them", float64(len(objects)), 5, objects},
		{"fields of engine.Options", float64(r.fields("Options")), 22, nil},
		// Without comments and empty lines, in the engine and its internal packages.
		{"lines of tests for a line of code", float64(tests) / float64(code), 2.2, nil},
	} {
		t.Logf("%s: %.4g", f.name, f.got)
		if f.got > f.most {
			t.Errorf("%s: %.4g, and %g at most\n%s", f.name, f.got, f.most, strings.Join(f.which, "\n"))
		}
		if f.got < f.most/3 {
			t.Errorf("%s: %.4g, which is too little to be true", f.name, f.got)
		}
	}
}

// rooms are the files of package engine, type-checked.
type rooms struct {
	fset  *token.FileSet
	pkg   *types.Package
	files map[string]*ast.File
	info  *types.Info
	uses  map[string]map[string]bool // by the names of the files
}

// load type-checks package engine with the export data of the packages that it imports.
func load(t *testing.T) *rooms {
	t.Helper()
	export, names := listed(t)
	r := &rooms{
		fset: token.NewFileSet(), files: map[string]*ast.File{},
		info: &types.Info{Uses: map[*ast.Ident]types.Object{}},
		uses: map[string]map[string]bool{},
	}
	for _, name := range names {
		path := filepath.Join("../..", engine, name)
		r.files[name] = testkit.Must(parser.ParseFile(r.fset, path, nil, parser.SkipObjectResolution))(t)
		r.uses[name] = map[string]bool{}
	}
	imports := importer.ForCompiler(r.fset, "gc", func(path string) (io.ReadCloser, error) {
		return os.Open(export[path])
	})
	config := types.Config{Importer: imports}
	files := slices.Collect(maps.Values(r.files))
	r.pkg = testkit.Must(config.Check(module+"/"+engine, r.fset, files, r.info))(t)
	for id, o := range r.info.Uses {
		if from, to := r.at(id.Pos()), r.at(o.Pos()); o.Pkg() == r.pkg && from != to {
			r.uses[from][to] = true
		}
	}
	return r
}

// at returns the name of the file of a position.
func (r *rooms) at(p token.Pos) string { return filepath.Base(r.fset.Position(p).Filename) }

// listed returns the export data of what package engine imports, by path, and the engine's files.
func listed(t *testing.T) (export map[string]string, names []string) {
	t.Helper()
	cmd := exec.Command("go", "list", "-export", "-deps", "-json=ImportPath,Export,GoFiles",
		module+"/"+engine)
	cmd.Stderr = os.Stderr
	dec := json.NewDecoder(strings.NewReader(string(testkit.Must(cmd.Output())(t))))
	export = map[string]string{}
	for {
		var p struct {
			ImportPath, Export string
			GoFiles            []string
		}
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			return export, names
		} else if err != nil {
			t.Fatal(err)
		}
		export[p.ImportPath] = p.Export
		if p.ImportPath == module+"/"+engine {
			names = p.GoFiles
		}
	}
}

// average is how many files a file uses.
func (r *rooms) average() float64 {
	n := 0
	for _, to := range r.uses {
		n += len(to)
	}
	return float64(n) / float64(len(r.uses))
}

// mutual returns the pairs of files that use each other.
func (r *rooms) mutual() (pairs []string) {
	for a, to := range r.uses {
		for b := range to {
			if a < b && r.uses[b][a] {
				pairs = append(pairs, a+" and "+b)
			}
		}
	}
	slices.Sort(pairs)
	return pairs
}

// largestCycle returns the most files of which each reaches each other one by uses.
func (r *rooms) largestCycle() (largest []string) {
	reached := map[string]map[string]bool{}
	for name := range r.uses {
		reached[name] = map[string]bool{}
		r.reach(name, reached[name])
	}
	for name := range r.uses {
		var cycle []string
		for other := range reached[name] {
			if reached[other][name] {
				cycle = append(cycle, other)
			}
		}
		if len(cycle) > len(largest) {
			largest = cycle
		}
	}
	slices.Sort(largest)
	return largest
}

// reach adds to reached what a file uses, directly or by others.
func (r *rooms) reach(name string, reached map[string]bool) {
	for to := range r.uses[name] {
		if !reached[to] {
			reached[to] = true
			r.reach(to, reached)
		}
	}
}

// sites returns the lines, outside the named files, that use an object.
func (r *rooms) sites(is func(types.Object) bool, without ...string) (sites []string) {
	for id, o := range r.info.Uses {
		if at := r.at(id.Pos()); is(o) && !slices.Contains(without, at) {
			sites = append(sites, fmt.Sprintf("%s:%d", at, r.fset.Position(id.Pos()).Line))
		}
	}
	slices.Sort(sites)
	return slices.Compact(sites)
}

// fields returns how many fields a struct of the package has.
func (r *rooms) fields(name string) int {
	return r.pkg.Scope().Lookup(name).Type().Underlying().(*types.Struct).NumFields()
}

// sizes counts as size does, over the engine and its internal packages together.
func sizes(t *testing.T, tests bool) (files, lines, code int) {
	t.Helper()
	dirs := []string{engine}
	for _, d := range testkit.Must(os.ReadDir(filepath.Join("../..", engine, "internal")))(t) {
		dirs = append(dirs, engine+"/internal/"+d.Name())
	}
	for _, dir := range dirs {
		f, l, c := size(t, dir, tests)
		files, lines, code = files+f, lines+l, code+c
	}
	return files, lines, code
}

// size counts the files of a folder that are tests, or those that are not, their lines, and the
// lines without comments and empty lines.
func size(t *testing.T, dir string, tests bool) (files, lines, code int) {
	t.Helper()
	for _, path := range testkit.Must(filepath.Glob(filepath.Join("../..", dir, "*.go")))(t) {
		if strings.HasSuffix(path, "_test.go") != tests {
			continue
		}
		files++
		for line := range strings.Lines(string(testkit.Must(os.ReadFile(path))(t))) {
			lines++
			if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "//") {
				code++
			}
		}
	}
	return files, lines, code
}
