package ibverbs

import (
	"fmt"
	"sync/atomic"
	"syscall"

	"github.com/govs-rdma/govs/ibverbs/internal/object"
	"github.com/govs-rdma/govs/provider"
)

// QP is a queue pair (struct ibv_qp): a send queue and a receive queue. On iWARP it has one
// connection at a time, which package rdmacm makes. On the engine, Modify moves a QP whose
// connection has ended from ERR to RESET, and the QP can then have another connection. On siw a QP
// has only one connection in its life.
type QP struct {
	obj            object.Object
	pd             *PD
	p              provider.QP
	sendCQ, recvCQ *CQ
	srq            *SRQ
	cookie         any
	sent           atomic.Bool // something was posted to the send queue
}

// QPInitAttr says how to make a QP (struct ibv_qp_init_attr).
type QPInitAttr struct {
	SendCQ   *CQ        // required
	RecvCQ   *CQ        // required; may be SendCQ
	SRQ      *SRQ       // where receives are posted; nil for a queue of the QP's own
	Recvs    RecvSource // supplies receives instead of PostRecv, on the engine; not with an SRQ
	Cap      QPCap      // minimum sizes; with an SRQ receive sizes are ignored
	Type     QPType     // the zero value means QPTypeRC
	SQSigAll bool       // every send WR is signalled
	Cookie   any        // for QP.Cookie
}

// CreateQP makes a QP (ibv_create_qp). It is not connected: name it in rdmacm.ConnParam to connect
// it. Most programs let rdmacm make the QP.
func (pd *PD) CreateQP(init *QPInitAttr) (*QP, error) {
	return createQP("ibv_create_qp", pd, init, nil, provider.PD.CreateQP)
}

// createQP makes a QP by calling create. owner is the CM id that the QP belongs to, or nil.
func createQP(op string, pd *PD, init *QPInitAttr, owner *object.Object,
	create func(provider.PD, provider.QPInitAttr) (provider.QP, error),
) (*QP, error) {
	if err := pd.ok(op); err != nil {
		return nil, err
	}
	if init == nil {
		return nil, pd.obj.Errorf(op, syscall.EINVAL, "nil QPInitAttr; pass one")
	}
	for _, side := range []struct {
		name string
		cq   *CQ
	}{{"send CQ", init.SendCQ}, {"receive CQ", init.RecvCQ}} {
		if side.cq == nil || side.cq.p == nil {
			return nil, pd.obj.Errorf(op, syscall.EINVAL, "nil %s; set QPInitAttr.SendCQ and RecvCQ", side.name)
		}
		if side.cq.ctx != pd.ctx {
			return nil, pd.obj.Errorf(op, syscall.EINVAL,
				"the %s belongs to another context; make one with the PD's context", side.name)
		}
	}
	if srq := init.SRQ; srq != nil {
		if srq.p == nil {
			return nil, errNil(op, "SRQ")
		}
		if srq.pd.ctx != pd.ctx {
			return nil, pd.obj.Errorf(op, syscall.EINVAL,
				"the SRQ belongs to another context; make one with a PD of the QP's context")
		}
	}
	qp := &QP{pd: pd, sendCQ: init.SendCQ, recvCQ: init.RecvCQ, srq: init.SRQ, cookie: init.Cookie}
	qp.obj.Describe(object.KindQP, pd.ctx.Name())
	parents := []*object.Object{&pd.obj, &init.SendCQ.obj, &init.RecvCQ.obj}
	pinit := provider.QPInitAttr{
		SendCQ: init.SendCQ.p, RecvCQ: init.RecvCQ.p,
		Recvs: init.Recvs, Cap: init.Cap, Type: init.Type, SQSigAll: init.SQSigAll, Cookie: qp,
	}
	if init.SRQ != nil {
		pinit.SRQ = init.SRQ.p
		parents = append(parents, &init.SRQ.obj)
	}
	if owner != nil {
		parents = append(parents, owner)
	}
	if err := qp.obj.Open(op, parents...); err != nil {
		return nil, err
	}
	var err error
	qp.p, err = create(pd.p, pinit)
	if err != nil {
		qp.obj.Abandon()
		return nil, object.Named(err, pd.obj.Name())
	}
	qp.obj.Number(qp.p.QPN())
	qp.obj.List(qp)
	return qp, nil
}

func (qp *QP) ok(op string) error {
	if qp == nil || qp.p == nil {
		return errNil(op, "qp")
	}
	return qp.obj.Check(op)
}

// PostSend posts work requests to the send queue, in order (ibv_post_send). If one is refused, the
// earlier ones are posted, and the later ones are not. The error is then a [*PostError] that says
// how many were posted. Usual reasons are ENOMEM, because the queue is full, and EINVAL: the QP is
// not connected, or does not support the opcode, a flag or the number of SGEs. After the connection
// has ended, posted work completes as flushed.
//
// When PostSend returns, the caller may reuse the WRs with their SGLists and Inline; the memory
// that the SGLists name is in use until the completion. PostSend does not allocate, but a variadic
// call does, so hot paths pass a slice that they keep: qp.PostSend(wrs...).
//
// PostSend on the engine normally transmits before it returns. It defers transmission if the
// program has taken completions from the QP's send CQ within the last 100 us, has not found that CQ
// empty twice since, and is expected to post more. As many posts are expected as work requests have
// completed, or as the program posted before. The last expected post then transmits everything.
// Each of these transmits everything sooner:
//
//   - a post that makes 256 KiB wait, or that is refused;
//   - a later poll that finds the QP's send CQ empty;
//   - arming the send or the receive CQ, before or after the post (ReqNotify, PollWait);
//   - Drain, Disconnect, Close, and anything else that ends the connection;
//   - time: the program's next post, or its next poll that takes completions, if the wait has taken
//     100 us by then; otherwise a timer after 0.5 to 0.75 ms. The timer is later if no P or CPU is
//     free, for example by 10 to 30 ms with one P and a goroutine that computes.
//
// When time has ended the deferral of a QP's posts twice within a second, the QP defers no posts
// for a second. A process that exits first loses its deferred posts. With
// engine.Options.TransmitAtOnce nothing is deferred.
func (qp *QP) PostSend(wrs ...SendWR) error {
	if qp == nil || qp.p == nil {
		return &PostError{Err: errNil("ibv_post_send", "qp")}
	}
	if !qp.sent.Load() {
		qp.sent.Store(true)
	}
	for i := range wrs {
		if wrs[i].Bind != nil && wrs[i].Opcode != WRBindMW {
			return qp.bindsNothing(wrs, i)
		}
	}
	n, err := qp.p.PostSend(wrs)
	if err != nil {
		return &PostError{Posted: n, Err: err}
	}
	return nil
}

