package engine

import (
	"bytes"
	"context"
	"math"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/memnet"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// testSRQ makes an SRQ of p.
func testSRQ(t testing.TB, p *pd, wr, sge int) *srq {
	t.Helper()
	r := testkit.Must(p.CreateSRQ(provider.SRQInitAttr{Attr: provider.SRQAttr{MaxWR: wr,
		MaxSGE: sge}, Cookie: "srq cookie"}))(t).(*srq)
	t.Cleanup(func() { testkit.OK(t, r.Close()) })
	return r
}

// post posts receives with these numbers, all of them to the same memory.
func (r *srq) post(t testing.TB, to []provider.SGE, ids ...uint64) {
	t.Helper()
	for _, id := range ids {
		if n, err := r.PostRecv([]provider.RecvWR{{WRID: id, SGList: to}}); n != 1 || err != nil {
			t.Fatalf("receive %d: %d posted, %v", id, n, err)
		}
	}
}

// with makes a QP of the side with r instead of a receive queue.
func (s *side) with(r *srq) *qp {
	s.t.Helper()
	return testkit.Must(newQP(s.pd, provider.QPInitAttr{
		SendCQ: s.cq, RecvCQ: s.cq, SRQ: r, Cap: provider.QPCap{MaxSendWR: 4, MaxSendSGE: 1, MaxRecvWR: -7, MaxRecvSGE: 1 << 20},
	}))(s.t)
}

func TestCreateSRQArguments(t *testing.T) {
	d := unwired(t)
	p := testPD(t, d)
	attr := testkit.Must(d.Query())(t)
	r := testSRQ(t, p, 5, 2)
	if got := testkit.Must(r.Query())(t); got != (provider.SRQAttr{MaxWR: 8,
		MaxSGE: 2}) || r.Cookie() != "srq cookie" {
		t.Errorf("granted %+v, cookie %v", got, r.Cookie())
	}
	wantErr(t, p.Close(), syscall.EBUSY)

	most := testSRQ(t, p, attr.MaxSRQWR, attr.MaxSRQSGE)
	if got := testkit.Must(most.Query())(t); got.MaxWR < attr.MaxSRQWR || got.MaxSGE != attr.MaxSRQSGE {
		t.Errorf("of the largest SRQ %+v is granted", got)
	}
	closed := testkit.Must(d.AllocPD())(t)
	testkit.OK(t, closed.Close())
	wantErr(t, errOf(closed.CreateSRQ(provider.SRQInitAttr{Attr: provider.SRQAttr{MaxWR: 1}})), os.ErrClosed)
}

func TestClosedSRQ(t *testing.T) {
	r := testSRQ(t, testPD(t, unwired(t)), 3, 2)
	testkit.OK(t, r.Close())
	testkit.OK(t, r.Close())
	for _, f := range []func() error{
		func() error { _, err := r.PostRecv(make([]provider.RecvWR, 1)); return err },
		func() error { return r.Modify(provider.SRQAttr{}, 0) },
		func() error { _, err := r.Query(); return err },
	} {
		wantErr(t, f(), os.ErrClosed)
	}
}

func TestSRQModify(t *testing.T) {
	p := testPD(t, unwired(t))
	r := testSRQ(t, p, 8, 1)
	r.post(t, nil, 1, 2, 3, 4, 5)
	set := func(a provider.SRQAttr, mask provider.SRQAttrMask) error { return r.Modify(a, mask) }
	both := provider.SRQAttrMaxWR | provider.SRQAttrLimit
	for name, err := range map[string]error{
		"too many":                 set(provider.SRQAttr{MaxWR: maxSRQWR + 1}, provider.SRQAttrMaxWR),
		"size good, limit beyond":  set(provider.SRQAttr{MaxWR: 16, Limit: 17}, both),
		"limit good, size too low": set(provider.SRQAttr{MaxWR: 1, Limit: 1}, both),
	} {
		testkit.Equal(t, name, provider.Errno(err), syscall.EINVAL)
	}
	testkit.Equal(t, "the attributes after what was refused", testkit.Must(r.Query())(t),
		provider.SRQAttr{MaxWR: 8, MaxSGE: 1})
	testkit.OK(t, set(provider.SRQAttr{MaxSGE: 99}, 0))
	testkit.OK(t, set(provider.SRQAttr{MaxWR: 9, Limit: 12}, both))
	testkit.Equal(t, "the attributes after Modify", testkit.Must(r.Query())(t),
		provider.SRQAttr{MaxWR: 16, MaxSGE: 1, Limit: 12})
	wantErr(t, set(provider.SRQAttr{MaxWR: 8}, provider.SRQAttrMaxWR), syscall.EINVAL) // the limit is beyond it
}

// Resizing keeps the posted receives, and their order, even where the ring has wrapped.
func TestSRQResize(t *testing.T) {
	p := testPD(t, unwired(t))
	r := testSRQ(t, p, 4, 2)
	var w recvWQE
	sges := make([]provider.SGE, 2)
	next, posted := uint64(1), uint64(0)
	take := func(n int) {
		for ; n > 0; n-- {
			if !r.pop(&w, sges) || w.wrid != next || w.nsge != 1 || sges[0].Addr != next {
				t.Fatalf("took %+v %+v, want %d", w, sges, next)
			}
			next++
		}
	}
	post := func(n int) {
		for ; n > 0; n-- {
			posted++
			r.post(t, []provider.SGE{{Addr: posted, Length: 1}}, posted)
		}
	}
	post(4)
	take(3)
	post(3)
	for _, size := range []int{8, 4, 64} {
		testkit.OK(t, r.Modify(provider.SRQAttr{MaxWR: size}, provider.SRQAttrMaxWR))
		take(1)
		post(size - int(posted-next+1))
		if n, err := r.PostRecv(make([]provider.RecvWR, 1)); n != 0 || provider.Errno(err) != syscall.ENOMEM {
			t.Errorf("one more than %d: %d, %v", size, n, err)
		}
		take(int(posted-next+1) - 4)
	}
	take(4)
	if r.pop(&w, sges) {
		t.Errorf("took %+v from an empty queue", w)
	}
}

func TestQPWithSRQ(t *testing.T) {
	d := unwired(t)
	p := testPD(t, d)
	c := testCQ(t, d, 4, nil)
	r := testSRQ(t, p, 4, 1)
	init := provider.QPInitAttr{SendCQ: c, RecvCQ: c, SRQ: r, Cap: provider.QPCap{MaxSendWR: 1, MaxRecvWR: min(1<<40, math.MaxInt), MaxRecvSGE: -1}}
	q := testkit.Must(testPD(t, d).CreateQP(init))(t) // of another PD
	_, got := testkit.Must2(q.Query())(t)
	testkit.Equal(t, "receives and SGEs", [2]int{got.Cap.MaxRecvWR, got.Cap.MaxRecvSGE}, [2]int{})
	wantErr(t, errOf(q.PostRecv(make([]provider.RecvWR, 1))), errHasSRQ)
	wantErr(t, r.Close(), syscall.EBUSY)
	testkit.OK(t, q.Close())
	testkit.OK(t, r.Close())
	wantErr(t, errOf(p.CreateQP(init)), os.ErrClosed)

	other := testSRQ(t, testPD(t, unwired(t)), 4, 1)
	for _, foreign := range []provider.SRQ{other, (*srq)(nil)} {
		init.SRQ = foreign
		wantErr(t, errOf(p.CreateQP(init)), syscall.EINVAL)
	}
	// A QP that could not be made holds nothing.
	closed := testCQ(t, d, 1, nil)
	testkit.OK(t, closed.Close())
	init.SRQ, init.RecvCQ = testSRQ(t, p, 4, 1), closed
	wantErr(t, errOf(p.CreateQP(init)), os.ErrClosed)
}

// srqStory plays a scenario between QPs on one SRQ and a scripted peer each.
func srqStory(t *testing.T, peers int, script func(t *testing.T, s *side, r *srq, qs []*qp, raws []*raw)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		network := memnet.New(&memnet.Options{})
		s := newSide(t, Options{Network: network}, sideOptions{})
		r := testkit.Must(s.pd.CreateSRQ(provider.SRQInitAttr{Attr: provider.SRQAttr{MaxWR: 8,
			MaxSGE: 2}}))(t).(*srq)
		var qs []*qp
		var raws []*raw
		for range peers {
			q := s.with(r)
			qs = append(qs, q)
			raws = append(raws, newRaw(t, q, network, memAddr, params(true), s.ended))
		}
		script(t, s, r, qs, raws)
		for i := range peers {
			testkit.OK(t, qs[i].Close())
			raws[i].c.Close()
		}
		testkit.OK(t, r.Close())
	})
}

