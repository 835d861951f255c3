package engine

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/memnet"
	"github.com/govs-rdma/govs/provider/engine/transport"
)

// forecaster plays a program to a forecast.
type forecaster struct {
	t              *testing.T
	f              forecast
	takes, reports uint32
}

// reported has n posts complete.
func (p *forecaster) reported(n uint32) { p.reports += n }

// take has the program take completions.
func (p *forecaster) take() { p.takes++ }

// post posts as often as want has elements, a short message each time.
func (p *forecaster) post(what string, want ...due) {
	p.t.Helper()
	for i, w := range want {
		p.list(fmt.Sprintf("%s: post %d", what, i+1), post{wrs: 1, octets: 64, signaled: 1}, w)
	}
}

// list posts a list.
func (p *forecaster) list(what string, l post, want due) {
	p.t.Helper()
	if got := p.f.posted(&l, p.takes, p.reports); got != want {
		p.t.Fatalf("%s is due %d, want %d", what, got, want)
	}
}

// TestForecast: a program posts as many work requests as it has taken completions, or as many as
// before the last completions. The last of them is when all are due.
func TestForecast(t *testing.T) {
	now := func(n int) []due { return slices.Repeat([]due{dueNow}, n) }
	t.Run("one for each completion", func(t *testing.T) {
		p := &forecaster{t: t}
		p.post("nothing is known of the program", now(4)...)
		p.reported(4)
		p.take()
		p.post("four have completed", dueWith, dueNext, dueNext, dueLast)
		p.reported(4)
		for i := range 3 { // it takes them one by one
			p.take()
			p.post("each is answered at once", []due{dueWith, dueNext, dueNext}[i])
		}
		p.take()
		p.post("the last", dueLast)
	})
	t.Run("a round trip", func(t *testing.T) {
		p := &forecaster{t: t}
		for i := range 100 {
			p.post("one message, one answer", dueNow)
			if i%8 == 7 { // the others are unsignalled
				p.reported(1)
			}
			p.take() // of the answer
		}
	})
	t.Run("unsignalled posts", func(t *testing.T) {
		p := &forecaster{t: t}
		p.post("nothing is known", now(100)...)
		for range 3 {
			p.reported(1)
			p.take()
			p.post("as many as before the last completion", slices.Concat([]due{dueWith},
				slices.Repeat([]due{dueNext}, 98), []due{dueLast})...)
		}
	})
	t.Run("enough for a call", func(t *testing.T) {
		p := &forecaster{t: t}
		p.post("nothing is known", now(64)...)
		p.reported(64)
		p.take()
		for i := range 16 {
			p.list(fmt.Sprintf("post %d of 64 KiB", i+1), post{1, 64 << 10, 1},
				[]due{dueWith, dueNext, dueNext, dueLast}[i%4])
		}
		p.list("a post of 1 GiB", post{1, 1 << 30, 1}, dueNow)
		short := post{1, 0, 1}
		for i := range ringOctets / fpduCost {
			p.reported(2)
			p.take()
			want := dueNext
			switch i {
			case 0:
				want = dueWith
			case ringOctets/fpduCost - 1:
				want = dueLast
			}
			p.list(fmt.Sprintf("short post %d", i+1), short, want)
		}
	})
	t.Run("lists", func(t *testing.T) {
		p := &forecaster{t: t}
		all, last := post{8, 512, 8}, post{8, 512, 1}
		p.list("nothing is known", all, dueNow)
		for range 3 {
			p.reported(8)
			p.take()
			p.list("a list takes the place of one whose eight completions have come", all, dueNow)
		}
		p.reported(8)
		p.take()
		p.list("two lists of four", post{4, 256, 4}, dueWith)
		p.list("two lists of four, the second", post{4, 256, 4}, dueLast)
		for range 3 {
			p.list("lists of which the last is reported", last, dueNow)
		}
		p.reported(8 + 3)
		p.take()
		p.list("all of them have completed", all, dueWith)
		p.list("as many posts as before the last report: the second of five", last, dueNext)
		p.list("the third", last, dueNext)
		p.list("the fourth", last, dueNext)
		p.list("the fifth", last, dueLast)
	})
	t.Run("in vain", func(t *testing.T) {
		p := &forecaster{t: t}
		p.post("nothing is known", now(8)...)
		p.reported(8)
		p.take()
		p.post("eight have completed", dueWith)
		p.f.rung(ring{vain: true, away: lateRing})
		p.reported(1)
		p.take()
		p.post("the program has no completion left but that one", dueNow)
		p.reported(3)
		p.take()
		p.post("three have completed", dueWith)
		p.f.rung(ring{away: lateRing})
		p.post("the program has completions left", dueWith, dueLast)
	})
	t.Run("too late", func(t *testing.T) {
		p := &forecaster{t: t}
		p.post("nothing is known", now(2)...)
		two := func() {
			p.reported(2)
			p.take()
		}
		late := func(pause int) {
			t.Helper()
			two()
			p.post("two have completed", dueWith)
			p.f.rung(ring{vain: true, away: lateRing + 1})
			for i := range pause / 2 {
				two()
				p.post(fmt.Sprintf("%d of a pause of %d posts", 2*i, pause), now(2)...)
			}
		}
		late(4)
		late(16) // each time four times as many
		late(64)
		for range rightMost {
			two()
			p.post("the program posts as many as expected", dueWith, dueLast)
			p.f.right(lateLast)
		}
		late(4)
		two()
		p.post("two have completed", dueWith, dueLast)
		p.f.right(lateLast + 1)
		two()
		p.post("the second came late", now(2)...)
		p.f.rung(ring{vain: true, away: lateRing + 1}) // of nothing
		if p.f.pauses != 2 {
			t.Errorf("%d pauses, want 2", p.f.pauses)
		}
	})
	t.Run("another thread polls the receive CQ", func(t *testing.T) {
		p := &forecaster{t: t}
		p.post("nothing is known", now(2)...)
		ended := func(n int) {
			t.Helper()
			for range n {
				p.reported(2)
				p.take()
				p.post("two have completed", dueWith)
				p.f.rung(ring{apart: true})
				p.post("the second", dueNow)
			}
		}
		ended(apartMost - 1)
		p.reported(2)
		p.take()
		p.post("two have completed", dueWith, dueLast)
		p.f.right(0)
		ended(apartMost - 1)
		p.f.rung(ring{apart: true}) // of nothing
		p.reported(2)
		p.take()
		p.post("two have completed", dueWith)
		p.f.rung(ring{apart: true})
		p.post("that was the last time for a while", dueNow)
		p.reported(2)
		p.take()
		p.post("the pause", now(2)...)
	})
	t.Run("the pause has an end", func(t *testing.T) {
		var f forecast
		for range 100 {
			f.waits = true
			f.rung(ring{vain: true, away: lateRing + 1})
			if f.pause < forecastPause {
				t.Fatalf("a pause of %d posts", f.pause)
			}
		}
		if f.pause != 16384 {
			t.Errorf("the longest pause has %d posts, want 16384", f.pause)
		}
	})
	t.Run("late now and then", func(t *testing.T) {
		for _, every := range []int{1, 2, 10, 33, 65, 67, 70, 80, 90, rightMost} {
			p := &forecaster{t: t}
			p.post("nothing is known", now(2)...)
			lates := 0
			for burst := range 100_000 { // of two posts
				p.reported(2)
				p.take()
				first, second := p.f.posted(&post{1, 0, 1}, p.takes, p.reports), p.f.posted(&post{1, 0, 1}, p.takes, p.reports)
				switch {
				case first == dueNow:
				case burst%every == 0:
					p.f.right(lateLast + 1)
					lates++
				case second == dueLast:
					p.f.right(0)
				}
			}
			if lates > 40 {
				t.Errorf("a program that is late with each %d. burst has made its posts wait %d times", every, lates)
			}
		}
	})
}