// bindsNothing posts the work requests before number i and refuses number i, whose Bind would be
// ignored.
func (qp *QP) bindsNothing(wrs []SendWR, i int) error {
	n, err := qp.p.PostSend(wrs[:i])
	if err == nil {
		err = object.Errorf("ibv_post_send", fmt.Sprintf("%s, work request %d", qp.obj.Name(), i), syscall.EINVAL,
			"an %s has no Bind; remove it, or set Opcode to %s", wrs[i].Opcode, WRBindMW)
	}
	return &PostError{Posted: n, Err: err}
}

// PostRecv posts work requests to the receive queue (ibv_post_recv), with the rules of PostSend.
// The peer's Sends consume them in order, one each. A Send that finds none, or one that is too
// small, ends the connection, because iWARP has no flow control: the program must keep enough
// receives posted (RFC 5041 section 7.1). For a QP with an SRQ PostRecv returns EINVAL: see
// SRQ.PostRecv.
func (qp *QP) PostRecv(wrs ...RecvWR) error {
	if qp == nil || qp.p == nil {
		return &PostError{Err: errNil("ibv_post_recv", "qp")}
	}
	n, err := qp.p.PostRecv(wrs)
	if err != nil {
		return &PostError{Posted: n, Err: err}
	}
	return nil
}

// Modify sets the attributes that mask names (ibv_modify_qp). A program that connects through
// rdmacm needs it only to move a QP to QPErr, which ends the connection and flushes both queues.
func (qp *QP) Modify(attr QPAttr, mask QPAttrMask) error {
	if err := qp.ok("ibv_modify_qp"); err != nil {
		return err
	}
	return qp.p.Modify(attr, mask)
}

// Query returns the QP's attributes and its QPInitAttr, with the capacities that were granted
// (ibv_query_qp). Linux before 6.8 does not report the state of a siw QP: State is then QPUnknown.
// Stats returns what is in the queues, and whether the sends are held until the peer's first
// message.
func (qp *QP) Query() (QPAttr, QPInitAttr, error) {
	if err := qp.ok("ibv_query_qp"); err != nil {
		return QPAttr{}, QPInitAttr{}, err
	}
	attr, pinit, err := qp.p.Query()
	if err != nil {
		return QPAttr{}, QPInitAttr{}, err
	}
	return attr, QPInitAttr{
		SendCQ: qp.sendCQ, RecvCQ: qp.recvCQ, SRQ: qp.srq,
		Cap: pinit.Cap, Type: pinit.Type, SQSigAll: pinit.SQSigAll, Cookie: qp.cookie,
	}, nil
}

// Cause returns why the connection ended: a [*TerminateError] for a protocol failure,
// otherwise what the transport reported. After an orderly end that is [io.EOF] if the
// peer closed the connection, and [os.ErrClosed] if this side did; compare with
// [errors.Is]. Cause returns nil while the connection lasts, and always on the kernel
// provider, because the kernel reports the reason to its log only.
func (qp *QP) Cause() error {
	if qp == nil || qp.p == nil {
		return nil
	}
	return qp.nameWork(qp.p.Cause())
}

// QPN returns the QP's number, which WC.QPN repeats.
func (qp *QP) QPN() uint32 {
	if qp == nil || qp.p == nil {
		return 0
	}
	return qp.p.QPN()
}

// PD returns the PD of the QP.
func (qp *QP) PD() *PD {
	if qp == nil {
		return nil
	}
	return qp.pd
}

// SendCQ returns the CQ of the send queue.
func (qp *QP) SendCQ() *CQ {
	if qp == nil {
		return nil
	}
	return qp.sendCQ
}

// RecvCQ returns the CQ of the receive queue.
func (qp *QP) RecvCQ() *CQ {
	if qp == nil {
		return nil
	}
	return qp.recvCQ
}

// SRQ returns the SRQ that the QP takes receives from, or nil if it has its own receive queue.
func (qp *QP) SRQ() *SRQ {
	if qp == nil {
		return nil
	}
	return qp.srq
}

// Cookie returns QPInitAttr.Cookie (qp_context).
func (qp *QP) Cookie() any {
	if qp == nil {
		return nil
	}
	return qp.cookie
}

// Close destroys the QP (ibv_destroy_qp) and ends its connection if it has one. Work that is still
// posted gives no completions.
func (qp *QP) Close() error {
	if qp == nil || qp.p == nil {
		return nil
	}
	err := qp.obj.Close(qp.p.Close)
	if err == nil {
		qp.sendCQ.abandon(qp)
	}
	return err
}
