package engine

import (
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/locks"
	"github.com/govs-rdma/govs/provider/engine/internal/memory"
	"github.com/govs-rdma/govs/provider/engine/internal/sched"
)

// qp is a queue pair. Its stream has everything that exists only while it is connected, and its
// rings are made by the first posts. So a QP at rest has no goroutine, and no buffer but its rings.
//
// Package internal/locks has the order of its locks and of all other locks of the engine. Sockets
// never block, and the program's function onDown, which may block, is called without a lock.
type qp struct {
	pd             *pd
	dev            *device
	sendCQ, recvCQ *cq
	qpn            uint32
	init           qpInit
	sq             sendQueue
	rq             recvQueue
	counts         atomic.Pointer[counts] // nil until there is something to count; see counters
	shared         *sharedRecv            // with an SRQ, or a RecvSource; rq is then empty

	// stream is the connection. It is nil before start, and again once the QP is in ERR.
	stream sched.Pointer[stream]
	state  sched.Uint32 // a provider.QPState; written under mu, sq.done and rq.done

	closed sched.Bool // Close is past the point where posts are accepted; written under sq.mu and rq.mu

	close sync.Once

	mu       sched.Mutex[locks.QP]
	cause    error
	closing  bool   // Close was called
	summed   bool   // guarded by tally.mu: closed, and among the device's sums
	noEvents bool   // guarded by asyncQueue.mu; set by Close: raise ignores the QP
	ord, ird uint16 // as Modify or the last connection set them
	access   provider.Access

	peer memory.Peer
}

// qpInit has the fields of provider.QPInitAttr, as granted, that are not in the queues.
type qpInit struct {
	Cookie               any
	MaxSendWR, MaxRecvWR uint32
	SQSigAll             bool
}

// initAttr returns the QPInitAttr for Query.
func (q *qp) initAttr() provider.QPInitAttr {
	init := provider.QPInitAttr{
		SendCQ: q.sendCQ, RecvCQ: q.recvCQ,
		Cap: provider.QPCap{
			MaxSendWR: int(q.init.MaxSendWR), MaxRecvWR: int(q.init.MaxRecvWR),
			MaxSendSGE: q.sq.maxSGE, MaxRecvSGE: q.rq.maxSGE, MaxInlineData: q.sq.maxInline,
		},
		Type: provider.QPTypeRC, SQSigAll: q.init.SQSigAll, Cookie: q.init.Cookie,
	}
	if r := q.srq(); r != nil {
		init.SRQ = r
	} else if q.shared != nil {
		init.Recvs = q.shared.own
		init.Cap.MaxRecvSGE = len(q.shared.sges)
	}
	return init
}

// defaultAccess is what Query returns until the program sets the QP's access.
const defaultAccess = provider.AccessLocalWrite | provider.AccessRemoteWrite | provider.AccessRemoteRead

// CreateQP implements provider.PD.
func (p *pd) CreateQP(init provider.QPInitAttr) (provider.QP, error) {
	if p.Refs.Closed() {
		return nil, failClosed("ibv_create_qp", p.name())
	}
	q, err := newQP(p, init)
	if err != nil {
		return nil, err // not q: a nil *qp is not a nil interface
	}
	return q, nil
}

// newQP makes a QP of p in RESET. The QP holds p and is attached to its CQs until it is closed.
func newQP(p *pd, init provider.QPInitAttr) (*qp, error) {
	const op = "ibv_create_qp"
	init, err := grantQP(init)
	if err != nil {
		return nil, fail(op, "", err)
	}
	q := &qp{pd: p, dev: p.dev, access: defaultAccess, init: qpInit{
		Cookie: init.Cookie, SQSigAll: init.SQSigAll,
		MaxSendWR: uint32(init.Cap.MaxSendWR), MaxRecvWR: uint32(init.Cap.MaxRecvWR),
	}}
	q.peer.Domain = &p.Domain
	if q.sendCQ = p.dev.ownCQ(init.SendCQ); q.sendCQ == nil {
		return nil, failForeign(op, "send CQ")
	}
	if q.recvCQ = p.dev.ownCQ(init.RecvCQ); q.recvCQ == nil {
		return nil, failForeign(op, "receive CQ")
	}
	q.sq.maxSGE, q.sq.maxInline, q.rq.maxSGE = init.Cap.MaxSendSGE, init.Cap.MaxInlineData, init.Cap.MaxRecvSGE
	if init.Recvs != nil {
		q.shared = &sharedRecv{own: init.Recvs, pd: p,
			sges: make([]provider.SGE, init.Cap.MaxRecvSGE)}
		q.init.MaxRecvWR, q.rq.maxSGE = 0, 0 // PostRecv has no room
	}
	if err := q.attach(op, init.SRQ); err != nil {
		return nil, err
	}
	p.dev.list(q)
	return q, nil
}

