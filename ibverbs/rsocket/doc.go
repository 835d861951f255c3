// Package rsocket is streams over RDMA: a [net.Conn] and a [net.Listener] that speak the protocol of
// librdmacm's rsockets, version 1, over iWARP. The peer may be this package, or a program in C: one
// that calls rsocket, rconnect and so on, such as rstream and rcopy of rdma-core, or any program that
// runs under librspreload.so.
//
//	l, err := rsocket.Listen(ctx, vctx, netip.MustParseAddrPort("192.0.2.1:7471"))
//	conn, err := l.Accept()
//
//	conn, err := rsocket.Dial(ctx, vctx, netip.MustParseAddrPort("192.0.2.1:7471"))
package rsocket
