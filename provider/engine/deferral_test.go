package engine

import (
	"fmt"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"github.com/govs-rdma/govs/provider/engine/memnet"
	"github.com/govs-rdma/govs/provider/engine/transport"
)

// inBurst connects a, which is like so, and b so that each of the next two of three posts of a is
// deferred until the third.
func inBurst(t *testing.T, so sideOptions, network *memnet.Options, do func(a, b *side)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		opts := Options{Network: memnet.New(network)}
		a, b := newSide(t, opts, so), newSide(t, opts, sideOptions{})
		a.join(b, opts.Network, memAddr, params(true))
		b.recv(make([]provider.RecvWR, 64)...)
		for range 3 {
			a.post(1)
		}
		b.wantReceived("before anything is known", 3)
		a.takeAll(3)
		do(a, b)
	})
}

// post posts one Send after the other.
func (s *side) post(n int) {
	s.t.Helper()
	for range n {
		s.send(provider.SendWR{Opcode: provider.WRSend, Flags: provider.SendSignaled})
	}
}

// wantReceived checks how many messages have come and were not taken, at this moment.
func (s *side) wantReceived(what string, n int64) {
	s.t.Helper()
	synctest.Wait()
	if got := s.cq.seen.Load(); got != n {
		s.t.Fatalf("%s: %d messages have come, want %d", what, got, n)
	}
}

// takeAll takes the n completions that are there, so that the program does not see the CQ empty.
func (s *side) takeAll(n int) {
	s.t.Helper()
	if got := testkit.Must(s.cq.Poll(make([]provider.WC, n)))(s.t); got != n {
		s.t.Fatalf("%d completions, want %d", got, n)
	}
}

// TestPostsWaitForOthers: what ends the wait of two posts for a third, with one CQ and with two.
func TestPostsWaitForOthers(t *testing.T) {
	for _, tc := range []struct {
		name string
		end  func(a *side)
		came int64 // in all
	}{
		{"the third", func(a *side) { a.post(1) }, 6},
		{"an empty CQ", func(a *side) { testkit.Must(a.cq.Poll(make([]provider.WC, 1)))(a.t) }, 5},
		{"a request for an event", func(a *side) { testkit.OK(a.t, a.cq.ReqNotify(false)) }, 5},
		{"an empty poll", func(a *side) { a.dev.progress(a.cq) }, 5},
		{"time", func(*side) { time.Sleep(policy.WaitTimer * 3 / 2) }, 5},
		{"a disconnect", func(a *side) { a.qp.stream.Load().disconnect() }, 64},
		{"the end of the QP", func(a *side) { testkit.OK(a.t, a.qp.Close()) }, 64},
		{"the state ERR", func(a *side) { testkit.OK(a.t, a.modify(provider.QPErr)) }, 64},
		{"a full queue", func(a *side) {
			none := make([]provider.SendWR, 65)
			for i := range none {
				none[i] = provider.SendWR{Opcode: provider.WRSend}
			}
			testkit.WantErr(a.t, "65 posts", errOf(a.qp.PostSend(none)), syscall.ENOMEM)
		}, 64},
		{"a post that is refused", func(a *side) {
			err := errOf(a.qp.PostSend([]provider.SendWR{{Opcode: 99}}))
			testkit.WantErr(a.t, "opcode 99", err, syscall.EINVAL)
		}, 5},
	} {
		for _, so := range []sideOptions{{events: true}, separateCQs} {
			t.Run(fmt.Sprintf("%s, two CQs: %v", tc.name, so.separateCQs), func(t *testing.T) {
				var segments atomic.Int64
				count := func(*memnet.Segment) memnet.Verdict { segments.Add(1); return memnet.Pass }
				inBurst(t, so, &memnet.Options{Filter: count}, func(a, b *side) {
					a.post(2)
					b.wantReceived("two posts wait", 3)
					segments.Store(0)
					tc.end(a)
					b.wantReceived("after that", tc.came)
					if n := segments.Load(); tc.name == "the third" && n != 1 {
						t.Errorf("three messages came in %d segments", n)
					}
					a.wantNoneWaits()
					wc := make([]provider.WC, tc.came)
					testkit.Must(b.cq.Poll(wc))(t)
					for i := range 5 {
						testkit.Equal(t, fmt.Sprint("message ", i+1), wc[i].Status, provider.WCSuccess)
					}
					time.Sleep(10 * policy.WaitTimer)
					testkit.Equal(t, "the timer runs for nothing", a.wantNoneWaits(), false)
					if so.separateCQs {
						a.wantNoneDeferred()
					}
				})
			})
		}
	}
}

