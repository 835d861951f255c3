package engine

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/memory"
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"github.com/govs-rdma/govs/provider/engine/memnet"
	"github.com/govs-rdma/govs/provider/engine/transport"
)

// TestPostsOverlapWithWork: if a program works between its posts, or between posts and polls, its
// posts are sent during that work, except in a few rounds in which the engine learns that.
func TestPostsOverlapWithWork(t *testing.T) {
	const rounds, work = 200, 300 * time.Microsecond
	signaled := provider.SendWR{Opcode: provider.WRSend, Flags: provider.SendSignaled}
	for _, tc := range []struct {
		name string
		// round posts messages with messages of them to be received, waits with wait, which returns
		// whether a message has come, and posts the rest.
		round func(a *side, w *memory.Window, m *region, wait func() bool) (came bool)
		wcs   int // of a round
		msgs  int
	}{
		{"a slow handler answers three requests", func(a *side, _ *memory.Window, _ *region, wait func() bool) bool {
			a.post(1)
			came := wait()
			a.post(1)
			wait()
			a.post(1)
			return came
		}, 3, 3},
		{"a list of which all is reported", func(a *side, _ *memory.Window, _ *region, wait func() bool) bool {
			a.send(signaled, signaled, signaled, signaled)
			return wait()
		}, 4, 4},
		{"a bind and a Send", func(a *side, w *memory.Window, m *region, wait func() bool) bool {
			testkit.OK(a.t, a.qp.BindMW(w, 7, provider.SendSignaled, provider.MWBindInfo{
				LKey: m.m.STag(), Addr: m.to(0), Length: 64, Access: provider.AccessRemoteWrite,
			}))
			a.post(1)
			return wait()
		}, 2, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a, b := pair(t, memnet.New(nil), memAddr, Options{}, sideOptions{}, params(true))
				m := a.reg(64, bindable)
				w := testMW(t, a.pd, provider.MWType1)
				delayed := 0
				wait := func() bool {
					time.Sleep(work)
					synctest.Wait()
					return b.cq.seen.Load() > 0
				}
				for range rounds {
					b.recv(make([]provider.RecvWR, tc.msgs)...)
					if !tc.round(a, w, m, wait) {
						delayed++
					}
					wcs := make([]provider.WC, 8)
					for n := 0; n < tc.wcs; {
						n += testkit.Must(a.cq.Poll(wcs))(t)
					}
					synctest.Wait()
					b.takeAll(tc.msgs)
				}
				if delayed > rounds/20 {
					t.Errorf("in %d of %d rounds nothing had come %v after the first post",
						delayed, rounds, work)
				}
			})
		})
	}
}

// waitingQPs has n QPs of one CQ, at the end of a, of each of which a post waits. All messages are
// for b. Each calls the function that down returns when its connection ends.
func waitingQPs(t *testing.T, network transport.Network, addr string, n int, wr provider.SendWR,
	down func(i int) func(error)) (a, b *side, qps []*side) {
	t.Helper()
	opts := Options{Network: network}
	a, b = newSide(t, opts, sideOptions{}), newSide(t, opts, sideOptions{})
	so := sideOptions{cap: a.qp.initAttr().Cap}
	for i := range n {
		s, peer := *a, *b
		s.qp, peer.qp = a.newQP(so), b.newQP(so)
		s.down, peer.down = make(chan error, 1), make(chan error, 1)
		onDown := func(err error) { s.down <- err }
		if down != nil {
			onDown = down(i)
		}
		ca, cb := connectTransport(t, network, addr)
		testkit.OK(t, s.qp.start(ca, params(true), onDown))
		p := params(true)
		p.WaitFirstFPDU = true
		peer.start(cb, p)
		peer.recv(make([]provider.RecvWR, 8)...)
		qps = append(qps, &s)
		t.Cleanup(func() {
			testkit.OK(t, s.qp.Close())
			testkit.OK(t, peer.qp.Close())
		})
		s.post(2)
	}
	b.arrives(int64(2 * n))
	a.takeAll(2 * n)
	b.takeAll(2 * n)
	for _, s := range qps {
		s.send(wr)
	}
	return a, b, qps
}

// TestReceiveFirstTransmits: a poll that receives first although the ring has completions transmits
// what waits for an empty one, which such a program may never see. With one P no poll does that.
func TestReceiveFirstTransmits(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	for procs, want := range map[int]int64{1: 0, 2: 2} {
		runtime.GOMAXPROCS(procs)
		synctest.Test(t, func(t *testing.T) {
			a, b, _ := waitingQPs(t, memnet.New(nil), memAddr, 2, signalledSend(), nil)
			b.wantReceived("the posts wait", 0)
			a.cq.push(provider.WC{}, false)
			a.cq.sinceReceive.Store(policy.SomeMost)
			a.takeAll(1)
			b.wantReceived("after the poll", want)
		})
	}
}

