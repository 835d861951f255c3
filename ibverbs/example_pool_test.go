package ibverbs_test

import (
	"context"
	"fmt"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
)

// A pool registers memory once and hands out parts of it, so a server need not register memory for
// each message. The program finds a completion's buffer by the work request's id.
func ExamplePool() {
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
		var pool *ibverbs.Pool
		posted := make(map[uint64]ibverbs.PoolBuf)
		conn, err := req.Accept(ctx, &rdmacm.ConnConfig{
			Prepare: func(_ context.Context, c *rdmacm.Conn, _ *rdmacm.ConnParam) (err error) {
				pool, err = c.PD().NewPool(ibverbs.AccessLocalWrite, []ibverbs.PoolClass{{Size: 256, Count: 4}})
				check(err)
				for id := range uint64(2) {
					buf, err := pool.Get(256)
					check(err)
					sge, err := buf.SGE(0, 256)
					check(err)
					posted[id] = buf
					check(c.QP().PostRecv(ibverbs.RecvWR{WRID: id, SGList: []ibverbs.SGE{sge}}))
				}
				return nil
			},
		})
		check(err)
		defer conn.Close()
		for range 2 {
			var wc [1]ibverbs.WC
			_, err = conn.RecvCQ().PollWait(ctx, wc[:])
			check(err)
			check(wc[0].Err())
			buf := posted[wc[0].WRID]
			fmt.Printf("%s\n", buf.Bytes()[:wc[0].ByteLen])
			check(buf.Release())
		}
		check(conn.Wait(ctx))
		check(pool.Close()) // returns EBUSY while a buffer is handed out
	}()

	conn, err := rdmacm.Dial(ctx, vctx, l.Addr(), &rdmacm.ConnConfig{Cap: ibverbs.QPCap{MaxSendWR: 4, MaxInlineData: 16}})
	check(err)
	defer conn.Close()
	for _, text := range []string{"one", "two"} {
		check(conn.QP().PostSend(ibverbs.SendWR{Opcode: ibverbs.WRSend, Flags: ibverbs.SendInline, Inline: []byte(text)}))
	}
	check(conn.Shutdown(ctx))
	<-served
	// Output:
	// one
	// two
}
