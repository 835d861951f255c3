package ibverbs_test

import (
	"bytes"
	"context"
	"errors"
	"math"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/internal/fake"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
	"github.com/govs-rdma/govs/provider"
)

// The lifetimes of an SRQ, over a provider that allows everything.
func TestLifetimeOfSRQ(t *testing.T) {
	o := newObjects(t)
	_, err := o.pd.CreateSRQ(nil)
	wantErrno(t, "no attributes", err, syscall.EINVAL, "nil SRQInitAttr")
	srq := o.newSRQ(t)
	if srq.PD() != o.pd || srq.Cookie() != "my srq" {
		t.Error("the SRQ lost something")
	}
	if a, err := srq.Query(); err != nil || a != (ibverbs.SRQAttr{MaxWR: 5, MaxSGE: 2}) {
		t.Errorf("Query: %+v, %v", a, err)
	}
	init := &ibverbs.QPInitAttr{SendCQ: o.cq, RecvCQ: o.cq, SRQ: srq, Cap: ibverbs.QPCap{MaxSendWR: 1}}
	qp := testkit.Must(o.pd.CreateQP(init))(t)
	if _, got, err := qp.Query(); err != nil || got.SRQ != srq || qp.SRQ() != srq || o.qp.SRQ() != nil {
		t.Errorf("the QP's SRQ is %p, or %p, want %p (%v)", got.SRQ, qp.SRQ(), srq, err)
	}
	wantErrno(t, "an SRQ with a QP", srq.Close(), syscall.EBUSY, "1 QP", "ibv_destroy_srq")
	testkit.OK(t, o.qp.Close())
	testkit.OK(t, qp.Close())
	wantErrno(t, "a PD with an SRQ", o.pd.Close(), syscall.EBUSY, "1 SRQ")

	no := errors.New("no")
	o.fake.Fail("close srq", no)
	wantErr(t, "Close that fails", srq.Close(), no)
	o.fake.Fail("close srq", nil)
	o.fake.Fail("post srq recv", syscall.ENOMEM)
	wantErrno(t, "PostRecv", srq.PostRecv(ibverbs.RecvWR{}), syscall.ENOMEM)
	testkit.OK(t, srq.Close())
	testkit.OK(t, srq.Close())
	wantErr(t, "Query after Close", second(srq.Query()), os.ErrClosed)
	wantErr(t, "Modify after Close", srq.Modify(ibverbs.SRQAttr{}, 0), os.ErrClosed)
	_, err = o.pd.CreateQP(init)
	wantErr(t, "a QP with it", err, os.ErrClosed)

	other := newObjects(t)
	init.SRQ = other.newSRQ(t)
	_, err = o.pd.CreateQP(init)
	wantErrno(t, "SRQ of another context", err, syscall.EINVAL, "SRQ", "another context")
	init.SRQ = new(ibverbs.SRQ)
	_, err = o.pd.CreateQP(init)
	wantErrno(t, "zero SRQ", err, syscall.EINVAL, "nil SRQ")

	o.fake.Fail("create srq", no)
	_, err = o.pd.CreateSRQ(&ibverbs.SRQInitAttr{})
	wantErr(t, "CreateSRQ", err, no)
	testkit.OK(t, o.mr.Close())
	testkit.OK(t, o.pd.Close())
	_, err = o.pd.CreateSRQ(&ibverbs.SRQInitAttr{})
	wantErr(t, "CreateSRQ of a closed PD", err, os.ErrClosed)
}

func second[T any](_ T, err error) error { return err }

