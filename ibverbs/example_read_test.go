package ibverbs_test

import (
	"context"
	"fmt"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
)

// An RDMA Read fetches data from the peer's memory, while the peer's program does nothing. The
// completion says that the data has arrived.
func ExampleQP_PostSend_read() {
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
		var mr *ibverbs.MR
		conn, err := req.Accept(ctx, &rdmacm.ConnConfig{
			Prepare: func(_ context.Context, c *rdmacm.Conn, param *rdmacm.ConnParam) (err error) {
				mr, err = c.PD().RegMR([]byte("read me if you can"), ibverbs.AccessRemoteRead)
				if err != nil {
					return err
				}
				window, err := mr.Remote(0, int(mr.Len()))
				if err != nil {
					return err
				}
				param.PrivateData, err = window.MarshalBinary()
				return err
			},
		})
		check(err)
		defer conn.Close()
		defer mr.Close()
		check(conn.Wait(ctx))
	}()

	conn, err := rdmacm.Dial(ctx, vctx, l.Addr(), nil)
	check(err)
	defer conn.Close()
	var window ibverbs.RemoteRegion
	data := conn.PrivateData() // RoCE pads it with zeros
	check(window.UnmarshalBinary(data[:min(len(data), ibverbs.RemoteRegionSize)]))
	part, err := window.Part(5, 13)
	check(err)

	// Hardware treats a Read's response as a write by the peer.
	sink, err := conn.PD().AllocMR(int(part.Len), ibverbs.AccessReadSink)
	check(err)
	defer sink.Close()
	sge, err := sink.SGE(0, int(part.Len))
	check(err)
	check(conn.QP().PostSend(ibverbs.SendWR{
		WRID: 1, Opcode: ibverbs.WRRDMARead, Flags: ibverbs.SendSignaled, SGList: []ibverbs.SGE{sge},
		RemoteAddr: part.Addr, RKey: part.RKey,
	}))
	var wc [1]ibverbs.WC
	_, err = conn.SendCQ().PollWait(ctx, wc[:])
	check(err)
	check(wc[0].Err())
	fmt.Printf("%v: %q\n", wc[0].Opcode, sink.Bytes())
	check(conn.Shutdown(ctx))
	<-served
	// Output:
	// IBV_WC_RDMA_READ: "me if you can"
}
