package rdmacm_test

import (
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
)

// TestConnDoBesideAFullQueue: the program's own work fills the send queue. A call takes its
// completions from the CQ, and then has room.
func TestConnDoBesideAFullQueue(t *testing.T) {
	ctx := timeout(t)
	const places = 8
	var own int
	a, b := pair(t, &rdmacm.ConnConfig{
		Cap:    ibverbs.QPCap{MaxSendWR: places},
		OnSend: func(wc *ibverbs.WC) { own++ },
	}, nil)
	here, _ := memory(t, a, 64)
	_, there := memory(t, b, 64)
	read := ibverbs.NewRead(there, sge(t, here, 0, 64)) // keeps its place until the answer
	empty := ibverbs.SendWR{Opcode: ibverbs.WRRDMAWrite}
	posted := 0
	for round := range 3 {
		// More than the queue holds would overflow the CQ, which is not polled yet.
		for range places {
			testkit.OK(t, a.QP().PostSend(read))
			posted++
		}
		if err := a.Do(ctx, empty, empty); err != nil {
			t.Fatalf("round %d, after %d work requests of the program's own: %v", round, posted, err)
		}
		// siw completes a Write before earlier Reads, but not a Read
		// (kernel-notes/siw-completion-order.md).
		testkit.OK(t, a.Read(ctx, sge(t, here, 0, 64), there))
	}
	if own != posted {
		t.Errorf("OnSend got %d completions of %d", own, posted)
	}
}
