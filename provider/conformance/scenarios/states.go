package scenarios

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
	"github.com/govs-rdma/govs/provider/conformance"
)

// states are about ibv_modify_qp: which changes are made and which refused, and what they
// do to a connection. iWARP has no way back from SQD to RTS: SQD is the orderly end of a
// connection (RFC 5041 section 6.2.1).
func states() []*conformance.Scenario {
	return []*conformance.Scenario{
		{
			Slug: "states/unconnected", Level: conformance.Must,
			Title: "of a queue pair without a connection the changes of state that mean something are made, and the others are EINVAL",
			Verbs: statesUnconnected,
		},
		{
			Slug: "states/connected", Level: conformance.Must,
			Title: "a connected queue pair does not go back to the states before the connection: that is EINVAL, and the connection works on",
			Verbs: statesConnected, Wire: legal,
		},
		{
			Slug: "states/attributes", Level: conformance.Must,
			Title: "a change with an attribute that can't be is EINVAL as a whole, and one with those that can be is made",
			Verbs: statesAttributes,
		},
		{
			Slug: "states/sqd-drains", Level: conformance.Must,
			Title:        "at SQD what was posted before is still done, and then one event says so",
			Requirements: []string{"DDP-6.2.1-01"},
			Verbs:        sqdDrains, Concurrent: true, Timeout: 20 * time.Second, Options: patient,
		},
		{
			Slug: "states/sqd-event", Level: conformance.Must,
			Title: "SQD reports that the send queue is drained if the program asked for " +
				"it, ends the connection in good order, and has no way back to RTS",
			Requirements: []string{"DDP-6.2.1-02"},
			Verbs:        sqdEvent, Wire: inGoodOrder, Options: patient,
		},
		{
			Slug: "states/sqd-quiet", Level: conformance.Must,
			Title: "SQD reports nothing if the program did not ask for it, and ends the " +
				"connection in good order",
			Verbs: sqdQuiet, Wire: inGoodOrder, Options: patient,
		},
		{
			Slug: "states/sqe", Level: conformance.Must,
			Title:        "SQE ends the connection with a Terminate for a local error, and flushes what is posted at either end",
			Requirements: []string{"RDMAP-6.2.1-02"},
			Verbs:        func(r *conformance.VerbsRun) { stateEnds(r, ibverbs.QPSQE) }, Wire: terminated("0/0/0xff"),
		},
		{
			Slug: "states/reuse", Level: conformance.Must,
			Title: "a queue pair that is reset after its connection can be connected again",
			Verbs: reuse, Wire: legal,
		},
		{
			Slug: "states/err", Level: conformance.Must,
			Title: "ERR ends the connection without a Terminate, and flushes what is posted at either end",
			Verbs: func(r *conformance.VerbsRun) { stateEnds(r, ibverbs.QPErr) }, Wire: inGoodOrder, Options: patient,
		},
	}
}

// qpStates are the states that a program can name.
var qpStates = []ibverbs.QPState{ibverbs.QPReset, ibverbs.QPInit, ibverbs.QPRTR, ibverbs.QPRTS, ibverbs.QPSQD, ibverbs.QPSQE, ibverbs.QPErr}

// beforeRTS are the states that a QP has before it is connected.
var beforeRTS = qpStates[:3]

// stateChange is a change of a QP's state.
type stateChange struct{ from, to ibverbs.QPState }

// made is expected if the change is allowed, refused if it is not.
func (c stateChange) made() string { return fmt.Sprintf("%s to %s is made", c.from, c.to) }
func (c stateChange) refused() string {
	return fmt.Sprintf("%s to %s is refused with EINVAL", c.from, c.to)
}

// unconnected lists the states in which a QP without a connection can be, how it gets there from
// RESET, and which changes from there are allowed. Only the connection manager makes a QP RTS.
var unconnected = []struct {
	from ibverbs.QPState
	path []ibverbs.QPState
	may  [7]bool // as qpStates
}{
	{ibverbs.QPReset, nil, [7]bool{true, true, false, false, false, false, true}},
	{ibverbs.QPInit, []ibverbs.QPState{ibverbs.QPInit}, [7]bool{true, true, true, false, false, false, true}},
	{ibverbs.QPRTR, []ibverbs.QPState{ibverbs.QPInit, ibverbs.QPRTR}, [7]bool{true, false, true, false, false, false, true}},
	{ibverbs.QPErr, []ibverbs.QPState{ibverbs.QPErr}, [7]bool{true, false, false, false, false, false, true}},
}

func toState(qp *ibverbs.QP, s ibverbs.QPState) error {
	return qp.Modify(ibverbs.QPAttr{State: s}, ibverbs.QPAttrState)
}

