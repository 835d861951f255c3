package rdmacm_test

import (
	"context"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
)

// TestPollWaitAfterDrains: two Drains were given up, and what they posted completes before work of
// the program. PollWait for one completion finds that work.
func TestPollWaitAfterDrains(t *testing.T) {
	ctx := soon(t)
	client, server := pair(t, &rdmacm.ConnConfig{NoOpeningWrite: true}, nil)
	write := ibverbs.SendWR{WRID: 7, Opcode: ibverbs.WRRDMAWrite, Flags: ibverbs.SendSignaled}
	// What an accepting side posts is held until the peer's first message.
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
