package ibverbs_test

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/internal/fake"
	"github.com/govs-rdma/govs/provider"
)

// slowQueue makes a fake hold back all completions until finish.
type slowQueue struct {
	mu     sync.Mutex
	room   int
	posted []provider.SendWR
	cq     *fake.CQ
}

func (o *objects) slow(room int) *slowQueue {
	s := &slowQueue{room: room}
	o.fake.PostSend = func(qp *fake.QP, wrs []provider.SendWR) (int, error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.cq = qp.Init.SendCQ.(*fake.CQ)
		for i, wr := range wrs {
			if len(s.posted) == s.room {
				return i, &provider.Error{Op: "ibv_post_send", Err: syscall.ENOMEM}
			}
			s.posted = append(s.posted, wr)
		}
		return len(wrs), nil
	}
	return s
}

// finish completes the first n posted work requests with this status.
func (s *slowQueue) finish(n int, status ibverbs.WCStatus) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, wr := range s.posted[:n] {
		if wr.Flags&ibverbs.SendSignaled != 0 || status != ibverbs.WCSuccess {
			s.cq.Complete(provider.WC{WRID: wr.WRID, QPN: fake.QPN, Status: status})
		}
	}
	s.posted = s.posted[n:]
}

// waiting returns the posted work requests that are not finished.
func (s *slowQueue) waiting() []provider.SendWR {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.posted)
}

func TestDrainOfAnIdleQP(t *testing.T) {
	o := newObjects(t)
	s := o.slow(1)
	testkit.OK(t, o.qp.Drain(t.Context()))
	if len(s.waiting()) != 0 {
		t.Error("draining a queue that was never used posted something")
	}
}

func TestDrainKeepsCompletions(t *testing.T) {
	for _, poller := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			o := newObjects(t)
			s := o.slow(8)
			testkit.OK(t, o.qp.PostSend(
				ibverbs.SendWR{WRID: 1, Flags: ibverbs.SendSignaled},
				ibverbs.SendWR{WRID: 2}, // unsignalled
				ibverbs.SendWR{WRID: 3, Flags: ibverbs.SendSignaled}))
			var got []uint64
			polled := make(chan struct{})
			wait := func() {
				defer close(polled)
				wc := make([]ibverbs.WC, 1)
				for len(got) < 2 {
					n, err := o.cq.PollWait(t.Context(), wc)
					if err != nil {
						t.Error(err)
						return
					}
					for _, c := range wc[:n] {
						got = append(got, c.WRID)
					}
				}
			}
			if poller {
				go wait()
			}
			drained := make(chan error, 1)
			go func() { drained <- o.qp.Drain(t.Context()) }()
			time.Sleep(10 * time.Millisecond)
			posted := s.waiting()
			if len(posted) != 4 {
				t.Fatalf("%d work requests are posted, want the marker behind 3", len(posted))
			}
			m := posted[3]
			if m.Opcode != ibverbs.WRRDMAWrite || len(m.SGList) != 0 || m.Flags != ibverbs.SendSignaled|ibverbs.SendFence {
				t.Errorf("the marker is %+v", m)
			}
			s.finish(3, ibverbs.WCSuccess)
			time.Sleep(10 * time.Millisecond)
			select {
			case err := <-drained:
				t.Fatalf("drained before the marker was complete: %v", err)
			default:
			}
			s.finish(1, ibverbs.WCSuccess)
			testkit.OK(t, <-drained)
			if !poller {
				go wait()
			}
			<-polled
			if len(got) != 2 || got[0] != 1 || got[1] != 3 {
				t.Errorf("poller %v: completions %v, want 1 and 3", poller, got)
			}
			if n, err := o.cq.Poll(make([]ibverbs.WC, 1)); n != 0 || err != nil {
				t.Errorf("poller %v: the marker came out: %d, %v", poller, n, err)
			}
		})
	}
}