// statesTold is the text of the check of the states that queries return.
const statesTold = "a query always reports the state as the change left it"

func statesUnconnected(r *conformance.VerbsRun) {
	b := newBench(r)
	wrong := "" // the first wrong state
	for _, c := range unconnected {
		for k, to := range qpStates {
			change, now := stateChange{c.from, to}, c.from
			if c.may[k] {
				now = to
			}
			if told := tryChange(r, b, change, c.path, c.may[k]); told != now && wrong == "" {
				wrong = fmt.Sprintf("%s to %s: %s", c.from, to, told)
			}
		}
	}
	r.Check(wrong == "", statesTold, "%s", wrong)
}

// tryChange makes a QP, moves it along path, tries the change and returns the state that
// the QP reports then.
func tryChange(r *conformance.VerbsRun, b *bench, c stateChange, path []ibverbs.QPState, may bool) ibverbs.QPState {
	qp, err := b.pd.CreateQP(b.init(littleRoom))
	r.NoError(err, "a QP can be made")
	defer func() { r.Check(qp.Close() == nil, "the QP can be closed") }()
	for _, s := range path {
		r.NoError(toState(qp, s), fmt.Sprintf("the QP can be moved to %s", s))
	}
	err = toState(qp, c.to)
	if may {
		r.Check(err == nil, c.made(), "%v", err)
	} else {
		r.Check(ibverbs.Errno(err) == syscall.EINVAL, c.refused(), "%v", err)
	}
	attr, _, err := qp.Query()
	r.NoError(err, "the QP can be queried")
	return attr.State
}

func statesConnected(r *conformance.VerbsRun) {
	var dst *conformance.Buffer
	i, p := r.Connect(nil, &conformance.SideConfig{Before: func(s *conformance.Side) {
		dst = s.Buffer("the receive buffer", 64, local)
		s.PostRecv(recv(7, dst))
	}})
	for _, to := range beforeRTS {
		err := toState(i.QP, to)
		r.Check(ibverbs.Errno(err) == syscall.EINVAL, stateChange{ibverbs.QPRTS, to}.refused(), "%v", err)
	}
	err := toState(i.QP, ibverbs.QPRTS)
	r.Check(err == nil, stateChange{ibverbs.QPRTS, ibverbs.QPRTS}.made(), "%v", err)
	src := i.Buffer("the source", 64, local).Fill(r.Seed)
	i.PostSend(send(1, src))
	i.WantWC(i.SendWCs(1), 0, 1, ibverbs.WCSuccess, "a Send works after it")
	p.WantWC(p.RecvWCs(1), 0, 7, ibverbs.WCSuccess, "it arrives")
	dst.Holds(src.Data, "with its octets")
	end(i, p)
}

// badAttributes are changes with an invalid attribute; each names INIT, too, from RESET.
var badAttributes = []struct {
	what   string
	change func(*ibverbs.QPAttr, *ibverbs.DeviceAttr) ibverbs.QPAttrMask
}{
	{"a current state that is not the QP's", func(a *ibverbs.QPAttr, _ *ibverbs.DeviceAttr) ibverbs.QPAttrMask {
		a.CurState = ibverbs.QPRTS
		return ibverbs.QPAttrCurState
	}},
	{"more outbound Reads than the device has", func(a *ibverbs.QPAttr, d *ibverbs.DeviceAttr) ibverbs.QPAttrMask {
		a.MaxRdAtomic = d.MaxQPInitRdAtom + 1
		return ibverbs.QPAttrMaxRdAtomic
	}},
	{"more inbound Reads than the device has", func(a *ibverbs.QPAttr, d *ibverbs.DeviceAttr) ibverbs.QPAttrMask {
		a.MaxDestRdAtomic = d.MaxQPRdAtom + 1
		return ibverbs.QPAttrMaxDestRdAtomic
	}},
	{"sizes of the queues, which are fixed", func(a *ibverbs.QPAttr, _ *ibverbs.DeviceAttr) ibverbs.QPAttrMask {
		a.Cap = littleRoom
		return ibverbs.QPAttrCap
	}},
	{"a word about SQD with another state", func(a *ibverbs.QPAttr, _ *ibverbs.DeviceAttr) ibverbs.QPAttrMask {
		a.EnSQDAsyncNotify = true
		return ibverbs.QPAttrEnSQDNotify
	}},
}

