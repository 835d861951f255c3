package engine

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"github.com/govs-rdma/govs/provider/engine/transport"
)

// transmit sends until there is nothing to send, the socket has no room, or the turn is over. tx.mu
// is held. On a stream that is over it does nothing, because the send queue is flushed, or belongs
// to the QP's next stream.
func (tx *sender) transmit() {
	if tx.s.over() || tx.s.at() >= phaseFINSent || tx.err != nil {
		return
	}
	if !tx.s.maySend.Load() {
		if n := tx.q.sq.tail.Load() - tx.next; n > 0 {
			tx.s.dev.log.held(tx.q.qpn, tx.s.conn.RemoteAddr(), n)
		}
		tx.memoryAhead()
		if tx.fault != nil {
			tx.s.fail(tx.fault) // nothing precedes it; no Terminate may be sent
			return
		}
		if tx.s.closing() {
			tx.sendFIN() // posted work can't be sent any more
		}
		return
	}
	if tx.blocked.Load() && !tx.room.Swap(false) {
		tx.memoryAhead()
		tx.s.watch() // a check stops watching while an object is read
		return       // trying again would cost a system call per post
	}
	tx.restoreBatch()
	for !tx.s.over() {
		if tx.b != nil && tx.b.Empty() && tx.b.Built() > 0 {
			tx.b.Reset()
		}
		if tx.budget <= 0 && (tx.b == nil || tx.b.Empty()) && tx.putOff() {
			return
		}
		if tx.b == nil {
			tx.b = tx.s.dev.prog.batches.Get() // idle
		}
		if tx.b.Empty() {
			tx.fill()
			tx.budget -= int32(tx.b.Cost())
			if tx.b.Empty() {
				tx.idle()
				return
			}
			tx.limitNotSent()
		}
		if !tx.write() {
			return
		}
	}
	// Another goroutine ends the stream, and may be waiting for a region.
	if tx.b != nil {
		tx.b.CopyPending()
	}
}

// write hands the batch to the socket, as far as the socket takes it. It reports whether it is
// worth going on.
//
//rfc:5040 RDMAP-5.5-14-01 Send/Write not complete before DDP is done
//rfc:5041 DDP-5.4-01 Source completion means the LLP accepted responsibility only
func (tx *sender) write() bool {
	n, err := tx.writeBatch()
	switch {
	case n > 0:
		tx.moved.Add(uint64(n))
		tx.batch.Took(n, uint64(n) == tx.b.Left())
		if out, ok := tx.b.Advance(n); ok {
			tx.q.finishSends(out)
		}
		return true
	case errors.Is(err, transport.ErrWouldBlock):
		tx.batch.Full()
		tx.undo()
		tx.b.CopyPending()
		if tx.b.Built() == 0 {
			tx.putBatch()
		}
		tx.wantWrite(true)
		tx.s.watch()
		return false
	}
	tx.b.Release()
	tx.err = fmt.Errorf("the TCP connection broke: %w", err)
	tx.wantWrite(false)
	if !errors.Is(err, syscall.EPIPE) && !errors.Is(err, syscall.ECONNRESET) {
		tx.s.fail(&ending{cause: tx.err, lost: true})
	}
	// Otherwise the peer may have said why before the connection broke, above all in a Terminate.
	// The receive side reads that, and ends the stream after the last byte.
	return false
}

// wantWrite makes the poller watch for room in the socket, or stop.
func (tx *sender) wantWrite(on bool) {
	if tx.blocked.Load() == on {
		return
	}
	tx.blocked.Store(on)
	tx.room.Store(false)
	if err := tx.s.loop.poller.WantWrite(tx.s.conn, on); err != nil {
		tx.s.fail(&ending{cause: err, reset: true})
	}
}

// idle gives back what an idle stream must not keep, and does what was deferred until everything
// is sent.
func (tx *sender) idle() {
	tx.putBatch() // the batch may use regions of a work request that could not be sent
	tx.wantWrite(false)
	if tx.fault != nil {
		tx.s.fail(tx.fault)
		return
	}
	if tx.s.closing() && tx.task == taskNone && tx.next == tx.q.sq.tail.Load() && tx.s.outstanding.Len() == 0 {
		tx.sendFIN()
	}
}

