// Package transport is the seam between the engine and the wire: streams that
// never block, readiness, listening and dialling. [TCP] implements it over raw
// sockets; package memnet implements it in memory, deterministically.
//
// All of it is made for one pattern: a [Conn] belongs to one protocol machine
// that reads and writes it when a [Poller] calls its [Handler], and otherwise
// holds nothing, neither a goroutine nor a buffer nor an OS thread.
package transport

import (
	"context"
	"errors"
	"net/netip"
)

// ErrWouldBlock says that a stream has nothing to read, or no room to write,
// at this moment. Nothing was transferred.
var ErrWouldBlock = errors.New("transport: operation would block")

// Conn is a connected byte stream. One goroutine at a time may call Readv and
// one at a time Writev; both may run at once, and with every other method.
type Conn interface {
	// Readv fills bufs in order with what has arrived and returns how many
	// bytes it stored; it never waits. n > 0 comes with a nil error. With
	// n == 0 the error is ErrWouldBlock, io.EOF when the peer has sent its FIN
	// and everything before it has been read, a syscall.Errno (ECONNRESET,
	// ETIMEDOUT, ...) when the connection is lost, or os.ErrClosed. bufs and
	// what they point to are the caller's again when it returns. An empty bufs
	// reads nothing and returns 0, nil.
	Readv(bufs [][]byte) (n int, err error)

	// Writev queues bytes of bufs in order and returns how many it took,
	// which may end anywhere inside a buffer; it never waits. n > 0 comes with
	// a nil error. With n == 0 the error is ErrWouldBlock, a syscall.Errno
	// (EPIPE after the connection was lost or CloseWrite, ECONNRESET, ...), or
	// os.ErrClosed. Ownership is as with Readv: what it took has been copied.
	Writev(bufs [][]byte) (n int, err error)

	// CloseWrite sends FIN after what Writev took. Reading goes on.
	CloseWrite() error

	// Close gives the stream up: what Writev took is still sent, then FIN. If
	// bytes of the peer are unread, TCP sends RST instead. It is idempotent.
	// The Poller forgets the stream by itself.
	Close() error

	// Abort is Close with RST at once; bytes not yet sent are lost.
	Abort() error

	// MSS is the sender's maximum segment size at this moment, in bytes of
	// TCP payload (the EMSS of RFC 5044 section 2).
	MSS() int

	LocalAddr() netip.AddrPort
	RemoteAddr() netip.AddrPort
}

// RecordWriter is a Conn that keeps the limits of records: no TCP segment has
// bytes of two, but where TCP itself cuts a record that is longer than a segment
// into such of MSS bytes, counted from the record's first. A Conn without it is
// written with Writev.
type RecordWriter interface {
	// WriteRecords is Writev of bytes that are records of these lengths, one
	// after the other; the lengths add up to the bytes of bufs. When it took
	// part of a record only, the next call begins with the rest of it as a
	// record. Of more than the system's limit of buffers it takes what fits.
	// records is the caller's again when it returns.
	WriteRecords(bufs [][]byte, records []int) (n int, err error)
}

// UnsentLimiter is a Conn that can bound what it holds for TCP to send later.
type UnsentLimiter interface {
	// LimitUnsent has the Conn take no more bytes while it holds this many that TCP can't
	// send yet, because of the peer's window or of the congestion window. The last record
	// or write that it takes may exceed the limit. 0 restores what the system allows. What
	// is sent and not acknowledged does not count.
	LimitUnsent(octets int) error
}

// Handler is called when a stream can be read or written. Ready runs on whatever
// goroutine called Poll, and may run on several at once for the same stream:
// an implementation that is busy with the stream on another goroutine returns
// at once. It must not block. It may call every method of its Conn and of the
// Poller except Poll, Wait and Close. An error or an end of stream counts as
// readable: reading shows which.
type Handler interface {
	Ready(readable, writable bool)
}

// Sharer is a Handler that shares the time of a poller with others (see package turns).
type Sharer interface {
	Handler

	// Poll calls ReadyTurn in place of Ready. It moves about turn bytes at most, in both
	// directions together; work that costs more than its bytes counts as the bytes that
	// take as long. It returns what it has used of the turn, and whether the turn ended
	// before the work did.
	ReadyTurn(readable, writable bool, turn int) (used int, more bool)
}

