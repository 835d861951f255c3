package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
)

// serve lets clients at address read a file, until ctx ends.
func serve(ctx context.Context, provider, address, name string) (err error) {
	vctx, err := open(ctx, provider, address, true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, vctx.Close()) }()
	pd, err := vctx.AllocPD()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, pd.Close()) }()
	mr, err := mapForReading(pd, name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, mr.Close()) }()
	whole, err := mr.Remote(0, int(mr.Len()))
	if err != nil {
		return err
	}
	announcement, err := whole.MarshalBinary()
	if err != nil {
		return err
	}

	l, err := rdmacm.ListenName(ctx, vctx, address, nil)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	fmt.Println("listening on", l.Addr())
	var clients sync.WaitGroup
	defer clients.Wait()
	for {
		req, err := l.Accept(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "pull:", err) // of one request; the listener goes on
			continue
		}
		clients.Go(func() {
			// All QPs use the region's PD, so that one registration serves them all.
			if err := attend(ctx, req, &rdmacm.ConnConfig{PD: pd, PrivateData: announcement}); err != nil {
				fmt.Fprintf(os.Stderr, "pull: %s: %v\n", req.RemoteAddr(), err)
			}
		})
	}
}

// attend accepts a request and waits until the client has left or ctx ends.
func attend(ctx context.Context, req *rdmacm.Request, cfg *rdmacm.ConnConfig) (err error) {
	conn, err := req.Accept(ctx, cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	fmt.Printf("%s: connected\n", conn.RemoteAddr())
	if conn.Wait(ctx) != nil {
		return nil // the server is to stop
	}
	fmt.Printf("%s: left\n", conn.RemoteAddr())
	var terminate *ibverbs.TerminateError
	if errors.As(conn.QP().Cause(), &terminate) {
		return terminate
	}
	return nil
}

// mapForReading registers a file for Reads of peers.
func mapForReading(pd *ibverbs.PD, name string) (*ibverbs.MR, error) {
	flags, access := os.O_RDONLY, ibverbs.AccessRemoteRead
	if pd.Context().Provider() == "kernel" {
		// siw pins pages of a file only if it may write to them. Clients may not.
		flags, access = os.O_RDWR, access|ibverbs.AccessLocalWrite
	}
	file, err := os.OpenFile(name, flags, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close() // the mapping stays
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() == 0 {
		return nil, fmt.Errorf("%s is empty or not a regular file", name)
	}
	return pd.MapFile(file, 0, int(info.Size()), access)
}
