package rdmacm_test

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/internal/fake"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
	"github.com/govs-rdma/govs/provider"
)

// wantName checks that err names a failed work request, without a number that the program does not
// know or has not set.
func wantName(t *testing.T, err error, words ...string) {
	t.Helper()
	var wc *ibverbs.WCError
	if !errors.As(err, &wc) {
		t.Errorf("%v, want an error with a WCError", err)
		return
	}
	wantErr(t, words[0], err, wc, words...)
	if own := fmt.Sprintf("work request %#x", wc.WRID); !strings.HasPrefix(words[1], own) &&
		strings.Contains(err.Error(), own) {
		t.Errorf("%q names WRID %#x", err, wc.WRID)
	}
}

// wantCause checks QP.Cause on the engine: it names a work request without its number.
func wantCause(t *testing.T, c *rdmacm.Conn, name string) {
	t.Helper()
	if onKernel() {
		return // siw and rxe know no cause
	}
	var work *ibverbs.WorkError
	if cause := c.QP().Cause(); !errors.As(cause, &work) || !work.Unknown || work.Error() == "" ||
		!strings.Contains(cause.Error(), "local catastrophic error: "+name) {
		t.Errorf("cause %v, want one that names %q", cause, name)
	}
}

// TestConnDoNamesWork: errors name failed work as the program knows it, even in the cause of the
// connection's end.
func TestConnDoNamesWork(t *testing.T) {
	for _, c := range []struct {
		op   string
		name string
		do   func(c *rdmacm.Conn, good, bad ibverbs.SGE) error
	}{
		{"Conn.Send ", "IBV_WR_SEND of qp", func(c *rdmacm.Conn, _, bad ibverbs.SGE) error {
			return c.Send(timeout(t), bad)
		}},
		{"Conn.Do ", "IBV_WR_SEND of qp", func(c *rdmacm.Conn, _, bad ibverbs.SGE) error {
			return c.Do(timeout(t), ibverbs.NewSend(bad))
		}},
		{"Conn.Do ", "work request 2 of 2 (IBV_WR_SEND) of qp", func(c *rdmacm.Conn, good,
			bad ibverbs.SGE) error {
			return c.Do(timeout(t), ibverbs.NewSend(good), ibverbs.NewSend(bad))
		}},
		{"Conn.Do ", "work request 0x7 (IBV_WR_SEND) of qp", func(c *rdmacm.Conn, good,
			bad ibverbs.SGE) error {
			wr := ibverbs.NewSend(bad)
			wr.WRID = 7
			return c.Do(timeout(t), ibverbs.NewSend(good), wr)
		}},
	} {
		in := &receiver{n: 2, size: 64}
		a, _ := pair(t, nil, &rdmacm.ConnConfig{Prepare: in.prepare})
		t.Cleanup(in.close)
		here, _ := memory(t, a, 64)
		good := sge(t, here, 0, 8)
		bad := good
		bad.LKey ^= 0x55 << 8
		err := c.do(a, good, bad)
		wantName(t, err, c.op, c.name)
		wantCause(t, a, "IBV_WR_SEND, SGE 0: no region has lkey")
		// Later work is flushed for the same cause.
		if again := a.Send(timeout(t), good); again == nil {
			t.Errorf("after %v: a Send is nil", err)
		}
	}
}

// TestConnReceiverNamesWork: errors have no WRIDs of a Receiver's receives, because the program
// does not know them.
func TestConnReceiverNamesWork(t *testing.T) {
	ctx := timeout(t)
	a, b := pair(t, nil, messages(2, 16))
	here, _ := memory(t, a, 64)
	_ = a.Send(ctx, sge(t, here, 0, 33)) // too long
	_, err := b.Receive(ctx)
	wantName(t, err, b.RemoteAddr().String(), "a receive of qp ")
	if !onKernel() {
		<-b.Done()
		var work *ibverbs.WorkError
		cause := b.QP().Cause()
		if !errors.As(cause, &work) || !work.Recv || !work.Unknown ||
			!strings.HasSuffix(cause.Error(),
				": a receive, which has room for 16 bytes: the peer's message has 33") {
			t.Errorf("cause %v, want one about a receive without a number", cause)
		}
	}
}

// TestConnReceiverOfSRQNamesWork: the same for the receives of an SRQ.
func TestConnReceiverOfSRQNamesWork(t *testing.T) {
	ctx := timeout(t)
	s := newShared(t, 2)
	in := testkit.Must(rdmacm.NewSRQReceiver(s.srq, s.cq, 2, 16))(t)
	t.Cleanup(func() { testkit.OK(t, in.Close()) })
	client, server, mr := s.connect(t)
	_ = client.Send(ctx, sge(t, mr, 0, 33)) // too long
	_, err := in.Receive(ctx)
	wantName(t, err, "", "a receive of qp ")
	if !onKernel() {
		<-server.Done()
		var work *ibverbs.WorkError
		if cause := server.QP().Cause(); !errors.As(cause, &work) || !work.Unknown {
			t.Errorf("cause %v, want one without a number", cause)
		}
	}
}

// TestDoNamesRefusedWork: a list is posted in two parts, because the queue is full at first, and a
// work request in the second part is refused. The error has its position in the call.
func TestDoNamesRefusedWork(t *testing.T) {
	f, vctx := newFake(t, goodDial())
	c := testkit.Must(rdmacm.Dial(timeout(t), vctx, somewhere, nil))(t)
	t.Cleanup(func() {
		testkit.OK(t, c.Close())
		testkit.OK(t, vctx.Close())
	})
	calls := 0
	f.PostSend = func(q *fake.QP, wrs []provider.SendWR) (int, error) {
		calls++
		why := syscall.ENOMEM // after one
		if calls == 2 {
			why = syscall.EINVAL
		}
		hook := f.PostSend
		f.PostSend = nil
		_, err := q.PostSend(wrs[:1]) // completes
		f.PostSend = hook
		testkit.OK(t, err)
		return 1, &provider.Error{Op: "ibv_post_send", Object: "qp 5, work request 1", Err: why}
	}
	wr := ibverbs.SendWR{Opcode: ibverbs.WRRDMAWrite}
	err := c.Do(timeout(t), wr, wr, wr)
	wantErr(t, "the third of three", err, syscall.EINVAL, "ibv_post_send qp 5, work request 2: ")
	if calls != 2 {
		t.Errorf("%d calls of PostSend, want 2", calls)
	}
}
