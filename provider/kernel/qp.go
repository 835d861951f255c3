//go:build cgo && linux && !nokernel

package kernel

import (
	"fmt"
	"math"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/govs-rdma/govs/cgo/ibv"
	"github.com/govs-rdma/govs/provider"
)

type qp struct {
	object
	dev    *device
	id     *id       // the owner in C, which made it; nil if a PD made it
	parent []*object // its PD, CQs and so on; released when it is destroyed
	token  uintptr
	qpn    uint32
	init   provider.QPInitAttr // with the sizes granted

	// connected is set once the QP has been in RTS.
	connected atomic.Bool
	connector atomic.Pointer[id] // of a PD's QP: the id of the last Connect or Accept

	// See late.go.
	ended     atomic.Bool // the connection is known to have ended
	settling  sync.Mutex
	settled   bool // guarded by settling
	lateSends atomic.Int32
	lateRecvs atomic.Int32

	maxReads int // negotiated ORD, once known; siw only; guarded by sqMu

	// The queues' locks guard their batches. They also keep c from being destroyed while it is
	// posted to.
	sqMu    sync.Mutex
	sq      *ibv.SendBatch
	silent  int       // unsignalled work requests posted since the last signalled one
	binding []binding // of the batch
	rqMu    sync.Mutex
	rq      *ibv.RecvBatch
	c       *ibv.QP
	empty   bool // c is destroyed

	// See sent.go.
	log            *workLog // nil unless the device is siw
	sqIDs          []uint64 // of the batch; guarded by sqMu
	rqIDs          []uint64 // of the batch; guarded by rqMu
	sendsRecovered bool     // guarded by sqMu
	recvsRecovered bool     // guarded by rqMu
}

func (p *pd) CreateQP(init provider.QPInitAttr) (provider.QP, error) {
	q, err := newQP(p, nil, init, p.c.CreateQP)
	if err != nil {
		return nil, opError("ibv_create_qp", "", err)
	}
	return q, nil
}

// newQP makes a QP of p with create, the C call for its owner: an id or a PD.
func newQP(p *pd, owner *id, init provider.QPInitAttr, create func(*ibv.QPInitAttr) (*ibv.QP, error)) (*qp, error) {
	scq, ok1 := init.SendCQ.(*cq)
	rcq, ok2 := init.RecvCQ.(*cq)
	if !ok1 || !ok2 || scq.dev.shared != p.dev.shared || rcq.dev.shared != p.dev.shared {
		return nil, fmt.Errorf("it needs a send CQ and a receive CQ of the PD's device: %w",
			syscall.EINVAL)
	}
	if init.Recvs != nil {
		return nil, errOutside
	}
	shared, err := srqOf(p, &init)
	if err != nil {
		return nil, err
	}
	if init.Type == 0 {
		init.Type = provider.QPTypeRC
	}
	attr, err := initAttr(&init)
	if err != nil {
		return nil, err
	}
	if p.dev.libsiw && attr.Cap.MaxRecvWR == 0 && shared == nil {
		attr.Cap.MaxRecvWR = 1 // libsiw can't map a receive queue without places
	}
	q := &qp{dev: p.dev, id: owner, parent: []*object{&p.object, &scq.object, &rcq.object}, init: init, maxReads: -1}
	if owner != nil {
		q.parent = append(q.parent, &owner.object)
	}
	if shared != nil {
		q.parent = append(q.parent, &shared.object)
	}
	if err := holdAll(q.parent...); err != nil {
		return nil, err
	}
	if shared != nil {
		attr.SRQ = shared.c // held, so c stays valid
	}
	if err := q.create(attr, scq, rcq, create); err != nil {
		releaseAll(q.parent...)
		return nil, memlockError(p.dev.whyNoQP(&init, err))
	}
	return q, nil
}

// srqOf returns the SRQ that init names, or nil. With an SRQ it clears the sizes of the receive
// queue in init, which the man page of ibv_create_qp says are ignored.
func srqOf(p *pd, init *provider.QPInitAttr) (*srq, error) {
	if init.SRQ == nil {
		return nil, nil
	}
	r, ok := init.SRQ.(*srq)
	if !ok || r == nil || r.dev.shared != p.dev.shared {
		return nil, fmt.Errorf("the SRQ is not of the PD's device: %w", syscall.EINVAL)
	}
	init.Cap.MaxRecvWR, init.Cap.MaxRecvSGE = 0, 0
	return r, nil
}

