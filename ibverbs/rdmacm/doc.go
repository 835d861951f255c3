// Package rdmacm makes connections for package ibverbs, with the meaning that librdmacm gives them.
// Addresses are TCP addresses, with ports: on iWARP a connection is an RDMAP stream over one TCP
// connection, set up by MPA (RFC 5044, RFC 6581).
//
// The package has two levels. [Dial], and [Listen] with [Listener.Accept] and [Request.Accept], do
// what nearly every program needs:
//
//	l, err := rdmacm.Listen(ctx, vctx, netip.MustParseAddrPort("192.0.2.1:7471"), nil)
//	for {
//		req, err := l.Accept(ctx)
//		if string(req.PrivateData()) != "please" {
//			req.Reject([]byte("say please"))
//			continue
//		}
//		conn, err := req.Accept(ctx, &rdmacm.ConnConfig{Receives: 8, ReceiveSize: 64})
//		go serve(conn) // with conn.Receive and conn.SendBytes
//	}
//
// [DialName] and [ListenName] take the names of hosts and services.
//
// The lower level, [EventChannel], [ID] and [Event], has librdmacm's calls one for one: CreateID,
// ResolveAddr, ResolveRoute, CreateQP, Connect, each with its event. A program can mix the two
// levels: [Conn.ID] returns a connection's id.
//
// # Receives come first
//
// The peer may send as soon as the connection is established, and iWARP ends a connection whose
// Send finds no receive. [ConnConfig].Receives posts receives before that. Post receives of your
// own in [ConnConfig.Prepare], because after Dial or Accept has returned it is too late.
//
// On iWARP the accepting side may not send before it has received something (RFC 5044 section
// 7.1.2, rule 4). So Dial opens the stream with an empty RDMA Write, after which both sides may
// send. A peer that dialled by other means (ID.Connect, a program in C,
// [ConnConfig].NoOpeningWrite) has to send first. Before that, the engine holds back what is posted
// here, and QP.Drain waits for it. siw sends it, and the peer may refuse it.
//
// # Concurrency
//
// All methods may be called concurrently, even during Close. Methods that can wait take a context
// and occupy no thread while they wait. The kernel provider is an exception: a Dial's TCP
// connection is made in a system call. Each connection that Dial or Accept makes has its own event
// channel, so any number of them can come and go at the same time. An idle Conn of the engine has
// one goroutine at most ([Conn.Done]).
//
// # Errors
//
// Errors are as in package ibverbs. If the peer refuses, the error is an [ibverbs.Error] that names
// the address and contains a [*RejectedError] with the peer's private data.
//
// # Limitations
//
// Connections are of the port space RDMA_PS_TCP. Multicast, the options of InfiniBand paths, and
// librdmacm's rdma_create_ep with its related calls are not supported.
package rdmacm
