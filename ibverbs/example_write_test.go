package ibverbs_test

import (
	"context"
	"fmt"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
)

// An RDMA Write puts data into the peer's memory, while the peer's program does nothing. The peer
// names the memory in the private data of its reply. It does not notice the Write, so the writer
// sends an empty message after it.
func ExampleQP_PostSend_write() {
	ctx := context.Background()
	vctx, addr := open()
	defer vctx.Close()
	l, err := rdmacm.Listen(ctx, vctx, addr, nil)
	check(err)
	defer l.Close()

	var written string
	served := make(chan struct{})
	go func() {
		defer close(served)
		req, err := l.Accept(ctx)
		check(err)
		var mr *ibverbs.MR
		conn, err := req.Accept(ctx, &rdmacm.ConnConfig{
			Prepare: func(_ context.Context, c *rdmacm.Conn, param *rdmacm.ConnParam) (err error) {
				mr, err = c.PD().AllocMR(4096, ibverbs.AccessLocalWrite|ibverbs.AccessRemoteWrite)
				if err != nil {
					return err
				}
				window, err := mr.Remote(100, 50) // the peer cannot access the rest
				if err != nil {
					return err
				}
				if param.PrivateData, err = window.MarshalBinary(); err != nil {
					return err
				}
				return c.QP().PostRecv(ibverbs.RecvWR{}) // for the empty message
			},
		})
		check(err)
		defer conn.Close()
		defer mr.Close()
		var wc [1]ibverbs.WC
		_, err = conn.RecvCQ().PollWait(ctx, wc[:])
		check(err)
		check(wc[0].Err())
		check(conn.Wait(ctx))
		written = string(mr.Bytes()[100:115])
	}()

	conn, err := rdmacm.Dial(ctx, vctx, l.Addr(), nil)
	check(err)
	defer conn.Close()
	var window ibverbs.RemoteRegion
	data := conn.PrivateData() // RoCE pads it with zeros
	check(window.UnmarshalBinary(data[:min(len(data), ibverbs.RemoteRegionSize)]))
	src, err := conn.PD().RegMR([]byte("hello, memory"), 0)
	check(err)
	defer src.Close()
	hello, err := src.SGE(0, 7)
	check(err)
	memory, err := src.SGE(7, 6)
	check(err)
	check(conn.QP().PostSend(
		ibverbs.SendWR{
			Opcode: ibverbs.WRRDMAWrite, SGList: []ibverbs.SGE{hello, memory},
			RemoteAddr: window.Addr, RKey: window.RKey,
		},
		ibverbs.SendWR{Opcode: ibverbs.WRSend},
	))
	check(conn.Shutdown(ctx)) // waits for both, although they are unsignalled
	<-served
	fmt.Printf("%q\n", written)
	// Output:
	// "hello, memory\x00\x00"
}