func (q *qp) create(attr *ibv.QPInitAttr, scq, rcq *cq, create func(*ibv.QPInitAttr) (*ibv.QP, error)) error {
	var err error
	// scq and rcq are held, so their c stays valid.
	attr.SendCQ, attr.RecvCQ = scq.c, rcq.c
	q.token = qps.add(q)
	attr.Token = q.token
	if err = q.dev.createQueues(func() (err error) { q.c, err = create(attr); return err }); err != nil {
		qps.remove(q.token)
		return err
	}
	q.qpn = q.c.QPNum()
	if q.dev.siw {
		q.log = new(workLog)
		q.sqIDs, q.rqIDs = make([]uint64, 0, postBatch), make([]uint64, 0, postBatch)
		scq.track(q)
		rcq.track(q)
	}
	q.init.Cap = capFrom(&attr.Cap)
	// siw returns the requested sizes; a query returns the real ones, rounded up.
	if a, _, err := q.c.Query(uint32(provider.QPAttrCap)); err == nil && a.Cap.MaxSendWR > 0 {
		q.init.Cap = capFrom(&a.Cap)
	}
	if q.init.SRQ != nil {
		q.init.Cap.MaxRecvWR, q.init.Cap.MaxRecvSGE = 0, 0
	}
	if err := q.makeBatches(); err != nil {
		_ = q.destroy()
		return err
	}
	return nil
}

// postBatch is the number of work requests that one call into C posts.
const postBatch = 16

func (q *qp) makeBatches() error {
	k, maxSGE := &q.init.Cap, max(q.dev.attr.MaxSGE, 1)
	var err error
	q.sq, err = ibv.NewSendBatch(min(k.MaxSendWR, postBatch), max(k.MaxSendSGE, maxSGE), k.MaxInlineData)
	if err != nil || q.init.SRQ != nil {
		return err
	}
	q.rq, err = ibv.NewRecvBatch(min(k.MaxRecvWR, postBatch), max(k.MaxRecvSGE, maxSGE))
	return err
}

func initAttr(init *provider.QPInitAttr) (*ibv.QPInitAttr, error) {
	k := init.Cap
	for _, n := range []int{k.MaxSendWR, k.MaxRecvWR, k.MaxSendSGE, k.MaxRecvSGE, k.MaxInlineData} {
		if n < 0 || n > math.MaxInt32 {
			return nil, fmt.Errorf("a size in QPCap is %d, and must be at least 0: %w",
				n, syscall.EINVAL)
		}
	}
	return &ibv.QPInitAttr{
		Cap: ibv.QPCap{
			MaxSendWR:     uint32(k.MaxSendWR),
			MaxRecvWR:     uint32(k.MaxRecvWR),
			MaxSendSGE:    uint32(k.MaxSendSGE),
			MaxRecvSGE:    uint32(k.MaxRecvSGE),
			MaxInlineData: uint32(k.MaxInlineData),
		},
		Type:     uint32(init.Type),
		SQSigAll: init.SQSigAll,
	}, nil
}

func capFrom(k *ibv.QPCap) provider.QPCap {
	return provider.QPCap{
		MaxSendWR:     int(k.MaxSendWR),
		MaxRecvWR:     int(k.MaxRecvWR),
		MaxSendSGE:    int(k.MaxSendSGE),
		MaxRecvSGE:    int(k.MaxRecvSGE),
		MaxInlineData: int(k.MaxInlineData),
	}
}

func (q *qp) QPN() uint32 { return q.qpn }

func (q *qp) Cookie() any { return q.init.Cookie }

// Cause returns nil, because the kernel reports why a connection ended only in its log.
func (q *qp) Cause() error { return nil }

func (q *qp) err(op string, err error) error {
	return opError(op, fmt.Sprintf("qp %d", q.qpn), err)
}

func (q *qp) Modify(attr provider.QPAttr, mask provider.QPAttrMask) error {
	if attr.MaxRdAtomic < 0 || attr.MaxRdAtomic > math.MaxUint8 || attr.MaxDestRdAtomic < 0 || attr.MaxDestRdAtomic > math.MaxUint8 {
		return q.err("ibv_modify_qp", fmt.Errorf("%s: %w", outside(
			size{"MaxRdAtomic", attr.MaxRdAtomic, 0, math.MaxUint8},
			size{"MaxDestRdAtomic", attr.MaxDestRdAtomic, 0, math.MaxUint8}), syscall.EINVAL))
	}
	if err := q.enter(); err != nil {
		return q.err("ibv_modify_qp", err)
	}
	defer q.leave()
	err := q.c.Modify(&ibv.QPAttr{
		State:           uint32(attr.State),
		CurState:        uint32(attr.CurState),
		AccessFlags:     uint32(attr.Access &^ provider.AccessRemoteInvalidate),
		MaxRdAtomic:     uint8(attr.MaxRdAtomic),
		MaxDestRdAtomic: uint8(attr.MaxDestRdAtomic),

		EnSQDAsyncNotify: attr.EnSQDAsyncNotify,

		PathMTU:     mtuCode(attr.PathMTU),
		DestQPNum:   attr.DestQPN,
		RQPSN:       attr.RQPSN,
		SQPSN:       attr.SQPSN,
		PkeyIndex:   attr.PkeyIndex,
		PortNum:     attr.PortNum,
		Timeout:     attr.Timeout,
		RetryCnt:    attr.RetryCnt,
		RNRRetry:    attr.RNRRetry,
		MinRNRTimer: attr.MinRNRTimer,
	}, uint32(mask))
	if err == nil && mask&provider.QPAttrState != 0 {
		q.entered(attr.State)
	}
	return q.err("ibv_modify_qp", whyNotChanged(&attr, mask, err))
}