func statesAttributes(r *conformance.VerbsRun) {
	b := newBench(r)
	dev, err := b.ctx.Query()
	r.NoError(err, "the device can be queried")
	qp, err := b.pd.CreateQP(b.init(littleRoom))
	r.NoError(err, "a QP can be made")
	closing(r, "the QP", qp)
	for _, c := range badAttributes {
		attr := ibverbs.QPAttr{State: ibverbs.QPInit}
		mask := ibverbs.QPAttrState | c.change(&attr, &dev)
		err := qp.Modify(attr, mask)
		r.Check(ibverbs.Errno(err) == syscall.EINVAL, c.what+": EINVAL", "%v", err)
	}
	// Had one of them been made in part, the QP would not be in RESET any more.
	err = qp.Modify(ibverbs.QPAttr{State: ibverbs.QPInit, CurState: ibverbs.QPReset, Access: remoteWrite, MaxRdAtomic: 1, MaxDestRdAtomic: 1},
		ibverbs.QPAttrState|ibverbs.QPAttrCurState|ibverbs.QPAttrAccessFlags|ibverbs.QPAttrMaxRdAtomic|ibverbs.QPAttrMaxDestRdAtomic)
	r.Check(err == nil, "a change from RESET with rights and read depths is made", "%v", err)
}

// toSQD moves a side to SQD, with or without asking for the event.
func toSQD(s *conformance.Side, notify bool) {
	s.NoError(s.QP.Modify(ibverbs.QPAttr{State: ibverbs.QPSQD, EnSQDAsyncNotify: notify}, ibverbs.QPAttrState|ibverbs.QPAttrEnSQDNotify), "the QP can be moved to SQD")
}

const (
	sqdDone    = "what was posted before is done, in order"
	sqdTold    = "an event says that the send queue is drained"
	sqdOnce    = "no second event comes"
	sqdArrives = "the Send after the Reads arrives"
	noReturn   = "there is no way back to RTS: EINVAL"
)

// wantDrained waits for the event that says that the send queue is drained.
func wantDrained(r *conformance.VerbsRun, i *conformance.Side) {
	ev, err := asyncEvent(r, r.Initiator, true)
	if err != nil {
		r.Check(false, sqdTold, "%v", err)
		return
	}
	r.Check(ev.Type == ibverbs.EventSQDrained && ev.QP == i.QP, sqdTold, "%s", ev)
}

// eventless checks for a while that no event comes.
func eventless(r *conformance.VerbsRun, what string) {
	ev, err := asyncEvent(r, r.Initiator, false)
	r.Check(errors.Is(err, context.DeadlineExceeded), what, "%s", ev)
}

func sqdDrains(r *conformance.VerbsRun) {
	const count, size = 6, 1 << 19
	// One Read at a time keeps the queue busy longer than the change of state takes.
	cfg := rdmacm.ConnConfig{InitiatorDepth: 1, ResponderResources: 1}
	var in *conformance.Buffer
	i, p := r.Connect(&conformance.SideConfig{ConnConfig: cfg}, &conformance.SideConfig{ConnConfig: cfg, Before: func(s *conformance.Side) {
		in = s.Buffer("the receive buffer", 64, local)
		s.PostRecv(recv(50, in))
	}})
	src := p.Buffer("the source", size, remoteRead).Fill(r.Seed)
	dst, last := i.Buffer("the sink", size, remoteWrite), i.Buffer("the source of the Send", 64, local).Fill(r.Seed+1)
	var wrs []ibverbs.SendWR
	for k := range count {
		wrs = append(wrs, read(uint64(k), dst, src))
	}
	i.PostSend(append(wrs, send(count, last))...)
	toSQD(i, true)
	var got []ibverbs.WC
	for range count + 1 { // each with its own time limit, because they are long
		next := i.Quietly(i.Conn.SendCQ(), 1)
		if len(next) == 0 {
			break
		}
		got = append(got, next...)
	}
	done := len(got) == count+1
	for k := range got {
		done = done && got[k].WRID == uint64(k) && got[k].Status == ibverbs.WCSuccess
	}
	detail := fmt.Sprintf("%d of %d completions", len(got), count+1)
	for _, wc := range got {
		detail += fmt.Sprintf(", WR %d with %s", wc.WRID, wc.Status)
	}
	if i.Check(done, sqdDone, "%s", detail) {
		dst.Holds(src.Data, "the Reads brought their octets")
	}
	wantDrained(r, i)
	eventless(r, sqdOnce)
	arrived := p.Quietly(p.Conn.RecvCQ(), 1)
	if p.Check(len(arrived) == 1 && arrived[0].WRID == 50 && arrived[0].Status == ibverbs.WCSuccess, sqdArrives, "%v", arrived) {
		in.Holds(last.Data, "with its octets")
	}
	i.WaitEnd()
	p.WaitEnd()
}

