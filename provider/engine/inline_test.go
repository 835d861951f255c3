//go:build !race && !schedules

package engine

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
)

// inlined are calls on the data path that cost nothing because the compiler inlines them, by their
// callers. What several paths need is written once for this reason only. Octets and addFPDU have
// no room for more: their costs are 75 and 80, and the compiler's budget is 80. head has 78.
var inlined = map[string][]string{
	// Protection domain, rights and bounds of an SGE of ours.
	"memory.(*Region).Octets": {"memory.(*Domain).Resolve", "place",
		"frames.(*Batch).Resolve", "(*sender).fillShort"},
	"memory.(*Region).allows": {"memory.(*Region).Octets", "memory.(*Domain).Pieces"},
	"memory.(*Region).Slice": {"memory.(*Region).Octets", "(*receiver).placeWrite",
		"(*rxContext).resolveWrite"},
	"memory.(*Region).STag": {"(*receiver).placeWrite", "(*rxContext).resolveWrite",
		"frames.(*Batch).Region", "(*sender).fillShort"},
	// What ends an FPDU.
	"frames.(*Batch).addFPDU": {"frames.(*Batch).finishFPDU", "frames.(*Batch).longFPDU",
		"frames.(*Batch).copyFPDU", "frames.(*Batch).AddShort"},
	// Whether a batch has room, and has anything to send.
	"frames.(*Batch).Room":  {"(*sender).fill", "(*sender).fillShort", "frames.(*Batch).addSegments"},
	"frames.(*Batch).Empty": {"(*sender).transmit"},
	// The header of a Write or Send.
	"(*sendWQE).head": {"(*sender).fillShort", "(*sender).fillWork", "(*sender).fillObjectWork"},
	"rdmap.Head.Put":  {"frames.(*Batch).AddShort", "frames.(*Batch).addSegments"},
	// The uses of a region.
	"rundown.(*Gate).Enter": {"memory.(*Region).acquire", "memory.(*Region).acquireRemote"},
	"rundown.(*Gate).Leave": {"memory.(*Region).Release", "memory.(*Region).ReleaseRemote",
		"frames.(*Batch).Release"},
	"memory.(*Region).acquire":       {"memory.(*Table).Local"},
	"memory.(*Region).acquireRemote": {"memory.(*Peer).region"},
	"memory.(*Region).Release":       {"place", "frames.(*Batch).Release"},
	// The places of the queues.
	"(*sendQueue).at":    {"(*qp).enqueueSends", "(*sender).fillShort", "(*qp).reportSends"},
	"(*recvQueue).front": {"(*qp).frontRecv"},
	// Decisions on how much is received and sent at once.
	"policy.(*CostShift).Spent":  {"(*receiver).receiveTurn"},
	"policy.CostShift.ReadLimit": {"(*receiver).readLimit"},
	"policy.BudgetOfPost":        {"(*sender).sendBudget"},
	"policy.BudgetOfBatch":       {"frames.(*Batch).Prepare"},
	"policy.(*Batch).Took":       {"(*sender).write"},
	"policy.(*Batch).Limit":      {"(*sender).fill"},
	// What is counted.
	"(*qp).counters": {"(*receiver).placeWrite", "(*receiver).placeSend", "(*qp).countRecv", "(*sender).fillShort"},
}

// TestInlined compares the compiler's report with that list. It compiles for amd64, wherever it
// runs, because what the compiler knows as an instruction, and so the costs, differ.
func TestInlined(t *testing.T) {
	packages := []string{"memory", "frames"}
	args := []string{"build", "-gcflags=-m", "-o", os.DevNull, "."}
	for _, name := range packages {
		args = append(args, "./internal/"+name)
	}
	build := exec.Command("go", args...)
	build.Env = append(os.Environ(), "GOOS=linux", "GOARCH=amd64")
	out, err := build.CombinedOutput()
	if err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	at := map[string]string{}
	functions(t, at, "", "")
	for _, name := range packages {
		functions(t, at, "internal/"+name+"/", name+".")
	}
	found := map[[2]string]bool{} // callee, caller
	call := regexp.MustCompile(`(?m)^(?:\./)?(\S+\.go:\d+):\d+: inlining call to (\S+)$`)
	for _, m := range call.FindAllStringSubmatch(string(out), -1) {
		callee := m[2]
		if strings.HasPrefix(callee, "(") || !strings.Contains(callee, ".") {
			if file, own := strings.CutPrefix(m[1], "internal/"); own {
				room, _, _ := strings.Cut(file, "/")
				callee = room + "." + callee
			}
		}
		found[[2]string{callee, at[m[1]]}] = true
	}
	if len(found) < 100 {
		t.Fatalf("the compiler reports %d inlined calls only:\n%s", len(found), out)
	}
	for callee, callers := range inlined {
		for _, caller := range callers {
			if !found[[2]string{callee, caller}] {
				t.Errorf("the call of %s in %s is not inlined: go build -gcflags=-m=2 says why",
					callee, caller)
			}
		}
	}
}

// functions adds to at which function each line of the package in dir, as "file:line", belongs to.
// prefix stands before the names of functions.
func functions(t *testing.T, at map[string]string, dir, prefix string) {
	t.Helper()
	for _, e := range testkit.Must(os.ReadDir("./" + dir))(t) {
		if !strings.HasSuffix(e.Name(), ".go") || strings.HasSuffix(e.Name(), "_test.go") {
			continue
		}
		fset := token.NewFileSet()
		file := testkit.Must(parser.ParseFile(fset, dir+e.Name(), nil, parser.SkipObjectResolution))(t)
		for _, d := range file.Decls {
			f, is := d.(*ast.FuncDecl)
			if !is {
				continue
			}
			name := f.Name.Name
			if f.Recv != nil {
				switch r := f.Recv.List[0].Type.(type) {
				case *ast.StarExpr:
					name = fmt.Sprintf("(*%s).%s", r.X, name)
				default:
					name = fmt.Sprintf("%s.%s", r, name)
				}
			}
			for line := fset.Position(f.Pos()).Line; line <= fset.Position(f.End()).Line; line++ {
				at[dir+e.Name()+":"+strconv.Itoa(line)] = prefix + name
			}
		}
	}
}
