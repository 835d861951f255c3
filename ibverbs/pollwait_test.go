package ibverbs_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/provider/engine"
)

// complete puts a completion with this id into o's CQ.
func (o *objects) complete(t testing.TB, wrid uint64) {
	t.Helper()
	testkit.OK(t, o.qp.PostSend(ibverbs.SendWR{WRID: wrid, Flags: ibverbs.SendSignaled}))
}

func TestPollWaitTakesWhatIsThere(t *testing.T) {
	o := newObjects(t)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	wc := make([]ibverbs.WC, 4)
	o.complete(t, 1)
	o.complete(t, 2)
	if n, err := o.cq.PollWait(ended, wc); n != 2 || err != nil || wc[0].WRID != 1 || wc[1].WRID != 2 {
		t.Errorf("got %d, %v, %v; completions come before the end of a context", n, err, wc[:n])
	}
	_, err := o.cq.PollWait(ended, wc)
	wantErr(t, "empty CQ, ended context", err, context.Canceled)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %#v, want one that is ctx.Err()", err)
	}
}

func TestPollWaitNeedsAChannelAndRoom(t *testing.T) {
	o := newObjects(t)
	_, err := o.cq.PollWait(t.Context(), nil)
	wantErrno(t, "no room", err, syscall.EINVAL)
	cq := testkit.Must(o.ctx.CreateCQ(1, nil))(t)
	_, err = cq.PollWait(t.Context(), make([]ibverbs.WC, 1))
	wantErrno(t, "no channel", err, syscall.EINVAL, "completion channel")
}

func TestPollWaitWakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newObjects(t)
		var got ibverbs.WC
		done := make(chan struct{})
		go func() {
			defer close(done)
			var wc [1]ibverbs.WC
			n, err := o.cq.PollWait(t.Context(), wc[:])
			if n != 1 || err != nil {
				t.Errorf("got %d, %v", n, err)
			}
			got = wc[0]
		}()
		synctest.Wait()
		o.complete(t, 77)
		<-done
		if got.WRID != 77 {
			t.Errorf("got %+v", got)
		}
	})
}

// The call that reads the channel's events may wait for another CQ, and may leave before the calls
// that do not read.
func TestPollWaitOnASharedChannel(t *testing.T) {
	for _, leaves := range []bool{false, true} {
		t.Run(fmt.Sprintf("reader leaves %v", leaves), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := newObjects(t)
				other := testkit.Must(o.ctx.CreateCQ(16, &ibverbs.CQOptions{Channel: o.ch}))(t)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				reader := make(chan error, 1)
				go func() {
					_, err := other.PollWait(ctx, make([]ibverbs.WC, 1))
					reader <- err
				}()
				synctest.Wait()
				follower := make(chan error, 1)
				go func() {
					_, err := o.cq.PollWait(t.Context(), make([]ibverbs.WC, 1))
					follower <- err
				}()
				synctest.Wait()
				if leaves {
					cancel()
					if err := <-reader; !errors.Is(err, context.Canceled) {
						t.Errorf("the reader left with %v", err)
					}
					synctest.Wait()
				}
				o.complete(t, 1)
				if err := <-follower; err != nil {
					t.Error(err)
				}
				if !leaves {
					cancel()
					<-reader
				}
			})
		})
	}
}

func TestCloseWakesPollWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newObjects(t)
		cq := testkit.Must(o.ctx.CreateCQ(16, &ibverbs.CQOptions{Channel: o.ch}))(t)
		stays := make(chan error, 1)
		go func() {
			_, err := o.cq.PollWait(t.Context(), make([]ibverbs.WC, 1))
			stays <- err
		}()
		errs := make(chan error, 3)
		for range cap(errs) {
			go func() {
				_, err := cq.PollWait(t.Context(), make([]ibverbs.WC, 1))
				errs <- err
			}()
		}
		synctest.Wait()
		testkit.OK(t, cq.Close())
		for range cap(errs) {
			wantErr(t, "PollWait of a CQ that was closed", <-errs, os.ErrClosed)
		}
		synctest.Wait()
		select {
		case err := <-stays:
			t.Errorf("closing another CQ ended the wait: %v", err)
		default:
		}
		o.complete(t, 1)
		testkit.OK(t, <-stays)
	})
}

