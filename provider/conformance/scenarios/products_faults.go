package scenarios

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/provider/conformance"
	"github.com/govs-rdma/govs/provider/conformance/wire"
)

// faultProducts are requests with two faults, and requests to a peer whose queue pair has left RTS.
func faultProducts() []*conformance.Scenario {
	two := func(slug, title string, options []string, requirements []string,
		ops ...ibverbs.WROpcode) *conformance.Scenario {
		cases := twoFaults(ops)
		return &conformance.Scenario{
			Slug: slug, Level: conformance.Must, Title: title, Options: options, Requirements: requirements,
			Timeout: 30 * time.Second, Concurrent: true,
			Verbs: func(r *conformance.VerbsRun) { tryTwoFaults(r, cases) },
			Wire:  func(w *conformance.WireRun) { toldOne(w, cases) },
		}
	}
	return []*conformance.Scenario{
		two("product/two-faults", "of a Send, Write or Read with two faults nothing moves, a local one "+
			"is found before it is sent, and the peer names one of its own",
			nil, []string{"DDP-7.1-01", "DDP-7.1u2-01", "RDMAP-7.2-12"}, ibverbs.WRSend,
			ibverbs.WRRDMAWrite, ibverbs.WRRDMARead),
		two("product/two-faults-atomic", "of an atomic operation with two faults nothing is done, a "+
			"local one is found before it is sent, and the peer names one of its own",
			[]string{"extensions=on"}, []string{"EXT-8.2-03", "EXT-8.2-04"}, ibverbs.WRAtomicFetchAdd,
			ibverbs.WRAtomicCmpAndSwp),
		{
			Slug: "product/peer-state", Level: conformance.Must, Options: patient,
			Title: "what is sent to a peer whose queue pair has left RTS changes nothing there, and is " +
				"flushed after the connection's end",
			Timeout: time.Minute, Concurrent: true,
			Verbs: peerStates, Wire: oneTerminate,
		},
	}
}

// A fault is something wrong with a request for octets of two regions, or with the receive that a
// Send takes.
type fault string

const (
	noLKey       fault = "an lkey that names nothing"
	localBeyond  fault = "an SGE beyond its region"
	noLocalWrite fault = "a sink without local write"
	noRKey       fault = "an rkey that names nothing"
	otherPD      fault = "a region of another PD"
	noSuchRight  fault = "a region without the right"
	beyond       fault = "octets beyond the region"
	unaligned    fault = "a word that is not aligned"

	recvNone   fault = "no receive"
	tooShort   fault = "a receive that is too short"
	recvNoLKey fault = "a receive with an lkey that names nothing"
	recvBeyond fault = "a receive beyond its region"
	recvRight  fault = "a receive whose region may not be written"
)

// localFaults are the faults that the initiator finds.
var localFaults = []fault{noLKey, localBeyond, noLocalWrite}

// codes are the Terminates with which the peer may report a fault: RFC 5041 section 7.2 for a Send
// or Write, RFC 5040 section 8.2 for a Read, RFC 7306 section 8.2 for an atomic operation. A fault
// of the peer's own receive is a local catastrophic error there, of DDP or of RDMAP.
func (f fault) codes(op ibverbs.WROpcode) []string {
	switch op {
	case ibverbs.WRSend:
		switch f {
		case recvNone:
			return []string{"1/2/0x02"}
		case tooShort:
			return []string{"1/2/0x05"}
		}
		return []string{"1/0/0x00", "0/0/0xff"}
	case ibverbs.WRRDMAWrite:
		return map[fault][]string{
			noRKey: {"1/1/0x00"}, otherPD: {"1/1/0x02"}, noSuchRight: {"1/1/0x00", "1/1/0x02", "0/1/0x02"},
			beyond: {"1/1/0x01"},
		}[f]
	}
	return map[fault][]string{
		noRKey: {"0/1/0x00"}, otherPD: {"0/1/0x03"}, noSuchRight: {"0/1/0x02"}, beyond: {"0/1/0x01"},
		unaligned: {"0/2/0x07"},
	}[f]
}

// twoFault is a request with two faults.
type twoFault struct {
	op ibverbs.WROpcode
	of [2]fault
}

func (c twoFault) String() string {
	return fmt.Sprintf("%s with %s and %s", c.op, c.of[0],
		c.of[1])
}

func (c twoFault) has(f fault) bool { return c.of[0] == f || c.of[1] == f }

