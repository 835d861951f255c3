//go:build schedules

package engine

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
)

// scheduleMutant is a fault that is put into the engine. It breaks a protocol between goroutines
// in one place.
type scheduleMutant struct {
	name     string
	edits    []edit
	protocol string // of TestSchedules, which has to find the fault
}

// edit replaces from by to everywhere in a file.
type edit struct{ file, from, to string }

// scheduleMutants begins with faults that the engine has had; the others are as likely.
var scheduleMutants = []scheduleMutant{
	{
		name: "a region stays in use when its context goes to another stream",
		edits: []edit{
			{"object_store.go", "rx.parse()", "rx.consumeFPDUs()"},
		},
		protocol: "a receive context goes from one stream to another",
	},
	{
		name: "the count of Sends that are over goes on from the last connection",
		edits: []edit{
			{"qp_state.go", "\ts.out = s.head // for the next connection\n", ""},
			{"sendqueue.go", "\ts.out = s.head // for the next connection\n", ""},
			{"qp.go", "case int32(s.out-s.head) <= 0:", "case s.head == s.out:"},
		},
		protocol: "a queue pair is used again",
	},
	{
		name: "unlock releases the sender's lock without a look at the note",
		edits: []edit{
			{
				"sender.go",
				"\ttx.mu.Unlock()\n\tif tx.work.Load() {\n\t\ttx.run(policy.BudgetMost)\n\t}\n",
				"\ttx.mu.Unlock()\n",
			},
		},
		protocol: "post while counts are read",
	},
	{
		name:     "events of a queue pair are queued after Close",
		edits:    []edit{{"asyncqueue.go", "\tq.noEvents = true\n", ""}},
		protocol: "close while the connection ends",
	},
	{
		name: "work on our own memory is done when the stream is over",
		edits: []edit{
			{"tx_transmit.go", "if tx.s.over() || tx.s.at() >= phaseFINSent || tx.err != nil {",
				"if tx.s.at() == phaseFINSent || tx.err != nil {"},
			{"tx_fill.go", "tx.fault == nil && !tx.s.over() && tx.next", "tx.fault == nil && tx.next"},
		},
		protocol: "registration on a responder that may not send, and its end",
	},
	{
		name: "work on our own memory that is done and flushed stays done",
		edits: []edit{
			{"stream.go", "s.tx.undoMemory()\n", "\n"},
		},
		protocol: "registration with a full socket, and the connection's end",
	},
	{
		name: "memory beside an object is written when the stream may be over",
		edits: []edit{
			{"object_store.go", "\tpieces := memory.MoveMemory(c.pieces, payload, false)\n",
				"\tpieces := c.pieces\n"},
			{
				"object_store.go", "\t\tdone, err := st.write()\n",
				"\t\tst.pieces = memory.MoveMemory(st.pieces, st.chunks[0][:st.n], false)\n" +
					"\t\tdone, err := st.write()\n",
			},
		},
		protocol: "a receive of object and memory, and QP.Close",
	},
	{
		name: "a stream is not watched again when its object has stored",
		edits: []edit{
			{"object_store.go", "\tif rx.store == nil {\n\t\trx.watchStored()\n\t}\n", ""},
		},
		protocol: "Writes and a Send come while an object stores",
	},
	{
		name: "a stream is watched while its object stores",
		edits: []edit{
			{"object_store.go", "rx.s.unwatch(readStoring, true)", "rx.s.unwatch(readStoring, false)"},
		},
		protocol: "an object stores, and nothing is ready meanwhile",
	},
	{
		name: "a transmit turn ends without a look at the note",
		edits: []edit{
			{"sender.go",
				"for tx.work.Load() && tx.mu.TryLock() {\n\t\tleft = tx.oneTurn()\n\t}", ""},
		},
		protocol: "post, post and poll",
	},
	{
		name: "a note is left without trying the lock again",
		edits: []edit{
			{
				"sender.go",
				"tx.work.Store(true)\n\t\tif !tx.mu.TryLock() {\n\t\t\treturn 0, false\n\t\t}",
				"tx.work.Store(true)\n\t\treturn 0, false",
			},
		},
		protocol: "post, post and poll",
	},
	{
		name: "one of two goroutines that wait for a gate is not woken",
		edits: []edit{
			{"internal/rundown/rundown.go", "g.wake() // another goroutine that waits here", ""},
		},
		protocol: "a gate",
	},
	{
		name: "a stream sends before the poller knows of it",
		edits: []edit{
			{"qp_connect.go", "\ts.tx.mu.Lock()\n\terr := q.enterRTS", "\terr := q.enterRTS"},
			{"qp_connect.go", "\ts.tx.unlock()\n\tif err != nil {\n\t\ts.loop.unassign()",
				"\tif err != nil {\n\t\ts.loop.unassign()"},
		},
		protocol: "post while a connection begins",
	},
	{
		name: "what a Terminate counts as answered is taken back from a full socket",
		edits: []edit{
			{"sender.go", "if tx.fault != nil || tx.task", "if tx.task"},
		},
		protocol: "a long Read is answered through a narrow window, and its source is closed",
	},
	{
		name: "a notification is asked for between a look and the FIN",
		edits: []edit{
			{
				"tx_transmit.go", "if tx.s.enter(phaseFINSent) == phaseClosingNotify {",
				"if at := tx.s.at(); tx.s.enter(phaseFINSent) != phaseOpen && at == phaseClosingNotify {",
			},
		},
		protocol: "to SQD, and to SQD with notification",
	},
	{
		name: "a graceful end begins without a look whether the QP has the stream",
		edits: []edit{
			{"qp_state.go", "if q.stream.Load() != s {", "if false {"},
		},
		protocol: "to SQD with notification while the connection ends",
	},
	{
		name: "what a full socket leaves of a region is not copied",
		edits: []edit{
			{"internal/frames/batch.go", "if b.nuses == 0 || !b.inPlace {", "if true {"},
		},
		protocol: "a message without CRC is sent from its region, which is closed",
	},
	{
		name: "a region is looked up and not in use while it is written",
		edits: []edit{
			{
				"internal/memory/peer.go", "if m == nil || !m.acquireRemote() {\n\t\treturn nil, ddp.Region{}\n\t}",
				"if m == nil || m.remote.IsShut() {\n\t\treturn nil, ddp.Region{}\n\t}\n" +
					"\tdefer m.remote.Enter()",
			},
		},
		protocol: "a Write arrives, and its region is closed",
	},
	{
		name: "a post that begins to wait does not look whether the CQ is armed",
		edits: []edit{
			{"deferral.go", "\t\tif q.sendCQ.isArmed() ||", "\t\tif"},
		},
		protocol: "a post that waits, and a request for an event",
	},
	{
		name: "a post that begins to wait does not look whether the receive CQ is armed",
		edits: []edit{
			{"deferral.go", "q.recvCQ != q.sendCQ && q.recvCQ.isArmed()", "false"},
		},
		protocol: "a post that waits, and a request for an event of its receives",
	},
	{
		name:     "a request for an event does not look at the posts of queue pairs with another send CQ",
		edits:    []edit{{"deferral.go", "\t\tif q.sendCQ != c {", "\t\tif false {"}},
		protocol: "a post that waits, and a request for an event of its receives",
	},
	{
		name: "what waits is transmitted before its deferral knows",
		edits: []edit{
			{
				"deferral.go",
				"\tq.sq.mu.Lock()\n\ttell(q.sq.deferral.Load())\n\tq.sq.mu.Unlock()\n",
				"\tdefer func() {\n\t\tq.sq.mu.Lock()\n\t\ttell(q.sq.deferral.Load())\n\t\tq.sq.mu.Unlock()\n\t}()\n",
			},
		},
		protocol: "posts that wait, and an empty CQ",
	},
	{
		name: "a QP leaves or enters the deferred QPs after another post has asked the deferral",
		edits: []edit{
			{"qp_post.go", "\treturn n, q.deferPost(p), err\n",
				"\ts.mu.Unlock()\n\tdefer s.mu.Lock()\n\treturn n, q.deferPost(p), err\n"},
		},
		protocol: "posts of two bursts at the same time",
	},
}

