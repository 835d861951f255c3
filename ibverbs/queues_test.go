package ibverbs_test

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
	"github.com/govs-rdma/govs/provider/engine"
)

// What ibv_create_cq(3), ibv_resize_cq(3), ibv_req_notify_cq(3), ibv_get_cq_event(3) and
// ibv_post_send(3) say about queues. The tests of this file run on the engine, and on siw and rxe
// through TestOnSiw and TestOnRxe; they say where the devices differ.

// joined is a device connected with itself, each end with a region and CQs that the test chooses.
// The server's Conn makes its own CQs.
type joined struct {
	client, server *rdmacm.Conn
	mr, serverMR   *ibverbs.MR // the client's and the server's
	readOnly       *ibverbs.MR // the server's, only for Reads
}

func joinWith(t *testing.T, vctx *ibverbs.Context, listen *rdmacm.Listener, cfg rdmacm.ConnConfig) *joined {
	t.Helper()
	ctx := timeout(t)
	j := &joined{}
	region := func(mr **ibverbs.MR) func(context.Context, *rdmacm.Conn, *rdmacm.ConnParam) error {
		return func(_ context.Context, c *rdmacm.Conn, _ *rdmacm.ConnParam) (err error) {
			if *mr != nil { // Dial tries another port, and the region keeps the PD
				testkit.OK(t, (*mr).Close())
			}
			*mr, err = c.PD().AllocMR(4096, ibverbs.AccessLocalWrite|ibverbs.AccessRemoteWrite|ibverbs.AccessRemoteRead)
			return err
		}
	}
	accepted := make(chan error, 1)
	go func() {
		req, err := listen.Accept(ctx)
		if err == nil {
			j.server, err = req.Accept(ctx, &rdmacm.ConnConfig{Cap: ibverbs.QPCap{MaxSendWR: 64, MaxRecvWR: 64}, Prepare: region(&j.serverMR)})
		}
		if err == nil {
			j.readOnly, err = j.server.PD().AllocMR(64, ibverbs.AccessRemoteRead)
		}
		accepted <- err
	}()
	cfg.Prepare = region(&j.mr)
	j.client = testkit.Must(rdmacm.Dial(ctx, vctx, listen.Addr(), &cfg))(t)
	testkit.OK(t, <-accepted)
	return j
}

// close closes what joinWith made. It can be called again.
func (j *joined) close(t *testing.T) {
	t.Helper()
	for _, close := range []func() error{j.client.Close, j.server.Close, j.mr.Close, j.serverMR.Close, j.readOnly.Close} {
		testkit.OK(t, close())
	}
}

// queueWorld opens the device and listens.
func queueWorld(t *testing.T) (*ibverbs.Context, *rdmacm.Listener) {
	t.Helper()
	vctx, addr := open()
	t.Cleanup(func() { testkit.OK(t, vctx.Close()) })
	l := testkit.Must(rdmacm.Listen(timeout(t), vctx, addr, nil))(t)
	t.Cleanup(func() { testkit.OK(t, l.Close()) })
	return vctx, l
}

func (j *joined) write(t *testing.T, wrid uint64, flags ibverbs.SendFlags) error {
	t.Helper()
	return j.client.QP().PostSend(ibverbs.SendWR{
		WRID: wrid, Opcode: ibverbs.WRRDMAWrite, Flags: flags, SGList: []ibverbs.SGE{testkit.Must(j.mr.SGE(0, 8))(t)},
		RemoteAddr: j.serverMR.Addr(), RKey: j.serverMR.RKey(),
	})
}

// begin makes the client send something, because the server may not send before (RFC 5044 section
// 7.1.2).
func (j *joined) begin(t *testing.T) {
	t.Helper()
	testkit.OK(t, j.client.QP().PostSend(ibverbs.SendWR{Opcode: ibverbs.WRRDMAWrite}))
}

