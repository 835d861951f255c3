package provider

// SRQInitAttr holds the arguments of CreateSRQ (struct ibv_srq_init_attr).
type SRQInitAttr struct {
	Attr   SRQAttr    // MaxWR and MaxSGE are minimums; Limit is ignored, as in C
	Recvs  RecvSource // supplies the receives; nil for a queue that PostRecv fills
	Cookie any        // srq_context, which AsyncEvent returns through SRQ.Cookie
}

// SRQAttr holds an SRQ's sizes and its limit (struct ibv_srq_attr).
type SRQAttr struct {
	MaxWR  int // receives posted at the same time
	MaxSGE int // scatter/gather entries per receive; fixed when the SRQ is made
	Limit  int // EventSRQLimitReached is raised when fewer receives are left; 0 means not armed
}

// SRQAttrMask selects the fields of an SRQAttr that SRQ.Modify applies (enum ibv_srq_attr_mask).
type SRQAttrMask uint32

// What SRQ.Modify can change.
const (
	SRQAttrMaxWR SRQAttrMask = 1 << 0 // IBV_SRQ_MAX_WR: resize
	SRQAttrLimit SRQAttrMask = 1 << 1 // IBV_SRQ_LIMIT: arm, or disarm with 0
)

// SRQ is a shared receive queue (struct ibv_srq). The QPs that were made with it take a receive
// from it whenever a message begins to arrive. A receive completes on the CQ of the QP that took
// it. When a QP ends, the receive that it was filling is flushed. Receives that no QP has taken
// stay posted, and closing the SRQ drops them without a completion.
type SRQ interface {
	// PostRecv posts receives (ibv_post_srq_recv), with the rules of QP.PostSend. Their SGEs must
	// name regions of the SRQ's PD.
	PostRecv(wrs []RecvWR) (n int, err error)

	// Modify sets the attributes that mask names, all or none of them (ibv_modify_srq). A limit
	// arms one event. When a QP takes a receive and fewer than Limit are left, EventSRQLimitReached
	// is raised and the limit becomes 0.
	Modify(attr SRQAttr, mask SRQAttrMask) error

	Query() (SRQAttr, error) // ibv_query_srq; the sizes granted

	Cookie() any
	Close() error // ibv_destroy_srq; EBUSY while a QP has it
}
