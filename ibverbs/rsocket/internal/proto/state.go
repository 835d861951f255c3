package proto

// Config describes this end for New.
type Config struct {
	BigEndian bool   // the byte order of this end
	Receives  int    // receives posted, which is Hello.Credits; at least 2
	Ring      Region // the whole ring; Len is even
	SGL       []byte // where the peer writes its grants: SGLEntries of EntryLen
	SendQueue int    // places for data and credits; more than ControlSlots
	SendRing  int    // bytes of the send buffer
	Silent    bool   // nothing may be sent before the first message of the peer (RFC 5044, 7.1.2)
}

// State is the state of one end of a stream.
type State struct {
	out sender
	in  receiver

	silent bool
	slots  int // free ones of ControlSlots

	// peerEnd is the peer's last control message: none (0), Shutdown or Disconnect.
	peerEnd Message
	idle    int // total of messages that changed nothing
}

// maxIdle limits the peer's messages that change nothing. A program in C can cause a few, if it
// calls shutdown again and again, or reads in several threads.
const maxIdle = 16

// New returns the state of a stream whose peer has sent hello, which ParseHello has checked.
func New(c Config, hello Hello) *State {
	s := &State{silent: c.Silent, slots: ControlSlots}
	s.out.init(c, hello)
	s.in.init(c, hello)
	return s
}

// Receive processes the message in b, in the peer's byte order. Earlier data of the stream has been
// placed.
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
	case KindCredits: // a program in C may send them even after its disconnect
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

// PeerEnd returns Shutdown or Disconnect if the peer has sent it, otherwise 0.
func (s *State) PeerEnd() Message { return s.peerEnd }

// Silent reports whether this end has to wait for the peer's first message before it may send.
func (s *State) Silent() bool { return s.silent }

// Keepalive takes a control slot for a keepalive, and reports whether there was one.
func (s *State) Keepalive() bool {
	if s.silent || s.slots == 0 {
		return false
	}
	s.slots--
	return true
}

// FreeSlots frees control slots whose work requests are complete.
func (s *State) FreeSlots(n int) { s.slots += n }