// TestOnDownBlocksNoTimer: what the timer transmits ends a connection, and the program's function
// for that blocks. Posts on other QPs wait for no longer because of that.
func TestOnDownBlocksNoTimer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		block := make(chan struct{})
		var ended atomic.Bool
		bad := signalledSend(provider.SGE{Addr: 1, Length: 8, LKey: 0xdead00})
		_, b, qps := waitingQPs(t, memnet.New(nil), memAddr, 2, bad, func(i int) func(error) {
			return func(error) {
				ended.Store(true)
				if i == 0 {
					<-block
				}
			}
		})
		defer close(block)
		second := qps[1]
		second.qp.transmitDeferred() // which ends this connection: no lookup waits for another post
		testkit.Equal(t, "a Send from no memory ends the connection", ended.Load(), true)
		time.Sleep(policy.WaitTimer * 3 / 2)
		testkit.Equal(t, "a QP whose Send is from no memory", qps[0].qp.getState(), provider.QPErr)
		good := *qps[0]
		good.qp = good.newQP(sideOptions{cap: qps[0].qp.initAttr().Cap})
		d := new(deferral)
		good.qp.sq.deferral.Store(d)
		good.cq.deferred.add(good.qp, &d.place)
		time.Sleep(policy.WaitTimer * 3 / 2)
		good.wantNoneWaits()
		testkit.OK(t, good.qp.Close())
		b.wantNoneWaits()
	})
}

// TestLatePostsBeforeTake: a Poll transmits late posts before it takes completions. If the end of a
// connection, which that may be, does not return, the next Poll has the completions.
func TestLatePostsBeforeTake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bad := signalledSend(provider.SGE{Addr: 1, Length: 8, LKey: 0xdead00})
		a, _, _ := waitingQPs(t, memnet.New(nil), memAddr, 1, bad, func(int) func(error) {
			return func(error) { panic("the program") }
		})
		a.cq.push(provider.WC{WRID: 7}, false)
		time.Sleep(policy.WaitMost)
		wcs := make([]provider.WC, 4)
		func() {
			defer func() {
				if recover() == nil {
					t.Error("Poll returns, as late posts were not transmitted")
				}
			}()
			_, _ = a.cq.Poll(wcs)
		}()
		if n := testkit.Must(a.cq.Poll(wcs))(t); n < 1 || wcs[0].WRID != 7 {
			t.Errorf("%d completions, the first %+v", n, wcs[0])
		}
	})
}

// TestTimerUnderLoad: QPs that begin to wait all the time do not put off the timer.
func TestTimerUnderLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b, qps := waitingQPs(t, memnet.New(nil), memAddr, 2, signalledSend(), nil)
		for range 10 {
			qps[1].qp.transmitDeferred()
			time.Sleep(policy.WaitTimer / 8)
			a.cq.deferred.add(qps[1].qp, &qps[1].qp.sq.deferral.Load().place)
		}
		b.wantReceived("one waits since 1.25 of the timer's time, the other is transmitted again and again", 2)
	})
}

// TestAnyQPStopsWaiting: the first, the last, or one in between stops waiting, and all others are
// transmitted in order.
func TestAnyQPStopsWaiting(t *testing.T) {
	for at := range 4 {
		synctest.Test(t, func(t *testing.T) {
			a, b, qps := waitingQPs(t, memnet.New(nil), memAddr, 4, signalledSend(), nil)
			qps[at].post(1) // of two that were expected
			b.wantReceived("one QP", 2)
			a.takeAll(2)
			a.cq.transmitDeferred()
			b.wantReceived("all QPs", 5)
			a.wantNoneWaits()
			wcs := make([]provider.WC, 3)
			testkit.Must(a.cq.Poll(wcs))(t)
			for i, s := range append(append([]*side(nil), qps[:at]...), qps[at+1:]...) {
				testkit.Equal(t, fmt.Sprintf("the QP of completion %d", i), wcs[i].QPN, s.qp.qpn)
			}
		})
	}
}

// TestResetForgetsPosts: a QP that is used again knows nothing of what its program has posted on
// the connection before.
func TestResetForgetsPosts(t *testing.T) {
	inBurst(t, sideOptions{}, nil, func(a, b *side) {
		a.post(2)
		testkit.OK(t, a.modify(provider.QPErr))
		b.wantDown("the peer's end")
		a.wantDown("its end")
		a.post(1) // which is flushed
		testkit.OK(t, a.modify(provider.QPReset))
		a.wantNoneWaits()
		d := a.qp.sq.deferral.Load()
		post, reports := policy.Post{Signaled: 1}, a.qp.sq.free.reports()
		if d.Waits() || d.Post(post, a.cq.program(), reports, sinceEpoch) != policy.Now {
			t.Error("the first post waits")
		}
	})
}

// TestLongPostsDoNotWait: posts that are enough for a call do not wait for more.
func TestLongPostsDoNotWait(t *testing.T) {
	inBurst(t, sideOptions{}, &memnet.Options{Window: 1 << 20}, func(a, b *side) {
		src := a.reg(policy.MostOctets/2, provider.AccessLocalWrite)
		dst := b.reg(policy.MostOctets/2, provider.AccessLocalWrite|provider.AccessRemoteWrite)
		write := src.writeAll(len(src.b))
		write.RemoteAddr, write.RKey = dst.to(0), dst.m.STag()
		s := a.qp.stream.Load()
		a.send(write)
		testkit.Equal(t, "half of what is enough for a call waits", s.tx.unbuilt(), true)
		a.send(write)
		testkit.Equal(t, "enough for a call waits", s.tx.unbuilt(), false)
	})
}

// TestSendFree: making room in a queue of unsignalled work requests does not make the deferral
// forget what was reported.
func TestSendFree(t *testing.T) {
	var f sendFree
	f.report(5)
	f.report(1 << 31)
	f.Store(7)
	if f.Load() != 7 || f.reports() != 2 {
		t.Errorf("free %d, %d reports, want 7 and 2", f.Load(), f.reports())
	}
	f.v.Store(^uint64(0)) // both wrap
	f.report(3)
	if f.Load() != 3 || f.reports() != 0 {
		t.Errorf("free %d, %d reports, want 3 and 0", f.Load(), f.reports())
	}
}
