package rdmacm_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
)

// TestPollWaitAfterDrains: two Drains were given up, and their markers complete before work of the
// program. PollWait for one completion finds that work.
func TestPollWaitAfterDrains(t *testing.T) {
	ctx := timeout(t)
	client, server := pair(t, &rdmacm.ConnConfig{NoOpeningWrite: true}, nil)
	write := ibverbs.SendWR{WRID: 7, Opcode: ibverbs.WRRDMAWrite, Flags: ibverbs.SendSignaled}
	// The accepting side's work is held until the peer's first message.
	testkit.OK(t, server.QP().PostSend(write))
	for range 2 {
		short, cancel := context.WithTimeout(ctx, time.Millisecond)
		wantErr(t, "Drain", server.QP().Drain(short), context.DeadlineExceeded)
		cancel()
	}
	testkit.OK(t, server.QP().PostSend(write))
	testkit.OK(t, client.Do(ctx, write))
	cq := server.SendCQ()
	for testkit.Must(cq.Stats())(t).Waiting < 4 {
		time.Sleep(time.Millisecond)
		testkit.OK(t, ctx.Err())
	}
	var wc [1]ibverbs.WC
	for range 2 {
		if _, err := cq.PollWait(ctx, wc[:]); err != nil {
			t.Fatalf("with a completion in the CQ: %v", err)
		}
		testkit.OK(t, wc[0].Err())
		if wc[0].WRID != 7 {
			t.Errorf("WRID %#x is not the program's", wc[0].WRID)
		}
	}
}

// TestConnDrainBesideAFullQueue: the send CQ has room for Drain's completion beside the completions
// of all places of the QP, which may have more than the configuration requests.
func TestConnDrainBesideAFullQueue(t *testing.T) {
	for _, asked := range []int{1, 31, 64, 100, 127} {
		ctx := timeout(t)
		in := &receiver{n: 1, size: 8}
		a, b := pair(t, &rdmacm.ConnConfig{Cap: ibverbs.QPCap{MaxSendWR: asked}},
			&rdmacm.ConnConfig{Prepare: in.prepare})
		t.Cleanup(in.close)
		here, _ := memory(t, a, 8)
		_, there := memory(t, b, 8)
		_, init, err := a.QP().Query()
		testkit.OK(t, err)
		wrs := make([]ibverbs.SendWR, init.Cap.MaxSendWR)
		for i := range wrs {
			wrs[i] = ibverbs.NewWrite(there, sge(t, here, 0, 8))
			wrs[i].Flags = ibverbs.SendSignaled
		}
		wrs[len(wrs)-1].Opcode = ibverbs.WRSend
		testkit.OK(t, a.QP().PostSend(wrs...))
		var wc [1]ibverbs.WC
		testkit.Must(b.RecvCQ().PollWait(ctx, wc[:]))(t) // the send queue is empty then
		if err := a.QP().Drain(ctx); err != nil {
			t.Errorf("MaxSendWR %d: %d places and a CQ of %d: %v", asked, len(wrs),
				a.SendCQ().CQE(), err)
		}
		wcs := make([]ibverbs.WC, len(wrs)+1)
		if n, err := a.SendCQ().Poll(wcs); n != len(wrs) || err != nil {
			t.Errorf("MaxSendWR %d: %d completions of %d, %v", asked, n, len(wrs), err)
		}
	}
}

// TestConnDrainUnderReadsBothWays: both ends drain while the other's Reads wait for answers.
func TestConnDrainUnderReadsBothWays(t *testing.T) {
	ctx := timeout(t)
	a, b := pair(t, nil, nil)
	const rounds, reads, size = 500, 2, 64
	var both sync.WaitGroup
	for _, ends := range [][2]*rdmacm.Conn{{a, b}, {b, a}} {
		c := ends[0]
		here, _ := memory(t, c, size)
		_, there := memory(t, ends[1], size)
		wrs := make([]ibverbs.SendWR, reads)
		for i := range wrs {
			wrs[i] = ibverbs.NewRead(there, sge(t, here, 0, size))
			wrs[i].Flags = ibverbs.SendSignaled
		}
		both.Go(func() {
			wcs := make([]ibverbs.WC, reads+1)
			for round := range rounds {
				testkit.OK(t, c.QP().PostSend(wrs...))
				if err := c.QP().Drain(ctx); err != nil {
					t.Errorf("Drain %d: %v", round, err)
					return
				}
				if n, err := c.SendCQ().Poll(wcs); n != reads || err != nil {
					t.Errorf("Drain %d: %d Reads are complete, %v", round, n, err)
					return
				}
			}
		})
	}
	both.Wait()
}
