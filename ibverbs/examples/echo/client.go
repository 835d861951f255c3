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
	vctx, err := open(ctx, provider, address, false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, vctx.Close()) }()

	var answers *rdmacm.Receiver
	conn, err := rdmacm.DialName(ctx, vctx, address, &rdmacm.ConnConfig{
		Prepare: func(_ context.Context, c *rdmacm.Conn, _ *rdmacm.ConnParam) (err error) {
			answers, err = rdmacm.NewReceiver(c, 1, maxMessage)
			return err
		},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()

	mr, err := conn.PD().AllocMR(maxMessage, ibverbs.AccessLocalWrite)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, mr.Close()) }()
	sge, err := mr.SGE(0, copy(mr.Bytes(), message))
	if err != nil {
		return err
	}
	if err := conn.Send(ctx, sge); err != nil {
		return fmt.Errorf("sending to %s: %w", address, err)
	}
	answer, err := answers.Receive(ctx)
	if err != nil {
		return fmt.Errorf("waiting for the answer of %s: %w", address, err)
	}
	fmt.Printf("%s\n", answer.Data)
	return conn.Shutdown(ctx)
}
