// Package rsocket has streams over RDMA: a [net.Conn] and a [net.Listener] that speak the protocol
// of librdmacm's rsockets, version 1, over iWARP. The peer may be this package, or a program in C:
// one that calls rsocket, rconnect and so on, as rstream and rcopy of rdma-core do, or any program
// that runs under librspreload.so. What works over net.Conn works over it, such as crypto/tls and
// net/http. Of rsockets it has streams (SOCK_STREAM).
//
// One process (errors left out), here with the engine; kernel.New() and "siw0" instead are a device
// of the kernel:
//
//	vctx, err := ibverbs.Open(engine.New(nil), "")
//	l, err := rsocket.Listen(ctx, vctx, "tcp", "192.0.2.1:7471")
//	for {
//		conn, err := l.Accept()
//		go func() {
//			io.Copy(conn, conn)
//			conn.Close()
//		}()
//	}
//
// And another one, which opens its device in the same way:
//
//	conn, err := rsocket.Dial(ctx, vctx, "tcp", "192.0.2.1:7471")
//	conn.Write([]byte("hello"))
//	conn.CloseWrite()
//	answer, err := io.ReadAll(conn)
//	conn.Close()
//
// [Dialer.DialContext] is for http.Transport and all that takes "host:port", and [Listener] for
// http.Server.Serve. ibverbs/examples/grpc has both for gRPC. These packages close connections in
// goroutines of their own, a little after the calls that end them have returned. Until then Close
// of the device is EBUSY, and says what is open: call it again.
//
// # How it works
//
// Each end has a ring that the peer writes into by RDMA Write. A Send of four bytes after each
// Write says how long it is. The ring has two halves: when the program has read one, the peer is
// granted it anew. So a stream has flow control of its own: Write waits until the peer's program
// has read. A call of Write begins with 2048 bytes, so that the peer can begin with them while the
// rest is copied, and doubles that up to 65536.
//
// Write copies into a send buffer, and returns when all is there; ReadFrom has its reader read into
// that buffer. Read copies out of the ring; WriteTo passes the ring's memory to its writer.
//
// A connection has 128 KiB of each kind of memory by default, as in C ([Config]), of which the
// engine needs only the pages that have been used. The ring of an idle connection is not given
// back: the peer may write into it at any time without asking, and the protocol has no message that
// takes a grant back. A server with many connections that are idle sets Config.ReceiveBuffer and
// SendBuffer lower, 2048 bytes at least.
//
// # Concurrency
//
// All methods may be called concurrently, also with Close. One Read or WriteTo, and one Write or
// ReadFrom is under way at a time; others wait for it. A call that waits takes completions for the
// others as well. A connection has no goroutine, apart from the one that package rdmacm has for
// each connection on devices of the kernel, and one after a CloseWrite whose end has to wait for
// the peer's first message (see Limitations). Read and Write allocate nothing on the engine.
//
// Messages of the peer are handled while a call waits or a Read returns. A program that calls
// neither Read nor Write for a long time holds up its peer, as one that does not read does with
// TCP, after half of the ring.
//
// # Errors
//
// They are [*net.OpError], as those of a net.TCPConn, with these errors inside for errors.Is:
//   - [io.EOF] (not in an OpError) from Read after the peer's CloseWrite or Close;
//   - [os.ErrDeadlineExceeded], with Timeout() true, after a deadline;
//   - [net.ErrClosed] after Close;
//   - EPIPE from Write after CloseWrite, and after the peer's Close;
//   - ECONNRESET when the connection has ended without the end of the stream, on the engine with
//     the cause: a process that ended without Close looks so;
//   - EPROTO when the peer broke the protocol, and the text says how; from Dial also when the
//     listener accepts but is no rsocket. Every number of the peer is checked before it is used, so
//     that it can end its own connection and no more.
//   - ECONNREFUSED from Dial where nobody listens, or the listener does not take our private data.
//
// # Limitations
//
//   - iWARP only: on InfiniBand and RoCE rsockets send immediate data instead of Sends. Dial and
//     Listen are errors.ErrUnsupported there.
//   - No memory of the peer can be mapped (riomap, riowrite): the peer learns that there are 0
//     entries. riomap is ENOMEM there, as with a peer in C by default, and riostream ends with
//     that.
//   - Two ends of different byte order work if both are of this package. C's end does not on
//     iWARP.
//   - The end that accepted may send only after the first message of the other one (RFC 5044
//     section 7.1.2, rule 4). Dial sends one at once; a peer in C does when it first reads, writes
//     or polls. Until then Write waits, and CloseWrite has the end sent later.
//   - A server in C on siw sends too early, too, and siw lets it. The engine takes what comes with
//     the Reply. On siw Dial fails with EINVAL then, and may be tried again. So does C's rconnect.
//   - On siw, Close while the peer writes may lose the end of what was written: siw closes its
//     socket with bytes in it that it has not read, which TCP answers with a reset. CloseWrite,
//     and Read until io.EOF before Close, loses nothing. The engine reads until the peer's end.
//   - The peer's Close ends both directions, as in C, unlike with TCP: what was not read before it
//     is still there, but nothing can be written.
//   - A peer in C may end the connection by sending more credit messages than there are receives;
//     this package has room for them, but C's end has not. So this end leaves up to 8 of the
//     peer's credits unused.
package rsocket
