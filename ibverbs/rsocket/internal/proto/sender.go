package proto

// sender is the state of the direction to the peer: its ring, its credits, and the send buffer of
// this end.
type sender struct {
	big, peerBig bool // byte orders of this end and the peer

	// Credits: messages are counted from 0, in 16 bits.
	seq   uint16 // messages sent
	spare uint16 // credits to leave unused
	limit uint16 // the first message that may not be sent
	read  uint16 // messages sent that the peer's program has read

	// The peer's ring. A grant names the half that is not in use, so everything about it except its
	// time is known in advance.
	ring  Region // the first half; the second half follows it
	half  int    // the half for the next byte
	used  uint32 // bytes used of that half
	ready [2]bool
	ends  [2]uint16 // messages sent when the half was full

	sgl     []byte // where the peer writes grants
	expect  int    // the entry for the next grant, and the half that it names
	first   bool   // there has been no grant yet
	suspect bool   // the entry was wrong when it was last read

	places int // free places of the send queue for data
	room   int // bytes of the send buffer that are free
	size   int // bytes of the send buffer
	head   int // offset of the next byte in the send buffer
}

// mostSpare is how many credits are left unused at most. A peer in C posts as many receives as it
// gives credits for data, and our credit messages and the end of the stream take some of them. It
// takes completions from its CQ at the latest when its send buffer is full, which is after about
// three of our grants.
const mostSpare = 8

// placesOfData is how many places of the send queue a transfer takes: a Write and a Send.
const placesOfData = 2

func (s *sender) init(c Config, hello Hello) {
	*s = sender{
		big: c.BigEndian, peerBig: hello.BigEndian, limit: hello.Credits,
		spare: min(mostSpare, hello.Credits/4), ring: hello.Data,
		ready: [2]bool{true, false}, sgl: c.SGL, expect: 1, first: true,
		places: c.SendQueue - ControlSlots, room: c.SendRing, size: c.SendRing,
	}
}

// credits processes a credit message, and reports whether anything changed.
func (s *sender) credits(limit uint16) (changed bool, err error) {
	// The peer's limit is the number of messages that its program has read, plus a constant.
	read := s.read + (limit - s.limit)
	if read-s.read > s.seq-s.read {
		return false, broken("grants credits up to %d; "+
			"of %d messages it has read %d at most, which allows %d", limit, s.seq, s.seq-s.read, s.limit+(s.seq-s.read))
	}
	changed = read != s.read
	s.read, s.limit = read, limit
	granted, err := s.grant()
	return changed || granted, err
}

// grant checks for an entry of the SGL that came before a credit message. It does not read an entry
// that the peer may still be writing: the peer has not read that entry's half then.
func (s *sender) grant() (granted bool, err error) {
	half := s.expect
	if s.ready[half] || !s.first && !s.hasRead(s.ends[half]) {
		return false, nil
	}
	at := s.sgl[half*EntryLen : (half+1)*EntryLen]
	got := entry(s.big, at)
	want := s.region(half, 0)
	switch {
	case got == want:
	case got == Region{}:
		return false, nil // credits alone
	case !s.suspect:
		// If threads of a peer in C read and send at the same time, the peer may send the credits
		// of the half before its grant, which it is then still writing. The next credits come after
		// the grant.
		s.suspect = true
		return false, nil
	default:
		return false, broken("grants %d bytes at %#x with key %#x; "+
			"the half of its ring that is free has %d at %#x with key %#x",
			got.Len, got.Addr, got.Key, want.Len, want.Addr, want.Key)
	}
	clear(at)
	s.suspect, s.first = false, false
	s.ready[half] = true
	s.expect = 1 - half
	return true, nil
}

// hasRead reports whether the peer has read all messages before number n, one that was sent.
func (s *sender) hasRead(n uint16) bool { return s.seq-s.read <= s.seq-n }

// region returns what is left of a half of the peer's ring from offset used.
func (s *sender) region(half int, used uint32) Region {
	r := s.ring
	r.Addr += uint64(half)*uint64(r.Len) + uint64(used)
	r.Len -= used
	return r
}

// Transfer is one Write and the message after it.
type Transfer struct {
	Len    int    // bytes
	Offset int    // in the send buffer, where the bytes may wrap to the beginning
	Addr   uint64 // at the peer
	Key    uint32
	Msg    Message
}

// CanSend returns how many bytes one transfer may have at present, 0 if none is possible.
func (s *State) CanSend() int {
	o := &s.out
	if s.silent || o.places < placesOfData || o.room < min(LowWater, o.size) ||
		o.limit-o.seq <= o.spare || !o.ready[o.half] {
		return 0
	}
	return min(o.room, int(o.ring.Len-o.used), MaxTransfer)
}

// Contiguous returns the offset of the next byte in the send buffer, and how many bytes there are
// from there to its end.
func (s *State) Contiguous() (offset, n int) { return s.out.head, s.out.size - s.out.head }

// Send makes a transfer of n bytes, at most CanSend. An inline transfer takes no space in the send
// buffer.
func (s *State) Send(n int, inline bool) Transfer {
	o := &s.out
	r := o.region(o.half, o.used)
	t := Transfer{Len: n, Offset: o.head, Addr: r.Addr, Key: r.Key, Msg: message(KindData, uint32(n))}
	o.seq++
	o.places -= placesOfData
	if !inline {
		o.room -= n
		if o.head += n; o.head >= o.size {
			o.head -= o.size
		}
	}
	if o.used += uint32(n); o.used == o.ring.Len {
		o.ready[o.half], o.used = false, 0
		o.ends[o.half] = o.seq
		o.half = 1 - o.half
	}
	return t
}

// Sent processes the completion of a transfer that has n bytes in the send buffer.
func (s *State) Sent(n int) {
	s.out.places += placesOfData
	s.out.room += n
}

// PutMessage writes m into b, in this end's byte order.
func (s *State) PutMessage(b []byte, m Message) { putUint32In(s.out.big, b, uint32(m)) }

// OutStats are the limits of the direction to the peer.
type OutStats struct {
	Credits int // messages that may be sent
	Room    int // bytes of the peer's ring that may be written
	Buffer  int // bytes of the send buffer that are free
	Places  int // free places of the send queue
}

// Out returns the present OutStats.
func (s *State) Out() OutStats {
	o := &s.out
	st := OutStats{Credits: int(o.limit - o.seq), Buffer: o.room, Places: o.places}
	for half, ready := range o.ready {
		if ready {
			st.Room += int(o.ring.Len)
			if half == o.half {
				st.Room -= int(o.used)
			}
		}
	}
	return st
}
