package rdmacm_test

import (
	"context"
	"fmt"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
)

// Read, Write, Send and Do wait only for their own work, even if many run at the same time. A
// Receiver posts receives, and posts each again when its message is released.
func ExampleConn_Do() {
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
			Receives: 16, ReceiveSize: 64,
			Prepare: func(_ context.Context, c *rdmacm.Conn, param *rdmacm.ConnParam) (err error) {
				if mr, err = c.PD().AllocMR(64,
					ibverbs.AccessLocalWrite|ibverbs.AccessRemoteWrite); err != nil {
					return err
				}
				window, err := mr.Remote(0, 64)
				if err != nil {
					return err
				}
				param.PrivateData, err = window.MarshalBinary()
				return err
			},
		})
		check(err)
		defer mr.Close()
		defer conn.Close()
		msg, err := conn.Receive(ctx)
		check(err)
		fmt.Printf("%s: %s\n", msg.Data, mr.Bytes()[:7])
		check(msg.Release())
		check(conn.Wait(ctx))
	}()

	conn, err := rdmacm.Dial(ctx, vctx, l.Addr(), nil)
	check(err)
	defer conn.Close()
	var window ibverbs.RemoteRegion
	check(window.UnmarshalBinary(conn.PrivateData()))
	mr, err := conn.PD().AllocMR(64, 0)
	check(err)
	defer mr.Close()
	copy(mr.Bytes(), "payload it is there")
	payload, err := mr.SGE(0, 7)
	check(err)
	note, err := mr.SGE(8, 11)
	check(err)

	// In one go: the receiver has the payload before it has the note.
	check(conn.Do(ctx, ibverbs.NewWrite(window, payload), ibverbs.NewSend(note)))
	check(conn.Shutdown(ctx))
	<-served
	// Output:
	// it is there: payload
}