// wantNoneWaits checks that no QP of the side's CQ waits, and returns whether the timer runs.
func (s *side) wantNoneWaits() (timer bool) {
	s.t.Helper()
	b := &s.cq.deferred
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.first != nil || b.last != nil || b.some.Load() {
		s.t.Error("a QP waits, or the CQ says so")
	}
	return b.running
}

// TestPostWaitsHalfALimit: the timer does not end the wait of posts that have just begun to.
func TestPostWaitsHalfALimit(t *testing.T) {
	inBurst(t, sideOptions{}, nil, func(a, b *side) {
		a.post(3) // the first of which starts the timer
		b.wantReceived("all three", 6)
		time.Sleep(policy.WaitTimer - policy.WaitTimer/4)
		a.takeAll(3)
		a.post(2)
		time.Sleep(policy.WaitTimer / 2) // the timer is due once
		b.wantReceived("two that are new", 6)
		time.Sleep(policy.WaitTimer)
		b.wantReceived("two that are old", 8)
	})
}

// TestLatePosts: what has waited for too long is transmitted by the program's next call, whether it
// posts or takes completions, and after the second time the next posts do not wait.
func TestLatePosts(t *testing.T) {
	for name, call := range map[string]func(a *side) (posted int64){
		"a post": func(a *side) int64 { a.post(1); return 1 },
		"a poll": func(a *side) int64 {
			a.cq.push(provider.WC{}, false)
			a.takeAll(1)
			return 0
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBurst(t, sideOptions{}, nil, func(a, b *side) {
				came := int64(3)
				late := func() {
					t.Helper()
					a.post(1)
					b.wantReceived("a post waits", came)
					time.Sleep(policy.WaitMost)
					came += 1 + call(a)
					b.wantReceived("after a call", came)
					a.dev.progress(a.cq)
					synctest.Wait()
					testkit.Must(a.cq.Poll(make([]provider.WC, 8)))(t)
				}
				burst := func() {
					a.post(3)
					came += 3
					b.wantReceived("a burst", came)
					time.Sleep(1) // so that there are two times
					a.takeAll(3)
				}
				late()
				burst()
				late()
				burst()
				a.post(1)
				b.wantReceived("the first of a burst, in the pause", came+1)
			})
		})
	}
}

// TestSinglePosts: each post is transmitted at once after a burst, if the program has found its CQ
// empty twice, or has not used it for a while.
func TestSinglePosts(t *testing.T) {
	for name, idle := range map[string]func(a *side){
		"two empty polls": func(a *side) { a.dev.progress(a.cq); a.dev.progress(a.cq) },
		"time":            func(a *side) { time.Sleep(2 * policy.RunTime) },
		"both": func(a *side) {
			for range 1000 {
				testkit.Must(a.cq.Poll(make([]provider.WC, 1)))(a.t)
			}
			time.Sleep(3 * time.Millisecond)
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBurst(t, sideOptions{}, nil, func(a, b *side) {
				idle(a)
				for i := range int64(3) {
					a.post(1)
					b.wantReceived("a single post", 3+i+1)
				}
				a.wantNoneWaits()
			})
		})
	}
}

// TestReceiveFirstSaysNothing: what a poll that receives first has transmitted says nothing about
// what the program is expected to post.
func TestReceiveFirstSaysNothing(t *testing.T) {
	inBurst(t, sideOptions{}, nil, func(a, b *side) {
		a.post(1)
		a.cq.transmitSome(false)
		b.wantReceived("the first of three", 4)
		a.post(1)
		b.wantReceived("the second waits", 4)
		a.post(1)
		b.wantReceived("the third", 6)
	})
}

// usedSink is a SinkUse whose program does what the test says. It is only asked anything while q
// takes posts, so that it is not after the CQ has been closed.
type usedSink struct {
	discard
	t     *testing.T
	q     *qp
	taken uint32
	waits bool
}

