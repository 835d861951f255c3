package rsocket

import (
	"context"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rsocket/internal/proto"
)

// Conn is a connection: a stream of bytes in each direction. It is a [net.Conn], and has CloseRead
// and CloseWrite as a [net.TCPConn] has. All methods may be called concurrently.
type Conn struct {
	parts         *parts
	local, remote net.Addr

	// The directions, which a call that uses the memory acquires: one Read or WriteTo, and one
	// Write or ReadFrom at a time.
	rd, wr side
	cl     side // for Close, which waits for completions
	hr     side // for hear

	closing chan struct{} // closed when Close is called

	mu sync.Mutex // guards the following fields, and fields of side

	st *proto.State

	ops    int   // calls that use the memory
	closed bool  // Close has been called
	gone   bool  // Close frees the connection: no call polls or posts any more
	failed error // why the connection ended, nil if it is not known to have ended

	refused bool // the peer broke the protocol: its messages are ignored

	readClosed, writeClosed bool          // CloseRead, CloseWrite
	ending                  proto.Message // Shutdown or Disconnect, when it has to be sent
	ended                   proto.Message // Shutdown or Disconnect, when it is posted
	hearing                 bool          // hear has been called

	posting bool // Write is posting, without mu
	posted  int  // sends that are not complete yet

	// A waiting call takes completions for all calls. One call polls at a time.
	leading bool
	polling context.Context
	stop    context.CancelFunc
	wcs     [32]ibverbs.WC

	recvs    []ibverbs.RecvWR // to be posted again; the backing of sges
	recvSGEs []ibverbs.SGE
	granting granting
	writing  writing

	keepalive, nudges *time.Timer

	in, out    Traffic
	keepalives uint64
}

// newConn returns the Conn of an established connection.
func newConn(p *parts, hello proto.Hello, accepted bool) *Conn {
	c := &Conn{
		parts: p, closing: make(chan struct{}),
		local: addrOf(p.conn.LocalAddr()), remote: addrOf(p.conn.RemoteAddr()),
	}
	sgl := p.ring.Bytes()[p.cfg.ReceiveBuffer:]
	c.st = proto.New(proto.Config{
		BigEndian: bigEndian, Receives: p.cfg.ReceiveQueue,
		Ring: proto.Region{Addr: p.ring.Addr(), Key: p.ring.RKey(), Len: uint32(p.cfg.ReceiveBuffer)},
		SGL:  sgl, SendQueue: p.cfg.SendQueue, SendRing: p.cfg.SendBuffer, Silent: accepted,
	}, hello)
	c.rd.init(c.canRead)
	c.wr.init(c.canWrite)
	c.cl.init(c.allSent)
	c.hr.init(c.canSendEnd)
	c.granting.init()
	c.writing.init()
	c.recvs = make([]ibverbs.RecvWR, 0, len(c.wcs))
	c.recvSGEs = make([]ibverbs.SGE, len(c.wcs))
	if p.cfg.KeepAlive > 0 {
		c.mu.Lock() // keepAlive reads the field
		c.keepalive = time.AfterFunc(p.cfg.KeepAlive, c.keepAlive)
		c.mu.Unlock()
	}
	return c
}

// LocalAddr returns the address of this end, a [*net.TCPAddr].
func (c *Conn) LocalAddr() net.Addr {
	if c == nil {
		return nil
	}
	return c.local
}

// RemoteAddr returns the address of the peer, a [*net.TCPAddr].
func (c *Conn) RemoteAddr() net.Addr {
	if c == nil {
		return nil
	}
	return c.remote
}

// begin counts a call that uses the memory of the connection. The caller holds mu.
func (c *Conn) begin() error {
	if c.closed {
		return net.ErrClosed
	}
	c.ops++
	return nil
}

// end ends a call that begin counted. The last call after Close frees the memory. The caller holds
// mu.
func (c *Conn) end() {
	if c.ops--; c.gone && c.ops == 0 {
		_ = c.parts.freeMemory()
	}
}

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
