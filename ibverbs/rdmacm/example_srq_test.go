package rdmacm_test

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"sync"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
)

// All connections of a server share 32 receives. The QP's number in a completion identifies the
// message's connection; Prepare enters it in the map before the first message can come.
func ExampleNewSRQReceiver() {
	ctx := context.Background()
	vctx, addr := open()
	defer vctx.Close()
	l, err := rdmacm.Listen(ctx, vctx, addr, nil)
	check(err)
	defer l.Close()

	const receives, size = 32, 64
	pd, err := vctx.AllocPD()
	check(err)
	defer pd.Close()
	srq, err := pd.CreateSRQ(&ibverbs.SRQInitAttr{Attr: ibverbs.SRQAttr{MaxWR: receives, MaxSGE: 1}})
	check(err)
	defer srq.Close()
	ch, err := vctx.CreateCompChannel()
	check(err)
	defer ch.Close()
	cq, err := vctx.CreateCQ(receives, &ibverbs.CQOptions{Channel: ch}) // as large as the SRQ
	check(err)
	defer cq.Close()
	messages, err := rdmacm.NewSRQReceiver(srq, cq, receives, size)
	check(err)
	defer messages.Close()

	var conns sync.Map // *rdmacm.Conn by QP number
	var clients sync.WaitGroup
	defer clients.Wait()
	for _, name := range []string{"Ann", "Bob"} {
		clients.Go(func() { greet(ctx, vctx, l.Addr(), name) })
	}
	for range 2 {
		req, err := l.Accept(ctx)
		check(err)
		conn, err := req.Accept(ctx, &rdmacm.ConnConfig{
			SRQ: srq, RecvCQ: cq,
			Prepare: func(_ context.Context, c *rdmacm.Conn, _ *rdmacm.ConnParam) error {
				conns.Store(c.QP().QPN(), c)
				return nil
			},
		})
		check(err)
		defer conn.Close()
	}
	for range 2 {
		m, err := messages.Receive(ctx)
		check(err)
		c, _ := conns.Load(m.WC.QPN)
		name := bytes.TrimRight(c.(*rdmacm.Conn).PrivateData(), "\x00") // RoCE adds zeros
		fmt.Printf("%s: %s\n", name, m.Data)
		check(m.Release())
	}
	// Unordered output:
	// Ann: hello
	// Bob: hello
}

// greet is a client that sends its name in its private data, and one message.
func greet(ctx context.Context, vctx *ibverbs.Context, addr netip.AddrPort, name string) {
	conn, err := rdmacm.Dial(ctx, vctx, addr, &rdmacm.ConnConfig{PrivateData: []byte(name)})
	check(err)
	defer conn.Close()
	mr, err := conn.PD().RegMR([]byte("hello"), 0)
	check(err)
	defer mr.Close()
	sge, err := mr.SGE(0, 5)
	check(err)
	check(conn.Send(ctx, sge))
	check(conn.Shutdown(ctx))
}