func TestNext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newObjects(t)
		for i := range 2 { // once with Next alone, once with PollWait reading for it
			ctx, cancel := context.WithCancel(t.Context())
			waiter := make(chan struct{})
			other := testkit.Must(o.ctx.CreateCQ(16, &ibverbs.CQOptions{Channel: o.ch}))(t)
			if i == 1 {
				go func() {
					defer close(waiter)
					if _, err := other.PollWait(ctx, make([]ibverbs.WC, 1)); !errors.Is(err, context.Canceled) {
						t.Errorf("PollWait of a CQ with no completions: %v", err)
					}
				}()
				synctest.Wait()
			}
			testkit.OK(t, o.cq.ReqNotify(false))
			got := make(chan *ibverbs.CQ, 1)
			go func() {
				cq, err := o.ch.Next(t.Context())
				if err != nil {
					t.Error(err)
				}
				got <- cq
			}()
			synctest.Wait()
			o.complete(t, 1)
			if cq := <-got; cq != o.cq {
				t.Errorf("Next returned %p, want %p", cq, o.cq)
			}
			if n, err := o.cq.Poll(make([]ibverbs.WC, 2)); n != 1 || err != nil {
				t.Errorf("polled %d, %v", n, err)
			}
			cancel()
			if i == 1 {
				<-waiter
			}
		}
		ended, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := o.ch.Next(ended)
		wantErr(t, "Next with no event", err, context.DeadlineExceeded)
	})
}

// Each ReqNotify gives one event to Next, even if PollWait also arms the CQ.
func TestNextBesidePollWaitOnOneCQ(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newObjects(t)
		waited := make(chan error, 1)
		go func() {
			_, err := o.cq.PollWait(t.Context(), make([]ibverbs.WC, 1))
			waited <- err
		}()
		synctest.Wait()
		testkit.OK(t, o.cq.ReqNotify(false))
		o.complete(t, 1)
		testkit.OK(t, <-waited)
		if cq, err := o.ch.Next(t.Context()); cq != o.cq || err != nil {
			t.Errorf("got %v, %v", cq, err)
		}
	})
}

// Many waiters on a few CQs of one channel, some of which give up: each completion must reach one
// of its CQ's waiters.
func TestPollWaitStress(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	const cqs, waiters, each = 3, 4, 400
	o := newObjects(t)
	var wg sync.WaitGroup
	for c := range cqs {
		cq := testkit.Must(o.ctx.CreateCQ(each, &ibverbs.CQOptions{Channel: o.ch}))(t)
		qp := testkit.Must(o.pd.CreateQP(&ibverbs.QPInitAttr{SendCQ: cq, RecvCQ: cq}))(t)
		ctx, cancel := context.WithCancel(timeout(t))
		var got atomic.Int64
		for w := range waiters {
			rng := rand.New(rand.NewPCG(seed, uint64(c*waiters+w)))
			wg.Go(func() {
				wc := make([]ibverbs.WC, 1+w)
				for ctx.Err() == nil {
					short, stop := context.WithTimeout(ctx, time.Duration(rng.IntN(2000))*time.Microsecond)
					n, err := cq.PollWait(short, wc)
					stop()
					if err != nil && short.Err() == nil {
						t.Errorf("PollWait: %v", err)
						return
					}
					if got.Add(int64(n)) == each {
						cancel()
					}
				}
			})
		}
		wg.Go(func() {
			defer cancel()
			rng := rand.New(rand.NewPCG(seed, uint64(1000+c)))
			for i := range each {
				if err := qp.PostSend(ibverbs.SendWR{WRID: uint64(i), Flags: ibverbs.SendSignaled}); err != nil {
					t.Error(err)
				}
				if rng.IntN(4) == 0 {
					time.Sleep(time.Duration(rng.IntN(200)) * time.Microsecond)
				}
			}
			<-ctx.Done()
			if n := got.Load(); n != each {
				t.Errorf("CQ %d: %d completions, want %d", c, n, each)
			}
		})
	}
	wg.Wait()
}

