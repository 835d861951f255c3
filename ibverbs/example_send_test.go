package ibverbs_test

import (
	"context"
	"fmt"
	"strings"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
)

// A server answers one message in capitals. It and its client post their receives in Prepare,
// because the peer may send as soon as the connection is established.
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
		shout(ctx, l)
	}()

	var mr *ibverbs.MR
	conn, err := rdmacm.Dial(ctx, vctx, l.Addr(), &rdmacm.ConnConfig{
		Prepare: func(_ context.Context, c *rdmacm.Conn, _ *rdmacm.ConnParam) error {
			mr, err = receiveInto(c)
			return err
		},
	})
	check(err)
	defer conn.Close()
	defer mr.Close()

	// Inline data would suffice for so few bytes; this is the general way.
	out, err := conn.PD().AllocMR(64, 0)
	check(err)
	defer out.Close()
	sge, err := out.SGE(0, copy(out.Bytes(), "hello"))
	check(err)
	check(conn.QP().PostSend(ibverbs.SendWR{
		WRID: 1, Opcode: ibverbs.WRSend, Flags: ibverbs.SendSignaled, SGList: []ibverbs.SGE{sge},
	}))
	var wc [1]ibverbs.WC
	_, err = conn.SendCQ().PollWait(ctx, wc[:])
	check(err)
	fmt.Println(wc[0].Opcode, wc[0].Status)

	_, err = conn.RecvCQ().PollWait(ctx, wc[:])
	check(err)
	check(wc[0].Err())
	fmt.Println(wc[0].Opcode, string(mr.Bytes()[:wc[0].ByteLen]))

	check(conn.Shutdown(ctx))
	<-served
	// Output:
	// IBV_WC_SEND IBV_WC_SUCCESS
	// IBV_WC_RECV HELLO
}

// receiveInto posts one receive of up to 64 bytes.
func receiveInto(c *rdmacm.Conn) (*ibverbs.MR, error) {
	mr, err := c.PD().AllocMR(64, ibverbs.AccessLocalWrite)
	if err != nil {
		return nil, err
	}
	sge, err := mr.SGE(0, 64)
	if err != nil {
		return nil, err
	}
	return mr, c.QP().PostRecv(ibverbs.RecvWR{SGList: []ibverbs.SGE{sge}})
}

// shout serves one client.
func shout(ctx context.Context, l *rdmacm.Listener) {
	req, err := l.Accept(ctx)
	check(err)
	var mr *ibverbs.MR
	conn, err := req.Accept(ctx, &rdmacm.ConnConfig{
		Prepare: func(_ context.Context, c *rdmacm.Conn, _ *rdmacm.ConnParam) error {
			mr, err = receiveInto(c)
			return err
		},
	})
	check(err)
	defer conn.Close()
	defer mr.Close()

	var wc [1]ibverbs.WC
	_, err = conn.RecvCQ().PollWait(ctx, wc[:])
	check(err)
	check(wc[0].Err())
	n := copy(mr.Bytes(), strings.ToUpper(string(mr.Bytes()[:wc[0].ByteLen])))
	sge, err := mr.SGE(0, n)
	check(err)
	check(conn.QP().PostSend(ibverbs.SendWR{Opcode: ibverbs.WRSend, SGList: []ibverbs.SGE{sge}}))
	check(conn.Wait(ctx)) // the client ends it
}
