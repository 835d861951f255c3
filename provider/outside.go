package provider

// A program may keep a CQ's completions, and the receives of a QP or an SRQ, in memory of its own
// that it shares with others, as a bridge does that serves siw's queues to C programs. It gives the
// provider a CompletionSink or a RecvSource when it makes the object. The engine has them; the
// kernel provider returns an [*UnsupportedError].

// CompletionSink takes the completions of a CQ. The CQ then has no channel, keeps nothing, and its
// Poll returns none: it only moves the data of the QPs that complete there. A sink that is a
// [SinkUse], too, lets posts wait for others.
type CompletionSink interface {
	// Complete takes one completion, the next in order. It returns stored false if there is no
	// room: then the completion is lost, and EventCQErr is raised at the first one that is lost
	// after one was stored. due says that Notify is to be called for it. solicited is that of a
	// Send with the solicited event; a failure counts as solicited, too.
	//
	// Calls for a CQ come one at a time, with locks of its QPs held: Complete must neither wait,
	// nor allocate, nor call the provider. None comes after the CQ is closed. A panic ends the
	// program, which can't recover from it, because of those locks.
	Complete(wc *WC, solicited bool) (stored, due bool)

	// Notify reports that a completion has come for which the program waits. The rules of
	// Complete hold, but calls may come at the same time, also as one of Complete.
	Notify()
}

// SinkUse is implemented by a CompletionSink that sees what its program does with the completions.
// A post to a QP may then wait for those that the program is expected to make next, and be
// transmitted with them; all Sinks of the QP's CQs must have it. A Poll of the CQ says that the
// program has found it empty. Methods may be called at any time, also at the same time. The rules
// of Complete hold.
type SinkUse interface {
	// Taken returns a number that changes with each time that the program takes completions, be
	// it one or several, such as how often it has. It may wrap.
	Taken() uint32

	// Waits reports whether the program has asked to be notified.
	Waits() bool
}

// RecvSource has the receives of a QP or an SRQ, in place of those that are posted.
type RecvSource interface {
	// NextRecv takes the oldest receive: it copies its SGEs to sges, which has room for as many
	// as the object was made for, and returns its WRID and how many they are. ok is false if
	// there is none. It is called when a message begins to arrive, and when a QP of its own has
	// ended, until there is none.
	//
	// Calls for one source come one at a time, with locks held, as those of
	// CompletionSink.Complete.
	NextRecv(sges []SGE) (wrid uint64, n int, ok bool)
}
