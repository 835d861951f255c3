// Write writes into memory that a server has lent, and reads it back, in one process.
//
//	go run ./ibverbs/examples/write
package main

import (
	"context"
	"fmt"
	"log"
	"net/netip"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
	"github.com/govs-rdma/govs/provider/engine"
)

func main() {
	ctx := context.Background()
	device := must(ibverbs.Open(engine.New(nil), ""))
	listener := must(rdmacm.Listen(ctx, device, netip.MustParseAddrPort("127.0.0.1:0"), nil))
	lent := make(chan ibverbs.RemoteRegion)
	go func() { // the server lends 64 bytes, and its program does nothing more
		conn := must(must(listener.Accept(ctx)).Accept(ctx, nil))
		mr := must(conn.PD().AllocMR(64, ibverbs.AccessLocalWrite|ibverbs.AccessRemoteWrite|ibverbs.AccessRemoteRead))
		lent <- must(mr.Remote(0, 64)) // address and key; MarshalBinary makes bytes of them
	}()

	conn := must(rdmacm.Dial(ctx, device, listener.Addr(), nil))
	theirs := <-lent
	mr := must(conn.PD().AllocMR(64, ibverbs.AccessReadSink))
	hello := must(mr.SGE(0, copy(mr.Bytes(), "hello"))) // bytes 0 to 4 of the client's memory
	back := must(mr.SGE(32, 5))                         // bytes 32 to 36
	check(conn.Write(ctx, theirs, hello))
	check(conn.Read(ctx, back, theirs))
	fmt.Printf("%s\n", mr.Bytes()[32:37])
	check(conn.Shutdown(ctx))
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