// send makes the server send to the client, which has posted a receive.
func (j *joined) send(t *testing.T, flags ibverbs.SendFlags) {
	t.Helper()
	testkit.OK(t, j.client.QP().PostRecv(ibverbs.RecvWR{SGList: []ibverbs.SGE{testkit.Must(j.mr.SGE(0, 8))(t)}}))
	testkit.OK(t, j.server.QP().PostSend(ibverbs.SendWR{
		Opcode: ibverbs.WRSend, Flags: flags | ibverbs.SendSignaled, SGList: []ibverbs.SGE{testkit.Must(j.serverMR.SGE(0, 8))(t)},
	}))
	wc := make([]ibverbs.WC, 1)
	testkit.Must(j.server.SendCQ().PollWait(timeout(t), wc))(t)
	testkit.OK(t, wc[0].Err())
}

// take polls until it has n completions, and returns them.
func take(t *testing.T, cq *ibverbs.CQ, n int) []ibverbs.WC {
	t.Helper()
	ctx := timeout(t)
	wc := make([]ibverbs.WC, n)
	for got := 0; got < n; {
		if ctx.Err() != nil {
			t.Fatalf("%d completions, want %d", got, n)
		}
		more := testkit.Must(cq.Poll(wc[got:]))(t)
		if got += more; more == 0 {
			time.Sleep(100 * time.Microsecond)
		}
	}
	return wc
}

// TestQueueDrain: Drain of a send queue that is full of unsignalled work returns when the work is
// done, and the queue can be used again.
func TestQueueDrain(t *testing.T) {
	vctx, l := queueWorld(t)
	j := joinWith(t, vctx, l, rdmacm.ConnConfig{Cap: ibverbs.QPCap{MaxSendWR: 8, MaxSendSGE: 1}})
	defer j.close(t)
	_, init, err := j.client.QP().Query()
	testkit.OK(t, err)
	for round := range 3 {
		for range init.Cap.MaxSendWR {
			testkit.OK(t, j.write(t, 0, 0))
		}
		testkit.OK(t, j.client.QP().Drain(timeout(t)))
		if n, err := j.client.SendCQ().Poll(make([]ibverbs.WC, 1)); n != 0 || err != nil {
			t.Errorf("round %d: %d completions, %v", round, n, err)
		}
	}
}

// TestQueueResize: a CQ grows and shrinks with completions in it. siw has no ibv_resize_cq, and
// returns an error.
func TestQueueResize(t *testing.T) {
	vctx, l := queueWorld(t)
	cq := testkit.Must(vctx.CreateCQ(4, nil))(t)
	defer func() { testkit.OK(t, cq.Close()) }()
	granted := cq.CQE()
	if onSiw() {
		err := cq.Resize(100)
		refused(t, "resizing on siw", err, syscall.EOPNOTSUPP)
		if !errors.Is(err, errors.ErrUnsupported) || cq.CQE() != granted {
			t.Errorf("resizing on siw: %v; %d entries, before %d", err, cq.CQE(), granted)
		}
		refused(t, "resizing to 0", cq.Resize(0), syscall.EINVAL)
		return
	}
	j := joinWith(t, vctx, l, rdmacm.ConnConfig{SendCQ: cq, Cap: ibverbs.QPCap{MaxSendWR: 64, MaxRecvWR: 4}})
	defer j.close(t)
	next := uint64(0)
	post := func(n int) {
		for range n {
			testkit.OK(t, j.write(t, next, ibverbs.SendSignaled))
			next++
		}
	}
	post(4)
	first := take(t, cq, 3) // the ring wraps
	testkit.OK(t, cq.Resize(40))
	if cq.CQE() < 40 {
		t.Errorf("%d entries, want 40", cq.CQE())
	}
	post(39)
	ctx, err := timeout(t), error(nil)
	for err == nil && ctx.Err() == nil { // once all 40 are in it
		err = cq.Resize(39)
	}
	refused(t, "fewer places than completions", err, syscall.EINVAL)
	rest := take(t, cq, 20)
	refused(t, "no places", cq.Resize(0), syscall.EINVAL)
	refused(t, "-1 places", cq.Resize(-1), syscall.EINVAL)
	attr := testkit.Must(vctx.Query())(t)
	refused(t, "more than MaxCQE", cq.Resize(attr.MaxCQE+1), syscall.EINVAL)
	if cq.CQE() < 40 {
		t.Errorf("%d entries after what was refused", cq.CQE())
	}
	testkit.OK(t, cq.Resize(20))
	rest = append(rest, take(t, cq, 20)...)
	for i, wc := range append(first, rest...) {
		if wc.WRID != uint64(i) || wc.Err() != nil {
			t.Fatalf("completion %d is %d: %v", i, wc.WRID, wc.Err())
		}
	}
	j.close(t)
	testkit.OK(t, cq.Close())
	wantErr(t, "a closed CQ", cq.Resize(8), os.ErrClosed)
}

