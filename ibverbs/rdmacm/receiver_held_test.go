package rdmacm_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
	"github.com/govs-rdma/govs/provider/engine"
)

// TestReceiverHoldsMessages: messages that are not released leave no receive for the next one, and
// the error says so.
func TestReceiverHoldsMessages(t *testing.T) {
	ctx := timeout(t)
	const held = 4
	client, server := pair(t, &rdmacm.ConnConfig{Cap: ibverbs.QPCap{MaxInlineData: 16}}, messages(held, 8))
	send := func() error {
		return client.QP().PostSend(ibverbs.SendWR{Opcode: ibverbs.WRSend, Flags: ibverbs.SendInline | ibverbs.SendSignaled,
			Inline: []byte("message")})
	}
	for range held {
		testkit.OK(t, send())
		_ = testkit.Must(server.Receive(ctx))(t)
	}
	testkit.OK(t, send())
	_, err := server.Receive(ctx)
	if onKernel() {
		wantErr(t, "a message too many", err, err) // siw does not say why a connection ends
		return
	}
	wantErr(t, "a message too many", err, err, "no buffer available", "until Message.Release")
}

// TestBindOfASend: a Bind that would be ignored is refused, after the work requests before it are
// posted.
func TestBindOfASend(t *testing.T) {
	client, _ := pair(t, nil, nil)
	write := ibverbs.SendWR{Opcode: ibverbs.WRRDMAWrite, Flags: ibverbs.SendInline}
	bad := ibverbs.SendWR{WRID: 7, Opcode: ibverbs.WRSend, Flags: ibverbs.SendInline, Bind: &ibverbs.MWBindInfo{}}
	err := client.QP().PostSend(write, bad, write)
	wantErr(t, "a Send with a Bind", err, err, ", work request 1: ", "an IBV_WR_SEND has no Bind")
	if post, ok := err.(*ibverbs.PostError); !ok || post.Posted != 1 { //nolint:errorlint // PostSend's own
		t.Errorf("%#v, want that one is posted", err)
	}
	err = client.Do(timeout(t), write, bad, write)
	wantErr(t, "Do of a Send with a Bind", err, err, ", work request 1: ", "an IBV_WR_SEND has no Bind")
}

// TestReceiverHoldsNothing: a peer with too many Reads ends the connection with the Terminate for a
// message without a receive. The error does not recommend more receives.
func TestReceiverHoldsNothing(t *testing.T) {
	ctx := timeout(t)
	opts := &engine.Options{Conformance: engine.Conformance{ManualIRD: true, ManualORD: true}}
	vctx := testkit.Must(ibverbs.Open(engine.New(opts), ""))(t)
	l := testkit.Must(rdmacm.ListenName(ctx, vctx, "127.0.0.1:0", nil))(t)
	const size = 1 << 20
	var region *ibverbs.MR
	accepted := make(chan error, 1)
	var server *rdmacm.Conn
	go func() {
		req, err := l.Accept(ctx)
		if err == nil {
			server, err = req.Accept(ctx, &rdmacm.ConnConfig{ResponderResources: 1,
				Receives: 4, ReceiveSize: 8,
				Prepare: func(_ context.Context, c *rdmacm.Conn, _ *rdmacm.ConnParam) (err error) {
					region, err = c.PD().AllocMR(size, ibverbs.AccessLocalWrite|ibverbs.AccessRemoteRead)
					return err
				}})
		}
		accepted <- err
	}()
	client := testkit.Must(rdmacm.Dial(ctx, vctx, l.Addr(), &rdmacm.ConnConfig{InitiatorDepth: 8}))(t)
	testkit.OK(t, <-accepted)
	sink := testkit.Must(client.PD().AllocMR(size, ibverbs.AccessReadSink))(t)
	read := ibverbs.SendWR{Opcode: ibverbs.WRRDMARead, SGList: []ibverbs.SGE{testkit.Must(sink.SGE(0, size))(t)},
		RemoteAddr: region.Addr(), RKey: region.RKey()}
	testkit.OK(t, client.QP().PostSend(read, read, read, read, read, read, read, read))
	_, err := server.Receive(ctx)
	wantErr(t, "a Read too many", err, err, "negotiated IRD")
	if strings.Contains(err.Error(), "Release") {
		t.Errorf("a Read too many: %v", err)
	}
	testkit.OK(t, errors.Join(client.Close(), server.Close(), sink.Close(), region.Close(), l.Close(), vctx.Close()))
}
