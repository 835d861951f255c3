package ibverbs_test

import (
	"context"
	"strings"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/provider/engine"
)

// TestPollWaitNamesWhatIsLost: a failed wait on a CQ that has overflowed says so, because the
// completion that it waits for may be lost.
func TestPollWaitNamesWhatIsLost(t *testing.T) {
	vctx := testkit.Must(ibverbs.Open(engine.New(nil), ""))(t)
	pd := testkit.Must(vctx.AllocPD())(t)
	ch := testkit.Must(vctx.CreateCompChannel())(t)
	cq := testkit.Must(vctx.CreateCQ(1, &ibverbs.CQOptions{Channel: ch}))(t)
	room := ibverbs.QPCap{MaxSendWR: 1, MaxRecvWR: 4}
	qp := testkit.Must(pd.CreateQP(&ibverbs.QPInitAttr{SendCQ: cq, RecvCQ: cq, Cap: room}))(t)
	testkit.OK(t, qp.Modify(ibverbs.QPAttr{State: ibverbs.QPErr}, ibverbs.QPAttrState))
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	wait := func() error {
		_, err := cq.PollWait(ended, make([]ibverbs.WC, 1))
		return err
	}
	const lost = "lost"
	if err := wait(); err == nil || strings.Contains(err.Error(), lost) {
		t.Errorf("nothing has completed: %v", err)
	}
	testkit.OK(t, qp.PostRecv(make([]ibverbs.RecvWR, 3)...)) // they are flushed
	testkit.OK(t, wait())
	const want = "before anything completed (but the CQ has lost 2 completions, because it has room for 1: " +
		"make it larger)"
	if err := wait(); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("two have overflowed: %v", err)
	}
	for _, c := range []interface{ Close() error }{qp, cq, ch, pd, vctx} {
		testkit.OK(t, c.Close())
	}
}
