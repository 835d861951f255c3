package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
)

const module = "github.com/govs-rdma/govs/"

// walks has, for each walk of ARCHITECTURE.md, how its paragraph begins and the packages and files
// of whose functions it speaks.
var walks = map[string]struct {
	begins string
	scope  []string
}{
	"send":  {"**A Send**", []string{"provider/engine", "provider/engine/internal/frames"}},
	"write": {"**A Write**", []string{"provider/engine", "provider/engine/internal/frames"}},
	"dial": {"**A Dial**", []string{"provider/engine/internal/cm", "provider/engine/cm.go",
		"provider/engine/qp_connect.go", "ibverbs/rdmacm/dial.go"}},
}

// runs is how often each walk is done. What a goroutine of the device does instead of the program's
// poll, or beside it, differs from run to run.
const runs = 3

// TestWalks compares the walks of ARCHITECTURE.md with what runs. A function that a walk names has
// run at least once, unless it comes after "Not each time". A function that runs every time, and
// has more than one statement, is named.
func TestWalks(t *testing.T) {
	program := filepath.Join(t.TempDir(), "walks")
	covered := module + "ci/walks," + module + "ibverbs/...," + module + "provider/..."
	output(t, exec.Command("go", "build", "-cover", "-covermode=atomic", "-coverpkg="+covered, "-o", program, "."))
	text := string(testkit.Must(os.ReadFile("../../ARCHITECTURE.md"))(t))
	for name, walk := range walks {
		t.Run(name, func(t *testing.T) {
			always, rest, _ := strings.Cut(paragraphs(t, text, walk.begins), "Not each time")
			named, sometimes := names(always), names(rest)
			maps.Copy(named, sometimes)
			if name == "write" { // which begins with items 1 to 3 of a Send
				send, _, _ := strings.Cut(paragraphs(t, text, walks["send"].begins), "\n4. ")
				maps.Copy(named, names(send))
			}
			times := map[string]int{}
			for range runs {
				for f := range ran(t, program, name, walk.scope) {
					times[f]++
				}
			}
			for f := range named {
				if times[f] == 0 && !sometimes[f] {
					t.Errorf("ARCHITECTURE.md names %s, which has not run in the walk", f)
				}
			}
			for f, n := range times {
				if n == runs && !named[f] {
					t.Errorf("%s runs in the walk, and ARCHITECTURE.md does not name it", f)
				}
			}
			t.Logf("%d functions are named", len(named))
		})
	}
}

// paragraphs returns the text from begins to the next walk or heading.
func paragraphs(t *testing.T, text, begins string) string {
	t.Helper()
	_, after, found := strings.Cut(text, "\n"+begins)
	if !found {
		t.Fatalf("ARCHITECTURE.md has no paragraph %q", begins)
	}
	if end := regexp.MustCompile(`\n(\*\*|#)`).FindStringIndex(after); end != nil {
		after = after[:end[0]]
	}
	return after
}

// names returns the names of functions in backquotes: all but those of files and folders, and
// single words with a capital.
func names(text string) map[string]bool {
	found := map[string]bool{}
	for _, m := range regexp.MustCompile("`([A-Za-z.]+)`").FindAllStringSubmatch(text, -1) {
		if name := m[1]; !strings.HasSuffix(name, ".go") && (strings.Contains(name, ".") || name[0] >= 'a') {
			found[name] = true
		}
	}
	return found
}

// ran does a walk, and returns the functions of scope that ran and have more than one statement:
// with the receiver's type, and the package where that is not engine.
func ran(t *testing.T, program, walk string, scope []string) map[string]bool {
	t.Helper()
	dir := t.TempDir()
	cmd := exec.Command(program, walk, dir)
	cmd.Env = append(os.Environ(), "GOCOVERDIR="+dir+"/exit") // which is not there: nothing at the exit
	output(t, cmd)
	found := map[string]bool{}
	line := regexp.MustCompile(`^` + module + `(\S+\.go):\d+:\s+(\S+)\s+(\S+)%$`)
	for l := range strings.SplitSeq(output(t, exec.Command("go", "tool", "covdata", "func", "-i", dir)), "\n") {
		m := line.FindStringSubmatch(l)
		if m == nil || m[3] == "0.0" {
			continue
		}
		file, name := m[1], strings.TrimPrefix(m[2], "*")
		if !slices.Contains(scope, file) && !slices.Contains(scope, path.Dir(file)) || !isLong(t, file, name) {
			continue
		}
		if p := path.Base(path.Dir(file)); p != "engine" {
			name = p + "." + name
		}
		found[name] = true
	}
	return found
}

var parsed = map[string]map[string]bool{}

// isLong reports whether a function of a file has more than one statement.
func isLong(t *testing.T, file, name string) bool {
	t.Helper()
	if parsed[file] == nil {
		f := testkit.Must(parser.ParseFile(token.NewFileSet(), "../../"+file, nil, 0))(t)
		parsed[file] = map[string]bool{}
		for _, d := range f.Decls {
			fn, is := d.(*ast.FuncDecl)
			if !is {
				continue
			}
			full := fn.Name.Name
			if fn.Recv != nil {
				full = typeName(fn.Recv.List[0].Type) + "." + full
			}
			parsed[file][full] = len(fn.Body.List) > 1
		}
	}
	return parsed[file][name]
}

func typeName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return typeName(e.X)
	case *ast.IndexExpr:
		return typeName(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}

func output(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v\n%s", cmd.Args, err, out)
	}
	return string(out)
}
