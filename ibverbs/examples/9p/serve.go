package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

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
	return o.clientsOf(ctx, func() (func() error, error) {
		req, err := l.Accept(ctx)
		if err != nil {
			return nil, err
		}
		return func() error {
			return client(req.RemoteAddr(), func() (err error) {
				t, err := acceptRDMA(ctx, req, o)
				if err != nil {
					return err
				}
				defer func() { err = errors.Join(err, t.Close()) }()
				return server.Serve(ctx, t)
			})
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
	return o.clientsOf(ctx, func() (func() error, error) {
		conn, err := l.Accept()
		if err != nil {
			return nil, err
		}
		return func() error {
			defer func() { _ = conn.Close() }() // what was written is the kernel's
			return client(conn.RemoteAddr(), func() error {
				return server.Serve(ctx, p9.NewStream(conn, o.msize, o.requests, sendTimeout))
			})
		}, nil
	})
}

// client has serve serve a client, and reports its coming and going.
func client(addr fmt.Stringer, serve func() error) error {
	fmt.Printf("%s: connected\n", addr)
	if err := serve(); err != nil {
		return fmt.Errorf("%s: %w", addr, err)
	}
	fmt.Printf("%s: left\n", addr)
	return nil
}

// clientsOf serves what accept returns, o.clients at a time, until ctx ends. Others wait.
func (o *options) clientsOf(ctx context.Context, accept func() (func() error, error)) error {
	var clients sync.WaitGroup
	defer clients.Wait()
	places := make(chan struct{}, o.clients)
	for {
		select {
		case places <- struct{}{}:
		case <-ctx.Done():
			return nil
		}
		serve, err := accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			// It concerns one client, or there is no memory or descriptor for one more.
			fmt.Fprintln(os.Stderr, "9p:", err)
			time.Sleep(10 * time.Millisecond)
			<-places
			continue
		}
		clients.Go(func() {
			defer func() { <-places }()
			if err := serve(); err != nil {
				fmt.Fprintln(os.Stderr, "9p:", err)
			}
		})
	}
}
