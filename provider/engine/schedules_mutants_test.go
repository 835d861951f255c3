//go:build schedules

package engine

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
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
			{"object.go", "s.parseRun(st.run, st.runULPDU)", "s.takeRun(st.run, st.runULPDU)"},
		},
		protocol: "a receive context goes from one stream to another",
	},
	{
		name: "the count of Sends that are over goes on from the last connection",
		edits: []edit{
			{"qp_queue.go", "\ts.out = s.head // for the next connection\n", ""},
			{"qp_queue.go", "case int32(s.out-s.head) <= 0:", "case s.head == s.out:"},
		},
		protocol: "a queue pair is used again",
	},
	{
		name: "unlockTx releases txMu without a look at the note",
		edits: []edit{
			{
				"qp_stream.go",
				"\ts.txMu.Unlock()\n\tif s.txWork.Load() {\n\t\ts.pumpTx(turnMost)\n\t}\n",
				"\ts.txMu.Unlock()\n",
			},
		},
		protocol: "post while a stream is unmuted",
	},
	{
		name: "work on our own memory is done when the stream is over",
		edits: []edit{
			{"qp_tx.go", "if s.over() || s.finSent.Load() || t.err != nil {", "if s.finSent.Load() || t.err != nil {"},
			{"qp_memory.go", "t.fault == nil && !s.over() && t.next", "t.fault == nil && t.next"},
		},
		protocol: "registration on a responder that may not send, and its end",
	},
	{
		name: "work on our own memory that is done and flushed stays done",
		edits: []edit{
			{"qp_stream.go", "s.undoMemory()\n", "\n"},
		},
		protocol: "registration with a full socket, and the connection's end",
	},
	{
		name: "memory beside an object is written when the stream may be over",
		edits: []edit{
			{"object.go", "\tpieces := moveMemory(c.pieces, payload, false)\n", "\tpieces := c.pieces\n"},
			{
				"object.go", "\t\terr := writePieces(st.pieces, st.payload.b[:st.n])\n",
				"\t\tobjects := moveMemory(st.pieces, st.payload.b[:st.n], false)\n" +
					"\t\tst.pieces = objects\n" +
					"\t\terr := writePieces(objects, st.payload.b[:st.n])\n",
			},
		},
		protocol: "a receive of object and memory, and QP.Close",
	},
	{
		name: "the end of one reason against watching a stream ends all others",
		edits: []edit{
			{"mute.go", "if s.unwatched &^= why; on {", "if s.unwatched = 0; on {"},
		},
		protocol: "an object stores, and the stream is unmuted",
	},
	{
		name: "a transmit turn ends without a look at the note",
		edits: []edit{
			{"qp_stream.go",
				"for s.txWork.Load() && s.txMu.TryLock() {\n\t\tleft = s.txTurn()\n\t}", ""},
		},
		protocol: "post, post and poll",
	},
	{
		name: "a note is left without trying the lock again",
		edits: []edit{
			{
				"qp_stream.go",
				"s.txWork.Store(true)\n\t\tif !s.txMu.TryLock() {\n\t\t\treturn 0, false\n\t\t}",
				"s.txWork.Store(true)\n\t\treturn 0, false",
			},
		},
		protocol: "post, post and poll",
	},
	{
		name: "one of two goroutines that wait for a gate is not woken",
		edits: []edit{
			{"gate.go", "g.wake() // who else waits here", ""},
		},
		protocol: "a gate",
	},
	{
		name: "a stream sends before the poller knows of it",
		edits: []edit{
			{"qp_stream.go", "\ts.txMu.Lock()\n\terr := q.enterRTS", "\terr := q.enterRTS"},
			{"qp_stream.go", "\ts.unlockTx()\n\tif err != nil {\n\t\ts.rxMu.Unlock()",
				"\tif err != nil {\n\t\ts.rxMu.Unlock()"},
		},
		protocol: "post while a connection begins",
	},
	{
		name: "what a Terminate counts as answered is taken back from a full socket",
		edits: []edit{
			{"qp_undo.go", "if t.fault != nil || t.markers", "if t.markers"},
		},
		protocol: "a long Read is answered through a narrow window, and its source is closed",
	},
	{
		name: "a region is looked up and not in use while it is written",
		edits: []edit{
			{
				"sge.go", "if m == nil || !m.acquireRemote() {\n\t\treturn nil, ddp.Region{}\n\t}",
				"if m == nil || m.remote.isShut() {\n\t\treturn nil, ddp.Region{}\n\t}\n" +
					"\tdefer m.remote.n.Add(1)",
			},
		},
		protocol: "a Write arrives, and its region is closed",
	},
}

// TestSchedulesFindFaults puts each fault into the engine. TestSchedules has to find it within a
// minute.
func TestSchedulesFindFaults(t *testing.T) {
	if testing.Short() {
		t.Skip("builds the package once for each fault")
	}
	for _, m := range scheduleMutants {
		t.Run(m.name, func(t *testing.T) {
			overlay := m.overlay(t)
			began := time.Now()
			name := regexp.QuoteMeta(strings.ReplaceAll(m.protocol, " ", "_"))
			out, err := exec.Command("go", "test", "-vet=off", "-count=1", "-tags", "schedules",
				"-overlay", overlay,
				"-run", "^TestSchedules$/^"+name+"$",
				"-schedules.time", "60s", ".").CombinedOutput()
			found := regexp.MustCompile(`schedule \d+, after [0-9.a-zµ]+`).Find(out)
			if err == nil || found == nil {
				t.Fatalf("not found in %s, error %v:\n%s", time.Since(began), err, out)
			}
			t.Logf("%s", found)
		})
	}
}

// overlay writes the faulty files, and a file that has the go command use them in place of the
// sound ones. It returns the name of that.
func (m *scheduleMutant) overlay(t *testing.T) string {
	t.Helper()
	dir, replace := t.TempDir(), map[string]string{}
	for _, e := range m.edits {
		sound, faulty := must(filepath.Abs(e.file))(t), filepath.Join(dir, e.file)
		if replace[sound] == "" {
			replace[sound] = faulty
			ok(t, os.WriteFile(faulty, must(os.ReadFile(sound))(t), 0o600))
		}
		text := string(must(os.ReadFile(faulty))(t))
		if !strings.Contains(text, e.from) {
			t.Fatalf("%s has no %q: adapt the mutant to the code", e.file, e.from)
		}
		ok(t, os.WriteFile(faulty, []byte(strings.ReplaceAll(text, e.from, e.to)), 0o600))
	}
	overlay := filepath.Join(dir, "overlay.json")
	ok(t, os.WriteFile(overlay, must(json.Marshal(map[string]any{"Replace": replace}))(t), 0o600))
	return overlay
}
