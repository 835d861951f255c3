package proto

// Config is what New needs to know of this end.
type Config struct {
	BigEndian bool   // the byte order of this end
	Receives  int    // receives posted, which is Hello.Credits; 2 at least
	Ring      Region // the ring, of both halves; Len is even
	SGL       []byte // the memory that the peer writes its grants into: SGLEntries of EntryLen
	SendQueue int    // places for data and credits; more than ControlSlots
	SendRing  int    // bytes of the send buffer
	Silent    bool   // nothing may be sent before the first message of the peer (RFC 5044, 7.1.2)
}

// State is the state of one end of a stream.
type State struct {
	out sender
	in  receiver

	silent bool
	slots  int // of ControlSlots that are free

	// peerEnd is what the peer has said last: nothing, Shutdown or Disconnect.
	peerEnd Message
	idle    int // messages in all that changed nothing
}

// maxIdle bounds messages of the peer that change nothing: a program in C can cause a few, by
// calling shutdown again and again, or reading in several threads.
const maxIdle = 16

// New returns the state of a stream whose peer has sent hello, which ParseHello has checked.
func New(c Config, hello Hello) *State {
	s := &State{silent: c.Silent, slots: ControlSlots}
	s.out.init(c, hello)
	s.in.init(c, hello)
	return s
}

// Receive takes the message in b, in the byte order of the peer. What is before it in the stream
// has been placed.
func (s *State) Receive(b []byte) (Message, error) {
	if len(b) != MessageLen {
		return 0, broken("sent a message of %d bytes; each has %d", len(b), MessageLen)
	}
	m := Message(uint32In(s.out.peerBig, b))
	s.silent = false
	switch m.Kind() {
	case KindData:
		if s.peerEnd != 0 {
			return m, broken("sent %v after its %v", m, s.peerEnd)
		}
		return m, s.in.data(m.Value())
	case KindCredits: // a program in C may send them after its disconnect, too
		changed, err := s.out.credits(uint16(m.Value()))
		if err != nil || changed {
			return m, err
		}
		return m, s.idled(m)
	case KindControl:
		switch {
		case m == s.peerEnd, m == Shutdown && s.peerEnd == Disconnect:
			return m, s.idled(m)
		case m == Shutdown, m == Disconnect:
			s.peerEnd = m
			return m, nil
		}
	case KindIOMap:
		return m, broken("updated an iomap entry, and this end has none")
	}
	return m, broken("sent a %v, which is not defined", m)
}

// idled counts a message that changed nothing.
func (s *State) idled(m Message) error {
	if s.idle++; s.idle > maxIdle {
		return broken("keeps sending messages that change nothing, of which the last is %v", m)
	}
	return nil
}

// PeerEnd returns Shutdown or Disconnect if the peer has sent it, and otherwise 0.
func (s *State) PeerEnd() Message { return s.peerEnd }

// Silent reports whether nothing may be sent before the peer's first message.
func (s *State) Silent() bool { return s.silent }

// Keepalive takes a control slot for a keepalive, and reports whether there was one.
func (s *State) Keepalive() bool {
	if s.silent || s.slots == 0 {
		return false
	}
	s.slots--
	return true
}

// FreeSlots gives control slots back whose work requests are complete.
func (s *State) FreeSlots(n int) { s.slots += n }
