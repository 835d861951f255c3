package recording_test

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/govs-rdma/govs/provider/bridge/abi"
	"github.com/govs-rdma/govs/provider/bridge/recording"
)

// TestText writes entries and reads them again, and checks a line that is written out by hand.
func TestText(t *testing.T) {
	zeros := func(n int) []byte { return make([]byte, n) }
	rec := &recording.Recording{Comments: []string{"Linux 6.1"}, Entries: []recording.Entry{
		{Thread: 7, File: recording.Uverbs, Op: recording.Open},
		{Thread: 8, File: recording.CM, Op: recording.Write, Errno: syscall.ENOENT,
			Request: append(append([]byte{1}, zeros(8)...), 2), Answer: zeros(7)},
		{Thread: 8, File: recording.Netlink, Op: recording.Write, Request: zeros(100),
			Answer: append(zeros(3000), 9)},
	}}
	var b bytes.Buffer
	if err := rec.Write(&b); err != nil {
		t.Fatal(err)
	}
	want := "# Linux 6.1\n7 uverbs open 0 - -\n8 rdma_cm write 2 01.8.02 00000000000000\n" +
		"8 netlink write 0 .100. .3000.09\n"
	if b.String() != want {
		t.Errorf("written:\n%s, want\n%s", &b, want)
	}
	got, err := recording.Read(&b)
	if diff := cmp.Diff(rec, got); err != nil || diff != "" {
		t.Errorf("read: %v\n%s", err, diff)
	}
	for _, bad := range []string{"7 uverbs open 0 -", "x uverbs open 0 - -", "7 uverbs open 5000 - -",
		"7 uverbs write 0 0 -", "7 uverbs write 0 - 00.x.", "7 uverbs write 0 .99999999. -"} {
		if _, err := recording.Read(strings.NewReader(bad)); err == nil {
			t.Errorf("%q is read", bad)
		}
	}
}

// command is a command of uverbs.
func command(number uint32, out uint16, body ...any) []byte {
	var octets []byte
	for _, part := range body {
		octets = abi.Append(octets, part)
	}
	return append(abi.Append(nil, &abi.UverbsHeader{Command: number,
		InWords: uint16(2 + len(octets)/4), OutWords: out}), octets...)
}

// cmCommand is a command of rdma_cm.
func cmCommand(number uint32, out uint16, body any) []byte {
	octets := abi.Append(nil, body)
	return append(abi.Append(nil, &abi.CMHeader{Cmd: number, In: uint16(len(octets)), Out: out}),
		octets...)
}

// TestPlace finds the places of answers.
func TestPlace(t *testing.T) {
	extended := abi.Append(nil, &abi.UverbsHeader{
		Command: abi.UverbsExtended | abi.UverbsQueryDevice, OutWords: 3})
	for _, x := range []struct {
		file string
		b    []byte
		addr uint64
		n    int
	}{
		{recording.Uverbs, command(abi.UverbsAllocPD, 1, &abi.Response{Response: 0x1000}), 0x1000, 4},
		{recording.Uverbs, command(abi.UverbsDeallocPD, 1, &abi.DeallocPD{PDHandle: 1}), 0, 0},
		{recording.Uverbs, command(99, 1, &abi.Response{Response: 0x1000}), 0, 0},
		{recording.Uverbs, []byte{1, 2}, 0, 0},
		{recording.Uverbs, command(abi.UverbsAllocPD, 1), 0, 0},
		{recording.Uverbs, abi.Append(slices.Clone(extended), &abi.UverbsExHeader{Response: 5,
			ProviderOutWords: 2}), 5, 40},
		{recording.Uverbs, abi.Append(slices.Clone(extended), &abi.UverbsExHeader{}), 0, 0},
		{recording.CM, cmCommand(abi.CMCreateID, 4, &abi.CreateID{UID: 1, Response: 0x2000}),
			0x2000, 4},
		{recording.CM, cmCommand(abi.CMListen, 4, &abi.Listen{ID: 1}), 0, 0},
		{recording.Netlink, make([]byte, 40), 0, 0},
	} {
		if addr, n := recording.Place(x.file, x.b); addr != x.addr || n != x.n {
			t.Errorf("%s %x: %d bytes at %#x, want %d at %#x", x.file, x.b, n, addr, x.n, x.addr)
		}
	}
	for written := range 20 {
		b := recording.Marked(20)
		clear(b[:written])
		want := written
		if written > 16 {
			want = 20 // so few marks may be a value
		}
		if got := len(recording.Written(b)); got != want {
			t.Errorf("%d bytes of 20 were written, and %d are found", written, got)
		}
	}
}

