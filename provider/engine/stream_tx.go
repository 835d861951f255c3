package engine

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/govs-rdma/govs/provider/engine/transport"
)

// transmit sends until there is nothing to send, the socket has no room, or the turn is over. txMu
// is held. On a stream that is over it does nothing, because the send queue is flushed, or belongs
// to the QP's next stream.
func (s *stream) transmit() {
	t := &s.tx
	if s.over() || s.at() >= phaseFINSent || t.err != nil {
		return
	}
	if !s.maySend.Load() {
		if n := s.q.sq.tail.Load() - t.next; n > 0 {
			s.dev.log.held(s, n)
		}
		s.memoryAhead()
		if t.fault != nil {
			s.fail(t.fault) // nothing precedes it; no Terminate may be sent
			return
		}
		if s.closing() {
			s.sendFIN() // posted work can't be sent any more
		}
		return
	}
	if s.blocked.Load() && !s.room.Swap(false) {
		s.memoryAhead()
		return // trying again would cost a system call per post
	}
	s.restoreBatch()
	for !s.over() {
		if t.b != nil && t.b.Empty() && t.b.Built() > 0 {
			t.b.Reset()
		}
		if t.turn <= 0 && (t.b == nil || t.b.Empty()) && s.putOff() {
			return
		}
		if t.b == nil {
			t.b = s.dev.prog.batches.Get() // idle
		}
		if t.b.Empty() {
			s.fill()
			t.turn -= int32(t.b.Cost())
			if t.b.Empty() {
				s.txIdle()
				return
			}
			s.limitUnsent()
		}
		if !s.write() {
			return
		}
	}
	// Another goroutine ends the stream, and may be waiting for a region.
	if t.b != nil {
		t.b.CopyPending()
	}
}

// write hands the batch to the socket, as far as the socket takes it. It reports whether it is
// worth going on.
//
//rfc:5040 RDMAP-5.5-14-01 Send/Write not complete before DDP is done
//rfc:5041 DDP-5.4-01 Source completion means the LLP accepted responsibility only
func (s *stream) write() bool {
	t := &s.tx
	n, err := s.writeBatch()
	switch {
	case n > 0:
		s.moved.Add(uint64(n))
		t.batch.Took(n, uint64(n) == t.b.Left())
		if out, ok := t.b.Advance(n); ok {
			s.q.finishSends(out)
		}
		return true
	case errors.Is(err, transport.ErrWouldBlock):
		t.batch.Full()
		t.undo()
		t.b.CopyPending()
		if t.b.Built() == 0 {
			s.putBatch()
		}
		s.wantWrite(true)
		s.watch()
		return false
	}
	t.b.Release()
	t.err = fmt.Errorf("the TCP connection broke: %w", err)
	s.wantWrite(false)
	if !errors.Is(err, syscall.EPIPE) && !errors.Is(err, syscall.ECONNRESET) {
		s.fail(&ending{cause: t.err, lost: true})
	}
	// Otherwise the peer may have said why before the connection broke, above all in a Terminate.
	// The receive side reads that, and ends the stream after the last byte.
	return false
}

// wantWrite makes the poller watch for room in the socket, or stop.
func (s *stream) wantWrite(on bool) {
	if s.blocked.Load() == on {
		return
	}
	s.blocked.Store(on)
	s.room.Store(false)
	if err := s.lane.poller.WantWrite(s.conn, on); err != nil {
		s.fail(&ending{cause: err, reset: true})
	}
}

// txIdle gives back what an idle stream must not keep, and does what was deferred until everything
// is sent.
func (s *stream) txIdle() {
	t := &s.tx
	s.putBatch() // the batch may use regions of a work request that could not be sent
	s.wantWrite(false)
	if t.fault != nil {
		s.fail(t.fault)
		return
	}
	if s.closing() && t.task == taskNone && t.next == s.q.sq.tail.Load() && s.outstanding.Len() == 0 {
		s.sendFIN()
	}
}

func (s *stream) sendFIN() {
	if err := s.conn.CloseWrite(); err != nil {
		s.tx.err = fmt.Errorf("close: %w", err)
		return
	}
	if s.enter(phaseFINSent) == phaseClosingNotify {
		s.raiseDrained()
	}
	s.watchClosing()
}