// wcOf waits for a completion of q, any QP of the side, and compares what matters in it.
func (s *side) wcOf(what string, q *qp, want provider.WC) {
	s.t.Helper()
	want.QPN = q.qpn
	got := s.poll()
	if want.Status == provider.WCSuccess {
		want.Opcode = provider.WCRecv
	} else {
		want.Opcode = got.Opcode
	}
	if got != want {
		s.t.Fatalf("%s: completion\n%+v, want\n%+v", what, got, want)
	}
}

// A message keeps the receive that its first segment took, whatever the others of
// the SRQ do until it ends.
func TestSRQInterleaved(t *testing.T) {
	srqStory(t, 3, func(t *testing.T, s *side, r *srq, qs []*qp, raws []*raw) {
		bufs := make([]*region, 4)
		for i := range bufs {
			bufs[i] = s.reg(300, provider.AccessLocalWrite)
			r.post(t, []provider.SGE{bufs[i].sge(0, 100), bufs[i].sge(100, 200)}, uint64(i))
		}
		seg := func(peer int, mo uint32, last bool, c byte) {
			raws[peer].send(rdmap.SendHeader(rdmap.OpSend, 0, raws[peer].sendMSN, mo, last), bytes.Repeat([]byte{c}, 90))
			synctest.Wait()
			s.noWCIf(!last)
			if last {
				raws[peer].sendMSN++
			}
		}
		seg(2, 0, false, 'a')
		seg(0, 0, false, 'b')
		seg(2, 90, false, 'a')
		seg(1, 0, true, 'c')
		s.wcOf("the third to begin", qs[1], provider.WC{WRID: 2, ByteLen: 90})
		seg(0, 90, true, 'b')
		s.wcOf("the second to begin", qs[0], provider.WC{WRID: 1, ByteLen: 180})
		seg(0, 0, false, 'd')
		seg(2, 180, true, 'a')
		s.wcOf("the first to begin", qs[2], provider.WC{WRID: 0, ByteLen: 270})
		seg(0, 90, true, 'd')
		s.wcOf("the last", qs[0], provider.WC{WRID: 3, ByteLen: 180})
		for i, want := range []string{"a270", "b180", "c90", "d180"} {
			n := map[byte]int{'a': 270, 'b': 180, 'c': 90, 'd': 180}[want[0]]
			if got := bufs[i].b[:n]; len(bytes.Trim(got, want[:1])) != 0 {
				t.Errorf("receive %d holds %q, want %s", i, got, want)
			}
			bufs[i].untouched(0, n)
		}
	})
}