// local reports whether the initiator finds one of the faults, and so sends nothing.
func (c twoFault) local() bool { return slices.ContainsFunc(localFaults, c.has) }

// codes are the Terminates that are right: those of either fault. But if the key names nothing,
// there is no region in which anything else could be wrong, so only the key's are.
func (c twoFault) codes() []string {
	switch {
	case c.local():
		return []string{"0/0/0xff"} // a local catastrophic error, which may be reported
	case c.has(noRKey) && !c.has(unaligned):
		return noRKey.codes(c.op)
	}
	return slices.Concat(c.of[0].codes(c.op), c.of[1].codes(c.op))
}

// twoFaults are all pairs of faults that an operation can have.
func twoFaults(ops []ibverbs.WROpcode) []twoFault {
	var out []twoFault
	for _, op := range ops {
		can := []fault{noLKey, localBeyond, noRKey, otherPD, noSuchRight, beyond}
		switch op {
		case ibverbs.WRSend:
			can = []fault{noLKey, localBeyond, recvNone, tooShort, recvNoLKey, recvBeyond, recvRight}
		case ibverbs.WRRDMARead, ibverbs.WRAtomicFetchAdd, ibverbs.WRAtomicCmpAndSwp:
			can = append(can, noLocalWrite)
		}
		if (transfer{op: op}).isAtomic() {
			can = append(can, unaligned)
			can = slices.DeleteFunc(can,
				func(f fault) bool { return f == localBeyond }) // a sink has the length of a word
		}
		for k, a := range can {
			for _, b := range can[k+1:] {
				if c := (twoFault{op, [2]fault{a, b}}); c.canBe() {
					out = append(out, c)
				}
			}
		}
	}
	return out
}

// canBe reports whether a request can have both faults. A key that names nothing has neither a PD
// nor rights that could be wrong, and without a receive nothing can be wrong with it.
func (c twoFault) canBe() bool {
	switch {
	case c.has(noRKey):
		return !c.has(otherPD) && !c.has(noSuchRight)
	case c.has(recvNoLKey) && c.has(recvRight):
		return false
	case c.has(recvNone):
		return c.local()
	}
	return true
}

// receive posts the receive that a Send of n octets takes, with the faults of a case.
func (c twoFault) receive(p *conformance.Side, n int, target, readOnly *conformance.Buffer) {
	if c.has(recvNone) {
		return
	}
	sge := target.SGE(0, n)
	if c.has(recvRight) {
		sge = readOnly.SGE(0, n)
	}
	if c.has(tooShort) {
		sge.Length /= 2
	}
	if c.has(recvBeyond) {
		sge.Addr += regionSize - uint64(sge.Length) + 1
	}
	if c.has(recvNoLKey) {
		sge.LKey ^= 0x5a5a5a00
	}
	p.PostRecv(ibverbs.RecvWR{WRID: 7, SGList: []ibverbs.SGE{sge}})
}

// spoil puts the faults of a case into a request for n octets.
func (c twoFault) spoil(wr *ibverbs.SendWR, n int, readOnly, foreign, private *conformance.Buffer) {
	at := uint64(0)
	if c.has(noLocalWrite) {
		wr.SGList = []ibverbs.SGE{readOnly.SGE(0, n)}
	}
	if c.has(localBeyond) {
		wr.SGList[0].Addr += regionSize - uint64(n) + 1
	}
	if c.has(noLKey) {
		wr.SGList[0].LKey ^= 0x5a5a5a00
	}
	switch {
	case c.has(otherPD):
		wr.RemoteAddr, wr.RKey = foreign.MR.Addr(), foreign.MR.RKey()
	case c.has(noSuchRight):
		wr.RemoteAddr, wr.RKey = private.MR.Addr(), private.MR.RKey()
	}
	if c.has(beyond) {
		at = regionSize
	}
	if c.has(unaligned) {
		at += 4
	}
	wr.RemoteAddr += at
	if c.has(noRKey) {
		wr.RKey ^= 0x5a5a5a00
	}
}

