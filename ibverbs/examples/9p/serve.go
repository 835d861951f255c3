package main

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/examples/9p/p9"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
	"github.com/govs-rdma/govs/provider/auto"
)

// serveRDMA serves clients that connect by RDMA until ctx ends.
func serveRDMA(ctx context.Context, server *p9.Server, o *options) (err error) {
	addrs, err := rdmacm.GetAddrInfo(ctx, o.listen, &rdmacm.AddrInfoHints{Passive: true})
	if err != nil {
		return err
	}
	p, err := auto.Named(o.provider, &auto.Options{Addr: addrs[0].Addr()})
	if err != nil {
		return fmt.Errorf("--provider: %w", err)
	}
	vctx, err := ibverbs.Open(p, "")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, vctx.Close()) }()
	l, err := rdmacm.ListenName(ctx, vctx, o.listen, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	fmt.Println("listening on", l.Addr())
	return o.clientsOf(ctx, func() (connection, error) {
		req, err := l.Accept(ctx)
		if err != nil {
			return connection{}, err
		}
		return connection{
			from:   req.RemoteAddr(),
			refuse: func() { _ = req.Close() },
			serve: func(ctx context.Context, hear func(p9.Transport) p9.Transport) error {
				t, err := acceptRDMA(ctx, req, o)
				if err != nil {
					return err
				}
				return errors.Join(server.Serve(ctx, hear(t)), t.Close())
			},
		}, nil
	})
}

// serveTCP serves clients that connect by TCP until ctx ends.
func serveTCP(ctx context.Context, server *p9.Server, o *options) error {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", o.listen)
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { _ = l.Close() })()
	fmt.Println("listening on", l.Addr())
	return o.clientsOf(ctx, func() (connection, error) {
		conn, err := l.Accept()
		if err != nil {
			return connection{}, err
		}
		return connection{
			from:   conn.RemoteAddr().(*net.TCPAddr).AddrPort(),
			refuse: func() { _ = conn.Close() },
			serve: func(ctx context.Context, hear func(p9.Transport) p9.Transport) error {
				defer func() { _ = conn.Close() }() // the kernel still sends what was written
				return server.Serve(ctx, hear(p9.NewStream(conn, o.msize, o.requests, sendTimeout)))
			},
		}, nil
	})
}
