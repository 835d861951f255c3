// Package transport separates the engine from the network: streams that never block, readiness,
// listening and dialling. [TCP] implements it over raw sockets; package memnet implements it in
// memory, deterministically.
//
// All of it supports one pattern. A [Conn] belongs to one protocol machine, which reads and writes
// it when a [Poller] calls the machine's [Handler]. Otherwise the machine holds neither a goroutine
// nor a buffer nor an OS thread.
package transport

import (
	"context"
	"errors"
	"net/netip"
)

// ErrWouldBlock says that a stream has nothing to read, or no room to write, at this moment. No
// byte was transferred.
var ErrWouldBlock = errors.New("transport: operation would block")

// Conn is a connected byte stream. One goroutine at a time may call Readv, and one at a time
// Writev. Both may run at once, and concurrently with every other method.
type Conn interface {
	// Readv fills bufs in order with bytes that have arrived and returns how many it stored; it
	// never waits. n > 0 comes with a nil error. With n == 0 the error is ErrWouldBlock, io.EOF
	// when the peer has sent its FIN and everything before it has been read, a syscall.Errno
	// (ECONNRESET, ETIMEDOUT, ...) when the connection is lost, or os.ErrClosed. bufs and their
	// memory belong to the caller again when it returns. An empty bufs reads nothing and returns 0,
	// nil.
	Readv(bufs [][]byte) (n int, err error)

	// Writev queues bytes of bufs in order and returns how many it took, which may end anywhere
	// inside a buffer; it never waits. n > 0 comes with a nil error. With n == 0 the error is
	// ErrWouldBlock, a syscall.Errno (EPIPE after the connection was lost or CloseWrite,
	// ECONNRESET, ...), or os.ErrClosed. bufs belongs to the caller again, as with Readv, because
	// Writev copies the bytes that it takes.
	Writev(bufs [][]byte) (n int, err error)

	// CloseWrite sends FIN after the bytes that Writev took. Reading continues.
	CloseWrite() error

	// Close gives the stream up: the bytes that Writev took are still sent, then FIN. If bytes of
	// the peer are unread, TCP sends RST instead. Close is idempotent. The Poller removes the
	// stream by itself.
	Close() error

	// Abort closes the stream and sends RST at once; unsent bytes are lost.
	Abort() error

	// MSS is the sender's present maximum segment size, in bytes of TCP payload (the EMSS of RFC
	// 5044 section 2).
	MSS() int

	LocalAddr() netip.AddrPort
	RemoteAddr() netip.AddrPort
}

// RecordWriter is a Conn that keeps the limits of records: no TCP segment has bytes of two records.
// TCP cuts a record longer than a segment into segments of MSS bytes, counted from the record's
// first byte. A Conn that is no RecordWriter is written with Writev.
type RecordWriter interface {
	// WriteRecords writes as Writev does, where the bytes are records of these lengths, one after
	// the other; the lengths add up to the bytes of bufs. If it took only part of a record, the
	// next call must begin with the rest of it as a record. Of more than the system's limit of
	// buffers it takes as many as fit. records belongs to the caller again when it returns.
	WriteRecords(bufs [][]byte, records []int) (n int, err error)
}

// NotSentLimiter is a Conn that can bound the bytes that it holds for TCP to send later.
type NotSentLimiter interface {
	// LimitNotSent makes the Conn take no more bytes while it holds this many that TCP can't send
	// yet, because of the peer's window or of the congestion window. The last record or write that
	// it takes may exceed the limit. 0 restores the system's limit. Bytes that are sent and not
	// acknowledged do not count.
	LimitNotSent(octets int) error
}

// Handler is called when a stream can be read or written. Ready runs on any goroutine that calls
// Poll, and may run on several at once for the same stream: if an implementation is busy with the
// stream on another goroutine, it returns at once. It must not block. It may call every method of
// its Conn and of the Poller except Poll, Wait and Close. An error or an end of stream counts as
// readable: reading shows which.
type Handler interface {
	Ready(readable, writable bool)
}

// Sharer is a Handler that shares the time of a poller with others (see package turns).
type Sharer interface {
	Handler

	// Poll calls ReadyTurn instead of Ready. It moves about budget bytes at most, in both
	// directions together; work that costs more than its bytes counts as the bytes that take as
	// long. It returns how much of the budget it has used, and whether the turn ended before the
	// work did.
	ReadyTurn(readable, writable bool, budget int) (used int, more bool)
}

