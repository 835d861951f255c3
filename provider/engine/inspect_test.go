package engine

import (
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"github.com/govs-rdma/govs/provider/engine/transport"
)

// What tests see of a stream. Only these functions know which part of it stores what, and under
// which lock, so a change of the layout changes no test.

// alone calls f with the locks of both sides, so neither side moves meanwhile.
func (s *stream) alone(f func()) {
	s.rx.mu.Lock()
	defer s.rx.mu.Unlock()
	s.tx.mu.Lock()
	defer s.tx.mu.Unlock()
	f()
}

// replaceConn makes the stream use the Conn that wrap makes of its own. It is written without
// records.
func (s *stream) replaceConn(wrap func(transport.Conn) transport.Conn) {
	s.alone(func() { s.conn, s.tx.records = wrap(s.conn), nil })
}

// sent returns how many bytes the socket has taken.
func (s *stream) sent() uint64 { return s.tx.moved.Load() }

// full reports whether the socket was full, and the poller watches for room.
func (s *stream) full() bool { return s.tx.blocked.Load() }

// receivedFPDUs returns how many FPDUs were received. No other goroutine receives.
func (s *stream) receivedFPDUs() int { return int(s.rx.received) }

// receivedBytes returns how many bytes of FPDUs were received. No other goroutine receives.
func (s *stream) receivedBytes() uint64 { return s.rx.fpdu.Pos() }

// keeps is what the receive side of a stream keeps between turns.
type keeps struct {
	part    int  // capacity of the part of an FPDU that was moved out of a context; 0 without one
	context bool // a receive context
	storing bool // the segments that an object stores
}

func (s *stream) keeps() keeps {
	s.rx.mu.Lock()
	defer s.rx.mu.Unlock()
	k := keeps{context: s.rx.c != nil, storing: s.rx.storing()}
	if s.rx.part != nil {
		k.part = cap(s.rx.part.b)
	}
	return k
}

// holdsBuffers reports whether the stream has a batch, a receive context or a part.
func (s *stream) holdsBuffers() bool {
	s.rx.mu.Lock()
	defer s.rx.mu.Unlock()
	s.tx.mu.Lock()
	defer s.tx.mu.Unlock()
	return s.tx.b != nil || s.rx.c != nil || s.rx.part != nil
}

// idleness is what a stream still has to do, and what it keeps.
type idleness struct {
	unsent, reads, unreported int
	batch, context            bool
}

func (s *stream) idle() idleness {
	s.rx.mu.Lock()
	defer s.rx.mu.Unlock()
	s.tx.mu.Lock()
	defer s.tx.mu.Unlock()
	sq := &s.q.sq
	sq.done.Lock()
	defer sq.done.Unlock()
	tail := sq.tail.Load()
	return idleness{
		unsent: int(tail - s.tx.next), reads: s.outstanding.Len(), unreported: int(tail - sq.head),
		batch: s.tx.b != nil, context: s.rx.c != nil,
	}
}

// pins returns what the transmit side of a stream holds for a socket that is full.
func (s *stream) pins() (batch, octets int) {
	s.tx.mu.Lock()
	defer s.tx.mu.Unlock()
	if s.tx.b != nil {
		batch = 1
		chunks, _ := s.tx.b.Copied()
		octets = chunks * policy.Chunk
	}
	if s.tx.held != nil {
		octets += s.tx.held.Len()
	}
	return batch, octets
}
