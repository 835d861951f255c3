package ibverbs_test

import (
	"errors"
	"net/netip"
	"syscall"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
	"github.com/govs-rdma/govs/provider/engine"
)

// nowhere is a CompletionSink that drops completions.
type nowhere struct{}

func (nowhere) Complete(*ibverbs.WC, bool) (stored, due bool) { return true, false }
func (nowhere) Notify()                                       {}

// TestSinkRefuses: calls that need completions of their own fail on a CQ with a Sink instead of
// waiting.
func TestSinkRefuses(t *testing.T) {
	vctx := testkit.Must(ibverbs.Open(engine.New(nil), ""))(t)
	pd := testkit.Must(vctx.AllocPD())(t)
	cq := testkit.Must(vctx.CreateCQ(8, &ibverbs.CQOptions{Sink: nowhere{}}))(t)
	qp := testkit.Must(pd.CreateQP(&ibverbs.QPInitAttr{SendCQ: cq, RecvCQ: cq,
		Cap: ibverbs.QPCap{MaxSendWR: 1}}))(t)
	l := testkit.Must(rdmacm.Listen(t.Context(), vctx, netip.MustParseAddrPort("127.0.0.1:0"),
		nil))(t)
	_, dialled := rdmacm.Dial(t.Context(), vctx, l.Addr(), &rdmacm.ConnConfig{SendCQ: cq})
	for what, err := range map[string]error{"Drain": qp.Drain(t.Context()), "Dial": dialled} {
		if !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%s: %v, want EINVAL", what, err)
		}
	}
	testkit.OK(t, l.Close())
	testkit.OK(t, qp.Close())
	testkit.OK(t, cq.Close())
	testkit.OK(t, pd.Close())
	testkit.OK(t, vctx.Close())
}