// inBurst has a and b connected, so that each of the next two of three posts of a waits for the
// third.
func inBurst(t *testing.T, so sideOptions, network *memnet.Options, do func(a, b *side)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		a, b := pair(t, memnet.New(network), memAddr, Options{}, so, params(true))
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
	if got := s.cq.seen.waiting(); got != n {
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

// TestPostsWaitForOthers: what ends the wait of two posts for a third.
func TestPostsWaitForOthers(t *testing.T) {
	events := sideOptions{events: true}
	for _, tc := range []struct {
		name string
		end  func(a *side)
		came int64 // in all
	}{
		{"the third", func(a *side) { a.post(1) }, 6},
		{"an empty CQ", func(a *side) { testkit.Must(a.cq.Poll(make([]provider.WC, 1)))(a.t) }, 5},
		{"a request for an event", func(a *side) { testkit.OK(a.t, a.cq.ReqNotify(false)) }, 5},
		{"a look for completions", func(a *side) { a.dev.progress(a.cq) }, 5},
		{"time", func(*side) { time.Sleep(waitMost * 3 / 2) }, 5},
		{"a disconnect", func(a *side) { a.qp.stream.Load().disconnect() }, 64},
		{"the end of the QP", func(a *side) { testkit.OK(a.t, a.qp.Close()) }, 64},
		{"the state ERR", func(a *side) { testkit.OK(a.t, a.modify(provider.QPErr)) }, 64},
		{"a full queue", func(a *side) {
			none := make([]provider.SendWR, 65)
			for i := range none {
				none[i] = provider.SendWR{Opcode: provider.WRSend}
			}
			if n, err := a.qp.PostSend(none); !errors.Is(err, syscall.ENOMEM) {
				a.t.Fatalf("%d of %d posted to a queue of 64: %v", n, len(none), err)
			}
		}, 64},
		{"a post that is refused", func(a *side) {
			_, err := a.qp.PostSend([]provider.SendWR{{Opcode: 99}})
			if !errors.Is(err, syscall.EINVAL) {
				a.t.Fatalf("opcode 99: %v", err)
			}
		}, 5},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var segments atomic.Int64
			count := func(*memnet.Segment) memnet.Verdict { segments.Add(1); return memnet.Pass }
			inBurst(t, events, &memnet.Options{Filter: count}, func(a, b *side) {
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
					if wc[i].Status != provider.WCSuccess {
						t.Errorf("message %d: %+v", i+1, wc[i])
					}
				}
				time.Sleep(10 * waitMost)
				if a.wantNoneWaits() {
					t.Error("the timer runs on, though nothing waits")
				}
			})
		})
	}
}