func (s *usedSink) Taken() uint32 { s.checkUse(); return s.taken }
func (s *usedSink) Waits() bool   { s.checkUse(); return s.waits }

func (s *usedSink) checkUse() {
	if s.q.sq.mu.TryLock() {
		s.q.sq.mu.Unlock()
		s.t.Error("the sink is asked for the program's use of it, and its QP and CQ may be closed")
	}
}

// TestPostsWaitWithSink: posts wait if the CQ's sink says what the program takes, and not if it
// does not, or if the last completion came too long ago.
func TestPostsWaitWithSink(t *testing.T) {
	used := &usedSink{}
	for _, tc := range []struct {
		name  string
		sink  provider.CompletionSink
		later time.Duration // the program takes completions
		end   func(a *side)
	}{
		{"no SinkUse", discard{}, 0, nil},
		{"its program takes completions late", used, 2 * policy.RunTime, nil},
		{"its program polls", used, 0, func(a *side) { testkit.Must(a.cq.Poll(nil))(a.t) }},
		{"its program sleeps", used, 0, func(a *side) { testkit.OK(a.t, a.cq.ReqNotify(false)) }},
		{"its program has asked to be notified", used, 0, func(a *side) {
			a.qp.transmitDeferred()
			used.waits = true
			a.post(2)
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				opts := Options{Network: memnet.New(nil)}
				a, b := newSide(t, opts, sideOptions{sink: tc.sink}), newSide(t, opts, sideOptions{})
				*used = usedSink{t: t, q: a.qp}
				a.join(b, opts.Network, memAddr, params(true))
				b.recv(make([]provider.RecvWR, 64)...)
				a.post(3)
				time.Sleep(tc.later)
				used.taken++
				a.post(2)
				if tc.end == nil {
					b.wantReceived("all leave at once", 5)
					return
				}
				b.wantReceived("two posts wait", 3)
				tc.end(a)
				synctest.Wait()
				if got := b.cq.seen.Load(); got < 5 {
					t.Errorf("%d messages have come", got)
				}
			})
		})
	}
}

// promptSink is a usedSink whose program takes each completion before Complete has returned.
type promptSink struct {
	usedSink
	inRun bool
}

func (s *promptSink) Complete(*provider.WC, bool) (stored, due bool) {
	s.taken++
	s.q.sq.mu.Lock() // as the program's next post
	defer s.q.sq.mu.Unlock()
	s.inRun = s.q.sendCQ.program().In(sinceEpoch())
	return true, false
}

// TestRunBeginsAtOnce: a program outside of Go is in a run as soon as it can see a completion.
func TestRunBeginsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		opts, sink := Options{Network: memnet.New(nil)}, &promptSink{}
		a, b := newSide(t, opts, sideOptions{sink: sink}), newSide(t, opts, sideOptions{})
		sink.usedSink = usedSink{t: t, q: a.qp}
		a.join(b, opts.Network, memAddr, params(true))
		b.recv(make([]provider.RecvWR, 2)...)
		a.post(1)
		time.Sleep(2 * policy.RunTime)
		a.post(1)
		b.wantReceived("with few posts", 2)
		if sink.taken != 2 || !sink.inRun {
			t.Errorf("%d completions taken, in a run: %v", sink.taken, sink.inRun)
		}
	})
}