// TestNextOfSeveral: Next returns all events that PollWait of another CQ has read, each once and in
// order, and closing a CQ drops its events.
func TestNextOfSeveral(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newObjects(t)
		ctx, cancel := context.WithCancel(t.Context())
		reader := make(chan error, 1)
		go func() {
			_, err := o.cq.PollWait(ctx, make([]ibverbs.WC, 1))
			reader <- err
		}()
		synctest.Wait()
		var cqs [4]*ibverbs.CQ
		var qps [len(cqs)]*ibverbs.QP
		for i := range cqs {
			cqs[i] = testkit.Must(o.ctx.CreateCQ(4, &ibverbs.CQOptions{Channel: o.ch, Cookie: i}))(t)
			qps[i] = testkit.Must(o.pd.CreateQP(&ibverbs.QPInitAttr{SendCQ: cqs[i], RecvCQ: cqs[i]}))(t)
		}
		for _, closed := range []int{-1, 1} {
			for i := range cqs {
				testkit.OK(t, cqs[i].ReqNotify(false))
				testkit.OK(t, qps[i].PostSend(ibverbs.SendWR{Flags: ibverbs.SendSignaled}))
				synctest.Wait() // so that the reader takes them one by one
			}
			if closed >= 0 {
				testkit.OK(t, qps[closed].Close())
				testkit.OK(t, cqs[closed].Close())
			}
			for i := range cqs {
				if i == closed {
					continue
				}
				if cq, err := o.ch.Next(t.Context()); cq != cqs[i] || err != nil {
					t.Errorf("Next returns the event of CQ %v, %v, not that of CQ %d", cq.Cookie(), err, i)
				}
				testkit.Must(cqs[i].Poll(make([]ibverbs.WC, 1)))(t)
			}
			ended, stop := context.WithTimeout(t.Context(), time.Second)
			_, err := o.ch.Next(ended)
			stop()
			wantErr(t, "Next after all events", err, context.DeadlineExceeded)
		}
		cancel()
		wantErr(t, "PollWait of the reader", <-reader, context.Canceled)
	})
}

// TestNextInterrupted: an event is not lost if another CQ of the channel is closed at that moment,
// which interrupts the goroutine that reads the events.
func TestNextInterrupted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newObjects(t)
		for range 300 {
			other := testkit.Must(o.ctx.CreateCQ(4, &ibverbs.CQOptions{Channel: o.ch}))(t)
			testkit.OK(t, o.cq.ReqNotify(false))
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			next := make(chan error, 1)
			go func() {
				cq, err := o.ch.Next(ctx)
				if err == nil && cq != o.cq {
					err = fmt.Errorf("Next returns the event of %p, not of %p", cq, o.cq)
				}
				next <- err
			}()
			synctest.Wait()
			o.complete(t, 1)
			testkit.OK(t, other.Close())
			if err := <-next; err != nil {
				t.Fatal(err)
			}
			cancel()
			testkit.Must(o.cq.Poll(make([]ibverbs.WC, 1)))(t)
		}
	})
}

// TestNextGivenUp: an event that comes while a Next gives up goes to the next call.
func TestNextGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newObjects(t)
		for range 300 {
			testkit.OK(t, o.cq.ReqNotify(false))
			ctx, cancel := context.WithCancel(t.Context())
			next := make(chan error, 1)
			go func() {
				_, err := o.ch.Next(ctx)
				next <- err
			}()
			synctest.Wait()
			o.complete(t, 1)
			cancel()
			if err := <-next; err != nil {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				if cq, err := o.ch.Next(ctx); cq != o.cq || err != nil {
					t.Fatalf("the event is lost: %v", err)
				}
				cancel()
			}
			testkit.Must(o.cq.Poll(make([]ibverbs.WC, 1)))(t)
		}
	})
}

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