// attach makes q a dependant of its PD, CQs and SRQ, and gives it its number. After an error it has
// done none of that.
func (q *qp) attach(op string, shared provider.SRQ) (err error) {
	if !q.pd.Refs.Hold() {
		return failClosed(op, q.pd.name())
	}
	if q.qpn, err = q.dev.allocQPN(); err != nil {
		q.pd.Refs.Drop()
		return fail(op, "", err)
	}
	if shared != nil {
		if q.shared, err = q.dev.share(op, shared); err != nil {
			q.dev.giveQPN(q.qpn)
			q.pd.Refs.Drop()
			return err
		}
	}
	if !q.attachCQs() {
		q.unshare()
		q.dev.giveQPN(q.qpn)
		q.pd.Refs.Drop()
		return failClosed(op, "cq")
	}
	return nil
}

// grantQP checks the attributes of a new QP and returns what it gets: the lengths of the queues are
// rounded up to powers of two.
func grantQP(init provider.QPInitAttr) (provider.QPInitAttr, error) {
	c := &init.Cap
	if init.SRQ != nil {
		c.MaxRecvWR, c.MaxRecvSGE = 0, 0 // ignored, as the man page of ibv_create_qp says
	}
	if init.Type == 0 {
		init.Type = provider.QPTypeRC
	}
	switch {
	case init.Type != provider.QPTypeRC:
		return init, failUnsupported(fmt.Sprintf("QP type %d", init.Type), "iWARP has reliable connections only")
	case init.SendCQ == nil, init.RecvCQ == nil:
		return init, fmt.Errorf("it needs a send CQ and a receive CQ: %w", syscall.EINVAL)
	case init.SRQ != nil && init.Recvs != nil:
		return init, fmt.Errorf("it has both an SRQ and a RecvSource; leave out one: %w",
			syscall.EINVAL)
	}
	if err := checkCap(c); err != nil {
		return init, err
	}
	c.MaxSendWR = roundUp(c.MaxSendWR)
	if c.MaxRecvWR > 0 {
		c.MaxRecvWR = roundUp(c.MaxRecvWR)
	}
	return init, nil
}

func (q *qp) attachCQs() bool {
	if !q.sendCQ.attach(q) {
		return false
	}
	if q.recvCQ != q.sendCQ && !q.recvCQ.attach(q) {
		q.sendCQ.detach(q)
		return false
	}
	return true
}

// QPN implements provider.QP.
func (q *qp) QPN() uint32 { return q.qpn }

// Cookie implements provider.QP.
func (q *qp) Cookie() any { return q.init.Cookie }

// Cause implements provider.QP. After a disconnect or Close of this side it wraps os.ErrClosed,
// after the peer's io.EOF.
func (q *qp) Cause() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.cause
}

// isClosed reports whether Close was called.
func (q *qp) isClosed() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.closing
}

func (q *qp) name() string { return fmt.Sprintf("qp %d", q.qpn) }

func (q *qp) getState() provider.QPState { return provider.QPState(q.state.Load()) }

// setState changes the state. mu is held.
func (q *qp) setState(s provider.QPState) { q.state.Store(uint32(s)) }

// signalsAll returns the flag that each work request has because of SQSigAll.
func (q *qp) signalsAll() provider.SendFlags {
	if q.init.SQSigAll {
		return provider.SendSignaled
	}
	return 0
}

// Close implements provider.QP. As with siw, a connection ends with a FIN after the FPDU under way,
// without a Terminate. Posted work is flushed before Close returns; nothing completes afterwards.
// It must not be called from onDown.
func (q *qp) Close() error {
	q.close.Do(q.destroy)
	return nil
}

