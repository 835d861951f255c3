package engine

import "github.com/govs-rdma/govs/provider"

// A poll that reads a stream hands the receives that complete there to its program itself. The way
// through the ring of the CQ takes six atomic operations for each completion ("Handing over" in
// docs/benchmarks).
//
//   - Completions of a queue keep their order: they are reported one at a time, under rxMu, and
//     handed over only while the ring is empty.
//   - A CQ that is armed gets its completions in the ring, so that the next one fires the channel.
//   - Those that the program has no room for go to the ring.
//   - If the poll does not return, because a panic or runtime.Goexit ends it, what it has goes back
//     to the ring (putBack).
//
// What a poll has been handed is out of reach for other polls, although it may have other streams
// to serve before it returns. Meanwhile other polls may get younger completions of the same queue,
// and the poll itself takes from the ring what is younger still. So the order of a queue is that
// of one poll after the other, and not of polls at the same time: each has its own in order, but
// others between them may be with another poll. What is in the ring is taken nevertheless, because
// a poll that returns fewer than it has room for has emptied the CQ (ibv_poll_cq).
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
		s.rx.handed = uint8(h.n)
		*h = handover{}
	}
}

// putBack puts what a poll was handed that does not return before all that is in the ring, which is
// younger.
func (c *cq) putBack(wc []provider.WC) {
	c.mu.Lock()
	for len(wc) > 0 && c.count < len(c.ring) {
		c.head = (c.head - 1) & (len(c.ring) - 1)
		c.ring[c.head] = wc[len(wc)-1]
		wc = wc[:len(wc)-1]
		c.count++
		c.pushed++
	}
	c.most = max(c.most, c.count)
	fire := c.arm != armNone
	if len(wc) == 0 {
		c.release(fire)
		return
	}
	// The others are lost, although another poll may make room as soon as mu is unlocked: they
	// would come after younger ones then.
	if fire {
		c.arm = armNone
	}
	c.seen.set(c)
	c.lose(len(wc))
	if fire {
		c.ch.fire(c)
	}
}
