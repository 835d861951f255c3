//go:build cgo && linux && !nokernel

package kernel_test

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/govs-rdma/govs/ci/vm/vmtest"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine"
	"github.com/govs-rdma/govs/provider/kernel"
)

// TestReference runs the same short programs on rxe and on the engine, in one guest, and compares
// their completions field by field. rxe is the kernel's reference for verbs, including operations
// that siw does not have. If the engine differs, the table differences has the reason. A
// difference that is not in the table fails the test, and so does an unused entry.
func TestReference(t *testing.T) {
	if !vmtest.Inside() {
		vmtest.Self(t, vmtest.Options{Link: "none", Rxe: true})
		return
	}
	used := make([]bool, len(differences))
	for _, p := range slices.Concat(programs, windowPrograms) {
		t.Run(p.name, func(t *testing.T) {
			rxe := execute(t, kernel.New(), "rxe0", netip.MustParseAddr("198.51.100.1"), p)
			ours := execute(t, engine.New(&engine.Options{Extensions: true}), "", netip.MustParseAddr("127.0.0.1"), p)
			for _, d := range compare(rxe, ours) {
				if i := slices.IndexFunc(differences, func(e difference) bool { return e.covers(p.name, d) }); i >= 0 {
					used[i] = true
					continue
				}
				t.Errorf("%s, %s: rxe %s, the engine %s", d.at, d.field, d.rxe, d.engine)
			}
		})
	}
	for i, e := range differences {
		if !used[i] {
			t.Errorf("program %q does not show that for %s the %s is %s with rxe and %s with the engine", e.program, e.at, e.field, e.rxe, e.engine)
		}
		if e.reason == "" {
			t.Errorf("program %q: no reason", e.program)
		}
	}
}

// facts are the results of a program, by object and field. "client send 1", for example, is the
// completion with wr_id 1 in the client's send CQ.
type facts map[[2]string]string

// difference is a field whose values differ.
type difference struct {
	program, at, field string // patterns of path.Match in the table
	rxe, engine        string
	reason             string
}

func (e difference) covers(program string, d difference) bool {
	match := func(pattern, s string) bool {
		ok, err := path.Match(pattern, s)
		return ok && err == nil
	}
	return match(e.program, program) && match(e.at, d.at) && e.field == d.field && match(e.rxe, d.rxe) && match(e.engine, d.engine)
}

// compare lists the differences. If two completions differ in their status, it ignores their other
// fields. If only one of the two refuses to post a request, it ignores the request's completion.
func compare(rxe, ours facts) []difference {
	all := maps.Clone(rxe)
	maps.Copy(all, ours)
	var list []difference
	for key := range all {
		status := [2]string{key[0], "status"}
		if key != status && rxe[status] != ours[status] {
			continue
		}
		if key[1] != "errno" && refusedByOne(key[0], rxe, ours) {
			continue
		}
		if a, b := cmp.Or(rxe[key], "none"), cmp.Or(ours[key], "none"); a != b {
			list = append(list, difference{at: key[0], field: key[1], rxe: a, engine: b})
		}
	}
	slices.SortFunc(list, func(a, b difference) int {
		return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.field, b.field))
	})
	return list
}

// refusedByOne reports whether only one of the two refused the request whose completion at names.
// If at names the order of a queue, it reports whether only one refused a request that would
// complete there.
func refusedByOne(at string, rxe, ours facts) bool {
	post := strings.Replace(at, " send", " post", 1)
	for _, f := range []facts{rxe, ours} {
		for key := range f {
			if key[1] == "errno" && (key[0] == post || strings.HasPrefix(key[0], post+" ")) && rxe[key] != ours[key] {
				return true
			}
		}
	}
	return false
}

