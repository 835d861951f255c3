package ibverbs_test

import (
	"context"
	"fmt"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
)

// One goroutine serves any number of CQs, and sleeps on the completion channel that they share. The
// order matters: arm a CQ, poll it until it is empty, and only then sleep. With one CQ per
// goroutine, CQ.PollWait does the same.
func ExampleCompChannel() {
	ctx := context.Background()
	vctx, addr := open()
	defer vctx.Close()

	ch, err := vctx.CreateCompChannel()
	check(err)
	defer ch.Close()
	cqs := make(map[string]*ibverbs.CQ)
	for _, name := range []string{"sent", "received"} {
		cq, err := vctx.CreateCQ(16, &ibverbs.CQOptions{Channel: ch, Cookie: name})
		check(err)
		defer cq.Close()
		check(cq.ReqNotify(false))
		cqs[name] = cq
	}

	// Three messages from one end of a connection to the other.
	l, err := rdmacm.Listen(ctx, vctx, addr, nil)
	check(err)
	defer l.Close()
	served := make(chan struct{})
	go func() {
		defer close(served)
		req, err := l.Accept(ctx)
		check(err)
		conn, err := req.Accept(ctx, &rdmacm.ConnConfig{
			RecvCQ: cqs["received"],
			Prepare: func(_ context.Context, c *rdmacm.Conn, _ *rdmacm.ConnParam) error {
				return c.QP().PostRecv(make([]ibverbs.RecvWR, 3)...)
			},
		})
		check(err)
		check(conn.Wait(ctx))
		check(conn.Close())
	}()
	conn, err := rdmacm.Dial(ctx, vctx, l.Addr(), &rdmacm.ConnConfig{SendCQ: cqs["sent"], SQSigAll: true})
	check(err)
	check(conn.QP().PostSend(
		ibverbs.SendWR{Opcode: ibverbs.WRSend}, ibverbs.SendWR{Opcode: ibverbs.WRSend}, ibverbs.SendWR{Opcode: ibverbs.WRSend}))

	count := make(map[string]int)
	wc := make([]ibverbs.WC, 8)
	for count["sent"]+count["received"] < 6 {
		cq, err := ch.Next(ctx)
		check(err)
		check(cq.ReqNotify(false))
		for {
			n, err := cq.Poll(wc)
			check(err)
			if n == 0 {
				break
			}
			for i := range wc[:n] {
				check(wc[i].Err())
			}
			count[cq.Cookie().(string)] += n
		}
	}
	fmt.Println(count)
	check(conn.Close())
	<-served
	// Output:
	// map[received:3 sent:3]
}