// session is a recording of a program that makes a PD, a CQ and an id, the last in another thread,
// with different handles and addresses each time.
func session(with uint32, thread int) *recording.Recording {
	at := uint64(with) * 0x1000
	answer := func(parts ...any) []byte {
		var b []byte
		for _, p := range parts {
			b = abi.Append(b, p)
		}
		return b
	}
	return &recording.Recording{Entries: []recording.Entry{
		{Thread: thread + 5, File: recording.CM, Op: recording.Write,
			Request: cmCommand(abi.CMCreateID, 4, &abi.CreateID{UID: at + 8, Response: at, PS: 0x106}),
			Answer:  answer(&abi.CreateIDResp{ID: with})},
		{Thread: thread, File: recording.Uverbs, Op: recording.Ioctl, Errno: syscall.ENOTTY},
		{Thread: thread, File: recording.Uverbs, Op: recording.Write,
			Request: command(abi.UverbsAllocPD, 1, &abi.Response{Response: at}),
			Answer:  answer(&abi.AllocPDResp{PDHandle: with})},
		{Thread: thread, File: recording.Uverbs, Op: recording.Write,
			Request: command(abi.UverbsCreateCQ, 6, &abi.CreateCQ{Response: at, UserHandle: at,
				CQE: 16, CompChannel: -1}),
			Answer: answer(&abi.CreateCQResp{CQHandle: with, CQE: 16},
				&abi.SiwCreateCQResp{CQID: with, NumCQE: 16, CQKey: at})},
		{Thread: thread, File: recording.Uverbs, Op: recording.Write,
			Request: command(abi.UverbsPostSend, 1, &abi.PostSend{Response: at, QPHandle: with})},
		{Thread: thread, File: recording.Uverbs, Op: recording.Write,
			Request: command(abi.UverbsPostSend, 1, &abi.PostSend{Response: at, QPHandle: with})},
		{Thread: thread + 5, File: recording.CM, Op: recording.Write, Errno: syscall.EAGAIN,
			Request: cmCommand(abi.CMGetEvent, 336, &abi.Response{Response: at})},
		{Thread: thread, File: recording.Uverbs, Op: recording.Write,
			Request: command(abi.UverbsDestroyCQ, 2, &abi.DestroyCQ{Response: at, CQHandle: with}),
			Answer:  answer(&abi.DestroyCQResp{})},
		{Thread: thread, File: recording.Uverbs, Op: recording.Close},
	}}
}

