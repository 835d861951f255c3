package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
)

// serve answers clients at address, each in a goroutine of its own, until ctx ends.
func serve(ctx context.Context, provider, address string) (err error) {
	vctx, err := open(ctx, provider, address, true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, vctx.Close()) }()
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
			// The error concerns one request, so the listener goes on.
			fmt.Fprintln(os.Stderr, "echo-all:", err)
			continue
		}
		clients.Go(func() {
			if err := answer(ctx, req); err != nil {
				fmt.Fprintf(os.Stderr, "echo-all: %s: %v\n", req.RemoteAddr(), err)
			}
		})
	}
}

// answer accepts a request and sends all messages of the client back to it, until the
// client disconnects or ctx ends.
func answer(ctx context.Context, req *rdmacm.Request) (err error) {
	conn, err := req.Accept(ctx, config())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	mr, err := conn.PD().AllocMR(maxMessage, ibverbs.AccessLocalWrite)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, mr.Close()) }()

	for {
		n, err := echo(ctx, conn, mr)
		switch {
		case err == nil:
			fmt.Printf("%s: echoed %d bytes\n", conn.RemoteAddr(), n)
		case ctx.Err() != nil:
			// The server stops. What was sent may take a second to arrive.
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			defer cancel()
			return conn.Shutdown(last)
		case hasLeft(err):
			return nil
		default:
			return err
		}
	}
}

// echo waits for a message and sends it back. It returns the message's length.
func echo(ctx context.Context, conn *rdmacm.Conn, mr *ibverbs.MR) (int, error) {
	m, err := conn.Receive(ctx)
	if err != nil {
		return 0, err
	}
	n := copy(mr.Bytes(), m.Data)
	// Release posts the next receive first, because the client may send its next message as
	// soon as it has the answer.
	if err := m.Release(); err != nil {
		return 0, err
	}
	sge, err := mr.SGE(0, n)
	if err != nil {
		return 0, err
	}
	return n, conn.Send(ctx, sge)
}

// hasLeft reports whether err means that the client disconnected, and not that a protocol
// error ended the connection.
func hasLeft(err error) bool {
	var terminate *ibverbs.TerminateError
	if errors.As(err, &terminate) {
		return false
	}
	return errors.Is(err, ibverbs.ErrFlushed) || errors.Is(err, syscall.ENOTCONN)
}
