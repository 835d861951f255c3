package engine

import (
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/locks"
	"github.com/govs-rdma/govs/provider/engine/internal/memory"
	"github.com/govs-rdma/govs/provider/engine/internal/sched"
)

// qp is a queue pair. Its stream has everything that exists only while it is connected, and its
// rings are made by the first posts. So a QP at rest has no goroutine and no buffer.
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
