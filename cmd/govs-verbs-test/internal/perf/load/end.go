package load

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
)

// Beside the workload's own messages the ends send each other notes, in Sends
// whose length says what they are:
//
//   - the end, 0 bytes: "this was all from me on this connection", and from the
//     server after the client's: "and I have all of yours";
//   - a credit, of creditLen bytes: "I have posted another quarter of the
//     window's receives". iWARP ends a connection whose Send finds none.
const (
	maxNote    = 2
	notesDepth = 8  // notes that may be under way in one direction; 4 credits and an end are
	pingDepth  = 16 // receives posted for a ping-pong
)

// creditLen is how long a credit is: no message has this length.
func creditLen(size int) int {
	if size == 1 {
		return 2
	}
	return 1
}

// window is how many Sends may be under way on a QP.
func window(s *Spec) int { return max(2*s.TxDepth, 256) &^ 3 }

// end is one end of the runs that differ only in their length. Its methods are
// for one goroutine.
type end struct {
	spec   Spec
	server bool
	block  bool // wait sleeps
	mem    *memory
	remote []ibverbs.RemoteRegion
	locals []ibverbs.SGE // our regions as a whole, in the order of remote
	ch     *ibverbs.CompChannel
	cq     *ibverbs.CQ // of all QPs and both queues
	conns  []*rdmacm.Conn
	lanes  []lane
	wc     [64]ibverbs.WC

	run  stretch
	runs uint64 // begun, the warm-up being one
	seq  uint64 // write-lat: Writes each way, over all runs

	waits uint64 // calls of wait
}

// lane is a QP with what is posted to it.
type lane struct {
	qp    *ibverbs.QP
	slot  int              // where its message is in memory
	list  []ibverbs.SendWR // of the workload, the last one signalled
	recvs []ibverbs.RecvWR // the receives of a credit, for messages
	recv  []ibverbs.RecvWR // one receive
	note  []ibverbs.SendWR // one note

	posted, done uint64 // messages, over all runs
	target       uint64 // for posted in this run
	granted      uint64 // what posted may come to before the next credit
	taken        uint64 // messages received, over all runs
	answered     uint64 // of them, with a ping-pong
	owed         int    // receives that have not been posted again
	notes        int    // signalled work besides the lists, not complete
	ends         uint64 // notes of an end received
	endsSent     uint64
	over         bool // with this run
}

// sameConnections reports whether runs can use the same connections.
func sameConnections(a, b Spec) bool {
	a.Iters, a.Duration, a.Warmup = b.Iters, b.Duration, b.Warmup
	return a == b
}

// newEnd makes what an end needs besides connections.
func newEnd(vctx *ibverbs.Context, pd *ibverbs.PD, spec Spec, server bool) (_ *end, err error) {
	e := &end{spec: spec, server: server, lanes: make([]lane, spec.QPs)}
	// For a target that is idle, the kernel does the work on the same CPU; the engine
	// does it where a goroutine polls.
	idle := server && !e.posts() && !e.pingPong()
	e.block = spec.Poll == Block || idle && vctx.Provider() == "kernel"
	defer func() {
		if err != nil {
			err = errors.Join(err, e.close())
		}
	}()
	if err := inlineFits(vctx, e.capacity().MaxInlineData); err != nil {
		return nil, err
	}
	if e.mem, err = newMemory(pd, &spec); err != nil {
		return nil, err
	}
	if e.ch, err = vctx.CreateCompChannel(); err != nil {
		return nil, err
	}
	c := e.capacity()
	e.cq, err = vctx.CreateCQ(spec.QPs*(c.MaxSendWR+c.MaxRecvWR), &ibverbs.CQOptions{Channel: e.ch})
	return e, err
}

// inlineFits says what the EINVAL of the QP does not. If the device does not report its
// limit, the QP decides.
func inlineFits(vctx *ibverbs.Context, octets int) error {
	attr, err := vctx.Query()
	if err != nil {
		return err
	}
	if most := attr.MaxInline; most > 0 && octets > most {
		return fmt.Errorf("%d bytes inline: %s takes at most %d", octets, vctx.Name(), most)
	}
	return nil
}

// posts reports whether the end posts the workload's messages by itself.
func (e *end) posts() bool { return !e.server || e.spec.Bidirectional }

