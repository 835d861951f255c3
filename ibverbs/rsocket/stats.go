package rsocket

import (
	"fmt"

	"github.com/govs-rdma/govs/ibverbs/rsocket/internal/proto"
)

// Stats are a connection's counters since it was made, and its present limits on sending.
type Stats struct {
	Sent, Received Traffic
	Keepalives     uint64 // empty Writes sent, including those of Dial to a silent peer

	// What may be sent at present. Nothing may be sent while one of the first two is 0, the send
	// buffer has less than 2048 bytes free, or the send queue less than two places.
	Credits        int // transfers that the peer has receives for
	Room           int // bytes of the peer's ring
	FreeSendBuffer int // bytes
	FreeSendQueue  int // places
	Unread         int // bytes that have arrived and are not read

	PeerShutdown     bool  // the peer has ended its direction, or the stream
	PeerDisconnected bool  // the peer has ended the stream
	Err              error // why the connection has ended, nil if it is not known to have ended
}

// Traffic counts one direction. Grants are credit messages, which go the other way.
type Traffic struct{ Octets, Transfers, Grants uint64 }

// Stats returns the connection's counters.
func (c *Conn) Stats() Stats {
	if err := c.ok(); err != nil {
		return Stats{Err: err}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	out := c.st.Out()
	end := c.st.PeerEnd()
	return Stats{
		Sent: c.out, Received: c.in, Keepalives: c.keepalives,
		Credits: out.Credits, Room: out.Room, FreeSendBuffer: out.Buffer, FreeSendQueue: out.Places,
		Unread: c.st.Unread(), PeerShutdown: end != 0, PeerDisconnected: end == proto.Disconnect,
		Err: c.failed,
	}
}

// String returns the connection's addresses, counters and limits, and why it ended if it has.
func (c *Conn) String() string {
	if err := c.ok(); err != nil {
		return "nil or zero rsocket.Conn"
	}
	s := c.Stats()
	text := fmt.Sprintf("rsocket %v -> %v: sent %d bytes in %d transfers, received %d in %d; %d unread; "+
		"may send %d bytes with %d credits", c.local, c.remote, s.Sent.Octets, s.Sent.Transfers,
		s.Received.Octets, s.Received.Transfers, s.Unread, s.Room, s.Credits)
	switch {
	case s.Err != nil:
		text += "; ended: " + s.Err.Error()
	case s.PeerDisconnected:
		text += "; the peer has disconnected"
	case s.PeerShutdown:
		text += "; the peer writes no more"
	}
	return text
}
