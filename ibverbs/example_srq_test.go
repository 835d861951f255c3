package ibverbs_test

import (
	"context"
	"fmt"
	"sync"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
)

// A server with many connections has buffers for the messages that are under way, not for each
// connection. All connections take their receives from one shared receive queue and complete on one
// CQ. Each message adds to a total.
func ExampleSRQ() {
	ctx := context.Background()
	vctx, addr := open()
	defer vctx.Close()
	l, err := rdmacm.Listen(ctx, vctx, addr, nil)
	check(err)
	defer l.Close()

	const slots, slot = 32, 64 // buffers, and bytes of each
	pd, err := vctx.AllocPD()
	check(err)
	defer pd.Close()
	srq, err := pd.CreateSRQ(&ibverbs.SRQInitAttr{Attr: ibverbs.SRQAttr{MaxWR: slots, MaxSGE: 1}})
	check(err)
	defer srq.Close()
	ch, err := vctx.CreateCompChannel()
	check(err)
	defer ch.Close()
	cq, err := vctx.CreateCQ(slots, &ibverbs.CQOptions{Channel: ch})
	check(err)
	defer cq.Close()
	mr, err := pd.AllocMR(slots*slot, ibverbs.AccessLocalWrite)
	check(err)
	defer mr.Close()
	post := func(i uint64) {
		sge, err := mr.SGE(int(i)*slot, slot)
		check(err)
		check(srq.PostRecv(ibverbs.RecvWR{WRID: i, SGList: []ibverbs.SGE{sge}}))
	}
	for i := range uint64(slots) {
		post(i)
	}
	// When fewer than a quarter are left, vctx.AsyncEvent returns one event.
	check(srq.Modify(ibverbs.SRQAttr{Limit: slots / 4}, ibverbs.SRQAttrLimit))

	const clients, messages = 5, 6
	var wg sync.WaitGroup
	for n := range clients {
		wg.Go(func() { count(ctx, vctx, l, n, messages) })
	}
	for range clients {
		req, err := l.Accept(ctx)
		check(err)
		// The Conn uses the SRQ's PD, because none is given. It makes its own CQ for sends.
		conn, err := req.Accept(ctx, &rdmacm.ConnConfig{SRQ: srq, RecvCQ: cq})
		check(err)
		defer conn.Close()
	}

	total, from := 0, make(map[uint32]int)
	wc := make([]ibverbs.WC, slots)
	for got := 0; got < clients*messages; {
		n, err := cq.PollWait(ctx, wc)
		check(err)
		for i := range wc[:n] {
			check(wc[i].Err())
			total += int(mr.Bytes()[wc[i].WRID*slot])
			from[wc[i].QPN]++ // identifies the connection
			post(wc[i].WRID)
		}
		got += n
	}
	wg.Wait()
	fmt.Println(len(from), "connections,", total, "in all")
	// Output:
	// 5 connections, 60 in all
}

// count sends its number several times, one message after the other.
func count(ctx context.Context, vctx *ibverbs.Context, l *rdmacm.Listener, n, messages int) {
	conn, err := rdmacm.Dial(ctx, vctx, l.Addr(), nil)
	check(err)
	mr, err := conn.PD().AllocMR(1, 0)
	check(err)
	mr.Bytes()[0] = byte(n)
	sge, err := mr.SGE(0, 1)
	check(err)
	wc := make([]ibverbs.WC, 1)
	for range messages {
		check(conn.QP().PostSend(ibverbs.SendWR{Opcode: ibverbs.WRSend, Flags: ibverbs.SendSignaled, SGList: []ibverbs.SGE{sge}}))
		_, err = conn.SendCQ().PollWait(ctx, wc)
		check(err)
		check(wc[0].Err())
	}
	check(conn.Shutdown(ctx))
	check(conn.Close())
	check(mr.Close())
}