// TestQueueOverflow: a CQ that is too small loses completions, reports that with an event, and does
// no other harm. The work is done, the places in the send queue are free again, completions in the
// CQ can be polled, and the CQ works on.
func TestQueueOverflow(t *testing.T) {
	ctx := timeout(t)
	vctx, l := queueWorld(t)
	cq := testkit.Must(vctx.CreateCQ(2, nil))(t)
	defer func() { testkit.OK(t, cq.Close()) }()
	j := joinWith(t, vctx, l, rdmacm.ConnConfig{SendCQ: cq, Cap: ibverbs.QPCap{MaxSendWR: 8, MaxRecvWR: 4}})
	defer j.close(t)
	const posts = 8
	copy(j.mr.Bytes(), "overflow")
	for i := range posts {
		testkit.OK(t, j.write(t, uint64(i), ibverbs.SendSignaled))
	}
	e, err := vctx.AsyncEvent(ctx)
	if err != nil || e.Type != ibverbs.EventCQErr || e.CQ != cq || e.QP != nil {
		t.Fatalf("event %s, %v", e, err)
	}
	wc := take(t, cq, cq.CQE())
	for i := range wc {
		if wc[i].WRID != uint64(i) || wc[i].Err() != nil {
			t.Errorf("completion %d is %d: %v", i, wc[i].WRID, wc[i].Err())
		}
	}
	for round := range 3 * posts { // no place of the queue is lost
		testkit.OK(t, j.write(t, uint64(100+round), ibverbs.SendSignaled))
		if wc := take(t, cq, 1); wc[0].WRID != uint64(100+round) || wc[0].Err() != nil {
			t.Fatalf("after the overflow: %d, %v", wc[0].WRID, wc[0].Err())
		}
	}
	// A Write's completion does not say that it has been placed, but a Read sees it.
	testkit.OK(t, j.client.QP().PostSend(ibverbs.SendWR{
		WRID: 200, Opcode: ibverbs.WRRDMARead, Flags: ibverbs.SendSignaled, SGList: []ibverbs.SGE{testkit.Must(j.mr.SGE(100, 8))(t)},
		RemoteAddr: j.serverMR.Addr(), RKey: j.serverMR.RKey(),
	}))
	if wc := take(t, cq, 1); wc[0].WRID != 200 || wc[0].Err() != nil {
		t.Fatalf("the Read: %d, %v", wc[0].WRID, wc[0].Err())
	}
	if got := string(j.mr.Bytes()[100:108]); got != "overflow" {
		t.Errorf("written: %q", got)
	}
}

// TestQueueSharedChannel: several CQs report completions on one channel, each once for each time
// that it was armed.
func TestQueueSharedChannel(t *testing.T) {
	ctx := timeout(t)
	vctx, l := queueWorld(t)
	ch := testkit.Must(vctx.CreateCompChannel())(t)
	const ends = 3
	var cqs [ends]*ibverbs.CQ
	var js [ends]*joined
	for i := range cqs {
		cqs[i] = testkit.Must(vctx.CreateCQ(16, &ibverbs.CQOptions{Channel: ch, Cookie: i}))(t)
		js[i] = joinWith(t, vctx, l, rdmacm.ConnConfig{SendCQ: cqs[i], RecvCQ: cqs[i], Cap: ibverbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4}})
	}
	refused(t, "closing a channel with CQs", ch.Close(), syscall.EBUSY)
	for round := range 4 {
		for i := range cqs {
			if i != round { // in each round but the last one of them isn't armed
				testkit.OK(t, cqs[i].ReqNotify(false))
			}
		}
		for i := range js {
			testkit.OK(t, js[i].write(t, uint64(10*round+i), ibverbs.SendSignaled))
		}
		told := make(map[*ibverbs.CQ]int)
		for range min(ends, ends-1+round/ends) {
			told[testkit.Must(ch.Next(ctx))(t)]++
		}
		for i, cq := range cqs {
			if want := map[bool]int{true: 1, false: 0}[i != round]; told[cq] != want {
				t.Errorf("round %d: %d events of CQ %v, want %d", round, told[cq], cq.Cookie(), want)
			}
			if wc := take(t, cq, 1); wc[0].WRID != uint64(10*round+i) {
				t.Errorf("round %d: CQ %d has %d", round, i, wc[0].WRID)
			}
		}
		short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
		if cq, err := ch.Next(short); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("round %d: an event too many, of %v: %v", round, cq.Cookie(), err)
		}
		cancel()
	}
	for i := range js {
		js[i].close(t)
		testkit.OK(t, cqs[i].Close())
	}
	testkit.OK(t, ch.Close())
}

