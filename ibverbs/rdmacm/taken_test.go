package rdmacm_test

import (
	"context"
	"syscall"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
)

// TestConnTakesItsSendCQ: after the first Write of a Conn the program's own polls of its send CQ
// fail, so that they neither wait for what has been dropped nor take what a call waits for.
func TestConnTakesItsSendCQ(t *testing.T) {
	ctx := timeout(t)
	client, server := pair(t, nil, nil)
	here, _ := memory(t, client, 64)
	_, there := memory(t, server, 64)
	own := ibverbs.SendWR{WRID: 1, Opcode: ibverbs.WRRDMAWrite, Flags: ibverbs.SendSignaled}
	var wc [4]ibverbs.WC

	testkit.OK(t, client.QP().PostSend(own))
	if n, err := client.SendCQ().PollWait(ctx, wc[:]); n != 1 || err != nil {
		t.Fatalf("before the first Write: %d completions, %v", n, err)
	}
	testkit.OK(t, client.Write(ctx, there, sge(t, here, 0, 64)))
	testkit.OK(t, client.QP().PostSend(own))
	testkit.OK(t, client.Read(ctx, sge(t, here, 0, 64), there)) // after it on the engine; a round trip later on siw
	_, err := client.SendCQ().Poll(wc[:])
	wantErr(t, "Poll", err, syscall.EBUSY, "ibv_poll_cq cq", "Conn.Do", "ConnConfig.OnSend", "other work that were dropped: 1;")
	_, err = client.SendCQ().PollWait(ctx, wc[:])
	wantErr(t, "PollWait", err, syscall.EBUSY, "ConnConfig.OnSend")
	testkit.OK(t, client.Write(ctx, there, sge(t, here, 0, 64)))
	testkit.OK(t, client.Shutdown(ctx)) // its Drain may poll
}

// TestReceiverTakesItsCQFromASleeper: a PollWait that sleeps when a Receiver takes the CQ ends,
// though nothing completes.
func TestReceiverTakesItsCQFromASleeper(t *testing.T) {
	_, server := pair(t, nil, nil)
	slept := make(chan error)
	go func() {
		_, err := server.RecvCQ().PollWait(timeout(t), make([]ibverbs.WC, 1))
		slept <- err
	}()
	time.Sleep(50 * time.Millisecond) // it is asleep by then, or fails at once
	rcv := testkit.Must(rdmacm.NewReceiver(server, 2, 64))(t)
	defer rcv.Close()
	wantErr(t, "PollWait", <-slept, syscall.EBUSY, "Receiver")
}

// TestReceiverTakesItsCQ: while there is a Receiver, the program's own polls of the CQ fail.
func TestReceiverTakesItsCQ(t *testing.T) {
	ctx := timeout(t)
	var rcv *rdmacm.Receiver
	client, server := pair(t, nil, &rdmacm.ConnConfig{
		Prepare: func(_ context.Context, c *rdmacm.Conn, _ *rdmacm.ConnParam) (err error) {
			rcv, err = rdmacm.NewReceiver(c, 2, 64)
			return err
		},
	})
	here, _ := memory(t, client, 64)
	testkit.OK(t, client.Send(ctx, sge(t, here, 0, 64)))
	var wc [1]ibverbs.WC
	_, err := server.RecvCQ().PollWait(ctx, wc[:])
	wantErr(t, "PollWait", err, syscall.EBUSY, "ibv_poll_cq cq", "Receiver")
	m := testkit.Must(rcv.Receive(ctx))(t)
	testkit.OK(t, m.Release())
	testkit.OK(t, client.Shutdown(ctx))
	testkit.OK(t, server.Wait(ctx))
	testkit.OK(t, rcv.Close())
	_, err = server.RecvCQ().Poll(wc[:])
	testkit.OK(t, err)
	testkit.OK(t, rcv.Close())
}
