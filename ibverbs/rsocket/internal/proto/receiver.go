package proto

// receiver is the state of the direction from the peer: the ring of this end, and the messages in
// it.
type receiver struct {
	big bool // the peer's byte order, for entries of its SGL

	ring Region // both halves
	half uint32

	// Messages with unread bytes, as a queue of lengths. The peer may send limit-seq more.
	lens        []uint32
	first, have int
	seq         uint16 // messages received
	read        uint16 // messages that the program has read to the end
	limit       uint16 // the first message that the peer may not send
	due         uint16 // credits are due when read reaches this value

	left    uint32 // bytes that the peer may still write in its current half
	pending bool   // whether the other half is granted, too

	unread int // bytes
	at     int // offset in the ring of the next byte to read

	free    uint32 // bytes that are read and not granted again
	granted int    // the half to grant next
	sgl     Region // of the peer
	entry   uint32 // the entry of sgl for the next grant
}

func (r *receiver) init(c Config, hello Hello) {
	*r = receiver{
		big: hello.BigEndian, ring: c.Ring, half: c.Ring.Len / 2,
		lens: make([]uint32, c.Receives), limit: uint16(c.Receives), due: uint16(c.Receives / 2),
		left: c.Ring.Len / 2, free: c.Ring.Len / 2, granted: 1, sgl: hello.SGL, entry: 1,
	}
}

// data processes a data message of n bytes.
func (r *receiver) data(n uint32) error {
	switch {
	case n == 0:
		return broken("sent data of 0 bytes")
	case n > r.left:
		return broken("sent data of %d bytes; the half of the ring that it writes has room for %d", n, r.left)
	case r.seq == r.limit:
		return broken("sent more data messages than it has credits for: %d are not read", r.have)
	}
	if r.left -= n; r.left == 0 && r.pending {
		r.left, r.pending = r.half, false
	}
	r.seq++
	at := r.first + r.have
	if at >= len(r.lens) {
		at -= len(r.lens)
	}
	r.lens[at] = n
	r.have++
	r.unread += int(n)
	return nil
}

// Unread returns how many bytes can be read.
func (s *State) Unread() int { return s.in.unread }

// Readable returns the offset of the next bytes to read in the ring, and how many are contiguous
// there.
func (s *State) Readable() (offset, n int) {
	return s.in.at, min(s.in.unread, int(s.in.ring.Len)-s.in.at)
}

// Consume records that the program has read n bytes, at most as many as Readable returned.
func (s *State) Consume(n int) {
	r := &s.in
	r.unread -= n
	if r.at += n; r.at >= int(2*r.half) {
		r.at = 0
	}
	r.free += uint32(n)
	for left := uint32(n); left > 0; {
		if r.lens[r.first] > left {
			r.lens[r.first] -= left
			return
		}
		left -= r.lens[r.first]
		if r.first++; r.first == len(r.lens) {
			r.first = 0
		}
		r.have--
		r.read++
	}
}

// Grant is a credit message. If Write is set, the entry of the peer's SGL is written before it.
type Grant struct {
	Write bool
	Entry [EntryLen]byte
	Addr  uint64
	Key   uint32
	Slots int // control slots that the grant takes
	Msg   Message
}

// Grant fills in g with the grant that the peer is due, and reports whether there is one.
func (s *State) Grant(g *Grant) bool {
	r := &s.in
	write := r.free >= r.half
	if s.silent || s.slots < 2 || s.peerEnd != 0 || !write && int16(r.read-r.due) < 0 {
		return false
	}
	r.due = r.read + uint16(len(r.lens)/2)
	r.limit = r.read + uint16(len(r.lens))
	g.Write, g.Slots = write, 1
	g.Msg = message(KindCredits, uint32(r.limit))
	if write {
		g.Slots = 2
		half := Region{Addr: r.ring.Addr + uint64(r.granted)*uint64(r.half), Key: r.ring.Key, Len: r.half}
		putEntry(r.big, g.Entry[:], half)
		g.Addr, g.Key = r.sgl.Addr+uint64(r.entry)*EntryLen, r.sgl.Key
		r.free -= r.half
		if r.left == 0 {
			r.left = r.half
		} else {
			r.pending = true
		}
		r.granted = 1 - r.granted
		if r.entry++; r.entry == r.sgl.Len {
			r.entry = 0
		}
	}
	s.slots -= g.Slots
	return true
}

// GrantDue reports whether the peer is due a grant that waits only for control slots.
func (s *State) GrantDue() bool {
	r := &s.in
	return !s.silent && s.slots < 2 && s.peerEnd == 0 &&
		(r.free >= r.half || int16(r.read-r.due) >= 0)
}
