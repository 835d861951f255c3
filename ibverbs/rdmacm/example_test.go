package rdmacm_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"
	"net/netip"
	"os"
	"time"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
	"github.com/govs-rdma/govs/provider/engine"
	"github.com/govs-rdma/govs/provider/kernel"
)

// open opens a device and returns an address to listen at. Only this function depends on the
// provider: with GOVS_PROVIDER=kernel, and GOVS_ADDR set to an address of the interface under the
// device, the examples run on siw.
func open() (*ibverbs.Context, netip.AddrPort) {
	if os.Getenv("GOVS_PROVIDER") == "kernel" {
		vctx, err := ibverbs.Open(kernel.New(), os.Getenv("GOVS_DEVICE"))
		check(err)
		addr, err := netip.ParseAddr(os.Getenv("GOVS_ADDR"))
		check(err)
		return vctx, netip.AddrPortFrom(addr, 0)
	}
	vctx, err := ibverbs.Open(engine.New(&engine.Options{StartupTimeout: patience}), "")
	check(err)
	return vctx, netip.MustParseAddrPort("127.0.0.1:0")
}

// check ends the program if something failed.
func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// A server inspects each request before it answers. Private data is part of the request and of
// either answer; RoCE pads it with zeros.
func Example() {
	ctx := context.Background()
	vctx, addr := open()
	defer vctx.Close()
	l, err := rdmacm.Listen(ctx, vctx, addr, nil)
	check(err)
	defer l.Close()
	served := make(chan struct{})
	go func() {
		defer close(served)
		for range 2 {
			req, err := l.Accept(ctx)
			check(err)
			if !bytes.HasPrefix(req.PrivateData(), []byte("please")) {
				check(req.Reject([]byte("say please")))
				continue
			}
			conn, err := req.Accept(ctx, &rdmacm.ConnConfig{PrivateData: []byte("welcome")})
			check(err)
			check(conn.Wait(ctx))
			check(conn.Close())
		}
	}()

	_, err = rdmacm.Dial(ctx, vctx, l.Addr(), &rdmacm.ConnConfig{PrivateData: []byte("let me in")})
	var rejected *rdmacm.RejectedError
	if errors.As(err, &rejected) {
		fmt.Printf("rejected: %s\n", bytes.TrimRight(rejected.PrivateData, "\x00"))
	}
	conn, err := rdmacm.Dial(ctx, vctx, l.Addr(), &rdmacm.ConnConfig{PrivateData: []byte("please")})
	check(err)
	fmt.Printf("accepted: %s\n", bytes.TrimRight(conn.PrivateData(), "\x00"))
	check(conn.Shutdown(ctx))
	check(conn.Close())
	<-served
	// Output:
	// rejected: say please
	// accepted: welcome
}

// The calls of librdmacm, one for one, each with its event.
func ExampleID() {
	ctx := context.Background()
	vctx, addr := open()
	defer vctx.Close()
	l, err := rdmacm.Listen(ctx, vctx, addr, nil)
	check(err)
	defer l.Close()
	served := make(chan struct{})
	go func() {
		defer close(served)
		req, err := l.Accept(ctx)
		check(err)
		conn, err := req.Accept(ctx, nil)
		check(err)
		check(conn.Wait(ctx))
		check(conn.Close())
	}()

	ch, err := rdmacm.CreateEventChannel(vctx)
	check(err)
	defer ch.Close()
	id, err := ch.CreateID(nil)
	check(err)
	defer id.Close()
	next := func() {
		ev, err := ch.GetEvent(ctx)
		check(err)
		check(ev.Err())
		fmt.Println(ev.Type)
	}

	check(id.ResolveAddr(netip.AddrPort{}, l.Addr(), time.Second))
	next()
	check(id.ResolveRoute(time.Second))
	next()

	pd, err := vctx.AllocPD()
	check(err)
	defer pd.Close()
	cq, err := vctx.CreateCQ(2, nil)
	check(err)
	defer cq.Close()
	qp, err := id.CreateQP(pd, &ibverbs.QPInitAttr{
		SendCQ: cq, RecvCQ: cq, Cap: ibverbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1},
	})
	check(err)
	defer qp.Close()

	check(id.Connect(&rdmacm.ConnParam{ResponderResources: 1, InitiatorDepth: 1}))
	next()
	check(id.Disconnect())
	next()
	<-served
	// Output:
	// RDMA_CM_EVENT_ADDR_RESOLVED
	// RDMA_CM_EVENT_ROUTE_RESOLVED
	// RDMA_CM_EVENT_ESTABLISHED
	// RDMA_CM_EVENT_DISCONNECTED
}