func (q *qp) destroy() {
	q.mu.Lock()
	q.closing = true
	q.mu.Unlock()
	q.transmitDeferred()
	e := &ending{cause: errDestroyed}
	if s := q.stream.Load(); s != nil {
		s.fail(e)
		s.settle()
	}
	q.enterError(nil, e) // if it is not connected
	q.refusePosts()
	q.flushAll(provider.WCSuccess) // what was posted after that
	q.peer.Unbind()
	q.sendCQ.detach(q)
	if q.recvCQ != q.sendCQ {
		q.recvCQ.detach(q)
	}
	q.dev.async.forgetQP(q)
	st := q.stats(false)
	q.dev.tally.add(q, &st)
	q.unshare()
	q.dev.giveQPN(q.qpn)
	q.pd.Refs.Drop()
}

func (q *qp) refusePosts() {
	q.sq.mu.Lock()
	q.rq.mu.Lock()
	q.closed.Store(true)
	q.rq.mu.Unlock()
	q.sq.mu.Unlock()
}

// checkCap checks the sizes of a new QP.
func checkCap(c *provider.QPCap) error {
	for _, size := range []struct {
		name             string
		value, low, high int
	}{
		{"MaxSendWR", c.MaxSendWR, 1, maxQPWR}, // siw has no QP without a send queue either
		{"MaxRecvWR", c.MaxRecvWR, 0, maxQPWR},
		{"MaxSendSGE", c.MaxSendSGE, 0, maxSGE},
		{"MaxRecvSGE", c.MaxRecvSGE, 0, maxSGE},
		{"MaxInlineData", c.MaxInlineData, 0, maxInline},
	} {
		if size.value < size.low || size.value > size.high {
			return outside(size.name, size.value, size.low, size.high)
		}
	}
	return nil
}

// srq returns the QP's SRQ, nil if it has none.
func (q *qp) srq() *srq {
	if q.shared == nil {
		return nil
	}
	return q.shared.srq
}

// frontRecv returns the receive for the message under way, its SGEs and their PD: the oldest of the
// QP's own queue, or the one taken from the SRQ. The receive is nil if there is none.
func (q *qp) frontRecv() (*recvWQE, []provider.SGE, *pd) {
	if q.shared != nil {
		return q.shared.front()
	}
	w, sges := q.rq.front()
	return w, sges, q.pd
}

// wcOpcodes maps operations to the opcodes of their completions.
var wcOpcodes = [...]provider.WCOpcode{
	provider.WRRDMAWrite:        provider.WCRDMAWrite,
	provider.WRRDMAWriteWithImm: provider.WCRDMAWrite,
	provider.WRSend:             provider.WCSend,
	provider.WRSendWithImm:      provider.WCSend,
	provider.WRRDMARead:         provider.WCRDMARead,
	provider.WRSendWithInv:      provider.WCSend,

	provider.WRAtomicCmpAndSwp:       provider.WCCompSwap,
	provider.WRAtomicFetchAdd:        provider.WCFetchAdd,
	provider.WRMaskedAtomicCmpAndSwp: provider.WCCompSwap,
	provider.WRMaskedAtomicFetchAdd:  provider.WCFetchAdd,

	provider.WRBindMW:   provider.WCBindMW,
	provider.WRLocalInv: provider.WCLocalInv,
	opRegMR:             provider.WCRegMR,
}

// finishSends notes that the Sends and Writes before WQE out are over, and reports what can be
// reported now.
//
//rfc:5040 RDMAP-5.5-15-01 Local completions in submission order
func (q *qp) finishSends(out uint32) {
	q.sq.done.Lock()
	q.sq.out = out
	q.reportSends()
	q.sq.done.Unlock()
}

// finishWQE records that WQE i, one of flaggedOps, has finished: a Read, an atomic operation, or
// work on our own memory. It reports what can be reported now.
func (q *qp) finishWQE(i uint32) {
	q.sq.done.Lock()
	q.sq.at(i).finished = true
	q.reportSends()
	q.sq.done.Unlock()
}