// pingPong reports whether the server answers each message with one.
func (e *end) pingPong() bool { return e.spec.Op == SendLat || e.spec.Op == WriteLat }

// takes reports whether the peer's messages need receives.
func (e *end) takes() bool {
	return e.spec.Op == SendLat || e.spec.Op == SendBW && (e.server || e.spec.Bidirectional)
}

// sinks reports whether the run leaves the peer's pattern in our memory.
func (e *end) sinks() bool {
	switch e.spec.Op {
	case ReadBW, ReadLat:
		return e.posts()
	case WriteLat, SendLat:
		return true
	}
	return e.server || e.spec.Bidirectional
}

// capacity is what a QP has to have room for.
func (e *end) capacity() ibverbs.QPCap {
	c := ibverbs.QPCap{MaxSendWR: notesDepth, MaxRecvWR: notesDepth, MaxSendSGE: e.spec.SGEs, MaxRecvSGE: 1}
	if e.posts() {
		c.MaxSendWR += e.spec.TxDepth
	}
	if e.pingPong() {
		c.MaxSendWR += 4 * pingSignal
	}
	if e.takes() {
		c.MaxRecvWR += window(&e.spec)
	}
	if e.spec.Size <= e.spec.Inline {
		c.MaxInlineData = e.spec.Size
	}
	return c
}

// config is for the connection of a QP. The depths are the initiator's; the accepting
// side takes what it is offered.
func (e *end) config(pd *ibverbs.PD, lane int) *rdmacm.ConnConfig {
	depth := func(reads bool) int {
		if reads {
			return e.spec.Outstanding
		}
		return 1
	}
	reads := e.spec.Op == ReadBW || e.spec.Op == ReadLat
	cfg := &rdmacm.ConnConfig{
		PD: pd, SendCQ: e.cq, RecvCQ: e.cq, Cap: e.capacity(),
		InitiatorDepth:     depth(reads && e.posts()),
		ResponderResources: depth(reads && (e.server || e.spec.Bidirectional)),
	}
	cfg.Prepare = func(_ context.Context, conn *rdmacm.Conn, _ *rdmacm.ConnParam) error {
		return e.use(lane, conn.QP())
	}
	return cfg
}

// use makes qp that of a lane, and posts its first receives.
func (e *end) use(n int, qp *ibverbs.QP) error {
	l := &e.lanes[n]
	*l = lane{qp: qp, slot: e.mem.slot(n), granted: uint64(window(&e.spec))}
	sge, err := e.mem.dst.SGE(e.mem.slot(n), max(e.spec.Size, maxNote))
	if err != nil {
		return err
	}
	one := ibverbs.RecvWR{WRID: workID(n, 0), SGList: []ibverbs.SGE{sge}}
	l.recv = []ibverbs.RecvWR{one}
	l.note = []ibverbs.SendWR{{WRID: workID(n, 0), Opcode: ibverbs.WRSend, Flags: ibverbs.SendSignaled}}
	receives := notesDepth
	if e.takes() {
		for range window(&e.spec) / 4 {
			l.recvs = append(l.recvs, one)
		}
		receives += window(&e.spec)
	}
	for range receives {
		if err := qp.PostRecv(l.recv...); err != nil {
			return err
		}
	}
	return nil
}

// workID is the WRID of work on a lane that stands for so many messages; none is
// for notes and receives.
func workID(lane int, messages uint64) uint64 { return messages<<32 | uint64(lane) }

func (e *end) laneOf(wc *ibverbs.WC) (_ *lane, messages uint64) {
	return &e.lanes[uint32(wc.WRID)], wc.WRID >> 32
}

// connected makes the work requests, now that there are all QPs and the peer's
// regions are known.
func (e *end) connected() error {
	locals := e.mem.srcs
	if e.spec.Op == ReadBW || e.spec.Op == ReadLat {
		locals = e.mem.dsts
	}
	for _, mr := range locals {
		e.locals = append(e.locals, ibverbs.SGE{Addr: mr.Addr(), LKey: mr.LKey()})
	}
	for n := range e.lanes {
		if err := e.makeList(n); err != nil {
			return err
		}
	}
	return nil
}