// TestQueueSolicited: a CQ that is armed only for solicited completions fires for the receive of a
// Send with the solicited event, and for a failure. siw's never fires for receives
// (kernel-notes/siw-solicited-arming.md).
func TestQueueSolicited(t *testing.T) {
	ctx := timeout(t)
	vctx, l := queueWorld(t)
	ch := testkit.Must(vctx.CreateCompChannel())(t)
	cq := testkit.Must(vctx.CreateCQ(16, &ibverbs.CQOptions{Channel: ch}))(t)
	j := joinWith(t, vctx, l, rdmacm.ConnConfig{RecvCQ: cq, Cap: ibverbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4}})
	j.begin(t)
	quiet := func(what string) {
		t.Helper()
		short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
		defer cancel()
		if _, err := ch.Next(short); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: an event: %v", what, err)
		}
	}
	told := func(what string) {
		t.Helper()
		if got, err := ch.Next(ctx); err != nil || got != cq {
			t.Fatalf("%s: %v", what, err)
		}
	}
	testkit.OK(t, cq.ReqNotify(true))
	j.send(t, 0)
	quiet("a Send like others")
	take(t, cq, 1)
	j.send(t, ibverbs.SendSolicited)
	if onSiw() {
		quiet("a Send with the solicited event, on siw")
	} else {
		told("a Send with the solicited event")
	}
	take(t, cq, 1)
	testkit.OK(t, cq.ReqNotify(false))
	testkit.OK(t, cq.ReqNotify(true)) // the engine keeps the first; siw the last
	j.send(t, 0)
	if onSiw() {
		quiet("narrowed on siw")
	} else {
		told("armed for all, then for solicited ones")
	}
	take(t, cq, 1)
	testkit.OK(t, cq.ReqNotify(false))
	j.send(t, ibverbs.SendSolicited)
	told("armed for all")
	take(t, cq, 1)
	if !onSiw() {
		testkit.OK(t, cq.ReqNotify(true))
		testkit.OK(t, j.client.QP().PostRecv(ibverbs.RecvWR{}))
		testkit.OK(t, j.client.QP().Modify(ibverbs.QPAttr{State: ibverbs.QPErr}, ibverbs.QPAttrState))
		told("a failure")
	}
	j.close(t)
	testkit.OK(t, cq.Close())
	testkit.OK(t, ch.Close())
}

// TestQueueUnsignalled: unsignalled work has no completion when it succeeds. Its place in the send
// queue is free when later signalled work has completed, as on all devices. It may be free earlier:
// siw frees places when it has taken up the work, rxe when the work is done, and the engine when
// the work is done and the queue is full.
func TestQueueUnsignalled(t *testing.T) {
	vctx, l := queueWorld(t)
	for _, signalled := range []bool{false, true} {
		cq := testkit.Must(vctx.CreateCQ(64, nil))(t)
		j := joinWith(t, vctx, l, rdmacm.ConnConfig{SendCQ: cq, Cap: ibverbs.QPCap{MaxSendWR: 8, MaxRecvWR: 4}})
		_, init, err := j.client.QP().Query()
		testkit.OK(t, err)
		places := init.Cap.MaxSendWR
		for i := range places {
			flags := ibverbs.SendFlags(0)
			if signalled && i == places-1 {
				flags = ibverbs.SendSignaled
			}
			testkit.OK(t, j.write(t, uint64(i), flags))
		}
		if signalled {
			// The completion of the last frees all of them.
			if wc := take(t, cq, 1); wc[0].WRID != uint64(places-1) || wc[0].Err() != nil {
				t.Fatalf("the only completion: %d, %v", wc[0].WRID, wc[0].Err())
			}
			for i := range places {
				testkit.OK(t, j.write(t, uint64(100+i), 0))
			}
		}
		// The posted work is done, as the peer sees, and has no completion.
		wc := make([]ibverbs.WC, 4)
		time.Sleep(20 * time.Millisecond)
		if n := testkit.Must(cq.Poll(wc))(t); n != 0 {
			t.Errorf("%d completions of unsignalled work, the first %d", n, wc[0].WRID)
		}
		good := ibverbs.SendWR{WRID: 200, Opcode: ibverbs.WRRDMAWrite, Flags: ibverbs.SendSignaled}
		testkit.OK(t, j.client.QP().PostSend(good, good))
		take(t, cq, 2)
		// If the connection ends first, all posted work completes.
		testkit.OK(t, j.client.QP().Modify(ibverbs.QPAttr{State: ibverbs.QPErr}, ibverbs.QPAttrState))
		j.close(t)
		testkit.OK(t, cq.Close())
	}
}

