package engine

import (
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
)

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
// its Polls. tx.mu is held.
func (tx *sender) sendTurn(turn int) int {
	if !tx.sole.Load() {
		return turn
	}
	tx.sole.Store(false)
	return policy.TurnOfPost(turn, tx.s.inbound.Front() != nil)
}

// putOff ends a turn of the transmit side if it has more to send, and makes the poller begin the
// next turn. The poller does so at its next Poll, because the socket has taken everything so far.
// putOff reports false if nothing is left. The batch is empty, so other streams may use it until
// then.
//
// Until then, posts leave the sending to the poller, as with a full socket. The progress goroutine
// does not park while a watched socket has room, and a goroutine that spins asks the poller when
// one of its streams waits for room.
func (tx *sender) putOff() bool {
	if tx.fault != nil || !tx.unbuilt() {
		return false
	}
	tx.putBatch()
	tx.wantWrite(true)
	tx.s.watch() // TCP may have room and not report it before the peer takes more
	return true
}

// unbuilt reports whether there are messages that are not completely built.
func (tx *sender) unbuilt() bool {
	return tx.task != taskNone || tx.rtr != 0 || tx.next != tx.q.sq.tail.Load() || tx.s.inbound.Front() != nil
}

// putBatch gives back the batch, all of which is sent. tx.mu is held.
func (tx *sender) putBatch() {
	if b := tx.b; b != nil && !b.Empty() {
		panic("engine: a batch is given back with bytes that are not sent")
	}
	tx.dropBatch()
}

// dropBatch gives back the batch without sending what is left in it, because that has been copied
// (Hold, Remainder), or because the connection is broken. tx.mu is held.
func (tx *sender) dropBatch() {
	if tx.b != nil {
		tx.b.Reset()
		tx.s.dev.prog.batches.Put(tx.b)
		tx.b = nil
	}
}

// fillSocket hands the socket as much as it takes, although it does not report room. TCP reports
// room late, when a third of its buffer is free, and that may be more than a slow peer takes in
// SendTimeout. tx.mu is held.
func (tx *sender) fillSocket() {
	for range turnsToFill {
		tx.room.Store(true)
		tx.turn = policy.TurnMost
		if tx.transmit(); !tx.blocked.Load() || tx.b != nil && !tx.b.Empty() {
			return
		}
	}
}

// owed returns how many bytes a full socket must take before the stream counts as moved: the rest
// of the batch and of the message being sent, at most policy.Chunk. It is one byte if a turn has
// ended between two messages, and 0 if the socket is not full.
func (tx *sender) owed() uint64 {
	n := uint64(0)
	if !tx.blocked.Load() {
		return n
	}
	if tx.task == taskSendOrWrite || tx.task == taskReadResponse {
		n = min(uint64(tx.seg.Remaining()), policy.Chunk)
	}
	switch {
	case tx.held != nil:
		n += uint64(tx.held.Len())
	case tx.b != nil:
		n += tx.b.Left()
	}
	if n == 0 && tx.unbuilt() {
		n = 1
	}
	return min(n, policy.Chunk)
}