// TestSchedulesFindFaults runs the engine with each fault. TestSchedules has to find it within five
// minutes, because a busy machine takes many times as long as a quiet one.
func TestSchedulesFindFaults(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the package again, and looks for each fault: ci/test runs it")
	}
	faulty := buildFaulty(t)
	for i, m := range scheduleMutants {
		t.Run(m.name, func(t *testing.T) {
			began := time.Now()
			name := regexp.QuoteMeta(strings.ReplaceAll(m.protocol, " ", "_"))
			test := exec.Command(faulty, "-test.run", "^TestSchedules$/^"+name+"$", "-test.timeout", "10m",
				"-schedules.time", "5m")
			test.Env = append(os.Environ(), fmt.Sprint("GOVS_FAULT=", i+1))
			out, err := test.CombinedOutput()
			found := regexp.MustCompile(`schedule \d+, after [0-9.a-zµ]+`).Find(out)
			if err == nil || found == nil {
				t.Fatalf("not found in %s, error %v:\n%s", time.Since(began), err, out)
			}
			t.Logf("%s", found)
		})
	}
}

// buildFaulty builds the package's tests with all faults, each beside the sound code: a function
// that a mutant edits is there twice, and GOVS_FAULT says which one is called. So the package is
// compiled once and not for every fault.
func buildFaulty(t *testing.T) string {
	t.Helper()
	dir, sources := t.TempDir(), map[string]*faultySource{}
	for i, m := range scheduleMutants {
		edited := map[string]string{} // the files' texts with this fault
		for _, e := range m.edits {
			src := sources[e.file]
			if src == nil {
				src = &faultySource{text: string(testkit.Must(os.ReadFile(e.file))(t))}
				sources[e.file] = src
			}
			text, ok := edited[e.file]
			if !ok {
				text = src.text
			}
			if !strings.Contains(text, e.from) {
				t.Fatalf("%s has no %q: adapt the mutant to the code", e.file, e.from)
			}
			edited[e.file] = strings.ReplaceAll(text, e.from, e.to)
		}
		for file, text := range edited {
			if err := sources[file].add(i+1, text); err != nil {
				t.Fatalf("%s: %s: %v", m.name, file, err)
			}
		}
	}

	replace, n := map[string]string{}, 0
	put := func(file, text string) {
		n++
		name := filepath.Join(dir, fmt.Sprint(n, ".go"))
		replace[testkit.Must(filepath.Abs(file))(t)] = name
		testkit.OK(t, os.WriteFile(name, []byte(text), 0o600))
	}
	for file, src := range sources {
		put(file, src.String())
		put(filepath.Join(filepath.Dir(file), "fault.go"), "package "+src.pkg+`

import (
	"os"
	"strconv"
)

var faultOfTest, _ = strconv.Atoi(os.Getenv("GOVS_FAULT"))
`)
	}
	overlay, binary := filepath.Join(dir, "overlay.json"), filepath.Join(dir, "faulty.test")
	testkit.OK(t, os.WriteFile(overlay,
		testkit.Must(json.Marshal(map[string]any{"Replace": replace}))(t), 0o600))
	out, err := exec.Command("go", "test", "-c", "-tags", "schedules", "-overlay", overlay, "-o",
		binary, ".").CombinedOutput()
	if err != nil {
		t.Fatalf("the package with all faults does not build: %v\n%s", err, out)
	}
	return binary
}