func TestAsyncEventNamesOurSRQ(t *testing.T) {
	o := newObjects(t)
	srq := o.newSRQ(t)
	var psrq provider.SRQ
	o.fake.PostSend = func(qp *fake.QP, wrs []provider.SendWR) (int, error) { psrq = qp.Init.SRQ; return len(wrs), nil }
	qp := testkit.Must(o.pd.CreateQP(&ibverbs.QPInitAttr{SendCQ: o.cq, RecvCQ: o.cq, SRQ: srq}))(t)
	testkit.OK(t, qp.PostSend(ibverbs.SendWR{}))
	o.fake.Async <- provider.AsyncEvent{Type: provider.EventSRQLimitReached, SRQ: psrq}
	want := ibverbs.AsyncEvent{Type: ibverbs.EventSRQLimitReached, SRQ: srq}
	if got, err := o.ctx.AsyncEvent(timeout(t)); err != nil || got != want {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
}

// The following tests run on the engine, and on siw through TestOnSiw.

// srqServer is a device with an SRQ, a region that it receives into, and one CQ for
// all connections.
type srqServer struct {
	vctx *ibverbs.Context
	pd   *ibverbs.PD
	srq  *ibverbs.SRQ
	ch   *ibverbs.CompChannel
	cq   *ibverbs.CQ
	mr   *ibverbs.MR
	l    *rdmacm.Listener
	cfg  rdmacm.ConnConfig // for the server's ends
}

// srqSlot is the length of each receive's part of the region.
const srqSlot = 4096

func newSRQServer(t *testing.T, places int) *srqServer {
	t.Helper()
	vctx, addr := open()
	s := &srqServer{vctx: vctx}
	s.pd = testkit.Must(vctx.AllocPD())(t)
	s.srq = testkit.Must(s.pd.CreateSRQ(&ibverbs.SRQInitAttr{Attr: ibverbs.SRQAttr{MaxWR: places, MaxSGE: 2}}))(t)
	s.ch = testkit.Must(vctx.CreateCompChannel())(t)
	s.cq = testkit.Must(vctx.CreateCQ(256, &ibverbs.CQOptions{Channel: s.ch}))(t)
	s.mr = testkit.Must(s.pd.AllocMR(places*srqSlot, ibverbs.AccessLocalWrite))(t)
	s.cfg = rdmacm.ConnConfig{SRQ: s.srq, RecvCQ: s.cq}
	s.l = testkit.Must(rdmacm.Listen(timeout(t), vctx, addr, nil))(t)
	t.Cleanup(func() {
		for _, close := range []func() error{s.l.Close, s.srq.Close, s.mr.Close, s.cq.Close, s.ch.Close, s.pd.Close, s.vctx.Close} {
			if err := close(); err != nil {
				t.Error(err)
			}
		}
	})
	return s
}

// post posts the receive of a slot, in two pieces.
func (s *srqServer) post(t *testing.T, slot int) {
	t.Helper()
	a := testkit.Must(s.mr.SGE(slot*srqSlot, 100))(t)
	b := testkit.Must(s.mr.SGE(slot*srqSlot+100, srqSlot-100))(t)
	testkit.OK(t, s.srq.PostRecv(ibverbs.RecvWR{WRID: uint64(slot), SGList: []ibverbs.SGE{a, b}}))
}

// connect makes a connection whose server end has the SRQ. Its client end has a
// region of a slot.
func (s *srqServer) connect(t *testing.T) (client, server *rdmacm.Conn, mr *ibverbs.MR) {
	t.Helper()
	ctx := timeout(t)
	accepted := make(chan error, 1)
	go func() {
		req, err := s.l.Accept(ctx)
		if err == nil {
			server, err = req.Accept(ctx, &s.cfg)
		}
		accepted <- err
	}()
	client = testkit.Must(rdmacm.Dial(ctx, s.vctx, s.l.Addr(), nil))(t)
	testkit.OK(t, <-accepted)
	mr = testkit.Must(client.PD().AllocMR(srqSlot, ibverbs.AccessLocalWrite))(t)
	t.Cleanup(func() {
		for _, close := range []func() error{client.Close, server.Close, mr.Close} {
			if err := close(); err != nil {
				t.Error(err)
			}
		}
	})
	return client, server, mr
}

// say sends n bytes of value c.
func say(t *testing.T, conn *rdmacm.Conn, mr *ibverbs.MR, c byte, n int) {
	t.Helper()
	copy(mr.Bytes(), bytes.Repeat([]byte{c}, n))
	sge := testkit.Must(mr.SGE(0, n))(t)
	testkit.OK(t, conn.QP().PostSend(ibverbs.SendWR{Opcode: ibverbs.WRSend, Flags: ibverbs.SendSignaled, SGList: []ibverbs.SGE{sge}}))
	var wc [1]ibverbs.WC
	_, err := conn.SendCQ().PollWait(timeout(t), wc[:])
	testkit.OK(t, err)
	testkit.OK(t, wc[0].Err())
}

// next returns the next completion of the server's CQ.
func (s *srqServer) next(t *testing.T) ibverbs.WC {
	t.Helper()
	var wc [1]ibverbs.WC
	_, err := s.cq.PollWait(timeout(t), wc[:])
	testkit.OK(t, err)
	return wc[0]
}

// Each receive, in the order of posting, goes to the connection on which the next message comes.
// Receives outlive a connection, and later connections get the rest.
func TestSRQOfManyConnections(t *testing.T) {
	const places = 8
	s := newSRQServer(t, places)
	for slot := range places {
		s.post(t, slot)
	}
	turn := 0
	talk := func(client, server *rdmacm.Conn, mr *ibverbs.MR, c byte, n int) {
		t.Helper()
		say(t, client, mr, c, n)
		wc := s.next(t)
		got := s.mr.Bytes()[int(wc.WRID)*srqSlot:][:n]
		if wc.Err() != nil || wc.WRID != uint64(turn%places) || wc.QPN != server.QP().QPN() || int(wc.ByteLen) != n || len(bytes.Trim(got, string(c))) != 0 {
			t.Fatalf("message %d: %+v, %.10q", turn, wc, got)
		}
		turn++
	}
	type conn struct {
		client, server *rdmacm.Conn
		mr             *ibverbs.MR
	}
	var conns []conn
	for range 3 {
		c, p, mr := s.connect(t)
		conns = append(conns, conn{c, p, mr})
	}
	if conns[0].server.PD() != s.pd {
		t.Error("without a PD a connection is of another than the SRQ")
	}
	for k := range 3 * len(conns) {
		c := conns[k%len(conns)]
		talk(c.client, c.server, c.mr, 'a'+byte(k), 1+k*450)
		s.post(t, (turn-1)%places)
	}
	if _, init, err := conns[0].server.QP().Query(); err != nil || init.SRQ != s.srq || init.Cap.MaxRecvWR != 0 {
		t.Errorf("Query of a QP: %+v, %v", init.Cap, err)
	}
	testkit.OK(t, conns[0].client.Shutdown(timeout(t)))
	testkit.OK(t, conns[0].server.Wait(timeout(t)))
	// siw flushes shortly after it reports the end.
	time.Sleep(20 * time.Millisecond)
	var wc [1]ibverbs.WC
	if n, err := s.cq.Poll(wc[:]); n != 0 || err != nil {
		t.Errorf("when a connection ends: %+v, %v", wc, err)
	}
	talk(conns[1].client, conns[1].server, conns[1].mr, 'x', 9)
	late, server, mr := s.connect(t)
	talk(late, server, mr, 'y', 4000)
	wantErrno(t, "an SRQ in use", s.srq.Close(), syscall.EBUSY, "4 QP")
}

// The limit event comes once each time that it is armed.
func TestSRQLimit(t *testing.T) {
	s := newSRQServer(t, 8)
	for slot := range 6 {
		s.post(t, slot)
	}
	places := testkit.Must(s.srq.Query())(t).MaxWR // rxe grants more than 8
	client, _, mr := s.connect(t)
	event := func(what string) {
		t.Helper()
		want := ibverbs.AsyncEvent{Type: ibverbs.EventSRQLimitReached, SRQ: s.srq}
		if e, err := s.vctx.AsyncEvent(timeout(t)); err != nil || e != want {
			t.Fatalf("%s: %v of SRQ %p, %v", what, e.Type, e.SRQ, err)
		}
		if a, err := s.srq.Query(); err != nil || a != (ibverbs.SRQAttr{MaxWR: places, MaxSGE: 2}) {
			t.Errorf("%s: Query %+v, %v", what, a, err)
		}
	}
	quiet := func(what string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(timeout(t), 50*time.Millisecond)
		defer cancel()
		if e, err := s.vctx.AsyncEvent(ctx); err == nil {
			t.Errorf("%s: %v", what, e.Type)
		}
	}
	take := func() {
		t.Helper()
		say(t, client, mr, 'z', 1)
		if wc := s.next(t); wc.Err() != nil {
			t.Fatal(wc.Err())
		}
	}
	take()
	quiet("not armed")
	testkit.OK(t, s.srq.Modify(ibverbs.SRQAttr{Limit: 4}, ibverbs.SRQAttrLimit))
	if a, err := s.srq.Query(); err != nil || a.Limit != 4 {
		t.Errorf("armed: Query %+v, %v", a, err)
	}
	take()
	quiet("4 left")
	take()
	event("3 left")
	take()
	quiet("not armed again")
	testkit.OK(t, s.srq.Modify(ibverbs.SRQAttr{Limit: 8}, ibverbs.SRQAttrLimit))
	quiet("armed above what there is")
	take()
	event("the next receive")
	testkit.OK(t, s.srq.Modify(ibverbs.SRQAttr{Limit: 1}, ibverbs.SRQAttrLimit))
	testkit.OK(t, s.srq.Modify(ibverbs.SRQAttr{}, ibverbs.SRQAttrLimit))
	take()
	quiet("disarmed")
}

// A Send that finds the SRQ empty ends its connection, and no other.
func TestSRQRunsDry(t *testing.T) {
	s := newSRQServer(t, 4)
	client, server, mr := s.connect(t)
	other, otherEnd, otherMR := s.connect(t)
	s.post(t, 0)
	say(t, client, mr, 'a', 1)
	if wc := s.next(t); wc.Err() != nil {
		t.Fatal(wc.Err())
	}
	say(t, client, mr, 'b', 1)
	testkit.OK(t, server.Wait(timeout(t)))
	testkit.OK(t, client.Wait(timeout(t)))
	// The engine knows why; the kernel logs it.
	for _, qp := range []*ibverbs.QP{client.QP(), server.QP()} {
		var why *ibverbs.TerminateError
		if cause := qp.Cause(); errors.As(cause, &why) && (why.Layer != 1 || why.EType != 2 || why.ECode != 2) || cause == nil && s.vctx.Provider() == "engine" {
			t.Errorf("cause %v, want the Terminate 1/2/0x02", cause)
		}
	}
	s.post(t, 1)
	say(t, other, otherMR, 'c', 1)
	if wc := s.next(t); wc.Err() != nil || wc.WRID != 1 || wc.QPN != otherEnd.QP().QPN() {
		t.Errorf("the other connection: %+v", wc)
	}
}

// TestSRQStats: the numbers of receives that were posted, taken, and missing. A line of WriteState
// has them as well.
func TestSRQStats(t *testing.T) {
	s := newSRQServer(t, 4)
	stats := func(want ibverbs.SRQStats) {
		t.Helper()
		got, err := s.srq.Stats()
		if s.vctx.Provider() != "engine" {
			wantErr(t, "Stats", err, errors.ErrUnsupported, "counters of a shared receive queue")
			return
		}
		if err != nil || got != want {
			t.Errorf("%+v, %v, want %+v", got, err, want)
		}
	}
	client, server, mr := s.connect(t)
	stats(ibverbs.SRQStats{LowestRecvs: -1})
	for slot := range 4 {
		s.post(t, slot)
	}
	stats(ibverbs.SRQStats{Posted: 4, RecvsPosted: 4, LowestRecvs: -1})
	for k, n := range []int{1, 4000, 9} { // of one segment and of several
		say(t, client, mr, 'a'+byte(k), n)
		wc := s.next(t)
		testkit.OK(t, wc.Err())
	}
	s.post(t, 0)
	stats(ibverbs.SRQStats{Posted: 5, Taken: 3, RecvsPosted: 2, LowestRecvs: 1})
	for range 3 {
		say(t, client, mr, 'b', 1)
	}
	testkit.OK(t, server.Wait(timeout(t)))
	stats(ibverbs.SRQStats{Posted: 5, Taken: 5, Empty: 1})
	var state strings.Builder
	testkit.OK(t, s.vctx.WriteState(&state))
	const line = ": 0 receives posted, at least 0 left so far, 1 message found none\n"
	if s.vctx.Provider() == "engine" && !strings.Contains(state.String(), line) {
		t.Errorf("WriteState does not say %q:\n%s", line, &state)
	}
}

// Invalid uses of an SRQ.
func TestBadSRQ(t *testing.T) {
	vctx, _ := open()
	defer vctx.Close()
	pd := testkit.Must(vctx.AllocPD())(t)
	defer pd.Close()
	attr := testkit.Must(vctx.Query())(t)
	create := func(a ibverbs.SRQAttr) error {
		srq, err := pd.CreateSRQ(&ibverbs.SRQInitAttr{Attr: a})
		if err == nil {
			_ = srq.Close()
		}
		return err
	}
	for name, a := range map[string]ibverbs.SRQAttr{
		"of nothing":           {},
		"of 0":                 {MaxSGE: 1},
		"of -1":                {MaxWR: -1, MaxSGE: 1},
		"of one too many":      {MaxWR: attr.MaxSRQWR + 1, MaxSGE: 1},
		"of 2^31-1":            {MaxWR: math.MaxInt32, MaxSGE: 1},
		"of 2^40":              {MaxWR: min(1<<40, math.MaxInt), MaxSGE: 1},
		"-1 entries":           {MaxWR: 1, MaxSGE: -1},
		"one entry too many":   {MaxWR: 1, MaxSGE: attr.MaxSRQSGE + 1},
		"2^31-1 entries":       {MaxWR: 1, MaxSGE: math.MaxInt32},
		"2^40 entries, 2^40+1": {MaxWR: min(1<<40+1, math.MaxInt), MaxSGE: min(1<<40, math.MaxInt)},
	} {
		refused(t, "SRQ "+name, create(a), syscall.EINVAL)
	}
	testkit.OK(t, create(ibverbs.SRQAttr{MaxWR: 1, MaxSGE: attr.MaxSRQSGE, Limit: 99})) // Limit is ignored
	testkit.OK(t, create(ibverbs.SRQAttr{MaxWR: 3}))                                    // for empty messages

	srq := testkit.Must(pd.CreateSRQ(&ibverbs.SRQInitAttr{Attr: ibverbs.SRQAttr{MaxWR: 5, MaxSGE: 2}}))(t)
	defer srq.Close()
	got := testkit.Must(srq.Query())(t)
	if got.MaxWR < 5 || got.MaxSGE < 2 || got.Limit != 0 {
		t.Errorf("granted %+v", got)
	}
	refused(t, "limit beyond the size", srq.Modify(ibverbs.SRQAttr{Limit: got.MaxWR + 1}, ibverbs.SRQAttrLimit), syscall.EINVAL)
	refused(t, "limit of -1", srq.Modify(ibverbs.SRQAttr{Limit: -1}, ibverbs.SRQAttrLimit), syscall.EINVAL)
	refused(t, "limit of 2^40", srq.Modify(ibverbs.SRQAttr{Limit: min(1<<40, math.MaxInt)}, ibverbs.SRQAttrLimit), syscall.EINVAL)
	refused(t, "unknown attribute", srq.Modify(ibverbs.SRQAttr{}, 1<<7), syscall.EINVAL)
	testkit.OK(t, srq.Modify(ibverbs.SRQAttr{MaxWR: -5, Limit: 1}, 0)) // an empty mask changes nothing
	if a := testkit.Must(srq.Query())(t); a != got {
		t.Errorf("%+v became %+v", got, a)
	}

	mr := testkit.Must(pd.AllocMR(64, ibverbs.AccessLocalWrite))(t)
	defer mr.Close()
	sge := testkit.Must(mr.SGE(0, 8))(t)
	one := ibverbs.RecvWR{SGList: []ibverbs.SGE{sge}}
	list := make([]ibverbs.SGE, got.MaxSGE+1)
	for i := range list {
		list[i] = sge
	}
	posted := func(what string, err error, errno syscall.Errno, n int) {
		t.Helper()
		refused(t, what, err, errno)
		var pe *ibverbs.PostError
		if !errors.As(err, &pe) || pe.Posted != n {
			t.Errorf("%s: %v, want a PostError with %d posted", what, err, n)
		}
	}
	posted("one entry too many", srq.PostRecv(one, ibverbs.RecvWR{SGList: list}, one), syscall.EINVAL, 1)
	many := make([]ibverbs.RecvWR, got.MaxWR+3)
	for i := range many {
		many[i] = one
	}
	posted("more than it holds", srq.PostRecv(many...), syscall.ENOMEM, got.MaxWR-1)
	testkit.OK(t, srq.PostRecv())

	if attr.DeviceCapFlags&ibverbs.DeviceSRQResize != 0 {
		refused(t, "fewer than are posted", srq.Modify(ibverbs.SRQAttr{MaxWR: 1}, ibverbs.SRQAttrMaxWR), syscall.EINVAL)
		refused(t, "none", srq.Modify(ibverbs.SRQAttr{}, ibverbs.SRQAttrMaxWR), syscall.EINVAL)
		testkit.OK(t, srq.Modify(ibverbs.SRQAttr{MaxWR: 2 * got.MaxWR}, ibverbs.SRQAttrMaxWR))
		testkit.OK(t, srq.PostRecv(one))
	} else if err := srq.Modify(ibverbs.SRQAttr{MaxWR: 2 * got.MaxWR}, ibverbs.SRQAttrMaxWR); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("resizing where the device says that it can't: %v", err)
	}

	cq := testkit.Must(vctx.CreateCQ(4, nil))(t)
	defer cq.Close()
	// With an SRQ the sizes of a receive queue are ignored, even invalid ones.
	qp := testkit.Must(pd.CreateQP(&ibverbs.QPInitAttr{SendCQ: cq, RecvCQ: cq, SRQ: srq,
		Cap: ibverbs.QPCap{MaxSendWR: 1, MaxSendSGE: 1, MaxRecvWR: math.MaxInt, MaxRecvSGE: -1}}))(t)
	posted("to the QP", qp.PostRecv(one), syscall.EINVAL, 0)
	testkit.OK(t, qp.PostRecv())
	refused(t, "SRQ of a QP", srq.Close(), syscall.EBUSY)
	testkit.OK(t, qp.Close())
	testkit.OK(t, srq.Close())
	if err := srq.PostRecv(one); !errors.Is(err, os.ErrClosed) {
		t.Errorf("a receive after Close: %v", err)
	}
}

