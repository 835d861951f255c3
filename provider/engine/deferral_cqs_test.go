package engine

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"github.com/govs-rdma/govs/provider/engine/memnet"
)

// separateCQs runs do with a QP, a's, whose receives complete on a CQ of their own, after three
// of its Sends have completed and been taken, so that three more are to be expected.
func separateCQs(t *testing.T, do func(a, b *side)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		opts := Options{Network: memnet.New(nil)}
		a, b := newSide(t, opts, sideOptions{separateCQs: true, events: true}), newSide(t, opts, sideOptions{})
		a.join(b, opts.Network, memAddr, params(true))
		b.recv(make([]provider.RecvWR, 64)...)
		a.post(3)
		b.wantReceived("before anything is known", 3)
		a.takeAll(3)
		do(a, b)
	})
}

// wantNoneDeferred checks that neither of the side's CQs has a deferred QP.
func (s *side) wantNoneDeferred() {
	s.t.Helper()
	s.wantNoneWaits()
	recv := *s
	recv.cq = s.recvCQ
	if recv.wantNoneWaits() {
		s.t.Error("a timer runs for the receive CQ")
	}
}

// TestPostsWaitWithTwoCQs: a request for an event of the CQ of its receives ends the wait as well,
// because the program may be about to sleep. A poll of that CQ does not: another thread may do
// nothing else.
func TestPostsWaitWithTwoCQs(t *testing.T) {
	for _, tc := range []struct {
		name string
		end  func(a *side)
		came int64 // in all
	}{
		{"the third", func(a *side) { a.post(1) }, 6},
		{"an empty send CQ", func(a *side) { testkit.Must(a.cq.Poll(make([]provider.WC, 1)))(a.t) }, 5},
		{"a request for an event of the send CQ", func(a *side) { testkit.OK(a.t, a.cq.ReqNotify(false)) }, 5},
		{"a request for an event of the receive CQ", func(a *side) {
			testkit.OK(a.t, a.recvCQ.ReqNotify(false))
		}, 5},
		{"time", func(*side) { time.Sleep(policy.WaitTimer * 3 / 2) }, 5},
		{"the end of the QP", func(a *side) { testkit.OK(a.t, a.qp.Close()) }, 64},
	} {
		t.Run(tc.name, func(t *testing.T) {
			separateCQs(t, func(a, b *side) {
				a.post(2)
				testkit.Must(a.recvCQ.Poll(make([]provider.WC, 1)))(t)
				b.wantReceived("two posts wait", 3)
				tc.end(a)
				b.wantReceived("after that", tc.came)
				a.wantNoneDeferred()
			})
		})
	}
}

// TestArmedPostsDoNotWait: a program that has asked for an event of its Sends or its receives may
// sleep after any post.
func TestArmedPostsDoNotWait(t *testing.T) {
	for what, of := range map[string]func(a *side) *cq{
		"the Sends":    func(a *side) *cq { return a.cq }, // which do not fire it
		"the receives": func(a *side) *cq { return a.recvCQ },
	} {
		separateCQs(t, func(a, b *side) {
			testkit.OK(t, of(a).ReqNotify(true))
			a.post(1)
			b.wantReceived(what+", one of three", 4)
			a.post(1)
			b.wantReceived(what+", two of three", 5)
			a.wantNoneDeferred()
		})
	}
}

// TestPostsWaitWithRecvSink: with a receive CQ whose sink does not see what its program does, posts
// don't wait; with one that does they do.
func TestPostsWaitWithRecvSink(t *testing.T) {
	for _, tc := range []struct {
		name string
		sink provider.CompletionSink
		came int64
	}{
		{"no SinkUse", discard{}, 5},
		{"SinkUse", &usedSink{}, 3},
		{"its program sleeps", &usedSink{waits: true}, 5},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				opts := Options{Network: memnet.New(nil)}
				a, b := newSide(t, opts, sideOptions{}), newSide(t, opts, sideOptions{})
				recv := testkit.Must(a.dev.CreateCQ(provider.CQInitAttr{CQE: 64, Sink: tc.sink}))(t)
				a.recvCQ = recv.(*cq)
				one := a.qp
				a.qp = a.newQP(sideOptions{cap: one.initAttr().Cap})
				if used, ok := tc.sink.(*usedSink); ok {
					used.t, used.q = t, a.qp
				}
				t.Cleanup(func() {
					testkit.OK(t, a.qp.Close())
					testkit.OK(t, recv.Close())
					a.qp = one
				})
				a.join(b, opts.Network, memAddr, params(true))
				b.recv(make([]provider.RecvWR, 8)...)
				a.post(3)
				synctest.Wait()
				a.takeAll(3)
				a.post(2)
				b.wantReceived("two of three", tc.came)
				a.dev.progress(a.cq)
				b.wantReceived("after an empty poll", 5)
			})
		})
	}
}

// TestDeferralBeginsAnew: a QP that another goroutine has removed from its CQ's deferred QPs, and
// whose deferral does not know yet, waits from its next post on: it is the last in order, and not
// late.
func TestDeferralBeginsAnew(t *testing.T) {
	inBurst(t, sideOptions{}, nil, func(a, b *side) {
		a.post(1)
		b.wantReceived("one post waits", 3)
		time.Sleep(policy.WaitTimer * 5 / 8)
		a.cq.deferred.add(a.qp, &a.qp.sq.deferral.Load().place)
		time.Sleep(policy.WaitTimer * 3 / 4)
		b.wantReceived("three quarters of a limit later", 3)
		time.Sleep(policy.WaitTimer)
		b.wantReceived("after the timer", 4)
		a.wantNoneWaits()
	})
}

// TestTransmitAtOnce: with the option no post waits.
func TestTransmitAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := pair(t, memnet.New(nil), memAddr, Options{TransmitAtOnce: true}, sideOptions{}, params(true))
		b.recv(make([]provider.RecvWR, 8)...)
		a.post(3)
		b.wantReceived("before anything is known", 3)
		a.takeAll(3)
		a.post(1)
		b.wantReceived("one of three", 4)
		a.wantNoneWaits()
	})
}
