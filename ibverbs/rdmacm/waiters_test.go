package rdmacm_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
)

// TestManyWaiters makes three goroutines wait on each of two CQs of one channel for completions of
// Reads. Their contexts end occasionally. Completions come at once or after a pause, so that polls
// find some and events report others. None is lost or left behind.
func TestManyWaiters(t *testing.T) {
	reads := 2000
	if onKernel() {
		reads = 200
	}
	ctx := timeout(t)
	vctx, addr := device(t)
	l := testkit.Must(rdmacm.Listen(ctx, vctx, addr, nil))(t)
	defer l.Close()
	ch := testkit.Must(vctx.CreateCompChannel())(t)
	defer ch.Close()
	waiting, stop := context.WithCancel(ctx)
	var waiters, posters sync.WaitGroup
	for i := range uint64(2) {
		cq := testkit.Must(vctx.CreateCQ(64, &ibverbs.CQOptions{Channel: ch}))(t)
		defer cq.Close()
		accepted := make(chan *rdmacm.Conn, 1)
		go func() {
			req, err := l.Accept(ctx)
			if err == nil {
				var c *rdmacm.Conn
				if c, err = req.Accept(ctx, nil); err == nil {
					accepted <- c
					return
				}
			}
			t.Error(err)
			close(accepted)
		}()
		c := testkit.Must(rdmacm.Dial(ctx, vctx, l.Addr(), &rdmacm.ConnConfig{SendCQ: cq}))(t)
		defer c.Close()
		s := <-accepted
		if s == nil {
			t.FailNow()
		}
		defer s.Close()
		_, there := memory(t, s, 8)
		mr, _ := memory(t, c, 8)
		read := ibverbs.SendWR{Opcode: ibverbs.WRRDMARead, Flags: ibverbs.SendSignaled,
			RemoteAddr: there.Addr, RKey: there.RKey, SGList: []ibverbs.SGE{sge(t, mr, 0, 8)}}
		came := make(chan struct{}, 64)
		for range 3 {
			waiters.Go(func() { await(t, waiting, cq, came) })
		}
		posters.Go(func() {
			pauses := rand.New(rand.NewPCG(i, 1))
			for done := 0; done < reads && ctx.Err() == nil; {
				n := 1 + pauses.IntN(3)
				for range n {
					if err := c.QP().PostSend(read); err != nil {
						t.Error(err)
						return
					}
				}
				for range n {
					select {
					case <-came:
					case <-time.After(patience):
						t.Errorf("cq %d: after %d Reads a completion has been left lying", i, done)
						return
					}
				}
				if done += n; pauses.IntN(8) == 0 {
					time.Sleep(time.Duration(pauses.IntN(600)) * time.Microsecond)
				}
			}
		})
	}
	posters.Wait()
	stop()
	waiters.Wait()
}

// await takes completions from cq until ctx ends.
func await(t *testing.T, ctx context.Context, cq *ibverbs.CQ, came chan<- struct{}) {
	for polls := 1; ctx.Err() == nil; polls++ {
		some, cancel := ctx, context.CancelFunc(func() {})
		if polls%4 == 0 {
			some, cancel = context.WithTimeout(ctx, 300*time.Microsecond)
		}
		var wc [2]ibverbs.WC
		n, err := cq.PollWait(some, wc[:])
		cancel()
		for _, w := range wc[:n] {
			if w.Status != ibverbs.WCSuccess {
				t.Error(w.Err())
			}
			came <- struct{}{}
		}
		if err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
			return
		}
	}
}
