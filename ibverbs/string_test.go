package ibverbs_test

import (
	"fmt"
	"syscall"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
)

// The texts of objects, open, closed and nil.
func TestStrings(t *testing.T) {
	o := newObjects(t)
	o.fake.Transport = ibverbs.TransportIWARP
	srq := o.newSRQ(t)
	mw := testkit.Must(o.pd.AllocMW(ibverbs.MWType2))(t)
	name := fmt.Sprintf("qp %d", o.qp.QPN())
	region := fmt.Sprintf("mr %#x", o.mr.LKey())
	attr, init, err := o.qp.Query()
	testkit.OK(t, err)
	for want, got := range map[string]fmt.Stringer{
		fmt.Sprintf("%s (%s, up to %d sends, %d receives)", name, attr.State, init.Cap.MaxSendWR, init.Cap.MaxRecvWR): o.qp,
		region + " (4096 bytes, IBV_ACCESS_LOCAL_WRITE)":                                                              o.mr,
		fmt.Sprintf("cq 1 of fake0 (room for %d completions, my cq)",
			o.cq.CQE()): o.cq,
		"pd 1 of fake0 (1 MR, 1 MW, 1 QP, 1 " +
			"SRQ)": o.pd,
		"srq 1 of fake0 (up to 5 receives, limit 0, my " +
			"srq)": srq,
		"mw 0x3400 (IBV_MW_TYPE_2)": mw,
		"fake0 (fake, IBV_TRANSPORT_IWARP; open: 1 CQ, 1 PD, 1 completion " +
			"channel)": o.ctx,
		"nil context": (*ibverbs.Context)(nil),
		"nil pd":      (*ibverbs.PD)(nil),
		"nil srq":     (*ibverbs.SRQ)(nil),
		"nil mw":      (*ibverbs.MW)(nil),
		"nil qp":      (*ibverbs.QP)(nil),
		"nil mr":      (*ibverbs.MR)(nil),
		"nil cq":      (*ibverbs.CQ)(nil),
		"local read":  ibverbs.Access(0),
		"4096 bytes at 0x7f0000001000, rkey 0x1f00": ibverbs.RemoteRegion{
			Addr: 0x7f0000001000, Len: 4096, RKey: 0x1f00},
		"IBV_ACCESS_LOCAL_WRITE|IBV_ACCESS_REMOTE_WRITE":         ibverbs.AccessReadSink,
		"IBV_ACCESS_LOCAL_WRITE|IBV_ACCESS_REMOTE_READ|0x100000": ibverbs.AccessLocalWrite | ibverbs.AccessRemoteRead | 1<<20,
		"work request 0x7 of qp 5: IBV_WC_RECV, 8 bytes": ibverbs.WC{WRID: 7,
			QPN: 5, Opcode: ibverbs.WCRecv, ByteLen: 8},
		"work request 0x7 of qp 5: IBV_WC_SEND": ibverbs.WC{WRID: 7, QPN: 5},
		"work request 0x7 of qp 5: IBV_WC_RECV, 0 bytes, immediate data 0x9": ibverbs.WC{WRID: 7,
			QPN: 5, Opcode: ibverbs.WCRecv, Flags: ibverbs.WCWithImm, Imm: 9},
		"work request 0x7 of qp 5: IBV_WC_WR_FLUSH_ERR": ibverbs.WC{WRID: 7,
			QPN: 5, Status: ibverbs.WCWRFlushErr},
	} {
		if got.String() != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	testkit.OK(t, o.qp.Close())
	testkit.OK(t, o.cq.Close())
	testkit.OK(t, o.mr.Close())
	testkit.OK(t, mw.Close())
	testkit.OK(t, srq.Close())
	testkit.OK(t, o.ch.Close())
	testkit.OK(t, o.pd.Close())
	testkit.OK(t, o.ctx.Close())
	for want, got := range map[string]fmt.Stringer{
		name + " (closed)": o.qp, region + " (closed)": o.mr, "cq 1 of fake0 (closed)": o.cq,
		"pd 1 of fake0 (closed)": o.pd, "fake0 (closed)": o.ctx, "mw 0x3400 (closed)": mw,
		"srq 1 of fake0 (closed)": srq,
	} {
		if got.String() != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// TestErrorsNameTheCQ: an error of a CQ, and the event of an overflow, name the CQ.
func TestErrorsNameTheCQ(t *testing.T) {
	o := newObjects(t)
	second := testkit.Must(o.ctx.CreateCQ(4, &ibverbs.CQOptions{Cookie: "replies"}))(t)
	for call, f := range map[string]func() error{
		"poll cq":    func() error { _, err := second.Poll(make([]ibverbs.WC, 1)); return err },
		"req notify": func() error { return second.ReqNotify(false) },
		"resize cq":  func() error { return second.Resize(100) },
	} {
		o.fake.Fail(call, syscall.EIO)
		wantErr(t, call, f(), syscall.EIO, "cq 2 of fake0")
		o.fake.Fail(call, nil)
		testkit.OK(t, f())
	}
	if e := (ibverbs.AsyncEvent{Type: ibverbs.EventCQErr,
		CQ: second}).String(); e != "IBV_EVENT_CQ_ERR of cq 2 of fake0 (room for 100 completions, replies)" {
		t.Error(e)
	}
	srq := o.newSRQ(t)
	o.fake.Fail("post srq recv", syscall.ENOMEM)
	wantErr(t, "SRQ.PostRecv", srq.PostRecv(ibverbs.RecvWR{}), syscall.ENOMEM, "srq 1 of fake0")
}
