// Package rdmacm makes connections for package ibverbs, with the meaning that
// librdmacm gives them. Addresses are those of TCP, ports included: on iWARP a
// connection is an RDMAP stream over one TCP connection, set up by MPA (RFC
// 5044, RFC 6581).
//
// There are two levels. [Dial], and [Listen] with [Listener.Accept] and
// [Request.Accept], do what nearly every program needs:
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
// [DialName] and [ListenName] take names, of hosts and services.
//
// Underneath, [EventChannel], [ID] and [Event] are librdmacm's own calls, one
// for one: CreateID, ResolveAddr, ResolveRoute, CreateQP, Connect, each with
// its event. The two can be mixed: [Conn.ID] is the id of a connection.
//
// # Receives come first
//
// The peer may send as soon as the connection stands, and iWARP ends a
// connection whose Send finds no receive. [ConnConfig].Receives posts receives before
// that; receives of your own belong into [ConnConfig.Prepare], not after Dial or Accept
// has returned.
//
// On iWARP the accepting side may not send before it has received something (RFC 5044 section
// 7.1.2, rule 4). So Dial opens the stream with an empty RDMA Write, after which both sides may
// send. Where the peer dialled by other means (ID.Connect, a program in C,
// [ConnConfig].NoOpeningWrite), it has to send first: a provider may hold back what is posted here
// before that, and QP.Drain then waits for it; or it sends it, and the peer may refuse it.
//
// # Concurrency
//
// All methods may be called concurrently, also with Close. Those that can wait
// take a context and occupy no thread while they wait, except that the kernel
// makes the TCP connection of a Dial within a system call. A connection that
// Dial or Accept makes has an event channel of its own, so that any number of
// them can come and go at a time. An idle Conn of the engine has no goroutine unless somebody
// called [Conn.Done].
//
// # Errors
//
// As in package ibverbs. A peer that refuses is a [*RejectedError] with its
// private data, inside an [ibverbs.Error] that names the address.
//
// # Limitations
//
// Connections are of the port space RDMA_PS_TCP. Multicast, options of InfiniBand
// paths, and librdmacm's rdma_create_ep with what goes with it are not there.
package rdmacm