// faultySource is a file of the package, and what mutants make of its functions.
type faultySource struct {
	text, pkg string
	calls     []faultyCall
	faulty    strings.Builder // the functions with a fault
}

// faultyCall is the call of a function with a fault, at the beginning of the sound one.
type faultyCall struct {
	offset int
	text   string
}

// add takes the functions of a faulty version of the file that differ from the sound ones.
func (f *faultySource) add(fault int, text string) error {
	files := token.NewFileSet()
	sound, err := parser.ParseFile(files, "sound", f.text, 0)
	if err != nil {
		return err
	}
	broken, err := parser.ParseFile(files, "faulty", text, 0)
	if err != nil {
		return err
	}
	f.pkg = sound.Name.Name
	if len(sound.Decls) != len(broken.Decls) {
		return errors.New("the fault adds a declaration or takes one away: edit the body of a function only")
	}
	offset := func(p token.Pos) int { return files.Position(p).Offset }
	for i, d := range sound.Decls {
		was, now := f.text[offset(d.Pos()):offset(d.End())],
			text[offset(broken.Decls[i].Pos()):offset(broken.Decls[i].End())]
		if was == now {
			continue
		}
		fn, isFunc := d.(*ast.FuncDecl)
		if !isFunc {
			return fmt.Errorf("%q is no function: edit the body of one", was)
		}
		faulty := broken.Decls[i].(*ast.FuncDecl)
		name := fmt.Sprintf("%sFault%d", fn.Name.Name, fault)
		fmt.Fprintf(&f.faulty, "\n%s%s%s\n", text[offset(faulty.Pos()):offset(faulty.Name.Pos())], name,
			text[offset(faulty.Name.End()):offset(faulty.End())])
		f.calls = append(f.calls, faultyCall{offset(fn.Body.Lbrace) + 1, callFaulty(fn, name, fault)})
	}
	return nil
}

// callFaulty returns a statement that calls name with the arguments of fn, if it is the fault's
// turn.
func callFaulty(fn *ast.FuncDecl, name string, fault int) string {
	var args []string
	for _, p := range fn.Type.Params.List {
		_, variadic := p.Type.(*ast.Ellipsis)
		for _, n := range p.Names {
			arg := n.Name
			if variadic {
				arg += "..."
			}
			args = append(args, arg)
		}
	}
	call := name + "(" + strings.Join(args, ", ") + ")"
	if fn.Recv != nil {
		call = fn.Recv.List[0].Names[0].Name + "." + call
	}
	if fn.Type.Results == nil {
		return fmt.Sprintf(" if faultOfTest == %d { %s; return };", fault, call)
	}
	return fmt.Sprintf(" if faultOfTest == %d { return %s };", fault, call)
}

// String is the text of the file with all faults.
func (f *faultySource) String() string {
	slices.SortStableFunc(f.calls, func(a, b faultyCall) int { return a.offset - b.offset })
	var b strings.Builder
	done := 0
	for _, c := range f.calls {
		b.WriteString(f.text[done:c.offset])
		b.WriteString(c.text)
		done = c.offset
	}
	b.WriteString(f.text[done:])
	b.WriteString(f.faulty.String())
	return b.String()
}
