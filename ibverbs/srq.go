package ibverbs

import (
	"github.com/govs-rdma/govs/ibverbs/internal/object"
	"github.com/govs-rdma/govs/provider"
)

// SRQ is a shared receive queue (struct ibv_srq). QPs that are made with it have no
// receive queue of their own: each takes the oldest receive of the SRQ when a message
// begins to arrive. The receive completes on the CQ of the QP that took it, whose
// number is in WC.QPN. So a server with many connections has buffers for the messages
// that come, and not for each connection.
//
// A message that finds the SRQ empty ends its connection, as with a queue of the
// QP's own (RFC 5041 section 7.1): iWARP has nothing to make a peer wait with. Arm a
// limit with [SRQ.Modify] for an event in time.
//
// When a QP ends, only the receive that it was just filling is flushed with it. What
// else is in the SRQ stays there for the other QPs.
type SRQ struct {
	obj    object.Object
	pd     *PD
	p      provider.SRQ
	cookie any
}

// SRQInitAttr says how to make an SRQ (struct ibv_srq_init_attr).
type SRQInitAttr struct {
	Attr   SRQAttr    // MaxWR and MaxSGE, at least; Limit is irrelevant, as in C
	Recvs  RecvSource // has the receives in place of PostRecv, on the engine
	Cookie any        // for SRQ.Cookie
}

// CreateSRQ makes a shared receive queue (ibv_create_srq). Its receives name regions
// of pd, also if a QP that takes them is of another PD. Sizes beyond those that
// Context.Query reports, or no receives at all, are EINVAL.
func (pd *PD) CreateSRQ(init *SRQInitAttr) (*SRQ, error) {
	const op = "ibv_create_srq"
	if err := pd.ok(op); err != nil {
		return nil, err
	}
	if init == nil {
		return nil, errNil(op, "SRQInitAttr")
	}
	srq := &SRQ{pd: pd, cookie: init.Cookie}
	srq.obj.Describe(object.KindSRQ, pd.ctx.Name())
	if err := srq.obj.Open(op, &pd.obj); err != nil {
		return nil, err
	}
	p, err := pd.p.CreateSRQ(provider.SRQInitAttr{Attr: init.Attr, Recvs: init.Recvs, Cookie: srq})
	if err != nil {
		srq.obj.Abandon()
		return nil, err
	}
	srq.p = p
	srq.obj.List(srq)
	return srq, nil
}

func (srq *SRQ) ok(op string) error {
	if srq == nil || srq.p == nil {
		return errNil(op, "srq")
	}
	return srq.obj.Check(op)
}

// PostRecv posts work requests to the shared receive queue (ibv_post_srq_recv), with
// the rules of QP.PostRecv: ENOMEM when it is full, EINVAL for more SGEs than it was
// made for. A place is free again when a QP takes the receive, not only when that
// completes.
func (srq *SRQ) PostRecv(wrs ...RecvWR) error {
	if srq == nil || srq.p == nil {
		return &PostError{Err: errNil("ibv_post_srq_recv", "srq")}
	}
	n, err := srq.p.PostRecv(wrs)
	if err != nil {
		return &PostError{Posted: n, Err: called(err, &srq.obj, "srq")}
	}
	return nil
}

// Modify sets the attributes that mask names, or none of them (ibv_modify_srq).
//
// SRQAttrLimit arms the SRQ for one EventSRQLimitReached (Context.AsyncEvent): it is
// raised when a QP takes a receive and fewer than attr.Limit are left. 0 disarms; more
// than the SRQ holds is EINVAL.
//
// SRQAttrMaxWR resizes, where DeviceAttr.DeviceCapFlags has DeviceSRQResize (siw has
// not, which is an [*UnsupportedError]). Fewer than are posted is EINVAL.
func (srq *SRQ) Modify(attr SRQAttr, mask SRQAttrMask) error {
	if err := srq.ok("ibv_modify_srq"); err != nil {
		return err
	}
	return called(srq.p.Modify(attr, mask), &srq.obj, "srq")
}

// Query returns the sizes granted, and the limit if it is armed, otherwise 0
// (ibv_query_srq).
func (srq *SRQ) Query() (SRQAttr, error) {
	if err := srq.ok("ibv_query_srq"); err != nil {
		return SRQAttr{}, err
	}
	attr, err := srq.p.Query()
	return attr, called(err, &srq.obj, "srq")
}

// PD returns the PD of the SRQ.
func (srq *SRQ) PD() *PD {
	if srq == nil {
		return nil
	}
	return srq.pd
}

// Cookie returns SRQInitAttr.Cookie (srq_context).
func (srq *SRQ) Cookie() any {
	if srq == nil {
		return nil
	}
	return srq.cookie
}

// Close destroys the SRQ (ibv_destroy_srq). While a QP has it, it is EBUSY and says
// so. Receives that are still posted give no completions.
func (srq *SRQ) Close() error {
	if srq == nil || srq.p == nil {
		return nil
	}
	return srq.obj.Close(srq.p.Close)
}