func tryTwoFaults(r *conformance.VerbsRun, cases []twoFault) {
	const (
		fails = "a request with two faults does not complete with success"
		ends  = "it ends the connection"
		still = "it moves nothing"
	)
	if (transfer{op: cases[0].op}).isAtomic() {
		needsExtensions(r, r.Initiator, r.Responder)
	}
	g := newGround(r)
	pd, err := r.Responder.Context.AllocPD()
	r.NoError(err, "the responder can make another PD")
	closing(r, "the other PD", pd)
	all := everyRight
	if attr, err := r.Responder.Context.Query(); err == nil && attr.AtomicCap != 0 {
		all |= ibverbs.AccessRemoteAtomic
	}
	ours, readOnly := g.ours.Buffer("the initiator's region", regionSize, everyRight),
		g.ours.Buffer("a region of the initiator to read", regionSize, 0)
	target := g.theirs.Buffer("the target", regionSize, all)
	foreign := g.theirs.BufferIn(pd, "a region of another PD", regionSize, all)
	private := g.theirs.Buffer("a region without rights", regionSize, local)
	theirReadOnly := g.theirs.Buffer("a region of the responder to read", regionSize, 0)
	everything := memoryList{ours, readOnly, target, foreign, private, theirReadOnly}
	for k, b := range everything {
		b.Fill(r.Seed + uint64(k))
	}
	before := everything.data(regionSize)
	for _, c := range cases {
		g.cases++
		n := transferSize
		if (transfer{op: c.op}).isAtomic() {
			n = 8
		}
		wr := ibverbs.SendWR{
			WRID: 1, Opcode: c.op, Flags: ibverbs.SendSignaled, SGList: []ibverbs.SGE{ours.SGE(0, n)},
			RemoteAddr: target.MR.Addr(), RKey: target.MR.RKey(), CompareAdd: 1, Swap: 2,
		}
		c.spoil(&wr, n, readOnly, foreign, private)
		i, p := g.connected()
		untagged := c.op == ibverbs.WRSend
		if untagged {
			wr.RemoteAddr, wr.RKey, wr.CompareAdd, wr.Swap = 0, 0, 0, 0
			c.receive(p, n, target, theirReadOnly)
		}
		i.PostSend(wr)
		wc := g.completion(i.Conn.SendCQ(), 2*time.Second)
		// A Send or Write may be complete when TCP has it.
		early := (untagged || c.op == ibverbs.WRRDMAWrite) && !c.local()
		g.keeps(wc != nil && (!succeeded(wc) || early), fails, c, "%s", status(wc))
		ended := g.ends()
		g.keeps(ended, ends, c, "it is still there")
		if ended {
			g.keeps(bytes.Equal(everything.data(regionSize), before), still, c, "memory has changed")
		}
		g.part()
	}
	g.report()
}

// toldOne checks the connections of tryTwoFaults, of which each case has one.
func toldOne(w *conformance.WireRun, cases []twoFault) {
	const (
		names  = "the Terminate names one of the faults that the peer can find"
		silent = "of a request with a local fault nothing is sent"
	)
	oneTerminate(w)
	conns := w.Trace.Conns
	if !w.Check(len(conns) == len(cases), "each case has a connection", "%d for %d cases",
		len(conns), len(cases)) {
		return
	}
	var wrong, spoke []string
	for k, c := range cases {
		told := ""
		for n := range conns[k].Frames {
			f := &conns[k].Frames[n]
			hello := isFPDU(f, "RDMA Write") && len(f.Payload) == 0
			switch {
			case f.Kind != wire.KindFPDU || hello:
			case isFPDU(f, "Terminate") && f.Terminate != nil && (f.Dir == wire.ToInitiator) != c.local():
				t := f.Terminate
				told = fmt.Sprintf("%d/%d/0x%02x", t.Layer, t.EType, uint8(t.Code))
			case c.local() && f.Dir == wire.ToResponder && !isFPDU(f, "Terminate"):
				spoke = append(spoke, fmt.Sprintf("%s: %s", c, f))
			}
		}
		optional := c.local() && told == ""
		if !optional && !slices.Contains(c.codes(), told) {
			wrong = append(wrong, fmt.Sprintf("%s: %q, not %s", c, told, strings.Join(c.codes(), " or ")))
		}
	}
	w.Check(len(wrong) == 0, names, "%d of %d cases: %s", len(wrong), len(cases), strings.Join(wrong,
		"; "))
	w.Check(len(spoke) == 0, silent, "%s", strings.Join(spoke, "; "))
}

// A leaving is how a peer's queue pair leaves RTS.
type leaving struct {
	name string
	do   func(p *conformance.Side) error
	soft bool // in good order: the peer still takes what is under way
}