// TestDrainKeepsManyCompletions: taking the completions that Drain has kept one by one takes the
// same time for each, whether they are many or few.
func TestDrainKeepsManyCompletions(t *testing.T) {
	each := func(kept int) time.Duration {
		o := newObjects(t)
		s := o.slow(8)
		testkit.OK(t, o.qp.PostSend(ibverbs.SendWR{WRID: 1}))
		for i := range kept {
			s.cq.Complete(provider.WC{WRID: uint64(i), QPN: fake.QPN})
		}
		drained := make(chan error, 1)
		go func() { drained <- o.qp.Drain(t.Context()) }()
		for len(s.waiting()) < 2 {
			time.Sleep(time.Millisecond)
		}
		s.finish(2, ibverbs.WCSuccess)
		testkit.OK(t, <-drained)
		begin, wc := time.Now(), make([]ibverbs.WC, 1)
		for i := range kept {
			if n, err := o.cq.Poll(wc); n != 1 || err != nil || wc[0].WRID != uint64(i) {
				t.Fatalf("poll %d: %d, %v, %+v", i, n, err, wc)
			}
		}
		return time.Since(begin) / time.Duration(kept)
	}
	var few, many time.Duration
	for range 5 { // other processes use the CPU, too
		if few, many = each(2000), each(32000); many < 5*few {
			return
		}
	}
	t.Errorf("%v for each of 32000 completions, %v for each of 2000", many, few)
}

func TestDrainOfAFullQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newObjects(t)
		s := o.slow(1)
		testkit.OK(t, o.qp.PostSend(ibverbs.SendWR{WRID: 1, Flags: ibverbs.SendSignaled}))
		go func() {
			time.Sleep(time.Second)
			s.finish(1, ibverbs.WCSuccess)
			time.Sleep(time.Second)
			s.finish(1, ibverbs.WCSuccess)
		}()
		start := time.Now()
		testkit.OK(t, o.qp.Drain(t.Context()))
		if d := time.Since(start); d < 2*time.Second || d > 2*time.Second+2*time.Millisecond {
			t.Errorf("took %v, want the 2 s that the queue needed", d)
		}
		wc := make([]ibverbs.WC, 2)
		if n, err := o.cq.Poll(wc); n != 1 || err != nil || wc[0].WRID != 1 {
			t.Errorf("polled %d, %v, %+v", n, err, wc)
		}
	})
}

func TestDrainFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newObjects(t)
		s := o.slow(8)
		testkit.OK(t, o.qp.PostSend(ibverbs.SendWR{WRID: 1}))

		// Given up: the marker must not come out later.
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		wantErr(t, "drain that takes too long", o.qp.Drain(ctx), context.DeadlineExceeded)
		s.finish(2, ibverbs.WCSuccess)
		wc := make([]ibverbs.WC, 4)
		if n, err := o.cq.Poll(wc); n != 0 || err != nil {
			t.Errorf("polled %d, %v, %+v", n, err, wc[:n])
		}

		// Flushed: the user's completion comes out, the marker's doesn't.
		testkit.OK(t, o.qp.PostSend(ibverbs.SendWR{WRID: 2}))
		go func() {
			time.Sleep(time.Millisecond)
			s.finish(2, ibverbs.WCWRFlushErr)
		}()
		err := o.qp.Drain(t.Context())
		wantErr(t, "drain of a connection that ends", err, ibverbs.ErrFlushed)
		const text = "the connection ended before everything that was posted had completed: IBV_WC_WR_FLUSH_ERR"
		if !strings.Contains(err.Error(), text) || strings.Contains(err.Error(), "work request") {
			t.Errorf("drain of a connection that ends: %v", err)
		}
		if n, err := o.cq.Poll(wc); n != 1 || err != nil || wc[0].WRID != 2 {
			t.Errorf("polled %d, %v, %+v", n, err, wc[:n])
		}

		// Refused, and given up while the queue is full.
		s.room = 0
		ctx, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		err = o.qp.Drain(ctx)
		wantErr(t, "queue that stays full", err, context.DeadlineExceeded)
		if !strings.Contains(err.Error(), "the send queue stays full") || !strings.Contains(err.Error(), "EventCQErr") {
			t.Errorf("queue that stays full: %v", err)
		}
		refused := errors.New("refused")
		o.fake.PostSend = func(*fake.QP, []provider.SendWR) (int, error) { return 0, refused }
		wantErr(t, "QP that takes nothing", o.qp.Drain(t.Context()), refused)
	})
}

