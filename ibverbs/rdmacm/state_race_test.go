package rdmacm_test

import (
	"io"
	"sync"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
)

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
