package engine

import "github.com/govs-rdma/govs/provider/engine/internal/policy"

// watch adds the stream to the device's stalls until neither side waits for the peer. rxMu or txMu
// is held.
func (s *stream) watch() {
	if !s.watched.Load() && !s.watched.Swap(true) {
		s.dev.stalls.join(s)
	}
}

// fillSocket hands the socket as much as it takes, although it does not report room. TCP reports
// room late, when a third of its buffer is free, and that may be more than a slow peer takes in
// SendTimeout. txMu is held.
func (s *stream) fillSocket() {
	for range turnsToFill {
		s.room.Store(true)
		s.tx.turn = policy.TurnMost
		if s.transmit(); !s.blocked.Load() || s.tx.b != nil && !s.tx.b.Empty() {
			return
		}
	}
}

// owed returns how many bytes a full socket must take before the stream counts as moved: the rest
// of the batch and of the message being sent, at most policy.Chunk. It is one byte if a turn has
// ended between two messages, and 0 if the socket is not full.
func (s *stream) owed() uint64 {
	t := &s.tx
	n := uint64(0)
	if !s.blocked.Load() {
		return n
	}
	if t.task == taskSendOrWrite || t.task == taskReadResponse {
		n = min(uint64(t.seg.Remaining()), policy.Chunk)
	}
	switch {
	case t.held != nil:
		n += uint64(t.held.Len())
	case t.b != nil:
		n += t.b.Left()
	}
	if n == 0 && s.unsent() {
		n = 1
	}
	return min(n, policy.Chunk)
}
