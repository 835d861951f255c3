package rsocket

import (
	"fmt"

	"github.com/govs-rdma/govs/ibverbs/rsocket/internal/proto"
)

// Stats are numbers of a connection since it was made, and of what holds it up at present.
type Stats struct {
	Sent, Received Traffic
	Keepalives     uint64 // sent, also after Dial to a peer that has sent nothing

	// What may be sent at present: nothing while one of the first two is 0, the send buffer has
	// less than 2048 bytes free, or the send queue less than two places.
	Credits        int // transfers that the peer has receives for
	Room           int // bytes of the peer's ring
	FreeSendBuffer int // bytes
	FreeSendQueue  int // places
	Unread         int // bytes that have come and are not read

	PeerShutdown     bool  // the peer has ended its direction, or the stream
	PeerDisconnected bool  // the peer has ended the stream
	Err              error // why the connection has ended, if it has and that is known
}

// Traffic counts one direction. Grants are credit messages, and go the other way.
type Traffic struct{ Octets, Transfers, Grants uint64 }

// Stats returns the numbers of the connection.
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

// String says which connection it is, what has gone over it, and what it waits for.
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
