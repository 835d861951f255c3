package provider

// A program may keep a CQ's completions, and the receives of a QP or an SRQ, in its own memory,
// which it may share with others. A bridge that serves siw's queues to C programs does this. The
// program passes a CompletionSink or a RecvSource when it makes the object. The engine supports
// them; the kernel provider returns an [*UnsupportedError].

// CompletionSink receives the completions of a CQ. The CQ then has no channel and stores nothing.
// Its Poll returns no completions: it only transmits and receives for the QPs that complete there.
// If the sink also implements [SinkUse], the provider may defer posts.
type CompletionSink interface {
	// Complete receives one completion, the next in order. It returns stored false if there is no
	// room: then the completion is lost, and EventCQErr is raised at the first loss after a stored
	// completion. due asks the caller to call Notify for this completion. solicited is true for a
	// Send with the solicited event, and for a failure.
	//
	// Calls for a CQ come one at a time, while locks of its QPs are held, so Complete must neither
	// wait, nor allocate, nor call the provider. No call comes after the CQ is closed. A panic ends
	// the program, which cannot recover because of those locks.
	Complete(wc *WC, solicited bool) (stored, due bool)

	// Notify reports a completion that the program waits for. The rules of Complete apply, but
	// calls may be concurrent, also with Complete.
	Notify()
}

// SinkUse is a CompletionSink that knows what its program does with the completions. With it a post
// to a QP may be deferred and transmitted together with the posts that the program is expected to
// make next. The sinks of all CQs of the QP must implement it. A Poll of the CQ means that the
// program has found it empty. Methods may be called at any time and concurrently. The rules of
// Complete apply.
type SinkUse interface {
	// Taken returns a number that changes each time the program takes one or more completions, for
	// example a count of those times. It may wrap.
	Taken() uint32

	// Waits reports whether the program has asked to be notified.
	Waits() bool
}

// RecvSource supplies the receives of a QP or an SRQ, instead of posted ones.
type RecvSource interface {
	// NextRecv takes the oldest receive. It copies its SGEs to sges, which has room for as many as
	// the object was made for, and returns its WRID and the number of SGEs. ok is false if there is
	// no receive. The provider calls it when a message begins to arrive. When a QP with its own
	// source has ended, the provider calls it until no receive is left.
	//
	// Calls for one source come one at a time and with locks held, as with CompletionSink.Complete.
	NextRecv(sges []SGE) (wrid uint64, n int, ok bool)
}
