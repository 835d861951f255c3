//go:build cgo && linux && !nokernel

package kernel

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/govs-rdma/govs/cgo/ibv"
	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
)

// noEvent checks that no asynchronous event arrives.
func (s *side) noEvent(what string) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if ev, err := s.dev.AsyncEvent(ctx); err == nil {
		s.t.Errorf("%s: %s", what, ev.Type)
	}
}

// An SRQ takes lists longer than one call into C posts, returns how many fit, posts without
// allocating, and cannot be closed while a QP has it. Package ibverbs has more tests of SRQs, on
// siw and on the engine.
func testSRQ(t *testing.T) {
	a, p := newSide(t), newSide(t)
	srq := testkit.Must(p.pd.CreateSRQ(provider.SRQInitAttr{Attr: provider.SRQAttr{MaxWR: 40, MaxSGE: 2, Limit: 40}, Cookie: p}))(t)
	p.srq = srq
	if srq.Cookie() != any(p) {
		t.Error("the SRQ lost its cookie")
	}
	attr, err := srq.Query()
	if attr != (provider.SRQAttr{MaxWR: 64, MaxSGE: 2}) || err != nil {
		t.Errorf("Query: %+v, %v", attr, err)
	}
	wrs := make([]provider.RecvWR, 60)
	for i := range wrs {
		wrs[i] = provider.RecvWR{WRID: uint64(i), SGList: []provider.SGE{p.sge(i*16, 8), p.sge(i*16+8, 8)}}
	}
	if n, err := srq.PostRecv(wrs[:50]); n != 50 || err != nil {
		t.Errorf("PostRecv: %d of 50, %v", n, err)
	}
	bad := provider.RecvWR{SGList: make([]provider.SGE, 3)}
	n, err := srq.PostRecv([]provider.RecvWR{wrs[50], bad})
	if n != 1 {
		t.Errorf("%d posted before one with too many SGEs", n)
	}
	wantErrno(t, "too many SGEs", err, syscall.EINVAL)
	one := wrs[51:52]
	if got := testing.AllocsPerRun(5, func() { // AllocsPerRun calls it once more before counting
		if n, err := srq.PostRecv(one); n != 1 || err != nil {
			t.Fatal(n, err)
		}
	}); got != 0 {
		t.Errorf("posting allocates %v times", got)
	}
	n, err = srq.PostRecv(wrs)
	if n != 64-57 {
		t.Errorf("%d posted where there were 7 places", n)
	}
	wantErrno(t, "full", err, syscall.ENOMEM)

	establish(t, a, p)
	a.send(
		provider.SendWR{WRID: 1, Opcode: provider.WRSend, Flags: provider.SendSignaled, SGList: []provider.SGE{a.sge(0, 12)}},
		provider.SendWR{WRID: 2, Opcode: provider.WRSend, Flags: provider.SendSignaled},
	)
	a.poll(2)
	for i, wc := range p.poll(2) {
		if want := (provider.WC{WRID: uint64(i), Opcode: provider.WCRecv, QPN: p.qp.QPN(), ByteLen: []uint32{12, 0}[i]}); wc != want {
			t.Errorf("completion %+v, want %+v", wc, want)
		}
	}
	p.noEvent("a limit given at creation, which is irrelevant")
	// The two places are free again.
	if n, err := srq.PostRecv(wrs[:3]); n != 2 || provider.Errno(err) != syscall.ENOMEM {
		t.Errorf("%d posted where there were 2 places: %v", n, err)
	}
	n, err = p.qp.PostRecv(wrs[:1])
	if n != 0 {
		t.Errorf("%d posted to the QP", n)
	}
	wantErrno(t, "posting to the QP", err, syscall.EINVAL)
	wantErrno(t, "Close of an SRQ with a QP", srq.Close(), syscall.EBUSY)

	// An event that no call fetches blocks nothing.
	if err := srq.Modify(provider.SRQAttr{Limit: 64}, provider.SRQAttrLimit); err != nil {
		t.Fatal(err)
	}
	a.send(provider.SendWR{Opcode: provider.WRSend, Flags: provider.SendSignaled})
	a.poll(1)
	p.poll(1)
	closeAll(t, a.qp, p.qp, a.id, p.id, srq)
	if _, err := p.pd.CreateQP(p.qpInit()); err == nil {
		t.Error("a QP with a closed SRQ")
	}
	other := newSide(t)
	p.srq = nil
	init := p.qpInit()
	init.SRQ = struct{ provider.SRQ }{}
	_, err = other.pd.CreateQP(init)
	wantErrno(t, "somebody else's SRQ", err, syscall.EINVAL)
}

