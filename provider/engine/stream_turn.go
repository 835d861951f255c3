package engine

import "github.com/govs-rdma/govs/provider/engine/internal/policy"

// A turn is what one stream moves, in one direction, before other streams have their turns. The
// rest waits until the next Poll: in the socket, or in the send queue and among the peer's Reads.
// Nothing else has to be remembered. Unread bytes keep the socket readable, and a stream that has
// more to send makes the poller watch for room, which the socket already has (see putOff).
//
// Package turns decides how long the turns of a Poll are. A turn is counted in bytes. Each byte
// takes 0.1 ns in the engine and 0.35 ns together with the kernel's work over loopback, for the
// sender and for the receiver. Other work counts as the bytes that take as long. An FPDU takes 50
// to 80 ns in addition to its bytes. A record that TCP must not merge with others takes 600 to 850
// ns in the engine (BenchmarkReceived, BenchmarkSent) and 2,300 ns with the kernel's part. Package
// policy has all these costs.

// sendTurn returns how much to send now, where other streams leave turn for it. A program that
// polls for one stream, and has posted more for it than the last turn, gets more once in each of
// its Polls. txMu is held.
func (s *stream) sendTurn(turn int) int {
	if !s.sole.Load() {
		return turn
	}
	s.sole.Store(false)
	return policy.TurnOfPost(turn, s.inbound.Front() != nil)
}

// putOff ends a turn of the transmit side if it has more to send, and makes the poller begin the
// next turn. The poller does so at its next Poll, because the socket has taken everything so far.
// putOff reports false if nothing is left. The batch is empty, so other streams may use it until
// then.
//
// Until then, posts leave the sending to the poller, as with a full socket. The progress goroutine
// does not park while a watched socket has room, and a goroutine that spins asks the poller when
// one of its streams waits for room.
func (s *stream) putOff() bool {
	t := &s.tx
	if t.fault != nil || !s.unsent() {
		return false
	}
	s.putBatch()
	s.wantWrite(true)
	s.watch() // TCP may have room and not report it before the peer takes more
	return true
}

// unsent reports whether there are messages that are not completely built.
func (s *stream) unsent() bool {
	t := &s.tx
	return t.task != taskNone || t.rtr != 0 || t.next != s.q.sq.tail.Load() || s.inbound.Front() != nil
}

// putBatch gives back the batch, all of which is sent. txMu is held.
func (s *stream) putBatch() {
	if b := s.tx.b; b != nil && !b.Empty() {
		panic("engine: a batch is given back with bytes that are not sent")
	}
	s.dropBatch()
}

// dropBatch gives back the batch without sending what is left in it, because that has been copied
// (Hold, Remainder), or because the connection is broken. txMu is held.
func (s *stream) dropBatch() {
	t := &s.tx
	if t.b != nil {
		t.b.Reset()
		s.dev.prog.batches.Put(t.b)
		t.b = nil
	}
}
