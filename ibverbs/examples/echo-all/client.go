package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/govs-rdma/govs/ibverbs/rdmacm"
)

// send connects to the server at address, sends message and prints the answer.
func send(ctx context.Context, provider, address, message string) (err error) {
	if len(message) > maxMessage {
		return fmt.Errorf("the message has %d bytes, the server takes %d", len(message), maxMessage)
	}
	vctx, err := open(ctx, provider, address, false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, vctx.Close()) }()

	conn, err := rdmacm.DialName(ctx, vctx, address, config())
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()

	if err := conn.SendBytes(ctx, []byte(message)); err != nil {
		return fmt.Errorf("sending to %s: %w", address, err)
	}
	answer, err := conn.Receive(ctx)
	if err != nil {
		return fmt.Errorf("waiting for the answer of %s: %w", address, err)
	}
	fmt.Printf("%s\n", answer.Data)
	return conn.Shutdown(ctx)
}
