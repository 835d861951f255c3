// Package rsocket has streams over RDMA: a [net.Conn] and a [net.Listener] that speak the protocol
// of librdmacm's rsockets, version 1, over iWARP. The peer may be this package or a program in C:
// one that calls rsocket, rconnect and so on, as rstream and rcopy of rdma-core do, or any program
// that runs under librspreload.so. Code for net.Conn works over it, such as crypto/tls and
// net/http. Of rsockets the package has only streams (SOCK_STREAM).
//
// The server (errors left out), here on the engine. For a device of the kernel, write kernel.New()
// and "siw0":
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
// The client, which opens its device in the same way:
//
//	conn, err := rsocket.Dial(ctx, vctx, "tcp", "192.0.2.1:7471")
//	conn.Write([]byte("hello"))
//	conn.CloseWrite()
//	answer, err := io.ReadAll(conn)
//	conn.Close()
//
// [Dialer.DialContext] is for http.Transport and other code that takes "host:port", and [Listener]
// for http.Server.Serve. ibverbs/examples/grpc uses both for gRPC. These packages close connections
// in their own goroutines, shortly after the calls that end them have returned. Until then Close of
// the device returns EBUSY and says what is open: call it again.
//
// # How it works
//
// Each end has a ring, into which the peer writes by RDMA Write. A Send of four bytes after each
// Write says how long it is. The ring has two halves: when the program has read a half, this end
// grants it to the peer again by a credit message, which also says for how many transfers it has
// receives. So a stream has its own flow control: Write waits until the peer's program has read. A
// call of Write begins with a transfer of 2048 bytes, so that the peer can process them while the
// rest is copied. Each later transfer is twice as long, up to 65536 bytes.
//
// Write copies into a send buffer, and returns when everything is there. ReadFrom makes its reader
// read into that buffer. Read copies out of the ring. WriteTo passes the ring's memory to its
// writer.
//
// By default a connection has a send buffer and a ring of 128 KiB each, as in C ([Config]). On the
// engine only the pages that have been used take memory. The ring of an idle connection cannot be
// freed, because the peer may write into it at any time, and the protocol has no message that
// revokes a grant. A server with many idle connections should make Config.ReceiveBuffer and
// SendBuffer smaller, down to 2048 bytes.
//
// # Concurrency
//
// All methods may be called concurrently, even during Close. One Read or WriteTo, and one Write or
// ReadFrom, is active at a time; others wait for it. A waiting call takes completions for the
// others as well. Read and Write allocate nothing on the engine. A connection has no goroutine of
// its own, with two exceptions. On kernel devices package rdmacm has one for each connection.
// CloseWrite starts one if the end of the stream has to wait for the peer's first message (see
// Limitations).
//
// Messages of the peer are processed while a call waits or a Read returns. A program that calls
// neither Read nor Write for a long time stalls its peer, after half of the ring at the earliest,
// as a program that does not read from TCP stalls its peer.
//
// # Errors
//
// Errors are [*net.OpError], as with net.TCPConn. They contain these errors, for errors.Is:
//   - [io.EOF] (not in an OpError) from Read after the peer's CloseWrite or Close;
//   - [os.ErrDeadlineExceeded], with Timeout() true, after a deadline;
//   - [net.ErrClosed] after Close;
//   - EPIPE from Write after CloseWrite, and after the peer's Close;
//   - ECONNRESET when the connection has ended without the end of the stream, for instance because
//     a process exited without Close. On the engine it contains the cause.
//   - EPROTO when the peer broke the protocol; the text says how. Dial returns it if the listener
//     accepts but is not an rsocket. Every number from the peer is checked before it is used, so a
//     peer can end only its own connection.
//   - ECONNREFUSED from Dial if no program listens, or the listener refuses our private data.
//
// # Limitations
//
//   - iWARP only: on InfiniBand and RoCE rsockets send immediate data instead of Sends. There Dial
//     and Listen return errors.ErrUnsupported.
//   - No memory of the peer can be mapped (riomap, riowrite), and this end announces 0 entries to
//     the peer. The peer's riomap then returns ENOMEM, as with a peer in C by default, and
//     riostream ends.
//   - Two ends of different byte order work only if both use this package, because C's rsockets do
//     not support that on iWARP.
//   - The end that accepted may send only after the other end's first message (RFC 5044 section
//     7.1.2, rule 4). Dial sends one at once; a peer in C does when it first reads, writes or
//     polls. Until then Write waits, and CloseWrite returns and sends the end later.
//   - A server in C on siw sends too early, because siw does not hold it back. The engine accepts
//     data that comes with MPA's Reply. On siw Dial, like C's rconnect, then fails with EINVAL; try
//     again.
//   - On siw, Close while the peer writes may lose the last bytes that this end wrote, because siw
//     closes its socket with unread bytes in it, so TCP sends a reset. To lose nothing, call
//     CloseWrite, and Read until io.EOF before Close. The engine reads until the peer's end.
//   - The peer's Close ends both directions, as in C but unlike with TCP: data from before it can
//     still be read, but nothing can be written.
//   - A peer in C may end the connection, because it posts receives for data only, and credit
//     messages and the end of the stream take some of them. So this end leaves up to 8 of the
//     peer's credits unused.
package rsocket
