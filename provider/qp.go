package provider

// QPInitAttr says how to make a QP (struct ibv_qp_init_attr).
type QPInitAttr struct {
	SendCQ   CQ
	RecvCQ   CQ
	SRQ      SRQ        // nil for none; with one, Cap's MaxRecvWR and MaxRecvSGE are ignored
	Recvs    RecvSource // has the receives; nil for a queue that PostRecv fills. Not with an SRQ
	Cap      QPCap
	Type     QPType // the zero value means QPTypeRC
	SQSigAll bool   // every send WR is signalled
	Cookie   any    // qp_context: AsyncEvent hands it back
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

	// PostSend posts wrs in order (ibv_post_send) and says how many were
	// accepted. With an error, wrs[n] is the one that was refused; those
	// before it are posted and will complete. The WRs, their SGLists and
	// Inline are the caller's again when it returns; the registered memory
	// is not until the completion. It does not allocate.
	//
	// After a program has taken completions, the engine may transmit what it posts together with
	// what it is expected to post next. QP.PostSend in package ibverbs says when.
	//
	// ENOMEM says that the queue is full. When a completion is reported, the places of its
	// work request and of all before it are free. The engine, siw and rxe also free the
	// places of unsignalled work without that. On a device that doesn't, the error is
	// ErrNoneSignaled if the queue is full of unsignalled work.
	PostSend(wrs []SendWR) (n int, err error)

	// PostRecv posts receives (ibv_post_recv), with the rules of PostSend.
	// EINVAL for a QP with an SRQ.
	PostRecv(wrs []RecvWR) (n int, err error)

	// BindMW posts a bind of a window of type 1 to the send queue (ibv_bind_mw), with
	// the rules of PostSend: what follows in the queue finds the window bound. MW.RKey
	// is the new key from then on, and it names the window once the bind is done. A
	// Length of zero unbinds, and LKey says nothing then. flags are SendSignaled and
	// SendFence. EINVAL for a window of type 2, and for an Addr or Length without LKey;
	// EPERM for a window or region of another PD. A bind that fails when its turn comes
	// completes with WCMWBindErr, and the window is as it was: with the key it had before.
	BindMW(mw MW, wrid uint64, flags SendFlags, info MWBindInfo) error

	Modify(attr QPAttr, mask QPAttrMask) error // ibv_modify_qp
	Query() (QPAttr, QPInitAttr, error)        // ibv_query_qp

	// Cause returns why the QP left RTS: a [*TerminateError] for a protocol failure,
	// otherwise a transport error. After an orderly end that error wraps io.EOF (the peer
	// closed) or os.ErrClosed (this side did). It is nil before the end, and always nil on
	// the kernel provider: siw reports the reason to the kernel's log only.
	Cause() error

	Cookie() any
	Close() error // ibv_destroy_qp
}

// EndHolder is a QP of a device that limits how long the graceful end of a connection
// (rdma_disconnect) may take, after which what the peer has not taken is lost. HoldEnd says that
// somebody waits for that end, so that the limit is the one of sending, if that is longer, until
// release is called.
type EndHolder interface {
	HoldEnd() (release func())
}

// ReadCounter is a QP of a device on which a work request that waits for RDMA Reads keeps those of
// the peer from being answered, so that two ends that both wait do so for ever
// (kernel-notes/siw-reads-both-ways.md). QP.Drain of package ibverbs waits with it before it posts.
type ReadCounter interface {
	// ReadsUnderWay returns how many signalled Reads have not completed. It is 0 if nothing
	// completes any more.
	ReadsUnderWay() int
}

// QPAttr is what Modify sets and Query returns (struct ibv_qp_attr, but for addresses
// and alternate paths).
type QPAttr struct {
	State           QPState
	CurState        QPState
	Access          Access
	Cap             QPCap
	MaxRdAtomic     int // ORD: RDMA Reads outstanding as initiator
	MaxDestRdAtomic int // IRD: RDMA Reads served at a time as responder

	// EnSQDAsyncNotify, with State QPSQD, asks for EventSQDrained when all that was
	// in the send queue is done. Query does not return it.
	EnSQDAsyncNotify bool

	// What follows is of InfiniBand and RoCE, where the connection manager sets all
	// of it. On iWARP Query gives zeros, and the engine's Modify EINVAL.
	PathMTU     int // bytes: 256 to 4096
	DestQPN     uint32
	RQPSN       uint32 // sequence numbers of packets, 24 bits
	SQPSN       uint32
	PkeyIndex   uint16
	PortNum     uint8
	Timeout     uint8 // until a packet is sent again: 4.096 us * 2^Timeout; 0 for never
	RetryCnt    uint8 // how often that happens
	RNRRetry    uint8 // how often a message is sent again that found no receive; 7 without end
	MinRNRTimer uint8 // how long a peer waits before it does so; the codes of ibv_modify_qp(3)
}

// QPAttrMask says which fields of a QPAttr count (enum ibv_qp_attr_mask).
type QPAttrMask uint32

// The attributes that mean something on iWARP.
const (
	QPAttrState           QPAttrMask = 1 << 0
	QPAttrCurState        QPAttrMask = 1 << 1
	QPAttrEnSQDNotify     QPAttrMask = 1 << 2 // IBV_QP_EN_SQD_ASYNC_NOTIFY
	QPAttrAccessFlags     QPAttrMask = 1 << 3
	QPAttrMaxRdAtomic     QPAttrMask = 1 << 13 // IBV_QP_MAX_QP_RD_ATOMIC
	QPAttrMaxDestRdAtomic QPAttrMask = 1 << 17
	QPAttrCap             QPAttrMask = 1 << 19
)

// The attributes of InfiniBand and RoCE.
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