// wantNoneWaits checks that no QP of the side's CQ waits, and returns whether the timer runs.
func (s *side) wantNoneWaits() (timer bool) {
	s.t.Helper()
	b := &s.cq.bells
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
		a.takeAll(3)
		time.Sleep(waitMost - waitMost/4)
		a.post(2)
		time.Sleep(waitMost / 2) // the timer is due once
		b.wantReceived("two that are new", 6)
		time.Sleep(waitMost)
		b.wantReceived("two that are old", 8)
	})
}

// TestLatePostsDoNotWait: after posts have waited for a program that did other things, the next
// bursts don't wait, even if that is short of the timer's time.
func TestLatePostsDoNotWait(t *testing.T) {
	inBurst(t, sideOptions{}, nil, func(a, b *side) {
		a.post(2)
		time.Sleep(2 * lateRing)
		a.dev.progress(a.cq)
		b.wantReceived("the program looks again", 5)
		a.takeAll(2)
		a.post(1)
		b.wantReceived("one of two", 6)
	})
	inBurst(t, sideOptions{}, nil, func(a, b *side) {
		a.post(2)
		time.Sleep(lateRing / 2)
		a.dev.progress(a.cq)
		b.wantReceived("the program looks again soon", 5)
		a.takeAll(2)
		a.post(1)
		b.wantReceived("one of two", 5)
	})
}