// Poller watches streams of the Network that made it. Readiness is level
// triggered: Ready is called by every Poll as long as the condition lasts (a
// Sharer that has much to do, by every few), so nothing is lost if a Handler
// ignores a call; a Handler that has no room for more, or has seen the end of
// the stream, says WantRead(c, false).
type Poller interface {
	// Add watches c for reading on behalf of h. A stream is added to at most
	// one Poller: EEXIST otherwise. os.ErrClosed if c or the Poller is closed.
	Add(c Conn, h Handler) error

	// Remove stops watching c. No call of Ready begins after it has returned,
	// except on goroutines that were inside Poll already: a Handler stands a
	// late call. A stream not watched is ignored. Closing c removes it, too.
	Remove(c Conn)

	// WantRead and WantWrite switch the watching for reading (on after Add)
	// and for writing (off after Add). Both off leaves a reset unnoticed until
	// one is on again. ENOENT if c is not watched.
	WantRead(c Conn, on bool) error
	WantWrite(c Conn, on bool) error

	// Poll calls Ready for what is ready at this moment and returns for how
	// many streams, 0 if none; it never waits and does not allocate. Any
	// number of goroutines may poll at once.
	Poll() int

	// Serve is Poll for a goroutine that will not go on with it: it takes no lease.
	Serve() int

	// Wait parks until a stream may be ready, Wake was called since the last
	// Wait, or ctx is done (its error). It holds no OS thread. One goroutine at
	// a time may wait: EBUSY otherwise. Goroutines that call Poll again and again
	// hold a lease: Wait leaves the streams to them until they stop or one says
	// Attend.
	Wait(ctx context.Context) error

	// Wake makes the Wait in progress, or the next one, return nil.
	Wake()

	// Attend says that the caller, who has been polling, is about to sleep until
	// something arrives: Wait takes the streams over at once. It
	// costs two atomic operations when Wait has them anyway.
	Attend()

	// Close forgets all streams and makes Wait and Add return os.ErrClosed. It
	// does not close the streams.
	Close() error
}

// Listener accepts connections.
type Listener interface {
	// Accept waits for the next connection. Errors: ctx's, os.ErrClosed after
	// Close, EMFILE, ENFILE or ENOMEM when the system has run out: the
	// connection stays in the backlog and the caller tries again later.
	// Connections that died in the backlog are passed over.
	Accept(ctx context.Context) (Conn, error)

	Addr() netip.AddrPort // with the port chosen, if 0 was asked for
	Close() error         // idempotent; ends Accept
}

// Binding is a local address reserved and not yet used.
type Binding interface {
	Addr() netip.AddrPort // with the port chosen, if 0 was asked for

	// Listen and Dial use the address up, also when they fail.
	Listen(backlog int) (Listener, error)
	Dial(ctx context.Context, dst netip.AddrPort) (Conn, error)

	Close() error // gives an unused address back; idempotent
}

// Adjustable is a Network whose sockets have options that can be changed.
type Adjustable interface {
	// With returns the network with other options, but the same tap. Streams of
	// both can be in one Poller.
	With(change func(*TCPOptions)) (Network, error)
}

// AdjustableBinding is a Binding of such a Network.
type AdjustableBinding interface {
	// With changes DSCP and ReuseAddr of the socket, and DSCP of what comes of it. EINVAL
	// for V6Only: it is too late for that.
	With(change func(*TCPOptions)) error
}

// Network makes streams. Failures wrap a syscall.Errno and name the address:
// EADDRINUSE for a port taken, EADDRNOTAVAIL for an address that is not ours,
// ECONNREFUSED, ECONNRESET, ETIMEDOUT, EHOSTUNREACH, ENETUNREACH, EMFILE.
type Network interface {
	// Bind reserves local; port 0 picks a free one. A zero or unspecified
	// address means all local ones.
	Bind(local netip.AddrPort) (Binding, error)

	// Route says which local address the system uses towards dst.
	Route(dst netip.Addr) (netip.Addr, error)

	// Listen is Bind and Binding.Listen. backlog <= 0 means the default.
	Listen(local netip.AddrPort, backlog int) (Listener, error)

	// Dial connects to dst and waits for the end of the handshake. A zero src
	// leaves the choice to the system, a zero port in it too.
	Dial(ctx context.Context, src, dst netip.AddrPort) (Conn, error)

	NewPoller() (Poller, error)
}

// Stater is a Conn that knows about itself what TCP_INFO has.
type Stater interface {
	TCPStats() (TCPStats, error)
}

// TCPStats is a part of TCP_INFO. Its fields are those of provider.TCPStats.
type TCPStats struct {
	RTTMicros, RTTVarMicros uint32
	SendMSS, CongWindow     uint32
	Unacked, Lost, Retrans  uint32
	TotalRetrans            uint32
	BytesAcked              uint64
	BytesReceived           uint64
	NotSentBytes            uint32
	DeliveryRate            uint64
}
