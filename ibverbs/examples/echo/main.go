// Echo sends a message to a server and prints what comes back.
//
//	go run ./ibverbs/examples/echo --listen 127.0.0.1:7471     # one terminal
//	go run ./ibverbs/examples/echo 127.0.0.1:7471 hello        # another
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
	"github.com/govs-rdma/govs/provider/auto"
)

// Each side has 8 receives, each a buffer for one message of at most 64 bytes.
var config = &rdmacm.ConnConfig{Receives: 8, ReceiveSize: 64}

func main() {
	provider := flag.String("provider", "engine", "engine, kernel or auto")
	listen := flag.String("listen", "", "serve at this `address`")
	flag.Parse()
	ctx := context.Background()
	device := must(ibverbs.Open(must(auto.Named(*provider, nil)), ""))
	defer device.Close()
	if *listen != "" {
		listener := must(rdmacm.ListenName(ctx, device, *listen, nil))
		fmt.Println("listening on", listener.Addr())
		for {
			go serve(ctx, must(listener.Accept(ctx)))
		}
	}
	conn := must(rdmacm.DialName(ctx, device, flag.Arg(0), config))
	defer conn.Close()
	check(conn.SendBytes(ctx, []byte(flag.Arg(1))))
	fmt.Printf("%s\n", must(conn.Receive(ctx)).Data)
	check(conn.Shutdown(ctx))
}

// serve sends the client's messages back until the client closes the connection.
func serve(ctx context.Context, request *rdmacm.Request) {
	conn, err := request.Accept(ctx, config)
	defer conn.Close()
	for err == nil {
		var message rdmacm.Message
		if message, err = conn.Receive(ctx); err == nil {
			err = errors.Join(conn.SendBytes(ctx, message.Data), message.Release())
		}
	}
	log.Print(err)
}

func must[T any](v T, err error) T {
	check(err)
	return v
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
