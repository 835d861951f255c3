package engine

import "github.com/govs-rdma/govs/provider"

// A poll that reads a stream hands the receives that complete there to its program itself. The way
// through the ring of the CQ costs six atomic operations for each completion, which is a tenth of
// what a short Send costs the end that receives it (docs/benchmarks).
//
// A program sees no difference to a poll that takes them from the ring at once:
//
//   - Completions keep their order, because the ring is empty as long as they are handed over, and
//     those of one queue are reported one at a time, under rxMu.
//   - A CQ that is armed gets its completions in the ring, so that the next one fires the channel.
//   - Those that the program has no room for go to the ring.
//
// handover is where they go. It ends with the turn of the poll.
type handover struct {
	cq *cq // the one that is polled; nil if no poll reads
	wc []provider.WC
	n  int // of wc
}

// handedMost is how many completions one look hands over: what rxState.handed can hold.
const handedMost = 1<<8 - 1

// room returns where a completion of c goes, nil if that is the ring.
func (h *handover) room(c *cq) *provider.WC {
	if h.cq != c || h.n == len(h.wc) || !c.seen.idle() {
		return nil
	}
	h.n++
	return &h.wc[h.n-1]
}

// beginHandover has a turn hand completions of c to a poll with room for wc. It leaves that to the
// next turn if something has come in part, or waits for an object. rxMu is held.
func (s *stream) beginHandover(c *cq, wc []provider.WC) {
	r := &s.rx
	r.handed = 0
	if len(wc) == 0 || r.part != nil || r.storing() {
		return
	}
	s.rxEnsure()
	r.c.hand = handover{cq: c, wc: wc[:min(len(wc), handedMost)]}
}

// endHandover ends the handover of a turn, if there is one, and notes how many completions the
// poll has. The context may go to another stream after that. rxMu is held.
func (s *stream) endHandover() {
	if h := &s.rx.c.hand; h.cq != nil {
		s.rx.handed += uint8(h.n)
		*h = handover{}
	}
}
