// Hello sends a message from a client to a server, in one process.
//
//	go run ./ibverbs/examples/hello
package main

import (
	"context"
	"fmt"
	"log"
	"net/netip"
	"time"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
	"github.com/govs-rdma/govs/provider/engine"
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	device, err := ibverbs.Open(engine.New(nil), "")
	check(err)
	defer device.Close()
	listener, err := rdmacm.Listen(ctx, device, netip.MustParseAddrPort("127.0.0.1:0"), nil)
	check(err)
	defer listener.Close()
	served := make(chan struct{})
	go serve(ctx, listener, served)

	conn, err := rdmacm.Dial(ctx, device, listener.Addr(), nil)
	check(err)
	defer conn.Close()
	mr, err := conn.PD().AllocMR(64, 0) // memory that the device may read
	check(err)
	defer mr.Close()
	message, err := mr.SGE(0, copy(mr.Bytes(), "hello")) // the bytes to send
	check(err)
	check(conn.Send(ctx, message))
	check(conn.Shutdown(ctx))
	<-served
}

// serve accepts one connection and prints one message.
func serve(ctx context.Context, listener *rdmacm.Listener, served chan struct{}) {
	defer close(served)
	request, err := listener.Accept(ctx)
	check(err)
	conn, err := request.Accept(ctx, &rdmacm.ConnConfig{Receives: 8, ReceiveSize: 64})
	check(err)
	defer conn.Close()
	m, err := conn.Receive(ctx)
	check(err)
	fmt.Printf("%s\n", m.Data)
	check(m.Release())
	check(conn.Wait(ctx))
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
