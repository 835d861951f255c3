package remote

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/govs-rdma/govs/provider"
)

// mr is a region of the agent.
type mr struct {
	far
	dev   *Device
	r     region
	block *block

	ended atomic.Bool // the block has been released
}

func (m *mr) Addr() uint64            { return m.r.Addr }
func (m *mr) Len() uint64             { return m.r.Len }
func (m *mr) LKey() uint32            { return m.r.LKey }
func (m *mr) RKey() uint32            { return m.r.RKey }
func (m *mr) Access() provider.Access { return m.r.Access }

// Close implements provider.MR.
func (m *mr) Close() error {
	err := m.plain("ibv_dereg_mr", none{})
	if err == nil && !m.ended.Swap(true) {
		m.c.release(m.mem, m.block)
	}
	return err
}

// Rereg implements provider.MR.
func (m *mr) Rereg(change provider.ReregFlags, to provider.PD, buf []byte,
	access provider.Access) (provider.MR, error) {
	const op = "ibv_rereg_mr"
	args := reregArgs{Change: change, Access: access}
	if to != nil {
		p, ok := to.(*pd)
		if !ok || p.c != m.c {
			return nil, foreign(op, "PD")
		}
		args.PD = p.h
	}
	now := m.block
	var fresh *block
	if change&provider.ReregTranslation != 0 {
		var err error
		if args.Span, fresh, err = m.span(op, buf); err != nil {
			return nil, err
		}
		now = fresh
	}
	r, err := loud[region](&m.far, op, args)
	if err != nil {
		m.c.release(m.mem, fresh)
		return nil, err
	}
	if !m.ended.Swap(true) && change&provider.ReregTranslation != 0 {
		m.c.release(m.mem, m.block)
	}
	return &mr{far: m.dev.of(r.Handle), dev: m.dev, r: r, block: now}, nil
}

// fastMR is a region of the agent that work requests register.
type fastMR struct {
	far

	mu     sync.Mutex
	blocks []*block // all blocks that were mapped
}

func (m *fastMR) now() region {
	r, _ := quiet[region](&m.far, verbRegion, none{})
	return r
}

func (m *fastMR) Addr() uint64            { return m.now().Addr }
func (m *fastMR) Len() uint64             { return m.now().Len }
func (m *fastMR) LKey() uint32            { return m.now().LKey }
func (m *fastMR) RKey() uint32            { return m.now().RKey }
func (m *fastMR) Access() provider.Access { return m.now().Access }

// Close implements provider.MR.
func (m *fastMR) Close() error {
	err := m.plain("ibv_dereg_mr", none{})
	if err == nil {
		m.mu.Lock()
		defer m.mu.Unlock()
		for _, b := range m.blocks {
			m.c.release(m.mem, b)
		}
		m.blocks = nil
	}
	return err
}

// Rereg implements provider.MR: the agent's region returns the error.
func (m *fastMR) Rereg(change provider.ReregFlags, _ provider.PD, _ []byte,
	access provider.Access) (provider.MR, error) {
	return nil, m.plain("ibv_rereg_mr", reregArgs{Change: change, Access: access})
}

