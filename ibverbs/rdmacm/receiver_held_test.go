package rdmacm_test

import (
	"context"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
)

// TestReceiverHoldsMessages: messages that are not released leave no receive for the next one, and
// the error says so.
func TestReceiverHoldsMessages(t *testing.T) {
	ctx := timeout(t)
	const held = 4
	var rcv *rdmacm.Receiver
	client, _ := pair(t, &rdmacm.ConnConfig{Cap: ibverbs.QPCap{MaxInlineData: 16}}, &rdmacm.ConnConfig{
		Prepare: func(_ context.Context, c *rdmacm.Conn, _ *rdmacm.ConnParam) (err error) {
			rcv, err = rdmacm.NewReceiver(c, held, 8)
			return err
		},
	})
	send := func() error {
		return client.QP().PostSend(ibverbs.SendWR{Opcode: ibverbs.WRSend, Flags: ibverbs.SendInline | ibverbs.SendSignaled,
			Inline: []byte("message")})
	}
	for range held {
		testkit.OK(t, send())
		_ = testkit.Must(rcv.Receive(ctx))(t)
	}
	testkit.OK(t, send())
	_, err := rcv.Receive(ctx)
	if onKernel() {
		wantErr(t, "a message too many", err, err) // siw does not say why a connection ends
		return
	}
	wantErr(t, "a message too many", err, err, "no buffer available", "until Message.Release")
}

// TestBindOfASend: a Bind that nobody would look at is refused, after what was posted before it.
func TestBindOfASend(t *testing.T) {
	client, _ := pair(t, nil, nil)
	write := ibverbs.SendWR{Opcode: ibverbs.WRRDMAWrite, Flags: ibverbs.SendInline}
	bad := ibverbs.SendWR{WRID: 7, Opcode: ibverbs.WRSend, Flags: ibverbs.SendInline, Bind: &ibverbs.MWBindInfo{}}
	err := client.QP().PostSend(write, bad, write)
	wantErr(t, "a Send with a Bind", err, err, "work request 0x7 is an IBV_WR_SEND with a Bind")
	if post, ok := err.(*ibverbs.PostError); !ok || post.Posted != 1 { //nolint:errorlint // PostSend's own
		t.Errorf("%#v, want that one is posted", err)
	}
}
