package rdmacm_test

import (
	"errors"
	"syscall"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
)

// TestLostCompletions: after the end of a connection the program goes on posting, and nobody polls,
// so that the send CQ is full. A call whose completion finds no room fails, as does a Drain, and
// the places of such calls come back.
func TestLostCompletions(t *testing.T) {
	if onKernel() {
		t.Skip("its CQs don't count what they lose")
	}
	const places = 2
	a, _ := pair(t, &rdmacm.ConnConfig{Cap: ibverbs.QPCap{MaxSendWR: places}}, nil)
	ctx := timeout(t)
	empty := ibverbs.SendWR{Opcode: ibverbs.WRRDMAWrite}
	testkit.OK(t, a.Do(ctx, empty))
	testkit.OK(t, a.QP().Modify(ibverbs.QPAttr{State: ibverbs.QPErr}, ibverbs.QPAttrState))
	for name, call := range map[string]func() error{
		"Do":    func() error { return a.Do(ctx, empty) },
		"Drain": func() error { return a.QP().Drain(ctx) },
	} {
		for range 2 * places { // more than there are places that could be lost
			for range a.SendCQ().CQE() {
				testkit.OK(t, a.QP().PostSend(empty))
			}
			if err := call(); !errors.Is(err, syscall.EOVERFLOW) {
				t.Errorf("%s with a full CQ: %v", name, err)
			}
		}
	}
	if err := a.Do(ctx, empty); !errors.Is(err, ibverbs.ErrFlushed) {
		t.Errorf("Do with room in the CQ: %v", err)
	}
}
