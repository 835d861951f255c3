package provider

// QPInitAttr holds the arguments of CreateQP (struct ibv_qp_init_attr).
type QPInitAttr struct {
	SendCQ   CQ
	RecvCQ   CQ
	SRQ      SRQ        // nil for none; with one, Cap's MaxRecvWR and MaxRecvSGE are ignored
	Recvs    RecvSource // supplies the receives; nil for a queue that PostRecv fills. Not with an SRQ
	Cap      QPCap
	Type     QPType // the zero value means QPTypeRC
	SQSigAll bool   // every send WR is signalled
	Cookie   any    // qp_context, which AsyncEvent returns
}

// QPCap holds a QP's sizes (struct ibv_qp_cap). A provider may grant more than
// was asked for; QP.Query returns what was granted.
type QPCap struct {
	MaxSendWR     int
	MaxRecvWR     int
	MaxSendSGE    int
	MaxRecvSGE    int
	MaxInlineData int // bytes
}

// QP is a queue pair (struct ibv_qp).
type QP interface {
	QPN() uint32

	// PostSend posts wrs in order (ibv_post_send) and returns the number accepted. With an error,
	// wrs[n] is the refused one; those before it are posted and will complete. When PostSend
	// returns, the caller owns the WRs, their SGLists and Inline again, but must leave the
	// registered memory alone until the completion. PostSend does not allocate.
	//
	// After a program has taken completions, the engine may defer what it posts and transmit it
	// together with its next posts. QP.PostSend in package ibverbs describes when.
	//
	// ENOMEM means that the queue is full. When a completion is reported, the places of its work
	// request and of all earlier ones are free. The engine, siw and rxe also free the places of
	// unsignalled work without a completion. On other devices, the error is ErrNoneSignaled if
	// unsignalled work fills the queue.
	PostSend(wrs []SendWR) (n int, err error)

	// PostRecv posts receives (ibv_post_recv), with the rules of PostSend. It returns EINVAL for a
	// QP with an SRQ.
	PostRecv(wrs []RecvWR) (n int, err error)

	// BindMW posts a bind of a window of type 1 to the send queue (ibv_bind_mw), with the rules of
	// PostSend: later work in the queue finds the window bound. MW.RKey returns the new key from
	// then on, and the key is valid once the bind is done. A Length of zero unbinds, and LKey is
	// then ignored. flags may be SendSignaled and SendFence. BindMW returns EINVAL for a window of
	// type 2, and for an Addr or Length without LKey; EPERM for a window or region of another PD. A
	// bind that fails later completes with WCMWBindErr; the window then keeps its old binding and
	// key.
	BindMW(mw MW, wrid uint64, flags SendFlags, info MWBindInfo) error

	Modify(attr QPAttr, mask QPAttrMask) error // ibv_modify_qp
	Query() (QPAttr, QPInitAttr, error)        // ibv_query_qp

	// Cause returns why the QP left RTS: a [*TerminateError] for a protocol failure, otherwise a
	// transport error. After an orderly end it wraps io.EOF (the peer closed) or os.ErrClosed (this
	// side closed). It is nil before the end, and always nil on the kernel provider, because siw
	// reports the reason only in the kernel's log.
	Cause() error

	Cookie() any
	Close() error // ibv_destroy_qp
}

// EndHolder is a QP of a device that limits the duration of a connection's graceful end
// (rdma_disconnect). When the limit is reached, data that the peer has not taken is lost. HoldEnd
// tells the device that a caller waits for that end: until release is called, the limit of sending
// applies if it is longer.
type EndHolder interface {
	HoldEnd() (release func())
}

// ReadCounter is a QP of a device on which a work request that waits for RDMA Reads keeps the
// peer's Reads from being answered. Two ends that both wait then wait forever
// (kernel-notes/siw-reads-both-ways.md). QP.Drain of package ibverbs uses it to wait for the Reads
// before it posts.
type ReadCounter interface {
	// ReadsUnderWay returns the number of signalled Reads that have not completed. It returns 0 if
	// nothing will complete any more.
	ReadsUnderWay() int
}

// QPAttr is what Modify sets and Query returns (struct ibv_qp_attr without addresses and alternate
// paths).
type QPAttr struct {
	State           QPState
	CurState        QPState
	Access          Access
	Cap             QPCap
	MaxRdAtomic     int // ORD: RDMA Reads outstanding as the initiator
	MaxDestRdAtomic int // IRD: RDMA Reads served at the same time as the responder

	// EnSQDAsyncNotify, with State QPSQD, requests EventSQDrained when all work in the send queue
	// is done. Query does not return it.
	EnSQDAsyncNotify bool

	// The fields below are for InfiniBand and RoCE, where the connection manager sets them all. On
	// iWARP, Query returns zeros, and the engine's Modify returns EINVAL.
	PathMTU     int // bytes: 256 to 4096
	DestQPN     uint32
	RQPSN       uint32 // sequence numbers of packets, 24 bits
	SQPSN       uint32
	PkeyIndex   uint16
	PortNum     uint8
	Timeout     uint8 // before a packet is retransmitted: 4.096 us * 2^Timeout; 0 means never
	RetryCnt    uint8 // how often a packet is retransmitted
	RNRRetry    uint8 // how often a message that found no receive is retransmitted; 7 means forever
	MinRNRTimer uint8 // how long the peer waits before that; the codes of ibv_modify_qp(3)
}

// QPAttrMask selects the fields of a QPAttr (enum ibv_qp_attr_mask).
type QPAttrMask uint32

// Attributes that have a meaning on iWARP.
const (
	QPAttrState           QPAttrMask = 1 << 0
	QPAttrCurState        QPAttrMask = 1 << 1
	QPAttrEnSQDNotify     QPAttrMask = 1 << 2 // IBV_QP_EN_SQD_ASYNC_NOTIFY
	QPAttrAccessFlags     QPAttrMask = 1 << 3
	QPAttrMaxRdAtomic     QPAttrMask = 1 << 13 // IBV_QP_MAX_QP_RD_ATOMIC
	QPAttrMaxDestRdAtomic QPAttrMask = 1 << 17
	QPAttrCap             QPAttrMask = 1 << 19
)

// Attributes for InfiniBand and RoCE.
const (
	QPAttrPkeyIndex   QPAttrMask = 1 << 4
	QPAttrPort        QPAttrMask = 1 << 5
	QPAttrPathMTU     QPAttrMask = 1 << 8
	QPAttrTimeout     QPAttrMask = 1 << 9
	QPAttrRetryCnt    QPAttrMask = 1 << 10
	QPAttrRNRRetry    QPAttrMask = 1 << 11
	QPAttrRQPSN       QPAttrMask = 1 << 12
	QPAttrMinRNRTimer QPAttrMask = 1 << 15
	QPAttrSQPSN       QPAttrMask = 1 << 16
	QPAttrDestQPN     QPAttrMask = 1 << 20
)