// noWCIf checks that nothing completes, if that is so.
func (s *side) noWCIf(none bool) {
	s.t.Helper()
	if none {
		s.noWC("in the middle of a message")
	}
}

// TestSRQOfPeersThatBegin: a peer that begins a message and goes no further holds one receive,
// however much it has begun and however long that is. The end of its QP gives it back.
//
//rfc:5042 SEC-6.4.3.1-01 Shared receive buffer greed is detectable
func TestSRQOfPeersThatBegin(t *testing.T) {
	srqStory(t, 3, func(t *testing.T, s *side, r *srq, qs []*qp, raws []*raw) {
		b := s.reg(8, provider.AccessLocalWrite)
		sges := []provider.SGE{b.sge(0, 8)}
		r.post(t, sges, 1, 2, 3)
		for i := range 2 {
			raws[i].send(rdmap.SendHeader(rdmap.OpSend, 0, 1, 0, false), []byte("12"))
			raws[i].send(rdmap.SendHeader(rdmap.OpSend, 0, 1, 2, false), []byte("34"))
			synctest.Wait()
		}
		time.Sleep(time.Hour)
		s.noWC("nobody has ended a message")
		raws[2].sendMsg([]byte("12345678"))
		s.wcOf("there is one for who does", qs[2], provider.WC{WRID: 3, ByteLen: 8})
		for i := range 2 {
			if i == 0 {
				testkit.OK(t, raws[i].c.Close())
			} else {
				testkit.OK(t, qs[i].Modify(provider.QPAttr{State: provider.QPErr}, provider.QPAttrState))
			}
			s.wantDown("the end")
			s.wcOf("it comes back", qs[i],
				provider.WC{WRID: uint64(i + 1), Status: provider.WCWRFlushErr})
			s.wantEventOf("of the QP", provider.AsyncEvent{Type: provider.EventQPLastWQEReached, QP: qs[i]})
		}
		r.post(t, sges, 1)
		raws[2].sendMsg([]byte("12345678"))
		s.wcOf("and can be posted again", qs[2], provider.WC{WRID: 1, ByteLen: 8})
	})
}