// Poller watches streams of the Network that made it. Readiness is level triggered: every Poll
// calls Ready as long as the condition lasts, so nothing is lost if a Handler ignores a call. A
// Sharer that has much to do is called only by every few Polls. A Handler that has no room for
// more, or has seen the end of the stream, calls WantRead(c, false).
type Poller interface {
	// Add watches c for reading on behalf of h. A stream is added to at most
	// one Poller: EEXIST otherwise. os.ErrClosed if c or the Poller is closed.
	Add(c Conn, h Handler) error

	// Remove stops watching c. After it has returned, no call of Ready begins, except on goroutines
	// that were inside Poll already: a Handler must accept such a late call. A stream that is not
	// watched is ignored. Closing c removes it, too.
	Remove(c Conn)

	// WantRead and WantWrite switch watching for reading (on after Add) and for writing (off after
	// Add). While both are off, a reset is not noticed. ENOENT if c is not watched.
	WantRead(c Conn, on bool) error
	WantWrite(c Conn, on bool) error

	// Poll calls Ready for the streams that are ready at this moment and returns how many there
	// were, 0 if none; it never waits and does not allocate. Any number of goroutines may poll at
	// once.
	Poll() int

	// Serve polls once, for a goroutine that will not poll again, and takes no lease.
	Serve() int

	// Wait parks until a stream may be ready, Wake was called since the last Wait, or ctx is done
	// (its error). It holds no OS thread. Only one goroutine at a time may wait: EBUSY otherwise.
	// Goroutines that call Poll again and again hold a lease: Wait leaves the streams to them until
	// they stop or one calls BeforeSleep.
	Wait(ctx context.Context) error

	// Wake makes the Wait in progress, or the next one, return nil.
	Wake()

	// BeforeSleep says that the caller has been polling, and is about to sleep until something
	// arrives. Wait then takes the streams over at once. If Wait has them anyway, BeforeSleep costs
	// two atomic operations.
	BeforeSleep()

	// Close removes all streams and makes Wait and Add return os.ErrClosed. It does not close the
	// streams.
	Close() error
}

// Listener accepts connections.
type Listener interface {
	// Accept waits for the next connection. Errors: ctx's; os.ErrClosed after Close; EMFILE, ENFILE
	// or ENOMEM when the system has run out, where the connection stays in the backlog and the
	// caller tries again later. Accept skips connections that died in the backlog.
	Accept(ctx context.Context) (Conn, error)

	Addr() netip.AddrPort // with the port chosen, if 0 was asked for
	Close() error         // idempotent; ends Accept
}

// Binding is a reserved local address that is not used yet.
type Binding interface {
	Addr() netip.AddrPort // with the port chosen, if 0 was asked for

	// Listen and Dial use the address up, even when they fail.
	Listen(backlog int) (Listener, error)
	Dial(ctx context.Context, dst netip.AddrPort) (Conn, error)

	Close() error // returns an unused address to the system; idempotent
}

// Adjustable is a Network whose sockets have options that can be changed.
type Adjustable interface {
	// With returns the network with other options, but the same tap. Streams of both can be in one
	// Poller.
	With(change func(*TCPOptions)) (Network, error)
}

// AdjustableBinding is a Binding of such a Network.
type AdjustableBinding interface {
	// With changes DSCP and ReuseAddr of the socket, and DSCP of its connections. EINVAL for
	// V6Only, for which it is too late.
	With(change func(*TCPOptions)) error
}

// Network makes streams. Errors wrap a syscall.Errno and name the address: EADDRINUSE for a port
// taken, EADDRNOTAVAIL for an address that is not local, ECONNREFUSED, ECONNRESET, ETIMEDOUT,
// EHOSTUNREACH, ENETUNREACH, EMFILE.
type Network interface {
	// Bind reserves local; port 0 chooses a free one. A zero or unspecified address means all local
	// ones.
	Bind(local netip.AddrPort) (Binding, error)

	// Route returns the local address that the system uses towards dst.
	Route(dst netip.Addr) (netip.Addr, error)

	// Listen binds local and listens on it. backlog <= 0 means the default.
	Listen(local netip.AddrPort, backlog int) (Listener, error)

	// Dial connects to dst and waits for the end of the handshake. The system chooses a zero src,
	// or a zero port in it.
	Dial(ctx context.Context, src, dst netip.AddrPort) (Conn, error)

	NewPoller() (Poller, error)
}

// Stater is a Conn that can report its TCP_INFO.
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