// take adds a completion.
func (f facts) take(queue string, wc *provider.WC) {
	at := fmt.Sprintf("%s %d", queue, wc.WRID)
	if _, twice := f[[2]string{at, "status"}]; twice {
		at += " again"
	}
	order := [2]string{queue, "order"}
	f[order] = fmt.Sprintf("%s%d ", f[order], wc.WRID)
	f[[2]string{at, "status"}] = wc.Status.String()
	if wc.Status != provider.WCSuccess {
		return // ibv_poll_cq(3) says that nothing else is valid
	}
	f[[2]string{at, "opcode"}] = wc.Opcode.String()
	field := "byte_len"
	if wc.Opcode == provider.WCSend || wc.Opcode == provider.WCRDMAWrite {
		field = "byte_len of what was sent"
	}
	f[[2]string{at, field}] = fmt.Sprint(wc.ByteLen)
	f[[2]string{at, "wc_flags"}] = fmt.Sprintf("%#x", uint32(wc.Flags))
	if wc.Flags&provider.WCWithImm != 0 {
		f[[2]string{at, "imm_data"}] = fmt.Sprintf("%#x", wc.Imm)
	}
}

// TestCompare: the comparison finds missing and different fields and nothing else; an entry covers
// only what it names.
func TestCompare(t *testing.T) {
	success := provider.WC{WRID: 1, Opcode: provider.WCRecv, ByteLen: 5, Flags: provider.WCWithImm, Imm: 7}
	failure := provider.WC{WRID: 1, Status: provider.WCRemAccessErr}
	of := func(wcs ...provider.WC) facts {
		f := make(facts)
		for i := range wcs {
			f.take("client recv", &wcs[i])
		}
		return f
	}
	longer := success
	longer.ByteLen = 6
	sent := facts{{"client send", "order"}: "1 2 ", {"client send 1", "status"}: "good", {"client send 2", "status"}: "good"}
	refused := facts{{"client send", "order"}: "2 ", {"client post 1", "errno"}: "bad", {"client send 2", "status"}: "bad"}
	for _, c := range []struct {
		name      string
		rxe, ours facts
		want      []difference
	}{
		{"the same", of(success), of(success), nil},
		{"longer", of(success), of(longer), []difference{{at: "client recv 1", field: "byte_len", rxe: "5", engine: "6"}}},
		{"failed", of(success), of(failure), []difference{{at: "client recv 1", field: "status", rxe: "IBV_WC_SUCCESS", engine: "IBV_WC_REM_ACCESS_ERR"}}},
		{"missing", of(success), of(), []difference{
			{at: "client recv", field: "order", rxe: "1 ", engine: "none"}, {at: "client recv 1", field: "status", rxe: "IBV_WC_SUCCESS", engine: "none"},
		}},
		{"refused", sent, refused, []difference{
			{at: "client post 1", field: "errno", rxe: "none", engine: "bad"}, {at: "client send 2", field: "status", rxe: "good", engine: "bad"},
		}},
		{"twice", of(failure), of(failure, failure), []difference{
			{at: "client recv", field: "order", rxe: "1 ", engine: "1 1 "}, {at: "client recv 1 again", field: "status", rxe: "none", engine: "IBV_WC_REM_ACCESS_ERR"},
		}},
	} {
		if got := compare(c.rxe, c.ours); !slices.Equal(got, c.want) {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
	entry := difference{program: "send*", at: "client recv *", field: "byte_len", rxe: "5", engine: "*"}
	found := difference{at: "client recv 1", field: "byte_len", rxe: "5", engine: "6"}
	if !entry.covers("send inline", found) || entry.covers("write", found) {
		t.Error("an entry of some programs covers others, or not its own")
	}
	if found.rxe = "6"; entry.covers("send inline", found) {
		t.Error("an entry covers a value that it has not")
	}
}

// Reasons why the engine's completions differ from rxe's.
const (
	// RFC 5040 has no answer to a Send or a Write: it completes when its buffer may be used again
	// (section 5.5). If the peer finds a fault in it, the peer sends a Terminate (section 4.8),
	// which ends the connection. Later work is flushed, and QP.Cause returns the reason.
	noAnswer = "a Send or Write of iWARP has no answer: its fault comes as a Terminate, after its completion"

	// rxe 6.1 has one status for everything that it cannot copy (kernel-notes/rxe-statuses.md).
	// ibv_poll_cq has LOC_PROT_ERR and LOC_LEN_ERR for this.
	oneStatus = "rxe does not say what is wrong with local memory; the engine gives the status that verbs have for it"

	undefinedLength = "verbs define byte_len for what is placed: receives, Reads, atomic operations"
	noImmPayload    = "RFC 7306 section 6 has no Send with payload and immediate data"
	plainRegion     = "rxe lets nobody invalidate a region that was not made by fast registration; " +
		"the engine asks AccessRemoteInvalidate of any region"
	checkedEarly = "librxe looks at the address of an atomic operation, " +
		"which is the responder's to judge (RFC 7306 section 5.1.1)"
	windowBounds = "rxe holds who uses a window to the bounds of its region, " +
		"not to the window's (kernel-notes/rxe-windows.md)"
	noMasks = "libibverbs has no masked atomic operations; RFC 7306 section 5.1 does"
)

// differences lists every field in which the two differ, with the programs that show it.
var differences = []difference{
	{"*", "client send *", "byte_len of what was sent", "*", "0", undefinedLength},

	{"immediate data with payload", "client post 1", "errno", "none", "unsupported", noImmPayload},
	{"immediate data with payload", "server recv 1", "status", "IBV_WC_SUCCESS", "IBV_WC_WR_FLUSH_ERR", noImmPayload},
	{"invalidate", "server recv 1", "status", "IBV_WC_REM_INV_REQ_ERR", "IBV_WC_SUCCESS", plainRegion},
	{"atomic on a word that is not aligned", "client post 1", "errno", "invalid argument", "none", checkedEarly},
	{"requests that can't be", "client post 5", "errno", "unsupported", "none", noMasks},

	{"read beside a window", "client send 1", "status", "IBV_WC_SUCCESS", "IBV_WC_REM_ACCESS_ERR", windowBounds},

	{"invalidate what is nobody's", "server send 1", "status", "IBV_WC_LOC_QP_OP_ERR", "IBV_WC_MW_BIND_ERR", oneStatus},

	{"send from memory that is nobody's", "client send 1", "status", "IBV_WC_LOC_QP_OP_ERR",
		"IBV_WC_LOC_PROT_ERR", oneStatus},
	{"unsignaled send from memory that is nobody's", "client send 1", "status",
		"IBV_WC_LOC_QP_OP_ERR", "IBV_WC_LOC_PROT_ERR", oneStatus},
	{"send longer than its receive", "server recv 1", "status", "IBV_WC_LOC_QP_OP_ERR",
		"IBV_WC_LOC_LEN_ERR", oneStatus},
	{"receive into memory that is nobody's", "server recv 1", "status", "IBV_WC_LOC_QP_OP_ERR",
		"IBV_WC_LOC_PROT_ERR", oneStatus},

	{"write with a key that is nobody's", "client send 1", "status", "IBV_WC_REM_ACCESS_ERR",
		"IBV_WC_SUCCESS", noAnswer},
	{"write to memory that may be read only", "client send 1", "status", "IBV_WC_REM_ACCESS_ERR",
		"IBV_WC_SUCCESS", noAnswer},
	{"write beyond a region", "client send 1", "status", "IBV_WC_REM_ACCESS_ERR", "IBV_WC_SUCCESS", noAnswer},
	{"send longer than its receive", "client send 1", "status", "IBV_WC_REM_OP_ERR", "IBV_WC_SUCCESS", noAnswer},
	{"receive into memory that is nobody's", "client send 1", "status", "IBV_WC_REM_OP_ERR",
		"IBV_WC_SUCCESS", noAnswer},
	{"send without a receive, tried once", "client send 1", "status", "IBV_WC_RNR_RETRY_EXC_ERR",
		"IBV_WC_SUCCESS", noAnswer},
}