// Map implements provider.FastRegMR.
func (m *fastMR) Map(buf []byte) error {
	const op = "ib_map_mr_sg"
	at, b, err := m.span(op, buf)
	if err != nil {
		return err
	}
	if err := m.plain(op, at); err != nil {
		m.c.release(m.mem, b)
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.blocks = append(m.blocks, b) // an earlier one may still be registered
	return nil
}

// mw is a window of the agent.
type mw struct {
	far
	t provider.MWType
}

func (w *mw) Type() provider.MWType { return w.t }

// RKey implements provider.MW. The key changes with each bind that is posted.
func (w *mw) RKey() uint32 {
	key, _ := quiet[uint32](&w.far, verbKey, none{})
	return key
}

func (w *mw) Close() error { return w.plain("ibv_dealloc_mw", none{}) }

// compChannel is a completion channel of the agent.
type compChannel struct{ far }

// Next implements provider.CompChannel.
func (ch *compChannel) Next(ctx context.Context) (provider.CQ, error) {
	for {
		r, err := do[made](ctx, &ch.far, nil, "ibv_get_cq_event", none{})
		if err != nil {
			return nil, err
		}
		if q := object[*cq](ch.c, r.Handle); q != nil {
			return q, nil
		}
	}
}

func (ch *compChannel) Close() error { return ch.plain("ibv_destroy_comp_channel", none{}) }

// cq is a CQ of the agent.
type cq struct {
	far
	cookie any
}

// Poll implements provider.CQ. It polls again where the agent has polled for fewer, because a
// program that gets fewer completions than it has room for may take the CQ for empty.
func (q *cq) Poll(wc []provider.WC) (int, error) {
	for n := 0; ; {
		r, err := quiet[polled](&q.far, "ibv_poll_cq", numberArgs{len(wc) - n})
		n += copy(wc[n:], r.WCs)
		if err != nil || !r.More || len(r.WCs) == 0 {
			return n, err
		}
	}
}

// ReqNotify implements provider.CQ.
func (q *cq) ReqNotify(solicitedOnly bool) error {
	_, err := quiet[none](&q.far, "ibv_req_notify_cq", notifyArgs{solicitedOnly})
	return err
}

func (q *cq) Resize(cqe int) error { return q.plain("ibv_resize_cq", numberArgs{cqe}) }

// CQE implements provider.CQ.
func (q *cq) CQE() int {
	n, _ := quiet[int](&q.far, verbCQE, none{})
	return n
}

func (q *cq) Cookie() any  { return q.cookie }
func (q *cq) Close() error { return q.destroy("ibv_destroy_cq") }

// srq is an SRQ of the agent.
type srq struct {
	far
	cookie any
}

// PostRecv implements provider.SRQ.
func (s *srq) PostRecv(wrs []provider.RecvWR) (int, error) {
	return s.post("ibv_post_srq_recv", len(wrs), recvArgs{wrs})
}

// Modify implements provider.SRQ.
func (s *srq) Modify(attr provider.SRQAttr, mask provider.SRQAttrMask) error {
	return s.plain("ibv_modify_srq", srqArgs{attr, mask})
}

// Query implements provider.SRQ.
func (s *srq) Query() (provider.SRQAttr, error) {
	return quiet[provider.SRQAttr](&s.far, "ibv_query_srq", none{})
}

func (s *srq) Cookie() any  { return s.cookie }
func (s *srq) Close() error { return s.destroy("ibv_destroy_srq") }

// qp is a QP of the agent.
type qp struct {
	far
	number uint32
	cookie any
}

// createQP makes a QP with verb op on an object.
func (d *Device) createQP(on *far, op string, pd uint32,
	init provider.QPInitAttr) (provider.QP, error) {
	args := qpArgs{PD: pd, Cap: init.Cap, Type: init.Type, SQSigAll: init.SQSigAll}
	if init.Recvs != nil {
		return nil, lacks("a source of receives")
	}
	for _, c := range []struct {
		cq   provider.CQ
		h    *uint32
		name string
	}{{init.SendCQ, &args.SendCQ, "send CQ"}, {init.RecvCQ, &args.RecvCQ, "receive CQ"}} {
		if c.cq == nil {
			continue
		}
		q, ok := c.cq.(*cq)
		if !ok || q.c != d.c {
			return nil, foreign(op, c.name)
		}
		*c.h = q.h
	}
	if init.SRQ != nil {
		s, ok := init.SRQ.(*srq)
		if !ok || s.c != d.c {
			return nil, foreign(op, "SRQ")
		}
		args.SRQ = s.h
	}
	r, err := loud[made](on, op, args)
	if err != nil {
		return nil, err
	}
	q := &qp{d.of(r.Handle), r.Number, init.Cookie}
	d.c.register(q.h, q)
	return q, nil
}

func (q *qp) QPN() uint32 { return q.number }

// PostSend implements provider.QP.
func (q *qp) PostSend(wrs []provider.SendWR) (int, error) {
	return q.post("ibv_post_send", len(wrs), sendArgs{wrs})
}

// PostRecv implements provider.QP.
func (q *qp) PostRecv(wrs []provider.RecvWR) (int, error) {
	return q.post("ibv_post_recv", len(wrs), recvArgs{wrs})
}

// BindMW implements provider.QP.
func (q *qp) BindMW(window provider.MW, wrid uint64, flags provider.SendFlags,
	info provider.MWBindInfo) error {
	const op = "ibv_bind_mw"
	w, ok := window.(*mw)
	if !ok || w.c != q.c {
		return foreign(op, "window")
	}
	return q.plain(op, bindArgs{w.h, wrid, flags, info})
}

// Modify implements provider.QP.
func (q *qp) Modify(attr provider.QPAttr, mask provider.QPAttrMask) error {
	return q.plain("ibv_modify_qp", modifyArgs{attr, mask})
}

// Query implements provider.QP.
func (q *qp) Query() (provider.QPAttr, provider.QPInitAttr, error) {
	r, err := quiet[queried](&q.far, "ibv_query_qp", none{})
	if err != nil {
		return provider.QPAttr{}, provider.QPInitAttr{}, err
	}
	init := provider.QPInitAttr{Cap: r.Init.Cap, Type: r.Init.Type, SQSigAll: r.Init.SQSigAll,
		Cookie: q.cookie}
	if c := object[*cq](q.c, r.Init.SendCQ); c != nil {
		init.SendCQ = c
	}
	if c := object[*cq](q.c, r.Init.RecvCQ); c != nil {
		init.RecvCQ = c
	}
	if s := object[*srq](q.c, r.Init.SRQ); s != nil {
		init.SRQ = s
	}
	return r.Attr, init, nil
}

// Cause implements provider.QP. If the agent cannot be reached, that is the cause.
func (q *qp) Cause() error {
	r, err := quiet[cause](&q.far, verbCause, none{})
	if err != nil {
		return err
	}
	return r.Err.decode()
}

func (q *qp) Cookie() any  { return q.cookie }
func (q *qp) Close() error { return q.destroy("ibv_destroy_qp") }