func steps(t *testing.T, rec *recording.Recording) []recording.Step {
	t.Helper()
	s, err := rec.Steps()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestSteps: steps do not contain what differs from run to run.
func TestSteps(t *testing.T) {
	a, b := steps(t, session(1, 100)), steps(t, session(7, -2)) // thread numbers that wrap around
	if diff := cmp.Diff(a, b); diff != "" {
		t.Errorf("steps:\n%s", diff)
	}
	var got []string
	for _, s := range a {
		got = append(got, fmt.Sprintf("%d %s", s.Thread, s.Name))
	}
	want := []string{"1 rdma_cm.create_id", "2 uverbs.alloc_pd", "2 uverbs.create_cq",
		"2 uverbs.post_send", "2 uverbs.destroy_cq", "2 uverbs.close"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("steps:\n%s", diff)
	}
	cq := a[2].String()
	for _, part := range []string{"request.response=address", "request.user_handle=object#",
		"request.comp_channel=-1", "answer.cq_handle=cq#1", "answer.num_cqe=16", "errno=0"} {
		if !strings.Contains(cq, part) {
			t.Errorf("%s is not in %s", part, cq)
		}
	}
	// A CQ without a channel has no events.
	if s := a[4].String(); !strings.Contains(s, "comp_events_reported=0") {
		t.Errorf("%s", s)
	}
}

// TestCompare finds a different value, a different errno, a handle of another object, a missing
// command and an additional one.
func TestCompare(t *testing.T) {
	edit := func(change func(*recording.Recording)) []string {
		rec := session(7, 3000)
		change(rec)
		var found []string
		for _, d := range recording.Compare(steps(t, session(1, 100)), steps(t, rec)) {
			found = append(found, d.String())
		}
		return found
	}
	for _, x := range []struct {
		what   string
		change func(*recording.Recording)
		want   []string
	}{
		{"nothing", func(*recording.Recording) {}, nil},
		{"a value", func(r *recording.Recording) { r.Entries[3].Answer[4] = 32 },
			[]string{"uverbs.create_cq answer.cqe 16 32"}},
		{"an errno", func(r *recording.Recording) { r.Entries[2].Errno = syscall.ENOMEM },
			[]string{"uverbs.alloc_pd errno 0 ENOMEM"}},
		{"another CQ", func(r *recording.Recording) { r.Entries[7].Request[16] = 8 },
			[]string{"uverbs.destroy_cq request.cq_handle cq#1 cq#2",
				"uverbs.destroy_cq answer.comp_events_reported 0 any"}},
		{"a command less", func(r *recording.Recording) { r.Entries = slices.Delete(r.Entries, 2, 3) },
			[]string{"uverbs.alloc_pd step there -"}},
		{"a command more", func(r *recording.Recording) {
			r.Entries = append(r.Entries, r.Entries[8])
		}, []string{"uverbs.close step - there"}},
		{"a shorter answer", func(r *recording.Recording) {
			r.Entries[3].Answer = r.Entries[3].Answer[:8]
		}, []string{"uverbs.create_cq answer.cq_id cqid#1 -",
			"uverbs.create_cq answer.num_cqe 16 -", "uverbs.create_cq answer.cq_key map#1 -"}},
	} {
		got := edit(x.change)
		if x.what == "another CQ" { // the events of a CQ that was never made
			got = got[:min(len(got), 2)]
		}
		if diff := cmp.Diff(x.want, got); diff != "" {
			t.Errorf("%s:\n%s", x.what, diff)
		}
	}
}

// TestReadKnown reads known differences; each line has a reason.
func TestReadKnown(t *testing.T) {
	known, err := recording.ReadKnown("# differences\n\n" +
		"* uverbs.query_device answer.max_qp 1 2 siw is small\n" +
		"rping.client rdma_cm.query errno * * both are odd\n")
	if err != nil || len(known) != 2 || known[0].Reason != "siw is small" {
		t.Fatalf("%+v, error %v", known, err)
	}
	d := recording.Difference{Command: "uverbs.query_device", Field: "answer.max_qp", A: "1", B: "2"}
	other := d
	other.B = "3"
	cm := recording.Difference{Command: "rdma_cm.query", Field: "errno", A: "0", B: "EINVAL"}
	if !known[0].Match("ucmatose", &d) || known[0].Match("ucmatose", &other) ||
		!known[1].Match("rping.client", &cm) || known[1].Match("rping.server", &cm) {
		t.Error("the lines do not match what they say")
	}
	if _, err := recording.ReadKnown("* uverbs.query_device answer.max_qp 1 2\n"); err == nil {
		t.Error("a line without a reason is read")
	}
}

// FuzzSteps: every recording gives steps or an error.
func FuzzSteps(f *testing.F) {
	for _, e := range session(1, 1).Entries {
		f.Add(e.File, e.Request, e.Answer)
	}
	f.Add(recording.Netlink, abi.AppendNL(nil, &abi.NLMessage{Type: abi.NLType(abi.NLGet),
		Attrs: []abi.NLAttribute{abi.NLU64(abi.NLNodeGUID, 1)}}),
		abi.AppendNL(nil, &abi.NLMessage{Type: abi.NLMsgDone}))
	f.Add("0", []byte{}, []byte{})
	f.Fuzz(func(t *testing.T, file string, request, answer []byte) {
		rec := &recording.Recording{Entries: []recording.Entry{{Thread: 1, File: file,
			Op: recording.Write, Request: request, Answer: answer}}}
		if s, err := rec.Steps(); err == nil && len(s) != 1 {
			t.Errorf("%d steps", len(s))
		}
	})
}

// TestEvents: DESTROY_ID reports the number of events that the program has received; for a
// listening id it includes requests. DISCONNECTED is not a step.
func TestEvents(t *testing.T) {
	write := func(request []byte, answer any) recording.Entry {
		return recording.Entry{Thread: 1, File: recording.CM, Op: recording.Write, Request: request,
			Answer: abi.Append(nil, answer)}
	}
	event := func(uid uint64, id, which uint32) recording.Entry {
		return write(cmCommand(abi.CMGetEvent, 336, &abi.Response{Response: 1}),
			&abi.EventResp{UID: uid, ID: id, Event: which})
	}
	destroy := func(id, reported uint32) recording.Entry {
		return write(cmCommand(abi.CMDestroyID, 4, &abi.DestroyID{Response: 1, ID: id}),
			&abi.DestroyResp{EventsReported: reported})
	}
	rec := &recording.Recording{Entries: []recording.Entry{
		write(cmCommand(abi.CMCreateID, 4, &abi.CreateID{UID: 0x10, Response: 1}),
			&abi.CreateIDResp{ID: 0}),
		event(0x10, 1, 4), // CONNECT_REQUEST
		event(0x20, 1, 9), // ESTABLISHED
		destroy(1, 2),
		event(0x20, 1, 10), // DISCONNECTED, received earlier
		destroy(0, 1),
		destroy(0, 1), // of an id that does not exist: one too many
	}}
	rec.Entries[6].Answer = abi.Append(nil, &abi.DestroyResp{EventsReported: 5})
	var got []string
	for _, s := range steps(t, rec) {
		for _, f := range s.Fields {
			if f.Name == "answer.events_reported" || f.Name == "answer.event" {
				got = append(got, f.Value)
			}
		}
	}
	if diff := cmp.Diff([]string{"4", "9", "all", "all", "5"}, got); diff != "" {
		t.Errorf("events:\n%s", diff)
	}
}
