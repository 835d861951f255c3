// Command typecheck checks packages and their tests for other platforms, without cgo:
//
//	typecheck PLATFORM... -- PACKAGE...
//
// A PLATFORM is GOOS/GOARCH. Of the imported packages, the standard library included, it checks
// only declarations, so that ten platforms take less time than compiling the standard library for
// one. It reports what a compiler would report: names and files that a platform lacks, types that
// do not fit, constants that an int of the platform can't hold, unused imports and declarations,
// and functions without a body where there is no assembly. It does not check assembly.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

func main() {
	platforms, packages, ok := split(os.Args[1:])
	if !ok {
		fmt.Fprintln(os.Stderr, "usage: typecheck PLATFORM... -- PACKAGE...")
		os.Exit(2)
	}
	files := newFiles()
	failed := false
	for _, platform := range platforms {
		n, err := check(files, platform, ".", packages)
		if err != nil {
			failed = true
			fmt.Fprintf(os.Stderr, "typecheck: FAILED for %s:\n%v\n", platform, err)
			continue
		}
		fmt.Printf("%s: %d packages\n", platform, n)
	}
	if failed {
		os.Exit(1)
	}
}

// split returns the arguments before and after "--", and whether both sides have some.
func split(args []string) (platforms, packages []string, ok bool) {
	i := slices.Index(args, "--")
	if i < 1 || i == len(args)-1 {
		return nil, nil, false
	}
	return args[:i], args[i+1:], true
}

// A listed package is an element of go list's output, with the names of its fields.
type listed struct {
	ImportPath string
	Dir        string
	GoFiles    []string
	SFiles     []string
	ImportMap  map[string]string
	DepOnly    bool
	ForTest    string
	Module     *struct{ GoVersion string }
	Error      *struct{ Err string }
}

// list returns packages with their tests and everything that these import, dependencies first.
func list(goos, goarch, dir string, packages []string) ([]*listed, error) {
	cmd := exec.Command("go", append([]string{"list", "-e", "-deps", "-test",
		"-json=ImportPath,Dir,GoFiles,SFiles,ImportMap,DepOnly,ForTest,Module,Error", "--"}, packages...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOOS="+goos, "GOARCH="+goarch, "CGO_ENABLED=0")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w: %s", err, &stderr)
	}
	var all []*listed
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		p := new(listed)
		if err := d.Decode(p); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, fmt.Errorf("what go list prints: %w", err)
		}
		all = append(all, p)
	}
}

// files caches parsed files, because most files are the same for all platforms.
type files struct {
	set    *token.FileSet
	parsed map[string]*ast.File
}

func newFiles() *files {
	return &files{token.NewFileSet(), map[string]*ast.File{}}
}

func (f *files) parse(name string) (*ast.File, error) {
	if file, ok := f.parsed[name]; ok {
		return file, nil
	}
	file, err := parser.ParseFile(f.set, name, nil, parser.SkipObjectResolution)
	if err == nil {
		f.parsed[name] = file
	}
	return file, err
}

// mostFaults limits the faults reported for a platform: one that Go does not know has thousands.
const mostFaults = 20

// check checks packages, relative to dir, for a platform, and returns how many there are, counting
// tests separately. Its error has a line for each fault.
func check(f *files, platform, dir string, packages []string) (int, error) {
	goos, goarch, ok := strings.Cut(platform, "/")
	sizes := types.SizesFor("gc", goarch)
	if !ok || sizes == nil {
		return 0, fmt.Errorf("%q is no GOOS/GOARCH", platform)
	}
	all, err := list(goos, goarch, dir, packages)
	if err != nil {
		return 0, err
	}
	checked := map[string]*types.Package{"unsafe": types.Unsafe}
	var faults []error
	n := 0
	for _, p := range all {
		if p.Error != nil {
			faults = append(faults, errors.New(strings.TrimSpace(p.Error.Err)))
			continue
		}
		if p.ImportPath == "unsafe" || strings.HasSuffix(p.ImportPath, ".test") {
			continue // go test makes the main package of a test
		}
		ours := !p.DepOnly || p.ForTest != ""
		if ours {
			n++
		}
		parsed := make([]*ast.File, 0, len(p.GoFiles))
		for _, name := range p.GoFiles {
			file, err := f.parse(filepath.Join(p.Dir, name))
			if err != nil {
				faults = append(faults, err)
				continue
			}
			parsed = append(parsed, file)
			if ours && len(p.SFiles) == 0 {
				faults = append(faults, withoutBody(f.set, file)...)
			}
		}
		conf := types.Config{
			Importer:         importer{checked, p.ImportMap},
			Sizes:            sizes,
			IgnoreFuncBodies: !ours,
			Error:            func(err error) { faults = append(faults, err) },
		}
		if p.Module != nil && p.Module.GoVersion != "" {
			conf.GoVersion = "go" + p.Module.GoVersion
		}
		checked[p.ImportPath], _ = conf.Check(p.ImportPath, f.set, parsed, nil) // Error has the faults
	}
	if len(faults) > mostFaults {
		faults = append(faults[:mostFaults], fmt.Errorf("and %d more", len(faults)-mostFaults))
	}
	return n, errors.Join(faults...)
}

// withoutBody returns a fault for each function without a body in a package without assembly.
func withoutBody(set *token.FileSet, file *ast.File) (faults []error) {
	for _, d := range file.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok && fn.Body == nil {
			faults = append(faults, fmt.Errorf("%v: missing function body", set.Position(fn.Pos())))
		}
	}
	return faults
}

// An importer returns packages that were checked earlier.
type importer struct {
	checked map[string]*types.Package
	names   map[string]string // of packages whose name differs from the end of their path
}

// Import implements types.Importer.
func (i importer) Import(path string) (*types.Package, error) {
	if name, ok := i.names[path]; ok {
		path = name
	}
	if p := i.checked[path]; p != nil {
		return p, nil
	}
	return nil, fmt.Errorf("%s was not checked", path)
}
