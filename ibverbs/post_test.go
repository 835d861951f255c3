package ibverbs_test

import (
	"errors"
	"os"
	"syscall"
	"testing"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/internal/fake"
	"github.com/govs-rdma/govs/provider"
)

func TestPartialPost(t *testing.T) {
	o := newObjects(t)
	o.fake.PostSend = func(_ *fake.QP, wrs []provider.SendWR) (int, error) {
		return 2, &provider.Error{Op: "ibv_post_send", Object: "qp 7", Err: syscall.ENOMEM}
	}
	err := o.qp.PostSend(make([]ibverbs.SendWR, 5)...)
	wantErrno(t, "post to a full queue", err, syscall.ENOMEM, "ibv_post_send qp 7", "2 posted")
	var pe *ibverbs.PostError
	if !errors.As(err, &pe) || pe.Posted != 2 {
		t.Errorf("got %#v, want a PostError with 2 posted", err)
	}
	var call *ibverbs.Error
	if !errors.As(err, &call) || call.Op != "ibv_post_send" {
		t.Errorf("got %#v, want the failed call inside", err)
	}
}

// The four kinds of errors can be told apart.
func TestErrorKinds(t *testing.T) {
	wc := ibverbs.WC{Status: ibverbs.WCWRFlushErr, WRID: 5, QPN: 7}
	wantErr(t, "flushed", wc.Err(), ibverbs.ErrFlushed, "IBV_WC_WR_FLUSH_ERR")
	wc.Status = ibverbs.WCRemAccessErr
	if errors.Is(wc.Err(), ibverbs.ErrFlushed) {
		t.Error("an access error is not a flush")
	}
	wc.Status = ibverbs.WCSuccess
	if wc.Err() != nil {
		t.Error("a success is an error")
	}
	var err error = &ibverbs.UnsupportedError{Feature: "atomic operations", Reason: "siw has none"}
	wantErr(t, "unsupported", err, errors.ErrUnsupported, "siw has none")
	err = &ibverbs.Error{Op: "ibv_poll_cq", Err: os.ErrClosed}
	if ibverbs.Errno(err) != 0 {
		t.Error("os.ErrClosed has no errno")
	}
}

func TestHotPathDoesNotAllocate(t *testing.T) {
	o := newObjects(t)
	wrs := []ibverbs.SendWR{{WRID: 1, Flags: ibverbs.SendSignaled}}
	recvs := []ibverbs.RecvWR{{WRID: 2}}
	wc := make([]ibverbs.WC, 4)
	o.complete(t, 0) // lets the fake's queue grow
	if n, err := o.cq.Poll(wc); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	for name, f := range map[string]func(){
		"PostSend and Poll": func() {
			if err := o.qp.PostSend(wrs...); err != nil {
				t.Error(err)
			}
			if n, err := o.cq.Poll(wc); n != 1 || err != nil {
				t.Error(n, err)
			}
		},
		"PostRecv": func() {
			if err := o.qp.PostRecv(recvs...); err != nil {
				t.Error(err)
			}
		},
		"SGE": func() {
			if _, err := o.mr.SGE(1, 2); err != nil {
				t.Error(err)
			}
		},
	} {
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s allocates %v times", name, n)
		}
	}
}
