package rdmacm_test

import (
	"context"
	"io"
	"net/netip"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
	"github.com/govs-rdma/govs/provider/engine"
)

// TestWriteState compares the whole text of a listener, and of a connection whose accepting side
// has posted before the peer's first message.
func TestWriteState(t *testing.T) {
	vctx, err := ibverbs.Open(engine.New(nil), "")
	testkit.OK(t, err)
	defer vctx.Close()
	ctx := context.Background()
	l, err := rdmacm.Listen(ctx, vctx, netip.MustParseAddrPort("127.0.0.1:0"), nil)
	testkit.OK(t, err)
	defer l.Close()
	ibverbs.TraceObjects(true)
	pd, err := vctx.AllocPD()
	ibverbs.TraceObjects(false)
	testkit.OK(t, err)
	cq, err := vctx.CreateCQ(16, nil)
	testkit.OK(t, err)
	qp, err := pd.CreateQP(&ibverbs.QPInitAttr{SendCQ: cq, RecvCQ: cq,
		Cap: ibverbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxRecvSGE: 1}})
	testkit.OK(t, err)
	testkit.OK(t, qp.PostRecv(ibverbs.RecvWR{}))
	mr, err := pd.RegMR(make([]byte, 100), ibverbs.AccessLocalWrite)
	testkit.OK(t, err)

	var b strings.Builder
	testkit.OK(t, vctx.WriteState(&b))
	text := regexp.MustCompile(`(?m)^      .*\n`).ReplaceAllString(b.String(), "") // stacks
	text = regexp.MustCompile(`127\.0\.0\.1:\d+`).ReplaceAllString(text, "ADDR")
	text = regexp.MustCompile(`qp \d+`).ReplaceAllString(text, "qp N")
	text = regexp.MustCompile(`mr 0x[0-9a-f]+`).ReplaceAllString(text, "mr K")
	const want = `govs0, provider engine
  0 connections open, 0 of them accepted, 0 closing, 0 made so far, 0 start-ups failed
  pd 1 of govs0 (1 MR, 1 QP) [1]
  mr K (100 bytes, IBV_ACCESS_LOCAL_WRITE)
  cq 1 of govs0 (room for 16 completions): 0 waiting, at least 16 places free so far, 0 lost
  qp N (IBV_QPS_RESET, up to 4 sends, 4 receives): 0 sends posted, 1 receive posted
  cm id of govs0: listens on ADDR, 0 of 1024 places pending, 0 requests, 0 refused, 0 failed
  [1] was made by
`
	if text != want {
		t.Errorf("got\n%s\nwant\n%s", text, want)
	}
	if got := b.String(); strings.Count(got, "TestWriteState") != 1 {
		t.Errorf("the stack of the PD alone was asked for:\n%s", got)
	}
	if _, stack, _ := strings.Cut(b.String(), "was made by\n"); !strings.HasPrefix(stack, "      github.com/govs-rdma/govs/ibverbs/rdmacm_test.TestWriteState\n") {
		t.Errorf("the stack does not begin with the caller:\n%s", stack)
	}
	testkit.OK(t, mr.Close())
	testkit.OK(t, qp.Close())
	testkit.OK(t, cq.Close())
	testkit.OK(t, pd.Close())
	b.Reset()
	testkit.OK(t, vctx.WriteState(&b))
	if strings.Contains(b.String(), "pd of") || strings.Contains(b.String(), "qp ") {
		t.Errorf("closed objects are listed:\n%s", b.String())
	}
	st, err := l.Stats()
	testkit.OK(t, err)
	if st != (ibverbs.ListenerStats{MaxPending: 1024}) {
		t.Errorf("%+v", st)
	}
}

// TestWriteStateMeanwhile: WriteState and Stats while connections come, move data and go.
func TestWriteStateMeanwhile(t *testing.T) {
	ctx := timeout(t)
	vctx, addr := device(t)
	l := testkit.Must(rdmacm.Listen(ctx, vctx, addr, nil))(t)
	ibverbs.TraceObjects(true)
	defer ibverbs.TraceObjects(false)
	var servers, clients, lookers sync.WaitGroup
	servers.Go(func() {
		for {
			req, err := l.Accept(ctx)
			if err != nil {
				return
			}
			servers.Go(func() {
				c, err := req.Accept(ctx, nil)
				if err != nil {
					return
				}
				_ = c.Wait(ctx)
				_ = c.Close()
			})
		}
	})
	for range 4 {
		clients.Go(func() {
			for range 10 {
				c, err := rdmacm.Dial(ctx, vctx, l.Addr(), nil)
				if err != nil {
					t.Error(err)
					return
				}
				mr, err := c.PD().AllocMR(64, ibverbs.AccessLocalWrite)
				if err != nil {
					t.Error(err)
				}
				if err := c.Do(ctx, ibverbs.SendWR{}, ibverbs.SendWR{}); err != nil {
					t.Error(err)
				}
				_ = mr.Close()
				if err := c.Close(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	over := make(chan struct{})
	for range 2 {
		lookers.Go(func() {
			var last uint64
			for {
				if err := vctx.WriteState(io.Discard); err != nil {
					t.Error(err)
				}
				st, err := vctx.Stats()
				if err != nil {
					t.Error(err)
				}
				if st.Sent.Write.Messages < last {
					t.Errorf("%d Writes after %d", st.Sent.Write.Messages, last)
				}
				last = st.Sent.Write.Messages
				select {
				case <-over:
					return
				default:
				}
			}
		})
	}
	clients.Wait()
	close(over)
	lookers.Wait()
	testkit.OK(t, l.Close())
	servers.Wait()
	// Dial sends one Write by itself.
	if st := testkit.Must(vctx.Stats())(t); st.Sent.Write.Messages != 4*10*(1+2) {
		t.Errorf("%d Writes sent", st.Sent.Write.Messages)
	}
}