func leavings() []leaving {
	to := func(states ...ibverbs.QPState) func(*conformance.Side) error {
		return func(p *conformance.Side) error {
			for _, s := range states {
				if err := toState(p.QP, s); err != nil {
					return err
				}
			}
			return nil
		}
	}
	return []leaving{
		{"SQD", to(ibverbs.QPSQD), true},
		{"SQE", to(ibverbs.QPSQE), false},
		{"ERR", to(ibverbs.QPErr), false},
		{"ERR, then RESET", to(ibverbs.QPErr, ibverbs.QPReset), false},
		{"a disconnect", func(p *conformance.Side) error { return p.Conn.Disconnect() }, true},
		{"a close", func(p *conformance.Side) error { return p.Conn.Close() }, false},
	}
}

// toPeer is an operation to a peer in that state. It is posted as soon as the peer has changed its
// state, or after the connection's end.
type toPeer struct {
	op    ibverbs.WROpcode
	state string
	after bool
}

func (c toPeer) String() string {
	when := "at once"
	if c.after {
		when = "after the end"
	}
	return fmt.Sprintf("%s to %s, %s", c.op, c.state, when)
}

// peerStates shows what a queue pair outside of RTS does with a peer's requests. It takes part in a
// connection in RTS and, until the end, in SQD: RFC 5040 section 6.2, ibv_modify_qp(3). So in the
// other states nothing is placed, read or delivered, and after the end all work is flushed.
func peerStates(r *conformance.VerbsRun) {
	const (
		moved   = "the peer's queue pair leaves RTS"
		posts   = "work can be posted while the connection ends, and after that"
		ends    = "the connection ends"
		flushed = "work that is posted after the end is flushed"
		still   = "the peer's memory is as it was"
		fails   = "a Read that the peer can't answer any more does not complete with success"
	)
	g := newGround(r)
	ours := g.ours.Buffer("the initiator's region", transferSize, everyRight)
	target := g.theirs.Buffer("the target", transferSize, everyRight)
	in := g.theirs.Buffer("the receive buffer", transferSize, local)
	for _, l := range leavings() {
		for _, op := range []ibverbs.WROpcode{ibverbs.WRSend, ibverbs.WRRDMAWrite, ibverbs.WRRDMARead} {
			for _, after := range []bool{false, true} {
				g.cases++
				c := toPeer{op, l.name, after}
				memoryList{target, in}.blank()
				ours.Fill(r.Seed + uint64(g.cases))
				i, p := g.connected()
				g.settle()
				p.PostRecv(recv(7, in))
				err := l.do(p)
				g.keeps(err == nil, moved, c, "%v", err)
				if err != nil {
					g.part()
					continue
				}
				ended := true
				if after {
					ended = g.ends()
				}
				wr := write(1, ours, target)
				if wr.Opcode = op; op == ibverbs.WRSend {
					wr = send(1, ours)
				}
				err = i.QP.PostSend(wr)
				g.keeps(err == nil, posts, c, "%v", err)
				ended = ended && g.ends()
				g.keeps(ended, ends, c, "it is still there")
				switch { // a Send or Write may have succeeded when TCP had it
				case err != nil:
				case after:
					wc := g.completion(i.Conn.SendCQ(), 2*time.Second)
					g.keeps(wc != nil && wc.Status == ibverbs.WCWRFlushErr, flushed, c, "%s", status(wc))
				case op == ibverbs.WRRDMARead && !l.soft:
					wc := g.completion(i.Conn.SendCQ(), 2*time.Second)
					g.keeps(wc != nil && !succeeded(wc), fails, c, "%s", status(wc))
				}
				if ended && (after || !l.soft) {
					g.keeps(memoryList{target, in}.isBlank(), still, c, "it has changed")
				}
				g.part()
			}
		}
	}
	g.report()
}

// settle exchanges a Send each way, so that both sides are in RTS and have nothing under way.
func (g *ground) settle() {
	g.p.PostRecv(ibverbs.RecvWR{WRID: 6})
	g.i.PostRecv(ibverbs.RecvWR{WRID: 6})
	for _, s := range []*conformance.Side{g.i, g.p} {
		to := g.p
		if s == g.p {
			to = g.i
		}
		s.PostSend(ibverbs.SendWR{WRID: 5, Opcode: ibverbs.WRSend, Flags: ibverbs.SendSignaled})
		sent, got := g.completion(s.Conn.SendCQ(), 2*time.Second), g.completion(to.Conn.RecvCQ(),
			2*time.Second)
		g.r.Require(succeeded(sent) && succeeded(got), "a connection works before its case", "%s, %s",
			status(sent), status(got))
	}
}
