package ibverbs

import (
	"syscall"

	"github.com/govs-rdma/govs/ibverbs/internal/object"
	"github.com/govs-rdma/govs/provider"
)

// SRQ is a shared receive queue (struct ibv_srq). A QP that is made with it has no receive queue of
// its own: it takes the oldest receive of the SRQ when a message begins to arrive. The receive
// completes on that QP's CQ, with the QP's number in WC.QPN. So a server with many connections
// needs buffers for the messages that come, instead of buffers for each connection.
//
// A message that finds the SRQ empty ends its connection, as with a QP's own queue (RFC 5041
// section 7.1), because iWARP cannot make a peer wait. Arm a limit with [SRQ.Modify] to get an
// event in time.
//
// When a QP ends, only the receive that it was filling is flushed. The other receives stay in the
// SRQ for the other QPs.
type SRQ struct {
	obj    object.Object
	pd     *PD
	p      provider.SRQ
	cookie any
}

// SRQInitAttr says how to make an SRQ (struct ibv_srq_init_attr).
type SRQInitAttr struct {
	Attr   SRQAttr    // MaxWR and MaxSGE are minimums; Limit is ignored, as in C
	Recvs  RecvSource // supplies the receives instead of PostRecv, on the engine
	Cookie any        // for SRQ.Cookie
}

// CreateSRQ makes a shared receive queue (ibv_create_srq). Its receives name regions of pd, even if
// a QP that takes them is of another PD. A MaxWR of 0 and sizes above the limits that Context.Query
// reports are EINVAL.
func (pd *PD) CreateSRQ(init *SRQInitAttr) (*SRQ, error) {
	const op = "ibv_create_srq"
	if err := pd.ok(op); err != nil {
		return nil, err
	}
	if init == nil {
		return nil, pd.obj.Errorf(op, syscall.EINVAL, "nil SRQInitAttr; pass one")
	}
	srq := &SRQ{pd: pd, cookie: init.Cookie}
	srq.obj.Describe(object.KindSRQ, pd.ctx.Name())
	if err := srq.obj.Open(op, &pd.obj); err != nil {
		return nil, err
	}
	p, err := pd.p.CreateSRQ(provider.SRQInitAttr{Attr: init.Attr, Recvs: init.Recvs, Cookie: srq})
	if err != nil {
		srq.obj.Abandon()
		return nil, object.Named(err, pd.obj.Name())
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

// PostRecv posts work requests to the shared receive queue (ibv_post_srq_recv), with the rules of
// QP.PostRecv. A full queue is ENOMEM; more SGEs than MaxSGE are EINVAL. A place is free again as
// soon as a QP takes the receive, before the receive completes.
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

// Modify sets the attributes that mask names; after an error none of them has changed
// (ibv_modify_srq).
//
// SRQAttrLimit arms the SRQ for one EventSRQLimitReached (Context.AsyncEvent). The event is raised
// when a QP takes a receive and fewer than attr.Limit are left. 0 disarms; a limit above MaxWR is
// EINVAL.
//
// SRQAttrMaxWR resizes the SRQ if DeviceAttr.DeviceCapFlags has DeviceSRQResize. siw does not have
// it, and returns an [*UnsupportedError]. A size below the number of posted receives is EINVAL.
func (srq *SRQ) Modify(attr SRQAttr, mask SRQAttrMask) error {
	if err := srq.ok("ibv_modify_srq"); err != nil {
		return err
	}
	return called(srq.p.Modify(attr, mask), &srq.obj, "srq")
}

// Query returns the granted sizes and the limit, 0 if the limit is not armed (ibv_query_srq).
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

// Close destroys the SRQ (ibv_destroy_srq). While a QP uses it, Close returns EBUSY and says so.
// Receives that are still posted give no completions.
func (srq *SRQ) Close() error {
	if srq == nil || srq.p == nil {
		return nil
	}
	return srq.obj.Close(srq.p.Close)
}
