package proto

// sender is the direction to the peer: its ring, its credits, and the send buffer of this end.
type sender struct {
	big, peerBig bool // byte orders of this end and the peer

	// Credits: messages are counted from 0, in 16 bits.
	seq   uint16 // messages sent
	spare uint16 // credits that are not used
	limit uint16 // the first one that may not be sent
	read  uint16 // of those sent, how many the peer's program has read

	// The peer's ring. A grant names the half that is not in use, so that everything but its time
	// is known before.
	ring  Region // the first half; the second one is after it
	half  int    // in which the next byte goes
	used  uint32 // bytes of that half
	ready [2]bool
	ends  [2]uint16 // messages sent when the half was full

	sgl     []byte // where the peer writes grants
	expect  int    // the entry that the next grant is written to, and the half that it names
	first   bool   // there was no grant yet
	suspect bool   // the entry was odd when it was last looked at

	places int // of the send queue that are free for data
	room   int // bytes of the send buffer that are free
	size   int // bytes of the send buffer
	head   int // where the next byte goes in it
}

// mostSpare is how many credits are not used. A peer in C posts as many receives as it gives
// credits for data, and our credit messages and the end of the stream take some of them. It takes
// completions from its CQ at the latest when its send buffer is full, which is after three or so of
// our grants.
const mostSpare = 8

// placesOfData is how many places of the send queue a transfer takes: Write and Send.
const placesOfData = 2

func (s *sender) init(c Config, hello Hello) {
	*s = sender{
		big: c.BigEndian, peerBig: hello.BigEndian, limit: hello.Credits,
		spare: min(mostSpare, hello.Credits/4), ring: hello.Data,
		ready: [2]bool{true, false}, sgl: c.SGL, expect: 1, first: true,
		places: c.SendQueue - ControlSlots, room: c.SendRing, size: c.SendRing,
	}
}

// credits takes a credit message, and reports whether anything changed.
func (s *sender) credits(limit uint16) (changed bool, err error) {
	// The peer's limit is what its program has read and a constant.
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

// grant looks for an entry of the SGL that came before a credit message. While the peer may still
// be writing an entry it is not looked at: the half that it is for has not been read then.
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
		// A peer in C whose threads read and send at the same time may send the credits of the half
		// before its grant, which is then being written. The next credits are after that.
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
	Offset int    // where they are in the send buffer; the second part is at its beginning
	Addr   uint64 // at the peer
	Key    uint32
	Msg    Message
}

// CanSend returns how many bytes one transfer may have at present, 0 if there can be none.
func (s *State) CanSend() int {
	o := &s.out
	if s.silent || o.places < placesOfData || o.room < min(LowWater, o.size) ||
		o.limit-o.seq <= o.spare || !o.ready[o.half] {
		return 0
	}
	return min(o.room, int(o.ring.Len-o.used), MaxTransfer)
}

// Contiguous returns how many bytes there are in the send buffer from where the next one goes to
// its end.
func (s *State) Contiguous() (offset, n int) { return s.out.head, s.out.size - s.out.head }

// Send makes a transfer of n bytes, at most CanSend. With inline it has no place in the send
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

// Sent takes the completion of a transfer that has n bytes in the send buffer.
func (s *State) Sent(n int) {
	s.out.places += placesOfData
	s.out.room += n
}

// PutMessage writes m into b, as the peer reads it.
func (s *State) PutMessage(b []byte, m Message) { putUint32In(s.out.big, b, uint32(m)) }

// OutStats are numbers of the direction to the peer.
type OutStats struct {
	Credits int // messages that may be sent
	Room    int // bytes of the peer's ring that may be written
	Buffer  int // bytes of the send buffer that are free
	Places  int // free places of the send queue
}

// Out returns them.
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
