package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
)

// serve answers clients at address, each in a goroutine of its own, until ctx ends.
func serve(ctx context.Context, provider, address string) (err error) {
	vctx, err := open(provider, address)
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
			// It concerns one request, and the listener goes on.
			fmt.Fprintln(os.Stderr, "echo:", err)
			continue
		}
		clients.Go(func() {
			if err := answer(ctx, req); err != nil {
				fmt.Fprintf(os.Stderr, "echo: %s: %v\n", req.RemoteAddr(), err)
			}
		})
	}
}

// answer accepts a request and sends all messages of the client back to it, until the
// client disconnects or ctx ends.
func answer(ctx context.Context, req *rdmacm.Request) (err error) {
	// A message arrives in the first half of the buffer, and is sent back from the second.
	var mr *ibverbs.MR
	defer func() { err = errors.Join(err, mr.Close()) }()
	var receive ibverbs.RecvWR
	conn, err := req.Accept(ctx, &rdmacm.ConnConfig{
		Prepare: func(_ context.Context, c *rdmacm.Conn, _ *rdmacm.ConnParam) (err error) {
			if mr, err = c.PD().AllocMR(2*maxMessage, ibverbs.AccessLocalWrite); err != nil {
				return err
			}
			sge, err := mr.SGE(0, maxMessage)
			if err != nil {
				return err
			}
			receive.SGList = []ibverbs.SGE{sge}
			return c.QP().PostRecv(receive)
		},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()

	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { <-conn.Done(); cancel() }()
	for {
		n, err := echo(waiting, conn, mr, receive)
		switch {
		case err == nil:
			fmt.Printf("%s: echoed %d octets\n", conn.RemoteAddr(), n)
		case ctx.Err() != nil:
			// We are to stop. What was sent may take a second to arrive.
			last, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			defer cancel()
			return conn.Shutdown(last)
		case errors.Is(err, ibverbs.ErrFlushed) || waiting.Err() != nil:
			return because(nil, conn.QP()) // the connection is over
		default:
			return err
		}
	}
}

// echo waits for a message and sends it back. It returns the message's length.
func echo(ctx context.Context, conn *rdmacm.Conn, mr *ibverbs.MR, receive ibverbs.RecvWR) (int, error) {
	wc, err := complete(ctx, conn.RecvCQ())
	if err != nil {
		return 0, err
	}
	n := copy(mr.Bytes()[maxMessage:], mr.Bytes()[:wc.ByteLen])
	// The client may send the next message as soon as it has the answer: the receive
	// for it comes first.
	if err := conn.QP().PostRecv(receive); err != nil {
		return 0, err
	}
	sge, err := mr.SGE(maxMessage, n)
	if err != nil {
		return 0, err
	}
	err = conn.QP().PostSend(ibverbs.SendWR{
		Opcode: ibverbs.WRSend, Flags: ibverbs.SendSignaled, SGList: []ibverbs.SGE{sge},
	})
	if err != nil {
		return 0, err
	}
	// The buffer is free again when the Send has completed.
	_, err = complete(ctx, conn.SendCQ())
	return n, err
}
