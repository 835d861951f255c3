package provider

import "context"

// CQInitAttr says how to make a CQ (the arguments of ibv_create_cq).
type CQInitAttr struct {
	CQE        int         // completions to hold, at least; more may be granted
	Channel    CompChannel // nil for none
	CompVector int

	// Sink takes the completions; nil for a CQ that keeps them. Not with a Channel.
	Sink CompletionSink

	Cookie any // cq_context: CompChannel.Next and AsyncEvent hand it back
}

// CQ is a completion queue (struct ibv_cq).
type CQ interface {
	// Poll fills wc with completions, oldest first, and returns how many
	// (ibv_poll_cq). It never waits and does not allocate. On the engine it
	// also moves the data of the QPs that complete here.
	Poll(wc []WC) (int, error)

	// ReqNotify arms the channel for the next completion, or the next
	// solicited one (ibv_req_notify_cq). One event is delivered per call.
	// Completions that are in the CQ already give none: poll once more
	// afterwards.
	ReqNotify(solicitedOnly bool) error

	// Resize changes the capacity to cqe completions, at least
	// (ibv_resize_cq); CQE returns what was granted. EINVAL if it is less than 1,
	// more than DeviceAttr.MaxCQE, or less than the completions in the CQ; with
	// a failure nothing changes. No completion is lost.
	Resize(cqe int) error

	CQE() int // capacity granted
	Cookie() any
	Close() error // ibv_destroy_cq
}

// Looker is a CQ of a provider that may poll for a short time instead of sleeping at once. A caller
// that is about to arm the CQ and to sleep on its channel calls Look before.
type Looker interface {
	// Look polls for a short time if the last waits were short, until ctx ends at most, and reports
	// whether it is worth calling Poll again now. Else the caller arms the CQ and sleeps.
	Look(ctx context.Context) bool
}

// CompChannel is a completion channel (struct ibv_comp_channel).
type CompChannel interface {
	// Next waits for a CQ that was armed to have a completion and returns it
	// (ibv_get_cq_event, acknowledged).
	Next(ctx context.Context) (CQ, error)
	Close() error // ibv_destroy_comp_channel
}