func (tx *sender) sendFIN() {
	if err := tx.s.conn.CloseWrite(); err != nil {
		tx.err = fmt.Errorf("close: %w", err)
		return
	}
	if tx.s.enter(phaseFINSent) == phaseClosingNotify {
		tx.s.raiseDrained()
	}
	tx.s.closer.watchClosing()
}

// limitNotSent counts the batch, which has just been filled, and limits what the socket holds.
func (tx *sender) limitNotSent() {
	if !tx.notSent.Count(len(tx.b.Records()), int(tx.b.Built())) {
		return
	}
	if l, ok := tx.s.conn.(transport.NotSentLimiter); ok {
		_ = l.LimitNotSent(tx.notSent.Limit()) // fails on a closed socket, which the next write reports
	}
}

// writeRecords writes to the stream's Conn. Whether that can keep the limits of records is known.
func (tx *sender) writeRecords(bufs [][]byte, records []int) (int, error) {
	if tx.records != nil {
		return tx.records.WriteRecords(bufs, records)
	}
	return tx.s.conn.Writev(bufs)
}

// writeBatch hands the batch's bytes to the socket.
func (tx *sender) writeBatch() (int, error) {
	if tx.format.CutsAnywhere() {
		return tx.s.conn.Writev(tx.b.Pending())
	}
	return tx.writeRecords(tx.b.Pending(), tx.b.Records())
}

// A turn is what one stream does, in one direction, before other streams have their turns. The rest
// waits until the next Poll: in the socket, or in the send queue and among the peer's Reads.
// Nothing else has to be remembered. Unread bytes keep the socket readable, and a stream that has
// more to send makes the poller watch for room, which the socket already has (see putOff).
//
// Package turns decides the budgets of a Poll. A budget is counted in bytes. Each byte
// takes 0.1 ns in the engine and 0.35 ns together with the kernel's work over loopback, for the
// sender and for the receiver. Other work counts as the bytes that take as long. An FPDU takes 50
// to 80 ns in addition to its bytes. A record that TCP must not merge with others takes 600 to 850
// ns in the engine (BenchmarkReceived, BenchmarkSent) and 2,300 ns with the kernel's part. Package
// policy has all these costs.

// sendBudget returns how much to send now, where other streams leave budget for it. A program that
// polls for one stream, and has posted more for it than the last budget, gets more once in each of
// its Polls. tx.mu is held.
func (tx *sender) sendBudget(budget int) int {
	if !tx.sole.Load() {
		return budget
	}
	tx.sole.Store(false)
	return policy.BudgetOfPost(budget, tx.s.inbound.Front() != nil)
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

// holdBatch copies what is left of the batch, until the socket has room, and gives the batch back.
// It does nothing if the batch still uses regions.
func (tx *sender) holdBatch() {
	if tx.b == nil {
		return
	}
	if tx.held = tx.b.Hold(); tx.held != nil {
		tx.dropBatch()
	}
}

// restoreBatch undoes holdBatch.
func (tx *sender) restoreBatch() {
	if tx.held == nil {
		return
	}
	tx.b = tx.s.dev.prog.batches.Get()
	tx.b.Restore(tx.held, &tx.format)
	tx.held = nil
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

// turnsToFill is how many turns of short messages fill the last third of a socket's buffer.
const turnsToFill = 8

// fillSocket hands the socket as much as it takes, although it does not report room. TCP reports
// room late, when a third of its buffer is free, and that may be more than a slow peer takes in
// SendTimeout. tx.mu is held.
func (tx *sender) fillSocket() {
	for range turnsToFill {
		tx.room.Store(true)
		tx.budget = policy.BudgetMost
		if tx.transmit(); !tx.blocked.Load() || tx.b != nil && !tx.b.Empty() {
			return
		}
	}
}

// owed returns how many bytes a full socket must take before the stream counts as moved: the rest
// of the batch and of the message being sent, at most policy.Chunk. It is one byte if a turn has
// ended between two messages, and 0 if the socket is not full or an object is awaited.
func (tx *sender) owed() uint64 {
	n := uint64(0)
	if !tx.blocked.Load() || tx.fetching() {
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
