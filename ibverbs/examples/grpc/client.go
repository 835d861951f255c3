package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/examples/grpc/echopb"
	"github.com/govs-rdma/govs/ibverbs/rsocket"
)

// calls has the client's options from the command line.
type calls struct {
	messages      []string
	stream        bool
	timeout, wait time.Duration
}

// call connects to the server at address, sends it the messages and prints the answers.
func call(ctx context.Context, provider, address string, calls calls) (err error) {
	vctx, err := open(ctx, provider, address, false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeDevice(vctx)) }()
	conn, err := connect(vctx, address)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()

	client := echopb.NewEchoClient(conn)
	if calls.stream {
		return talk(ctx, client, calls)
	}
	for _, text := range calls.messages {
		if err := say(ctx, client, calls, text); err != nil {
			return err
		}
	}
	return nil
}

// connect returns a gRPC connection to the server at address over the device of vctx. A call
// connects if there is no connection, so calls also reach a server that was restarted. gRPC's own
// options apply: with TLS credentials, TLS runs over the rsocket as it does over TCP.
func connect(vctx *ibverbs.Context, address string) (*grpc.ClientConn, error) {
	dial := new(rsocket.Dialer).DialContext(vctx)
	return grpc.NewClient("passthrough:///"+url.PathEscape(address), // an address with a zone has a %
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			return dial(ctx, "tcp", address)
		}))
}

// message makes a message that the server answers after --wait.
func (c calls) message(text string) *echopb.Message {
	return &echopb.Message{Text: text, WaitMs: c.wait.Milliseconds()}
}

// say sends text in a call of its own.
func say(ctx context.Context, client echopb.EchoClient, calls calls, text string) error {
	ctx, cancel := context.WithTimeout(ctx, calls.timeout)
	defer cancel()
	answer, err := client.Say(ctx, calls.message(text))
	if err != nil {
		return fmt.Errorf("saying %q: %w", text, err)
	}
	fmt.Println(answer.GetText())
	return nil
}

// talk sends all messages in one call, and prints the answers while it sends.
func talk(ctx context.Context, client echopb.EchoClient, calls calls) error {
	ctx, cancel := context.WithTimeout(ctx, calls.timeout)
	defer cancel()
	stream, err := client.Talk(ctx)
	if err != nil {
		return fmt.Errorf("talking: %w", err)
	}
	go func() {
		for _, text := range calls.messages {
			if stream.Send(calls.message(text)) != nil {
				return // Recv returns why
			}
		}
		_ = stream.CloseSend()
	}()
	for {
		answer, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("talking: %w", err)
		}
		fmt.Println(answer.GetText())
	}
}