// siw never reports IBV_EVENT_QP_LAST_WQE_REACHED, which ibv_get_async_event(3) describes for a QP
// with an SRQ in the error state.
func testNoLastWQE(t *testing.T) {
	a, p := newSide(t), newSide(t)
	srq := testkit.Must(p.pd.CreateSRQ(provider.SRQInitAttr{Attr: provider.SRQAttr{MaxWR: 4, MaxSGE: 1}}))(t)
	p.srq = srq
	testkit.Must(srq.PostRecv([]provider.RecvWR{{WRID: 1, SGList: []provider.SGE{p.sge(0, 8)}}}))(t)
	establish(t, a, p)
	defer closeAll(t, srq)
	defer closeAll(t, a.qp, p.qp, a.id, p.id)
	if err := p.qp.Modify(provider.QPAttr{State: provider.QPErr}, provider.QPAttrState); err != nil {
		t.Fatal(err)
	}
	a.want("after the peer's QP was moved to ERR", provider.CMDisconnected)
	p.noEvent("the QP is in ERR")
}

// What siw does without the provider's corrections.
func testSRQWithoutHelp(t *testing.T) {
	a, p := newSide(t), newSide(t)
	made := testkit.Must(p.pd.CreateSRQ(provider.SRQInitAttr{Attr: provider.SRQAttr{MaxWR: 4, MaxSGE: 1}}))(t)
	p.srq = made
	defer func() { closeAll(t, made) }()
	c := made.(*srq).c
	if _, err := c.Query(); err != syscall.EOPNOTSUPP {
		t.Errorf("ibv_query_srq: %v", err)
	}
	if err := c.Modify(ibv.SRQAttr{MaxWR: 8}, uint32(provider.SRQAttrMaxWR)); err != syscall.EOPNOTSUPP {
		t.Errorf("ibv_modify_srq with IBV_SRQ_MAX_WR: %v", err)
	}
	err := made.Modify(provider.SRQAttr{MaxWR: 8}, provider.SRQAttrMaxWR)
	var unsupported *provider.UnsupportedError
	if !errors.As(err, &unsupported) || !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("resizing: %v", err)
	}
	dev, err := p.dev.Query()
	if err != nil || dev.DeviceCapFlags&provider.DeviceSRQResize != 0 || dev.MaxSRQ == 0 || dev.MaxSRQWR == 0 || dev.MaxSRQSGE == 0 {
		t.Errorf("device: %+v, %v", dev, err)
	}

	// A limit at creation arms the SRQ.
	attr := ibv.SRQAttr{MaxWR: 4, MaxSGE: 1, Limit: 4}
	armed := &srq{pd: p.pd.(*pd), dev: p.dev.(*device), granted: provider.SRQAttr{MaxWR: 4, MaxSGE: 1}}
	armed.token = srqs.add(armed)
	armed.c, err = armed.pd.c.CreateSRQ(&attr, armed.token)
	testkit.OK(t, err)
	armed.batch, err = ibv.NewRecvBatch(1, 2)
	testkit.OK(t, err)
	p.srq = armed
	// libsiw accepts two entries although one was requested.
	armed.batch.Add(7)
	for i := range 2 {
		armed.batch.AddSGE(p.mr.Addr()+uint64(8*i), 8, p.mr.LKey())
	}
	if n, err := armed.c.PostRecv(armed.batch); n != 1 || err != nil {
		t.Errorf("two entries: %d posted, %v", n, err)
	}
	establish(t, a, p)
	a.send(provider.SendWR{Opcode: provider.WRSend, Flags: provider.SendSignaled, SGList: []provider.SGE{a.sge(0, 16)}})
	a.poll(1)
	if wc := p.poll(1)[0]; wc.Err() != nil || wc.ByteLen != 16 {
		t.Errorf("a receive with two entries: %+v", wc)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if ev, err := p.dev.AsyncEvent(ctx); err != nil || ev.Type != provider.EventSRQLimitReached || ev.SRQ != provider.SRQ(armed) {
		t.Errorf("event %s, %v", ev.Type, err)
	}
	closeAll(t, a.qp, p.qp, a.id, p.id)
	if err := armed.destroy(); err != nil {
		t.Error(err)
	}
}
