package load

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
)

// Besides the workload's own messages the ends send each other notes: Sends whose length identifies
// them.
//
//   - The end, 0 bytes, means that the sender has sent everything on this connection. If the server
//     sends it after the client's end, it also means that the server has received everything.
//   - A credit, of creditLen bytes, means that the sender has posted another quarter of the
//     window's receives. It is needed because iWARP ends a connection whose Send finds no receive.
const (
	maxNote    = 2
	notesDepth = 8  // outstanding notes in one direction; 4 credits and an end are possible
	pingDepth  = 16 // receives posted for a ping-pong
)

// creditLen returns the length of a credit in bytes; no message has this length.
func creditLen(size int) int {
	if size == 1 {
		return 2
	}
	return 1
}

// window returns the maximum number of Sends outstanding on a QP.
func window(s *Spec) int { return max(2*s.TxDepth, 256) &^ 3 }

// end is one end of runs that differ only in their length. Its methods are for one goroutine.
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
	runs uint64 // begun so far; the warm-up counts as one
	seq  uint64 // write-lat: Writes each way, over all runs

	waits uint64 // calls of wait
}

// lane is a QP with the work that is posted to it.
type lane struct {
	qp    *ibverbs.QP
	slot  int              // place of its message in memory
	list  []ibverbs.SendWR // of the workload, the last one signalled
	recvs []ibverbs.RecvWR // the receives of a credit, for messages
	recv  []ibverbs.RecvWR // one receive
	note  []ibverbs.SendWR // one note

	posted, done uint64 // messages, over all runs
	target       uint64 // for posted, in this run
	granted      uint64 // limit of posted until the next credit
	taken        uint64 // messages received, over all runs
	answered     uint64 // of them, with a ping-pong
	owed         int    // receives that have to be reposted
	notes        int    // signalled work other than the lists that is not complete
	ends         uint64 // notes of an end received
	endsSent     uint64
	over         bool // this run is over on this lane
}

// sameConnections reports whether runs can use the same connections.
func sameConnections(a, b Spec) bool {
	a.Iters, a.Duration, a.Warmup = b.Iters, b.Duration, b.Warmup
	return a == b
}

// newEnd makes the objects of an end other than connections.
func newEnd(vctx *ibverbs.Context, pd *ibverbs.PD, spec Spec, server bool) (_ *end, err error) {
	e := &end{spec: spec, server: server, lanes: make([]lane, spec.QPs)}
	// For an idle target, the kernel does the work on the same CPU; the engine does it in a
	// goroutine that polls.
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

// inlineFits returns a clearer error than the QP's EINVAL. If the device does not report its limit,
// the QP decides.
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

// posts reports whether the end posts the workload's messages unprompted.
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

// capacity returns the sizes that a QP needs.
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

// config returns the configuration of a QP's connection. The depths are the initiator's; the
// accepting side uses what it is offered.
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

// use makes qp the QP of a lane, and posts its first receives.
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

// workID returns the WRID of work on a lane that completes a number of messages; notes and receives
// complete 0.
func workID(lane int, messages uint64) uint64 { return messages<<32 | uint64(lane) }

func (e *end) laneOf(wc *ibverbs.WC) (_ *lane, messages uint64) {
	return &e.lanes[uint32(wc.WRID)], wc.WRID >> 32
}

// connected makes the work requests, once all QPs exist and the peer's regions are known.
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

// turn makes work requests use the next regions.
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

// wait waits for completions and returns how many it put into e.wc, at least one.
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

// verify compares the sinks with the peer's pattern.
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

// stretch is the state of the current part of a run.
type stretch struct {
	began    time.Time
	limit    time.Duration // 0 means none
	over     int           // lanes that are done
	peak     Peak
	hist     *Histogram
	unlooked int // messages since the clock was read
}
