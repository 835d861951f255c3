package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
)

// send connects to the server at address, sends message and prints the answer.
func send(ctx context.Context, provider, address, message string) (err error) {
	if len(message) > maxMessage {
		return fmt.Errorf("the message has %d octets, the server takes %d", len(message), maxMessage)
	}
	vctx, err := open(provider, address)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, vctx.Close()) }()

	// The answer goes to the first half of the buffer, the message is in the second.
	var mr *ibverbs.MR
	defer func() { err = errors.Join(err, mr.Close()) }()
	conn, err := rdmacm.DialName(ctx, vctx, address, &rdmacm.ConnConfig{
		Prepare: func(_ context.Context, c *rdmacm.Conn, _ *rdmacm.ConnParam) error {
			// Dial calls this again if it needs a second attempt, with another Conn.
			if err := mr.Close(); err != nil {
				return err
			}
			var err error
			if mr, err = c.PD().AllocMR(2*maxMessage, ibverbs.AccessLocalWrite); err != nil {
				return err
			}
			sge, err := mr.SGE(0, maxMessage)
			if err != nil {
				return err
			}
			return c.QP().PostRecv(ibverbs.RecvWR{SGList: []ibverbs.SGE{sge}})
		},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()

	// What waits below also ends when the connection does.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() { <-conn.Done(); cancel() }()

	n := copy(mr.Bytes()[maxMessage:], message)
	sge, err := mr.SGE(maxMessage, n)
	if err != nil {
		return err
	}
	err = conn.QP().PostSend(ibverbs.SendWR{
		Opcode: ibverbs.WRSend, Flags: ibverbs.SendSignaled, SGList: []ibverbs.SGE{sge},
	})
	if err != nil {
		return because(fmt.Errorf("sending to %s: %w", address, err), conn.QP())
	}
	if _, err := complete(ctx, conn.SendCQ()); err != nil {
		return because(fmt.Errorf("sending to %s: %w", address, err), conn.QP())
	}
	wc, err := complete(ctx, conn.RecvCQ())
	if err != nil {
		return because(fmt.Errorf("waiting for the answer of %s: %w", address, err), conn.QP())
	}
	fmt.Printf("%s\n", mr.Bytes()[:wc.ByteLen])
	return conn.Shutdown(ctx)
}