// entered records a state that the program has moved the QP to.
func (q *qp) entered(state provider.QPState) {
	switch {
	case state == provider.QPErr, state == provider.QPSQD && q.dev.siw:
		q.end()
		if q.dev.siw {
			q.settle()
			q.recoverAll()
		}
	case q.dev.siw: // siw does little else
	case state == provider.QPRTS:
		q.connected.Store(true)
	case state == provider.QPReset:
		q.connected.Store(false)
		q.ended.Store(false)
		q.settling.Lock()
		q.settled = false
		q.settling.Unlock()
	}
}

// errState holds the attributes that move a QP to the error state.
var errState = &ibv.QPAttr{State: uint32(provider.QPErr)}

func (q *qp) Query() (provider.QPAttr, provider.QPInitAttr, error) {
	if err := q.enter(); err != nil {
		return provider.QPAttr{}, provider.QPInitAttr{}, q.err("ibv_query_qp", err)
	}
	defer q.leave()
	const all = provider.QPAttrState | provider.QPAttrCurState | provider.QPAttrAccessFlags |
		provider.QPAttrMaxRdAtomic | provider.QPAttrMaxDestRdAtomic | provider.QPAttrCap |
		provider.QPAttrPkeyIndex | provider.QPAttrPort | provider.QPAttrPathMTU | provider.QPAttrTimeout | provider.QPAttrRetryCnt |
		provider.QPAttrRNRRetry | provider.QPAttrRQPSN | provider.QPAttrMinRNRTimer | provider.QPAttrSQPSN | provider.QPAttrDestQPN
	a, _, err := q.c.Query(uint32(all))
	if err != nil {
		return provider.QPAttr{}, provider.QPInitAttr{}, q.err("ibv_query_qp", err)
	}
	attr := provider.QPAttr{
		State:           provider.QPState(a.State),
		CurState:        provider.QPState(a.CurState),
		Access:          provider.Access(a.AccessFlags),
		Cap:             q.init.Cap,
		MaxRdAtomic:     int(a.MaxRdAtomic),
		MaxDestRdAtomic: int(a.MaxDestRdAtomic),
	}
	if q.dev.siw {
		// siw_query_qp returns the size of its inbound Read queue as max_rd_atomic, and the size of
		// the outbound one as max_dest_rd_atomic.
		attr.MaxRdAtomic, attr.MaxDestRdAtomic = attr.MaxDestRdAtomic, attr.MaxRdAtomic
		if !siwTellsState() {
			attr.State, attr.CurState = provider.QPUnknown, provider.QPUnknown
		}
	}
	if q.dev.transport == provider.TransportIB {
		attr.PathMTU = mtuOctets(a.PathMTU)
		attr.DestQPN, attr.RQPSN, attr.SQPSN = a.DestQPNum, a.RQPSN, a.SQPSN
		attr.PkeyIndex, attr.PortNum = a.PkeyIndex, a.PortNum
		attr.Timeout, attr.RetryCnt, attr.RNRRetry, attr.MinRNRTimer = a.Timeout, a.RetryCnt, a.RNRRetry, a.MinRNRTimer
	}
	return attr, q.init, nil
}

func (q *qp) Close() error {
	op := "ibv_destroy_qp"
	if q.id != nil {
		op = "rdma_destroy_qp"
	}
	return q.err(op, q.close(func() error {
		q.sqMu.Lock()
		defer q.sqMu.Unlock()
		q.rqMu.Lock()
		defer q.rqMu.Unlock()
		if err := q.destroy(); err != nil {
			return err
		}
		q.dev.forgetEvents(func(e provider.AsyncEvent) bool { return e.QP == provider.QP(q) })
		releaseAll(q.parent...)
		return nil
	}))
}

// destroy frees the C object.
func (q *qp) destroy() error {
	if q.id != nil {
		q.id.destroyQP()
	} else if err := q.c.Destroy(); err != nil {
		return err
	}
	q.empty = true
	qps.remove(q.token)
	if q.log != nil {
		q.init.SendCQ.(*cq).untrack(q)
		q.init.RecvCQ.(*cq).untrack(q)
	}
	if q.sq != nil {
		q.sq.Free()
	}
	if q.rq != nil {
		q.rq.Free()
	}
	return nil
}

// usable returns os.ErrClosed once the QP is destroyed. The caller has the lock
// of a queue.
func (q *qp) usable() error {
	if q.empty {
		return os.ErrClosed
	}
	return nil
}