func (e *end) makeList(n int) error {
	l := &e.lanes[n]
	op := map[Op]ibverbs.WROpcode{
		WriteBW: ibverbs.WRRDMAWrite, WriteLat: ibverbs.WRRDMAWrite,
		ReadBW: ibverbs.WRRDMARead, ReadLat: ibverbs.WRRDMARead,
		SendBW: ibverbs.WRSend, SendLat: ibverbs.WRSend,
	}[e.spec.Op]
	local, slot := e.mem.src, l.slot
	if op == ibverbs.WRRDMARead {
		local = e.mem.dst
	}
	l.list = make([]ibverbs.SendWR, e.spec.PostList)
	for i := range l.list {
		wr := &l.list[i]
		wr.Opcode = op
		if op != ibverbs.WRSend {
			wr.RemoteAddr, wr.RKey = e.remote[0].Addr+uint64(slot), e.remote[0].RKey
		}
		if e.spec.Size <= e.spec.Inline {
			wr.Flags = ibverbs.SendInline
			wr.Inline = local.Bytes()[slot:][:e.spec.Size]
			continue
		}
		for p := range e.spec.SGEs {
			from, to := p*e.spec.Size/e.spec.SGEs, (p+1)*e.spec.Size/e.spec.SGEs
			sge, err := local.SGE(slot+from, to-from)
			if err != nil {
				return err
			}
			wr.SGList = append(wr.SGList, sge)
		}
	}
	l.list[len(l.list)-1].Flags |= ibverbs.SendSignaled
	return nil
}

// turn has work requests use the next regions.
func (e *end) turn(l *lane, wrs []ibverbs.SendWR) {
	n := uint64(len(e.locals))
	for i := range wrs {
		wr := &wrs[i]
		k := (l.posted + uint64(i)) % n
		for p := range wr.SGList {
			wr.SGList[p].Addr = e.locals[k].Addr + uint64(l.slot+p*e.spec.Size/e.spec.SGEs)
			wr.SGList[p].LKey = e.locals[k].LKey
		}
		if wr.Opcode != ibverbs.WRSend {
			wr.RemoteAddr, wr.RKey = e.remote[k].Addr+uint64(l.slot), e.remote[k].RKey
		}
	}
}

// wait returns how many completions it put into e.wc, at least one.
func (e *end) wait(ctx context.Context) (int, error) {
	// If the peer answers at once, neither PollWait nor the loop below ever checks the
	// context.
	if e.waits++; e.waits%(1<<10) == 0 && ctx.Err() != nil {
		return 0, ctx.Err()
	}
	if e.block {
		return e.cq.PollWait(ctx, e.wc[:])
	}
	for polls := 1; ; polls++ {
		n, err := e.cq.Poll(e.wc[:])
		if n > 0 || err != nil {
			return n, err
		}
		if polls%(1<<14) == 0 && ctx.Err() != nil {
			return 0, ctx.Err()
		}
	}
}

// check checks the status of a completion.
func (e *end) check(wc *ibverbs.WC) error {
	if wc.Status == ibverbs.WCSuccess {
		return nil
	}
	l, _ := e.laneOf(wc)
	return because(l.qp, wc.Err())
}

// verify compares the sinks with what the peer sends.
func (e *end) verify() error {
	if !e.sinks() {
		return nil
	}
	if e.spec.Op != WriteLat {
		return e.mem.verify(e.spec.Size)
	}
	if got := e.mem.dst.Bytes()[e.spec.Size-1]; got != turnOctet(e.seq) {
		return fmt.Errorf("the last Write brought %d, want %d", got, turnOctet(e.seq))
	}
	return e.mem.verify(e.spec.Size - 1)
}

// close ends the connections and frees everything.
func (e *end) close() error {
	var errs []error
	for _, c := range e.conns {
		errs = append(errs, c.Close())
	}
	if e.cq != nil {
		errs = append(errs, e.cq.Close())
	}
	if e.ch != nil {
		errs = append(errs, e.ch.Close())
	}
	if e.mem != nil {
		errs = append(errs, e.mem.close())
	}
	return errors.Join(errs...)
}

// stretch is the state of the part of a run that is under way.
type stretch struct {
	began    time.Time
	limit    time.Duration // 0: none
	over     int           // lanes
	peak     Peak
	hist     *Histogram
	unlooked int // messages since the clock was read
}
