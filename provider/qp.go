package provider

// QPInitAttr says how to make a QP (struct ibv_qp_init_attr).
type QPInitAttr struct {
	SendCQ   CQ
	RecvCQ   CQ
	Cap      QPCap
	Type     QPType // the zero value means QPTypeRC
	SQSigAll bool   // every send WR is signalled
	Cookie   any    // qp_context: AsyncEvent hands it back
}

// QPCap holds a QP's sizes (struct ibv_qp_cap). A provider may grant more than
// was asked for; QP.Query tells.
type QPCap struct {
	MaxSendWR     int
	MaxRecvWR     int
	MaxSendSGE    int
	MaxRecvSGE    int
	MaxInlineData int // octets
}

// QP is a queue pair (struct ibv_qp).
type QP interface {
	QPN() uint32

	// PostSend posts wrs in order (ibv_post_send) and says how many were
	// accepted. With an error, wrs[n] is the one that was refused; those
	// before it are posted and will complete. The WRs, their SGLists and
	// Inline are the caller's again when it returns; the registered memory
	// is not until the completion. It does not allocate.
	PostSend(wrs []SendWR) (n int, err error)

	// PostRecv posts receives (ibv_post_recv), with the rules of PostSend.
	PostRecv(wrs []RecvWR) (n int, err error)

	Modify(attr QPAttr, mask QPAttrMask) error // ibv_modify_qp
	Query() (QPAttr, QPInitAttr, error)        // ibv_query_qp

	// Cause says why the QP left RTS, nil if it has not or nobody knows: a
	// [*TerminateError] for a protocol failure, otherwise a transport error.
	// The kernel provider knows nothing here: siw only logs it.
	Cause() error

	Cookie() any
	Close() error // ibv_destroy_qp
}

// QPAttr is what Modify sets and Query tells (struct ibv_qp_attr, as far as
// iWARP uses it).
type QPAttr struct {
	State           QPState
	CurState        QPState
	Access          Access
	Cap             QPCap
	MaxRdAtomic     int // ORD: RDMA Reads outstanding as initiator
	MaxDestRdAtomic int // IRD: RDMA Reads served at a time as responder
}

// QPAttrMask says which fields of a QPAttr count (enum ibv_qp_attr_mask).
type QPAttrMask uint32

// The attributes that mean something on iWARP.
const (
	QPAttrState           QPAttrMask = 1 << 0
	QPAttrCurState        QPAttrMask = 1 << 1
	QPAttrAccessFlags     QPAttrMask = 1 << 3
	QPAttrMaxRdAtomic     QPAttrMask = 1 << 13 // IBV_QP_MAX_QP_RD_ATOMIC
	QPAttrMaxDestRdAtomic QPAttrMask = 1 << 17
	QPAttrCap             QPAttrMask = 1 << 19
)