// reportSends reports finished WQEs up to the first unfinished one. sq.done is held.
func (q *qp) reportSends() {
	s := &q.sq
	always := q.signalsAll()
	for tail := s.tail.Load(); s.head != tail; s.head++ {
		w := s.at(s.head)
		switch {
		case flaggedOps.has(w.op):
			if !w.finished {
				return
			}
			if s.head == s.out {
				s.out++ // it is never less than head
			}
		case int32(s.out-s.head) <= 0: // from here on, only work that the peer has answered is over
			return
		}
		if (w.flags|always)&provider.SendSignaled == 0 {
			continue
		}
		wc := provider.WC{WRID: w.wrid, Opcode: wcOpcodes[w.op], QPN: q.qpn}
		if answeredOps.has(w.op) {
			wc.ByteLen = w.length
		}
		s.free.report(s.head + 1) // before the completion can be seen
		q.sendCQ.push(wc, false)
	}
}

// failSend records the status with which WQE i fails; flushing reports it.
func (q *qp) failSend(i uint32, status provider.WCStatus) {
	q.sq.done.Lock()
	q.sq.at(i).status = status
	q.sq.done.Unlock()
}

// workFault says which SGE of WQE i can't be used, and why. It returns nil if all can be used by
// now.
func (q *qp) workFault(i uint32) *provider.WorkError {
	w := q.sq.at(i)
	var need provider.Access
	if answeredOps.has(w.op) {
		need = provider.AccessLocalWrite
	}
	why := q.pd.SGEFault(q.sq.sgeRoom(i)[:w.nsge], need)
	if why == "" {
		return nil
	}
	return &provider.WorkError{Opcode: w.op, WRID: w.wrid, Text: why}
}

// finishRecv reports the receive of the message that has ended. That is the one taken from the SRQ,
// or the WQE at the head of the receive queue, whose place becomes free. wc.Opcode is zero for
// WCRecv. Only the receive side calls finishRecv.
func (q *qp) finishRecv(wc provider.WC, solicited bool) {
	if q.shared != nil {
		wc.WRID = q.finishShared()
	} else {
		h := q.rq.head.Load()
		wc.WRID = q.rq.at(h).wrid
		q.countRecv(q.rq.tail.Load() - h - 1)
		q.rq.head.Store(h + 1)
	}
	wc.QPN = q.qpn
	wc.Opcode |= provider.WCRecv // a bit that all receives have
	q.recvCQ.push(wc, solicited)
}

// finishShared ends the use of the receive of the message that has ended, on a QP without a receive
// queue, and returns the WRID.
func (q *qp) finishShared() (wrid uint64) {
	q.shared.held = false
	return q.shared.wqe.wrid
}

// counts is what a QP counts. It is made when the first message is sent or received, so an idle
// connection has none. Sender and receiver write plain fields, each under the lock of its side of
// the stream; the two sides have separate cache lines.
type counts struct {
	sent provider.Traffic // guarded by tx.mu
	_    [16]byte

	received provider.Traffic // guarded by rx.mu
	lowest   uint32           // guarded by rx.mu; see QPStats.LowestRecvs; math.MaxUint32 for none
	_        [12]byte

	// These events are rare, and any goroutine counts them.
	flushedSends, flushedRecvs, crcErrors atomic.Uint64
}

// counters returns the counts of q. The first call allocates them; the compiler inlines the
// others.
func (q *qp) counters() *counts {
	if n := q.counts.Load(); n != nil {
		return n
	}
	return q.newCounters()
}

func (q *qp) newCounters() *counts {
	q.counts.CompareAndSwap(nil, &counts{lowest: math.MaxUint32})
	return q.counts.Load()
}

// countOne adds a message of n bytes.
func countOne(c *provider.OpCount, n uint32) {
	c.Messages++
	c.Octets += uint64(n)
}

// countSegment counts a segment that was placed. rx.mu is held.
func countSegment(c *provider.OpCount, octets int, last bool) {
	c.Octets += uint64(octets)
	if last {
		c.Messages++
	}
}

// countRecv notes that a message has taken a receive, and how many receives are left.
func (q *qp) countRecv(left uint32) {
	if n := q.counters(); left < n.lowest {
		n.lowest = left
	}
}
