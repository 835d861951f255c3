package rdmacm_test

import (
	"syscall"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
)

// TestConnTakesItsSendCQ: after the first Write of a Conn the program's own polls of its send CQ
// fail. So they neither wait for dropped completions nor take the completions of a waiting call.
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

// TestReceiverTakesItsCQFromASleeper: a sleeping PollWait ends when a Receiver takes the CQ,
// although nothing completes.
func TestReceiverTakesItsCQFromASleeper(t *testing.T) {
	s := newShared(t, 2)
	slept := make(chan error)
	go func() {
		_, err := s.cq.PollWait(timeout(t), make([]ibverbs.WC, 1))
		slept <- err
	}()
	time.Sleep(50 * time.Millisecond) // it is asleep by then, or fails at once
	in := testkit.Must(rdmacm.NewSRQReceiver(s.srq, s.cq, 2, 64))(t)
	defer in.Close()
	wantErr(t, "PollWait", <-slept, syscall.EBUSY, "Receiver")
}

// TestReceiverTakesItsCQ: while a Receiver is open, the program's own polls of the CQ fail.
func TestReceiverTakesItsCQ(t *testing.T) {
	ctx := timeout(t)
	s := newShared(t, 2)
	in := testkit.Must(rdmacm.NewSRQReceiver(s.srq, s.cq, 2, 64))(t)
	client, server, here := s.connect(t)
	testkit.OK(t, client.Send(ctx, sge(t, here, 0, 64)))
	var wc [1]ibverbs.WC
	_, err := s.cq.PollWait(ctx, wc[:])
	wantErr(t, "PollWait", err, syscall.EBUSY, "ibv_poll_cq cq", "Receiver")
	m := testkit.Must(in.Receive(ctx))(t)
	testkit.OK(t, m.Release())
	testkit.OK(t, client.Shutdown(ctx))
	testkit.OK(t, server.Wait(ctx))
	testkit.OK(t, in.Close())
	_, err = s.cq.Poll(wc[:])
	testkit.OK(t, err)
	testkit.OK(t, in.Close())
}

// TestConnReceivesTakeTheirCQ: with ConnConfig.Receives, the program's own polls of RecvCQ fail.
func TestConnReceivesTakeTheirCQ(t *testing.T) {
	_, server := pair(t, nil, messages(2, 64))
	_, err := server.RecvCQ().Poll(make([]ibverbs.WC, 1))
	wantErr(t, "Poll", err, syscall.EBUSY, "ibv_poll_cq cq", "ConnConfig.Receives")
}