// A QP may have another PD than its SRQ. The receives name memory of the SRQ's PD, and may not use
// memory of the QP's PD. On rxe it is the other way round (kernel-notes/rxe-srq-pd.md).
func TestSRQOfAnotherPD(t *testing.T) {
	s := newSRQServer(t, 4)
	other := testkit.Must(s.vctx.AllocPD())(t)
	t.Cleanup(func() { testkit.OK(t, other.Close()) })
	theirs := testkit.Must(other.AllocMR(8, ibverbs.AccessLocalWrite))(t)
	t.Cleanup(func() { testkit.OK(t, theirs.Close()) })
	s.cfg.PD = other
	client, server, mr := s.connect(t)
	good, bad := s.mr, theirs
	if onRxe() {
		good, bad = bad, good
	}
	for i, mr := range []*ibverbs.MR{good, bad} {
		sge := testkit.Must(mr.SGE(0, 8))(t)
		testkit.OK(t, s.srq.PostRecv(ibverbs.RecvWR{WRID: uint64(i), SGList: []ibverbs.SGE{sge}}))
	}
	if server.PD() != other {
		t.Fatal("the connection is not of the PD that it was given")
	}
	say(t, client, mr, 'a', 5)
	if wc := s.next(t); wc.Err() != nil || wc.WRID != 0 || string(good.Bytes()[:5]) != "aaaaa" {
		t.Errorf("memory of the right PD: %+v", wc)
	}
	sge := testkit.Must(mr.SGE(0, 5))(t)
	// On iWARP it completes before the peer processes it.
	if err := done(t, timeout(t), client, ibverbs.SendWR{Opcode: ibverbs.WRSend, SGList: []ibverbs.SGE{sge}}); (err == nil) == onRxe() {
		t.Errorf("the Send: %v", err)
	}
	if wc := s.next(t); wc.Err() == nil || wc.WRID != 1 || errors.Is(wc.Err(), ibverbs.ErrFlushed) {
		t.Errorf("memory of the wrong PD: %+v", wc)
	}
	if !onRxe() { // on rxe the program has to end the connection
		testkit.OK(t, server.Wait(timeout(t)))
	}
	if !bytes.Equal(bad.Bytes()[:8], make([]byte, 8)) {
		t.Errorf("memory of the wrong PD was written: %q", bad.Bytes()[:8])
	}
}

