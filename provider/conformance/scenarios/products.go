package scenarios

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
	"github.com/govs-rdma/govs/provider/conformance"
	"github.com/govs-rdma/govs/provider/conformance/wire"
)

// products are about combinations: of rights, operations, states, faults. Each scenario tries all
// of its combinations in one run, because a run costs more than a case. A rule decides what has to
// happen in a case: a function that follows from the sections of the RFCs and of libibverbs' manual
// that it names. The provider is not asked. Each rule is one check, whose detail names the cases in
// which it was broken.
//
// A case that ends its connection has one of its own, and the others share one. If two cases differ
// only in something that can't matter, they take turns in the cases that end a connection. An
// example is the rights of memory that only its owner reads.
func products() []*conformance.Scenario {
	return slices.Concat(rightsProducts(), faultProducts(), windowProducts(), queueProducts())
}

// A tally counts the cases in which each rule was tried and broken.
type tally struct {
	r     *conformance.VerbsRun
	rules []string // in the order in which they were tried
	tried map[string]int
	cases int
	wrong map[string][]string
}

func newTally(r *conformance.VerbsRun) *tally {
	return &tally{r: r, tried: make(map[string]int), wrong: make(map[string][]string)}
}

// keeps notes whether a case keeps a rule. found says what happened.
func (t *tally) keeps(ok bool, rule string, of fmt.Stringer, found string, args ...any) {
	if t.tried[rule]++; t.tried[rule] == 1 {
		t.rules = append(t.rules, rule)
	}
	if !ok {
		t.wrong[rule] = append(t.wrong[rule], fmt.Sprintf("%s: %s", of, fmt.Sprintf(found, args...)))
	}
}

// report makes a check of each rule.
func (t *tally) report() {
	const most = 6
	for _, rule := range t.rules {
		bad := t.wrong[rule]
		for k := most; k < len(bad); k++ {
			t.r.Log("%s: not with %s", rule, bad[k])
		}
		more := ""
		if len(bad) > most {
			more = "; the log has the others"
		}
		t.r.Check(len(bad) == 0, rule, "%d of %d cases: %s%s", len(bad), t.tried[rule],
			strings.Join(bad[:min(len(bad), most)], "; "), more)
	}
	t.r.Log("%d cases", t.cases)
}

// A ground has what the cases of a run share: a PD for each side, in which they register memory,
// and a connection for the cases that do not end it.
type ground struct {
	*tally
	listener     *rdmacm.Listener
	ipd, ppd     *ibverbs.PD
	ours, theirs *conformance.Side // to register memory with, while there is no connection
	cap          ibverbs.QPCap

	i, p *conformance.Side // connected; nil if not
}

func newGround(r *conformance.VerbsRun) *ground {
	g := &ground{tally: newTally(r), listener: r.Listen(r.Responder)}
	g.ours = &conformance.Side{T: r.T, Role: conformance.RoleInitiator, EP: r.Initiator}
	g.theirs = &conformance.Side{T: r.T, Role: conformance.RoleResponder, EP: r.Responder}
	for _, s := range []*conformance.Side{g.ours, g.theirs} {
		pd, err := s.EP.Context.AllocPD()
		r.NoError(err, "a PD can be made")
		closing(r, "the PD", pd)
		s.PD = pd
	}
	g.ipd, g.ppd = g.ours.PD, g.theirs.PD
	g.cap = ibverbs.QPCap{MaxSendWR: 8, MaxRecvWR: 8, MaxSendSGE: 2, MaxRecvSGE: 2}
	return g
}

// connected returns the open connection, or makes one. On a new one it posts a Write of no octets,
// so that the responder may send and no case has the first FPDU.
func (g *ground) connected() (i, p *conformance.Side) {
	if g.i == nil {
		cfg := func(pd *ibverbs.PD) *conformance.SideConfig {
			return &conformance.SideConfig{ConnConfig: rdmacm.ConnConfig{PD: pd, Cap: g.cap,
				InitiatorDepth: 4, ResponderResources: 4}}
		}
		g.i, g.p = g.r.ConnectTo(g.listener, cfg(g.ipd), cfg(g.ppd))
		g.i.PostSend(ibverbs.SendWR{WRID: 999, Opcode: ibverbs.WRRDMAWrite})
	}
	return g.i, g.p
}

