package provider

import "context"

// CQInitAttr holds the arguments of CreateCQ (ibv_create_cq).
type CQInitAttr struct {
	CQE        int         // minimum capacity in completions; more may be granted
	Channel    CompChannel // nil for none
	CompVector int

	// Sink receives the completions; nil makes the CQ store them. It excludes a Channel.
	Sink CompletionSink

	Cookie any // cq_context, for whoever gets the CQ from CompChannel.Next or AsyncEvent
}

// CQ is a completion queue (struct ibv_cq).
type CQ interface {
	// Poll fills wc with completions, oldest first, and returns their number (ibv_poll_cq). It
	// never waits and does not allocate. On the engine it also transmits and receives for the QPs
	// that complete here.
	Poll(wc []WC) (int, error)

	// ReqNotify arms the channel for the next completion, or for the next solicited one
	// (ibv_req_notify_cq). Each call delivers one event. Completions that are already in the CQ
	// deliver none, so poll once more after arming.
	ReqNotify(solicitedOnly bool) error

	// Resize changes the capacity to at least cqe completions (ibv_resize_cq); CQE returns what was
	// granted. It returns EINVAL if cqe is less than 1, more than DeviceAttr.MaxCQE, or less than
	// the number of completions in the CQ. A failure changes nothing. No completion is lost.
	Resize(cqe int) error

	CQE() int // capacity granted
	Cookie() any
	Close() error // ibv_destroy_cq
}

// BusyWaiter is a CQ of a provider that may poll for a short time instead of sleeping at once. A
// caller that is about to arm the CQ and sleep on its channel calls BusyWait first.
type BusyWaiter interface {
	// BusyWait polls for a short time if the last waits were short, and stops early when ctx ends.
	// It reports whether the caller should call Poll again now. If not, the caller arms the CQ and
	// sleeps.
	BusyWait(ctx context.Context) bool
}

// CompChannel is a completion channel (struct ibv_comp_channel).
type CompChannel interface {
	// Next waits until an armed CQ has a completion and returns that CQ (ibv_get_cq_event,
	// acknowledged).
	Next(ctx context.Context) (CQ, error)
	Close() error // ibv_destroy_comp_channel
}