// TestDrainThatIsTakenWithAnError: siw posts work and returns ENOTCONN when the connection is
// ending. The marker completes later, and the program must not see it then either.
func TestDrainThatIsTakenWithAnError(t *testing.T) {
	o := newObjects(t)
	var posted []provider.SendWR
	var scq *fake.CQ
	o.fake.PostSend = func(qp *fake.QP, wrs []provider.SendWR) (int, error) {
		scq = qp.Init.SendCQ.(*fake.CQ)
		if posted = append(posted, wrs...); len(posted) == 1 {
			return 1, nil
		}
		return len(wrs), &provider.Error{Op: "ibv_post_send", Err: syscall.ENOTCONN}
	}
	testkit.OK(t, o.qp.PostSend(ibverbs.SendWR{WRID: 1}))
	err := o.qp.Drain(timeout(t))
	wantErr(t, "drain", err, syscall.ENOTCONN)
	for _, wr := range posted {
		scq.Complete(provider.WC{WRID: wr.WRID, QPN: fake.QPN, Status: ibverbs.WCWRFlushErr})
	}
	wc := make([]ibverbs.WC, 4)
	if n, err := o.cq.Poll(wc); n != 1 || err != nil || wc[0].WRID != 1 {
		t.Errorf("polled %d, %v, %+v, want the program's work request only", n, err, wc[:n])
	}
}

// If a device frees the places of unsignalled work only when later signalled work completes, and
// there is none, Drain does not wait, but returns ErrNoneSignaled.
func TestDrainOfUnsignalledWorkThatStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newObjects(t)
		full := &provider.Error{Op: "ibv_post_send", Err: provider.ErrNoneSignaled}
		o.fake.PostSend = func(_ *fake.QP, wrs []provider.SendWR) (int, error) {
			if wrs[0].WRID == 1 {
				return 1, nil
			}
			return 0, full
		}
		testkit.OK(t, o.qp.PostSend(ibverbs.SendWR{WRID: 1}))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		err := o.qp.Drain(ctx)
		wantErr(t, "drain", err, ibverbs.ErrNoneSignaled)
		wantErr(t, "drain", err, syscall.ENOMEM)
		testkit.OK(t, o.qp.Close()) // nothing looks for the marker any more
		testkit.OK(t, o.cq.Close())
	})
}

// Closing a QP ends its Drain, and leaves nothing behind in a CQ that others use: neither a marker
// nor the search for it.
func TestDrainOfAQPThatIsClosed(t *testing.T) {
	for _, completed := range []int{0, 2} {
		synctest.Test(t, func(t *testing.T) {
			o := newObjects(t)
			s := o.slow(8)
			testkit.OK(t, o.qp.PostSend(ibverbs.SendWR{WRID: 1, Flags: ibverbs.SendSignaled}))
			drained := make(chan error, 1)
			go func() { drained <- o.qp.Drain(t.Context()) }()
			synctest.Wait()
			s.finish(completed, ibverbs.WCSuccess)
			testkit.OK(t, o.qp.Close())
			if err := <-drained; completed == 0 {
				wantErr(t, "drain", err, os.ErrClosed, "drain", "qp")
			} else {
				testkit.OK(t, err)
			}
			wc := make([]ibverbs.WC, 4)
			n, err := o.cq.Poll(wc)
			if want := min(completed, 1); n != want || err != nil || n > 0 && wc[0].WRID != 1 {
				t.Errorf("polled %d, %v, %+v, want %d", n, err, wc[:n], want)
			}
			testkit.OK(t, o.cq.Close())
		})
	}
}

// TestDrainBesideAQPThatIsClosed closes a QP whose number another QP gets as soon as the provider
// has destroyed it, as siw reuses numbers. Both have the same CQ.
func TestDrainBesideAQPThatIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := newObjects(t)
		other := testkit.Must(o.pd.CreateQP(&ibverbs.QPInitAttr{SendCQ: o.cq, RecvCQ: o.cq}))(t)
		s := o.slow(8)
		testkit.OK(t, o.qp.PostSend(ibverbs.SendWR{WRID: 1}))
		drained := make(chan error, 1)
		go func() { drained <- o.qp.Drain(t.Context()) }()
		synctest.Wait()
		testkit.OK(t, other.Close())
		s.finish(2, ibverbs.WCSuccess)
		testkit.OK(t, <-drained)
		wc := make([]ibverbs.WC, 1)
		if n, err := o.cq.Poll(wc); n != 0 || err != nil {
			t.Errorf("polled %d, %v, %+v", n, err, wc)
		}
	})
}