// A QP that the program made itself (PD.CreateQP) can have an SRQ, too, and be connected by a CM
// id.
func TestSRQOfOwnQP(t *testing.T) {
	s := newSRQServer(t, 4)
	ctx := timeout(t)
	ch := testkit.Must(rdmacm.CreateEventChannel(s.vctx))(t)
	l := testkit.Must(ch.CreateID(nil))(t)
	testkit.OK(t, l.BindAddr(netip.AddrPortFrom(s.l.Addr().Addr(), 0)))
	testkit.OK(t, l.Listen(1))
	s.post(t, 0)

	var client *rdmacm.Conn
	dialled := make(chan error, 1)
	go func() {
		var err error
		client, err = rdmacm.Dial(ctx, s.vctx, l.LocalAddr(), nil)
		dialled <- err
	}()
	next := func(want rdmacm.EventType) *rdmacm.Event {
		t.Helper()
		ev := testkit.Must(ch.GetEvent(ctx))(t)
		if ev.Type != want {
			t.Fatalf("event %s, want %s", ev.Type, want)
		}
		return ev
	}
	id := next(rdmacm.ConnectRequest).ID
	qp := testkit.Must(s.pd.CreateQP(&ibverbs.QPInitAttr{
		SendCQ: s.cq, RecvCQ: s.cq, SRQ: s.srq, Cap: ibverbs.QPCap{MaxSendWR: 1, MaxSendSGE: 1},
	}))(t)
	testkit.OK(t, id.Accept(&rdmacm.ConnParam{QP: qp}))
	testkit.OK(t, <-dialled)
	next(rdmacm.Established)
	mr := testkit.Must(client.PD().AllocMR(srqSlot, 0))(t)
	say(t, client, mr, 'q', 3000)
	if wc := s.next(t); wc.Err() != nil || wc.ByteLen != 3000 || wc.QPN != qp.QPN() || s.mr.Bytes()[2999] != 'q' {
		t.Errorf("completion %+v", wc)
	}
	ended := make(chan error, 1)
	go func() { ended <- client.Shutdown(ctx) }()
	next(rdmacm.Disconnected) // on RoCE this answers the client
	testkit.OK(t, <-ended)
	for _, close := range []func() error{qp.Close, id.Close, l.Close, ch.Close, client.Close, mr.Close} {
		testkit.OK(t, close())
	}
}

// TestSRQTypes: SRQs of types other than the basic one (ibv_create_srq_ex) need XRC or tag
// matching, and iWARP has neither. A device returns an error for them; PD.CreateSRQ makes basic
// ones. The test runs on the engine, and on siw through TestOnSiw.
func TestSRQTypes(t *testing.T) {
	vctx, _ := open()
	defer func() { testkit.OK(t, vctx.Close()) }()
	attr := testkit.Must(vctx.Query())(t)
	if attr.DeviceCapFlags&provider.DeviceXRC != 0 {
		t.Errorf("the device offers XRC: %s", attr.DeviceCapFlags)
	}
	if attr.MaxSRQ <= 0 || attr.MaxSRQWR <= 0 {
		t.Errorf("%d SRQs of %d receives", attr.MaxSRQ, attr.MaxSRQWR)
	}
}
