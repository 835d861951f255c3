package ibverbs_test

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
	"github.com/govs-rdma/govs/provider/engine"
)

// A FetchAdd takes a number from a counter in the peer's memory, which the peer's program can use
// at the same time. Both ends need the engine's option, because iWARP has no atomic operations
// without RFC 7306.
func ExampleQP_PostSend_atomic() {
	ctx := context.Background()
	vctx, err := ibverbs.Open(engine.New(&engine.Options{Extensions: true}), "")
	check(err)
	defer vctx.Close()
	l, err := rdmacm.Listen(ctx, vctx, netip.MustParseAddrPort("127.0.0.1:0"), nil)
	check(err)
	defer l.Close()

	served := make(chan struct{})
	go func() {
		defer close(served)
		req, err := l.Accept(ctx)
		check(err)
		var counter *ibverbs.MR
		conn, err := req.Accept(ctx, &rdmacm.ConnConfig{
			Prepare: func(_ context.Context, c *rdmacm.Conn, param *rdmacm.ConnParam) (err error) {
				counter, err = c.PD().AllocMR(8, ibverbs.AccessLocalWrite|ibverbs.AccessRemoteAtomic)
				if err != nil {
					return err
				}
				if err := counter.Store(0, 40); err != nil {
					return err
				}
				window, err := counter.Remote(0, 8)
				if err != nil {
					return err
				}
				param.PrivateData, err = window.MarshalBinary()
				return err
			},
		})
		check(err)
		defer conn.Close()
		defer counter.Close()
		_, err = counter.FetchAdd(0, 1) // from this side, at any time
		check(err)
		check(conn.Wait(ctx))
		sum, err := counter.Load(0)
		check(err)
		fmt.Println("counter:", sum)
	}()

	conn, err := rdmacm.Dial(ctx, vctx, l.Addr(), nil)
	check(err)
	defer conn.Close()
	var window ibverbs.RemoteRegion
	check(window.UnmarshalBinary(conn.PrivateData()))
	old, err := conn.PD().AllocMR(8, ibverbs.AccessLocalWrite)
	check(err)
	defer old.Close()
	sge, err := old.SGE(0, 8)
	check(err)
	check(conn.QP().PostSend(ibverbs.SendWR{
		WRID: 1, Opcode: ibverbs.WRAtomicFetchAdd, Flags: ibverbs.SendSignaled, SGList: []ibverbs.SGE{sge},
		RemoteAddr: window.Addr, RKey: window.RKey, CompareAdd: 2,
	}))
	var wc [1]ibverbs.WC
	_, err = conn.SendCQ().PollWait(ctx, wc[:])
	check(err)
	check(wc[0].Err())
	was, err := old.Load(0)
	check(err)
	fmt.Println(wc[0].Opcode, was >= 40)
	check(conn.Shutdown(ctx))
	<-served
	// Output:
	// IBV_WC_FETCH_ADD true
	// counter: 43
}
