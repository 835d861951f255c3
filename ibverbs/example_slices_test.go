package ibverbs_test

import (
	"context"
	"fmt"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
)

// A program can register its existing slices on the Go heap. A region keeps its slice alive and in
// place until Close, whatever the garbage collector does. One Send gathers from several slices,
// here a header and a body, and a receive scatters a message in the same way.
func ExamplePD_RegMR() {
	ctx := context.Background()
	vctx, addr := open()
	defer vctx.Close()
	l, err := rdmacm.Listen(ctx, vctx, addr, nil)
	check(err)
	defer l.Close()

	header, body := make([]byte, 8), make([]byte, 100)
	served := make(chan struct{})
	go func() {
		defer close(served)
		req, err := l.Accept(ctx)
		check(err)
		var parts [2]*ibverbs.MR
		conn, err := req.Accept(ctx, &rdmacm.ConnConfig{
			Cap: ibverbs.QPCap{MaxRecvSGE: 2},
			Prepare: func(_ context.Context, c *rdmacm.Conn, _ *rdmacm.ConnParam) error {
				var list []ibverbs.SGE
				for i, part := range [][]byte{header, body} {
					mr, err := c.PD().RegMR(part, ibverbs.AccessLocalWrite)
					if err != nil {
						return err
					}
					sge, err := mr.SGE(0, len(part))
					if err != nil {
						return err
					}
					parts[i], list = mr, append(list, sge)
				}
				return c.QP().PostRecv(ibverbs.RecvWR{SGList: list})
			},
		})
		check(err)
		defer conn.Close()
		var wc [1]ibverbs.WC
		_, err = conn.RecvCQ().PollWait(ctx, wc[:])
		check(err)
		check(wc[0].Err())
		check(conn.Wait(ctx))
		for _, mr := range parts {
			check(mr.Close()) // from here on the device does not use the slices
		}
		fmt.Printf("%s / %s\n", header, body[:int(wc[0].ByteLen)-len(header)])
	}()

	conn, err := rdmacm.Dial(ctx, vctx, l.Addr(), &rdmacm.ConnConfig{Cap: ibverbs.QPCap{MaxSendSGE: 2}})
	check(err)
	defer conn.Close()
	var list []ibverbs.SGE
	for _, part := range [][]byte{[]byte("length: "), []byte("as long as it takes")} {
		mr, err := conn.PD().RegMR(part, 0) // no rights: only this side reads it
		check(err)
		defer mr.Close()
		sge, err := mr.SGE(0, len(part))
		check(err)
		list = append(list, sge)
	}
	check(conn.QP().PostSend(ibverbs.SendWR{Opcode: ibverbs.WRSend, SGList: list}))
	check(conn.Shutdown(ctx)) // returns after the Send's completion
	<-served
	// Output: length:  / as long as it takes
}
