package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/govs-rdma/govs/ibverbs/examples/grpc/echopb"
	"github.com/govs-rdma/govs/ibverbs/rsocket"
)

// serve serves clients at address until ctx ends.
func serve(ctx context.Context, provider, address string) (err error) {
	vctx, err := open(ctx, provider, address, true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeDevice(vctx)) }()
	lc := rsocket.ListenConfig{Refused: func(peer netip.AddrPort, err error) {
		fmt.Fprintf(os.Stderr, "grpc: %v gets no connection: %v\n", peer, err)
	}}
	l, err := lc.Listen(ctx, vctx, "tcp", address)
	if err != nil {
		return err
	}
	srv := grpc.NewServer()
	echopb.RegisterEchoServer(srv, echoServer{})
	fmt.Println("listening on", l.Addr())

	ended := make(chan struct{})
	go func() {
		defer close(ended)
		<-ctx.Done()
		// Calls under way have a second to end.
		stop := time.AfterFunc(time.Second, srv.Stop)
		defer stop.Stop()
		srv.GracefulStop()
	}()
	if err := srv.Serve(l); err != nil { // which closes l
		return err
	}
	<-ended
	return nil
}

// echoServer is the service.
type echoServer struct {
	echopb.UnimplementedEchoServer
}

// Say implements echopb.EchoServer.
func (echoServer) Say(ctx context.Context, m *echopb.Message) (*echopb.Message, error) {
	if err := wait(ctx, m); err != nil {
		report(ctx, "Say", err)
		return nil, err
	}
	return m, nil
}

// Talk implements echopb.EchoServer.
func (echoServer) Talk(talk grpc.BidiStreamingServer[echopb.Message, echopb.Message]) error {
	for {
		m, err := talk.Recv()
		if errors.Is(err, io.EOF) {
			return nil // the client has sent its last message
		}
		if err == nil {
			err = wait(talk.Context(), m)
		}
		if err == nil {
			err = talk.Send(m)
		}
		if err != nil {
			report(talk.Context(), "Talk", err)
			return err
		}
	}
}

// wait waits as long as m says, or until ctx ends: because the client cancels the call, the call's
// deadline passes, or the connection ends.
func wait(ctx context.Context, m *echopb.Message) error {
	select {
	case <-time.After(time.Duration(m.GetWaitMs()) * time.Millisecond):
		return nil
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}

// report prints why a call has failed.
func report(ctx context.Context, method string, err error) {
	from := "an unknown client"
	if p, ok := peer.FromContext(ctx); ok {
		from = p.Addr.String()
	}
	fmt.Printf("%s of %s: %s\n", method, from, status.Code(err))
}