// TestArmedPostsDoNotWait: a program that has asked for an event may sleep after any post.
func TestArmedPostsDoNotWait(t *testing.T) {
	inBurst(t, sideOptions{events: true}, nil, func(a, b *side) {
		testkit.OK(t, a.cq.ReqNotify(true)) // Sends do not fire it
		a.post(1)
		b.wantReceived("one of three", 4)
		a.post(1)
		b.wantReceived("two of three", 5)
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
// does not.
func TestPostsWaitWithSink(t *testing.T) {
	used := &usedSink{}
	for _, tc := range []struct {
		name string
		sink provider.CompletionSink
		end  func(a *side)
	}{
		{"no SinkUse", discard{}, nil},
		{"its program polls", used, func(a *side) { testkit.Must(a.cq.Poll(nil))(a.t) }},
		{"its program sleeps", used, func(a *side) { testkit.OK(a.t, a.cq.ReqNotify(false)) }},
		{"its program has asked to be notified", used, func(a *side) {
			a.qp.ring()
			used.waits = true
			a.post(2)
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				*used = usedSink{t: t}
				network := memnet.New(nil)
				a, b := newSide(t, Options{Network: network}, sideOptions{}),
					newSide(t, Options{Network: network}, sideOptions{})
				own := testkit.Must(a.dev.CreateCQ(provider.CQInitAttr{CQE: 64, Sink: tc.sink}))(t)
				testkit.OK(t, a.qp.Close())
				none := a.cq
				a.cq = own.(*cq)
				a.qp = a.newQP(sideOptions{cap: a.qp.initAttr().Cap})
				used.q = a.qp
				t.Cleanup(func() {
					testkit.OK(t, a.qp.Close())
					testkit.OK(t, own.Close())
					a.cq = none
				})
				a.join(b, network, memAddr, params(true))
				b.recv(make([]provider.RecvWR, 64)...)
				a.post(3)
				used.taken++
				a.post(2)
				if tc.end == nil {
					b.wantReceived("posts with an unknown use", 5)
					return
				}
				b.wantReceived("two posts wait", 3)
				tc.end(a)
				synctest.Wait()
				if got := b.cq.seen.waiting(); got < 5 {
					t.Errorf("%d messages have come", got)
				}
			})
		})
	}
}

// TestManyQPsWait: the posts of many QPs wait in turn, and an empty poll transmits some of them
// only, those first that have waited for longest.
func TestManyQPsWait(t *testing.T) {
	const n = 10
	synctest.Test(t, func(t *testing.T) {
		network := memnet.New(nil)
		opts := Options{Network: network}
		a, b := newSide(t, opts, sideOptions{}), newSide(t, opts, sideOptions{})
		src := a.reg(ringOctets/2, 0)
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
			if got := a.cq.seen.waiting(); got != int64(i+1) {
				t.Fatalf("%d messages are out after %d polls, want one for each", got, i+1)
			}
		}
		wcs := make([]provider.WC, n)
		testkit.Must(a.cq.Poll(wcs))(t)
		for i, s := range posting {
			if wcs[i].QPN != s.qp.qpn {
				t.Errorf("completion %d is of QP %d, want %d", i, wcs[i].QPN, s.qp.qpn)
			}
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
			if a.cq.bells.some.Load() {
				waited++
			}
		}
		for done := 0; done < n; {
			n, err := a.cq.Poll(wcs)
			if err != nil {
				t.Fatal(err)
			}
			done += n
		}
	}
	burst(3)
	bursts := func() { burst(3); burst(2); burst(3) }
	// On a busy machine posts wait in vain now and then, and the next ones do not wait at all.
	for began := time.Now(); waited < 400 && time.Since(began) < patience; {
		if n := testing.AllocsPerRun(200, bursts); n != 0 && !raceEnabled {
			t.Fatalf("%v allocations", n)
		}
	}
	if waited < 400 {
		t.Errorf("%d posts have waited", waited)
	}
}