// part closes the connection, so that the next case has another.
func (g *ground) part() {
	if g.i == nil {
		return
	}
	for _, s := range []*conformance.Side{g.i, g.p} {
		if err := s.Conn.Close(); err != nil {
			g.r.Check(false, "a connection can be closed", "%v", err)
		}
	}
	g.i, g.p = nil, nil
}

// completion waits for the next completion of a queue, except for completions of the Write that
// connected posts. It returns nil if none comes in time.
func (g *ground) completion(cq *ibverbs.CQ, wait time.Duration) *ibverbs.WC {
	ctx, cancel := context.WithTimeout(g.r.Context(), g.r.Scaled(wait))
	defer cancel()
	var wc [1]ibverbs.WC
	for {
		if n, err := cq.PollWait(ctx, wc[:]); n == 0 || err != nil {
			return nil
		}
		if wc[0].WRID != 999 {
			return &wc[0]
		}
	}
}

// ends waits until both sides have the event of the connection's end.
func (g *ground) ends() bool {
	ctx, cancel := context.WithTimeout(g.r.Context(), g.r.Scaled(2*time.Second))
	defer cancel()
	return g.i.Conn.Wait(ctx) == nil && g.p.Conn.Wait(ctx) == nil
}

// status returns the text of a completion's status, or says that there was none.
func status(wc *ibverbs.WC) string {
	if wc == nil {
		return "no completion"
	}
	return wc.Status.String()
}

func succeeded(wc *ibverbs.WC) bool { return wc != nil && wc.Status == ibverbs.WCSuccess }

// memoryList is a list of one or two regions.
type memoryList []*conformance.Buffer

// sges returns an SGE for the first n octets of each region.
func (m memoryList) sges(n int) []ibverbs.SGE {
	var out []ibverbs.SGE
	for _, b := range m {
		out = append(out, b.SGE(0, n))
	}
	return out
}

// data returns the first n octets of each region, one after the other.
func (m memoryList) data(n int) []byte {
	var out []byte
	for _, b := range m {
		out = append(out, b.Data[:n]...)
	}
	return out
}

// blank fills the regions with what Untouched expects.
func (m memoryList) blank() {
	for _, b := range m {
		for k := range b.Data {
			b.Data[k] = 0x5a
		}
	}
}

// blankAt writes what Untouched expects to n octets of the first region, from off on.
func (m memoryList) blankAt(off, n int) {
	for k := range n {
		m[0].Data[off+k] = 0x5a
	}
}

// isBlank reports whether all regions hold what blank writes.
func (m memoryList) isBlank() bool {
	for _, b := range m {
		if len(bytes.Trim(b.Data, "\x5a")) > 0 {
			return false
		}
	}
	return true
}

// oneTerminate checks that there is no more than one Terminate on a connection, and nothing after
// it from the same side.
//
//rfc:5040 RDMAP-5.4-05 Nothing sent after Terminate
func oneTerminate(w *conformance.WireRun) {
	wrong, terminates := "", 0
	for k := range w.Trace.Conns {
		by := -1
		for n := range w.Trace.Conns[k].Frames {
			f := &w.Trace.Conns[k].Frames[n]
			switch {
			case f.Kind != wire.KindFPDU:
			case by == int(f.Dir) && wrong == "":
				wrong = fmt.Sprintf("connection %d: %s", k+1, f)
			case isFPDU(f, "Terminate"):
				by = int(f.Dir)
				terminates++
			}
		}
	}
	w.Log("%d connections, %d Terminates", len(w.Trace.Conns), terminates)
	w.Check(wrong == "", "a side sends nothing after its Terminate", "%s", wrong)
}