// noEvent checks that there is no asynchronous event.
func noEvent(t *testing.T, s *side, what string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if e, err := s.dev.AsyncEvent(ctx); err == nil {
		t.Fatalf("%s: event %v", what, e.Type)
	}
}

// The limit event comes when a message takes a receive with its first segment, and not with its
// completion. An event that nobody took goes with the SRQ. ibverbs.TestSRQLimit has the others.
//
//rfc:5041 DDP-8.3.2-01 Fair share of resources / shared RQ abuse detectable
func TestSRQLimitOfSegments(t *testing.T) {
	srqStory(t, 2, func(t *testing.T, s *side, r *srq, qs []*qp, raws []*raw) {
		b := s.reg(8, provider.AccessLocalWrite)
		sges := []provider.SGE{b.sge(0, 8)}
		arm := func() { testkit.OK(t, r.Modify(provider.SRQAttr{Limit: 1}, provider.SRQAttrLimit)) }
		arm()
		r.post(t, sges, 7)
		raws[0].send(rdmap.SendHeader(rdmap.OpSend, 0, 1, 0, false), []byte("x"))
		s.wantEventOf("the limit", provider.AsyncEvent{Type: provider.EventSRQLimitReached, SRQ: r})
		arm()
		r.post(t, sges, 8)
		raws[1].sendMsg([]byte("x"))
		s.wcOf("the other peer's", qs[1], provider.WC{WRID: 8, ByteLen: 1})
		for _, q := range qs {
			testkit.OK(t, q.Close())
		}
		s.wcOf("the first peer's", qs[0], provider.WC{WRID: 7, Status: provider.WCWRFlushErr})
		testkit.OK(t, r.Close())
		noEvent(t, s, "closed")
	})
}

// Posting, taking, resizing and arming at once loses no receive and gives none twice.
func TestSRQConcurrently(t *testing.T) {
	const posters, takers, each = 3, 3, 3000
	d := unwired(t)
	r := testSRQ(t, testPD(t, d), 16, 1)
	if !r.refs.Hold() { // as one more QP
		t.Fatal("the SRQ is closed")
	}
	defer r.refs.Drop()
	var taken [posters * each]atomic.Int32
	var left atomic.Int64
	left.Store(posters * each)
	var wg sync.WaitGroup
	for p := range posters {
		wg.Go(func() {
			for k := 0; k < each; {
				id := uint64(p*each + k)
				n, err := r.PostRecv([]provider.RecvWR{{WRID: id, SGList: []provider.SGE{{Addr: id, Length: 1}}}})
				if k += n; err != nil {
					if provider.Errno(err) != syscall.ENOMEM {
						t.Errorf("posting: %v", err)
						return
					}
					runtime.Gosched()
				}
			}
		})
	}
	for range takers {
		wg.Go(func() {
			h, err := d.share("test", r)
			if err != nil {
				t.Error(err)
				return
			}
			defer r.refs.Drop()
			for left.Load() > 0 {
				w, sges, _ := h.front()
				if w == nil {
					runtime.Gosched()
					continue
				}
				if len(sges) != 1 || sges[0].Addr != w.wrid {
					t.Errorf("receive %d with SGEs %+v", w.wrid, sges)
				}
				taken[w.wrid].Add(1)
				left.Add(-1)
				h.held = false
			}
		})
	}
	wg.Go(func() {
		for k := 0; left.Load() > 0; k++ {
			err := r.Modify(provider.SRQAttr{MaxWR: 4 << (k % 5), Limit: k % 4}, srqMask)
			if err != nil && provider.Errno(err) != syscall.EINVAL { // more are posted
				t.Errorf("Modify: %v", err)
			}
			if a, err := r.Query(); err != nil || a.MaxWR < 4 || a.Limit > a.MaxWR {
				t.Errorf("Query: %+v, %v", a, err)
			}
			testkit.WantErr(t, "Close", r.Close(), syscall.EBUSY)
			runtime.Gosched()
		}
	})
	wg.Wait()
	for id := range taken {
		testkit.Equal(t, "how often a receive was taken", taken[id].Load(), 1)
	}
}