// TestManyQPsWait: the posts of many QPs wait in turn, and an empty poll transmits some of them
// only, those first that have waited for longest.
func TestManyQPsWait(t *testing.T) {
	const n = 10
	synctest.Test(t, func(t *testing.T) {
		network := memnet.New(nil)
		opts := Options{Network: network}
		a, b := newSide(t, opts, sideOptions{}), newSide(t, opts, sideOptions{})
		src := a.reg(policy.MostOctets/2, 0)
		sideCap := a.qp.initAttr().Cap
		var posting [n]*side
		for i := range n {
			s, peer := *a, *b
			s.down, peer.down = make(chan error, 1), make(chan error, 1)
			s.qp, peer.qp = a.newQP(sideOptions{cap: sideCap}), b.newQP(sideOptions{cap: sideCap})
			s.join(&peer, network, memAddr, params(true))
			dst := b.reg(len(src.b), provider.AccessLocalWrite)
			peer.recv(provider.RecvWR{}, provider.RecvWR{}, provider.RecvWR{},
				provider.RecvWR{SGList: []provider.SGE{dst.sge(0, len(dst.b))}})
			posting[i] = &s
			s.post(3)
			t.Cleanup(func() {
				testkit.OK(t, s.qp.Close())
				testkit.OK(t, peer.qp.Close())
			})
		}
		b.wantReceived("before anything is known", 3*n)
		a.takeAll(3 * n)
		b.takeAll(3 * n)
		for _, s := range posting {
			wr := signalledSend(src.sge(0, len(src.b)))
			s.send(wr)
		}
		b.wantReceived("all wait", 0)
		for i := range n {
			a.dev.progress(a.cq)
			synctest.Wait()
			testkit.Equal(t, "messages that are out, one for each poll", a.cq.seen.Load(), int64(i+1))
		}
		wcs := make([]provider.WC, n)
		testkit.Must(a.cq.Poll(wcs))(t)
		for i, s := range posting {
			testkit.Equal(t, fmt.Sprintf("the QP of completion %d", i), wcs[i].QPN, s.qp.qpn)
		}
	})
}

func signalledSend(sges ...provider.SGE) provider.SendWR {
	return provider.SendWR{Opcode: provider.WRSend, Flags: provider.SendSignaled, SGList: sges}
}

// TestWaitingPostDoesNotAllocate: neither a post that waits allocates, nor the one that ends the
// wait, nor an empty poll that does.
func TestWaitingPostDoesNotAllocate(t *testing.T) {
	a, _ := pair(t, transport.NewTCP(nil), tcpAddr, Options{}, sideOptions{}, params(true))
	write := []provider.SendWR{{Opcode: provider.WRRDMAWrite, Flags: provider.SendSignaled}}
	wcs := make([]provider.WC, 3)
	waited := 0
	burst := func(n int) {
		for range n {
			if _, err := a.qp.PostSend(write); err != nil {
				t.Fatal(err)
			}
			if a.cq.deferred.some.Load() {
				waited++
			}
		}
		for done := 0; done < n; {
			n, err := a.cq.Poll(wcs)
			testkit.OK(t, err)
			done += n
		}
	}
	burst(3)
	bursts := func() { burst(3); burst(2); burst(3) }
	// On a busy machine posts wait in vain occasionally, and the next ones do not wait at all.
	for began := time.Now(); waited < 400 && time.Since(began) < patience; {
		if n := testing.AllocsPerRun(200, bursts); n != 0 && !testkit.Race {
			t.Fatalf("%v allocations", n)
		}
	}
	if waited < 400 {
		t.Errorf("%d posts have waited", waited)
	}
}

// wantNoneDeferred checks that neither of the side's CQs has a deferred QP.
func (s *side) wantNoneDeferred() {
	s.t.Helper()
	s.wantNoneWaits()
	recv := *s
	recv.cq = s.recvCQ
	testkit.Equal(s.t, "a timer runs for the receive CQ", recv.wantNoneWaits(), false)
}

// separateCQs is a side whose receives complete on a CQ of their own.
var separateCQs = sideOptions{separateCQs: true, events: true}

// TestPostsWaitWithTwoCQs: a request for an event of the CQ of its receives ends the wait as well,
// because the program may be about to sleep. A poll of that CQ does not: another thread may do
// nothing else. TestPostsWaitForOthers has what else ends it.
func TestPostsWaitWithTwoCQs(t *testing.T) {
	inBurst(t, separateCQs, nil, func(a, b *side) {
		a.post(2)
		testkit.Must(a.recvCQ.Poll(make([]provider.WC, 1)))(t)
		b.wantReceived("two posts wait", 3)
		testkit.OK(t, a.recvCQ.ReqNotify(false))
		b.wantReceived("after that", 5)
		a.wantNoneDeferred()
	})
}

// TestArmedPostsDoNotWait: a program that has asked for an event of its Sends or its receives may
// sleep after any post.
func TestArmedPostsDoNotWait(t *testing.T) {
	for what, of := range map[string]func(a *side) *cq{
		"the Sends":    func(a *side) *cq { return a.cq }, // which do not fire it
		"the receives": func(a *side) *cq { return a.recvCQ },
	} {
		inBurst(t, separateCQs, nil, func(a, b *side) {
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