// sqdIdle connects, completes a Send and a Read so that nothing is left in the send queue, and
// moves the initiator to SQD.
func sqdIdle(r *conformance.VerbsRun, notify bool) (i, p *conformance.Side) {
	before := func(s *conformance.Side) { s.PostRecv(ibverbs.RecvWR{WRID: 7}, ibverbs.RecvWR{WRID: 8}) }
	i, p = r.Connect(&conformance.SideConfig{Before: before}, &conformance.SideConfig{Before: before})
	src, dst := p.Buffer("the source", 64, remoteRead).Fill(r.Seed), i.Buffer("the sink", 64, remoteWrite)
	i.PostSend(ibverbs.SendWR{WRID: 1, Opcode: ibverbs.WRSend, Flags: ibverbs.SendSignaled})
	i.WantWC(i.SendWCs(1), 0, 1, ibverbs.WCSuccess, "a Send completes")
	i.PostSend(read(2, dst, src))
	i.WantWC(i.SendWCs(1), 0, 2, ibverbs.WCSuccess, "a Read completes")
	p.WantWC(p.RecvWCs(1), 0, 7, ibverbs.WCSuccess, "the Send arrives")
	toSQD(i, notify)
	return i, p
}

// sqdEnded checks how a connection ends when a side goes to SQD.
func sqdEnded(i, p *conformance.Side) {
	i.WaitEnd()
	p.WaitEnd()
	got := i.RecvWCs(2)
	i.WantWC(got, 0, 7, ibverbs.WCWRFlushErr, "the initiator's first receive is flushed")
	i.WantWC(got, 1, 8, ibverbs.WCWRFlushErr, "and its second")
	p.WantWC(p.RecvWCs(1), 0, 8, ibverbs.WCWRFlushErr, "the responder's receive is flushed")
}

func sqdEvent(r *conformance.VerbsRun) {
	i, p := sqdIdle(r, true)
	wantDrained(r, i)
	sqdEnded(i, p)
	err := toState(i.QP, ibverbs.QPRTS)
	r.Check(ibverbs.Errno(err) == syscall.EINVAL, noReturn, "%v", err)
	i.PostSend(ibverbs.SendWR{WRID: 3, Opcode: ibverbs.WRSend, Flags: ibverbs.SendSignaled})
	i.WantWC(i.SendWCs(1), 0, 3, ibverbs.WCWRFlushErr, "a Send that is posted then is flushed")
	eventless(r, sqdOnce)
}

func sqdQuiet(r *conformance.VerbsRun) {
	i, p := sqdIdle(r, false)
	sqdEnded(i, p)
	eventless(r, "no event comes")
}

// stateEnds makes the responder end the connection by a change of state.
func stateEnds(r *conformance.VerbsRun, to ibverbs.QPState) {
	before := func(s *conformance.Side) { s.PostRecv(ibverbs.RecvWR{WRID: 7}, ibverbs.RecvWR{WRID: 8}) }
	i, p := r.Connect(&conformance.SideConfig{Before: before}, &conformance.SideConfig{Before: before})
	i.PostSend(ibverbs.SendWR{WRID: 1, Opcode: ibverbs.WRSend, Flags: ibverbs.SendSignaled})
	i.WantWC(i.SendWCs(1), 0, 1, ibverbs.WCSuccess, "a Send completes")
	p.WantWC(p.RecvWCs(1), 0, 7, ibverbs.WCSuccess, "it arrives")
	r.NoError(toState(p.QP, to), fmt.Sprintf("the responder's QP can be moved to %s", to))
	i.WaitEnd()
	p.WaitEnd()
	got := i.RecvWCs(2)
	i.WantWC(got, 0, 7, ibverbs.WCWRFlushErr, "the initiator's first receive is flushed")
	i.WantWC(got, 1, 8, ibverbs.WCWRFlushErr, "and its second")
	p.WantWC(p.RecvWCs(1), 0, 8, ibverbs.WCWRFlushErr, "the responder's receive is flushed")
	p.PostSend(ibverbs.SendWR{WRID: 3, Opcode: ibverbs.WRSend, Flags: ibverbs.SendSignaled})
	p.WantWC(p.SendWCs(1), 0, 3, ibverbs.WCWRFlushErr, "a Send that is posted then is flushed")
}

// inGoodOrder checks that a connection ended with FINs and without a Terminate.
func inGoodOrder(w *conformance.WireRun) {
	conn := only(w)
	for k := range conn.Frames {
		if f := &conn.Frames[k]; isFPDU(f, "Terminate") {
			w.Check(false, "there is no Terminate", "%s", f)
			return
		}
	}
	w.Check(true, "there is no Terminate")
	orderly(w)
}