// TestQueuePartlyFull: of a list that is longer than the free places, the first ones are posted and
// complete, and the error says how many.
func TestQueuePartlyFull(t *testing.T) {
	vctx, l := queueWorld(t)
	cq := testkit.Must(vctx.CreateCQ(64, nil))(t)
	j := joinWith(t, vctx, l, rdmacm.ConnConfig{RecvCQ: cq, Cap: ibverbs.QPCap{MaxSendWR: 8, MaxRecvWR: 8}})
	_, init, err := j.client.QP().Query()
	testkit.OK(t, err)
	j.begin(t)
	places := init.Cap.MaxRecvWR
	wrs := make([]ibverbs.RecvWR, places+3)
	for i := range wrs {
		wrs[i].WRID = uint64(i)
	}
	err = j.client.QP().PostRecv(wrs...)
	var pe *ibverbs.PostError
	if refused(t, "more receives than places", err, syscall.ENOMEM); !errors.As(err, &pe) || pe.Posted != places {
		t.Errorf("more receives than %d places: %v", places, err)
	}
	for i := range places {
		testkit.OK(t, j.server.QP().PostSend(ibverbs.SendWR{Opcode: ibverbs.WRSend}))
		if wc := take(t, cq, 1); wc[0].WRID != uint64(i) || wc[0].Err() != nil {
			t.Fatalf("receive %d is %d: %v", i, wc[0].WRID, wc[0].Err())
		}
	}
	testkit.OK(t, j.client.QP().PostRecv(wrs[:places]...)) // all places are free again
	j.close(t)
	testkit.OK(t, cq.Close())
}

// nowhere is a CompletionSink that drops completions.
type nowhere struct{}

func (nowhere) Complete(*ibverbs.WC, bool) (stored, due bool) { return true, false }
func (nowhere) Notify()                                       {}

// TestSinkRefuses: calls that need completions of their own fail on a CQ with a Sink instead of
// waiting.
func TestSinkRefuses(t *testing.T) {
	vctx := testkit.Must(ibverbs.Open(engine.New(nil), ""))(t)
	pd := testkit.Must(vctx.AllocPD())(t)
	cq := testkit.Must(vctx.CreateCQ(8, &ibverbs.CQOptions{Sink: nowhere{}}))(t)
	qp := testkit.Must(pd.CreateQP(&ibverbs.QPInitAttr{SendCQ: cq, RecvCQ: cq,
		Cap: ibverbs.QPCap{MaxSendWR: 1}}))(t)
	l := testkit.Must(rdmacm.Listen(t.Context(), vctx, netip.MustParseAddrPort("127.0.0.1:0"),
		nil))(t)
	_, dialled := rdmacm.Dial(t.Context(), vctx, l.Addr(), &rdmacm.ConnConfig{SendCQ: cq})
	for what, err := range map[string]error{"Drain": qp.Drain(t.Context()), "Dial": dialled} {
		if !errors.Is(err, syscall.EINVAL) {
			t.Errorf("%s: %v, want EINVAL", what, err)
		}
	}
	testkit.OK(t, l.Close())
	testkit.OK(t, qp.Close())
	testkit.OK(t, cq.Close())
	testkit.OK(t, pd.Close())
	testkit.OK(t, vctx.Close())
}
