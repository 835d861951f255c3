package remote

import (
	"context"
	"fmt"
	"slices"

	"github.com/govs-rdma/govs/provider"
)

// maxPolled is the maximum number of completions in one answer.
const maxPolled = 4096

var queueVerbs = map[string]handler{
	"ibv_create_cq": on(func(_ context.Context, s *served, t target[provider.Device],
		a cqArgs) (made, error) {
		ch, err := also[provider.CompChannel](s, "ibv_create_cq", a.Channel)
		if err != nil {
			return made{}, err
		}
		h, err := s.costly(t.device, rankCQ, cqCost(a.CQE), func(h uint32) (any, error) {
			return t.o.CreateCQ(provider.CQInitAttr{CQE: a.CQE, Channel: ch, CompVector: a.Vector,
				Cookie: h})
		})
		return made{Handle: h}, err
	}),
	"ibv_destroy_cq": ending(provider.CQ.Close),
	"ibv_poll_cq":    on(poll).moving(),
	"ibv_req_notify_cq": given(func(q provider.CQ, a notifyArgs) error {
		return q.ReqNotify(a.Solicited)
	}),
	"ibv_resize_cq": on(func(_ context.Context, s *served, t target[provider.CQ],
		a numberArgs) (none, error) {
		return none{}, s.resize(t.device, t.h, cqCost(a.N), func() error { return t.o.Resize(a.N) })
	}),
	verbCQE: asked(func(q provider.CQ) (int, error) { return q.CQE(), nil }),
	"ibv_get_cq_event": on(func(ctx context.Context, _ *served, t target[provider.CompChannel],
		_ none) (made, error) {
		q, err := t.o.Next(ctx)
		if err != nil {
			return made{}, err
		}
		return made{Handle: numberOf(q)}, nil
	}).moving(),

	"ibv_create_srq": on(func(_ context.Context, s *served, t target[provider.PD],
		a srqArgs) (made, error) {
		h, err := s.costly(t.device, rankSRQ, srqCost(a.Attr), func(h uint32) (any, error) {
			return t.o.CreateSRQ(provider.SRQInitAttr{Attr: a.Attr, Cookie: h})
		})
		return made{Handle: h}, err
	}),
	"ibv_destroy_srq": ending(provider.SRQ.Close),
	"ibv_modify_srq": on(func(_ context.Context, s *served, t target[provider.SRQ],
		a srqArgs) (none, error) {
		change := func() error { return t.o.Modify(a.Attr, a.Mask) }
		if a.Mask&provider.SRQAttrMaxWR == 0 {
			return none{}, change()
		}
		now, err := t.o.Query() // for the number of SGEs of a receive
		if err != nil {
			return none{}, err
		}
		now.MaxWR = a.Attr.MaxWR
		return none{}, s.resize(t.device, t.h, srqCost(now), change)
	}),
	"ibv_query_srq": asked(provider.SRQ.Query),
	"ibv_post_srq_recv": on(func(_ context.Context, _ *served, t target[provider.SRQ],
		a recvArgs) (posted, error) {
		n, err := t.o.PostRecv(a.WRs)
		return posted{n}, err
	}),

	"ibv_create_qp": on(func(_ context.Context, s *served, t target[provider.PD],
		a qpArgs) (made, error) {
		return s.newQP("ibv_create_qp", t.device, a, t.o.CreateQP)
	}),
	"ibv_destroy_qp": ending(provider.QP.Close).moving(),
	"ibv_post_send": on(func(_ context.Context, _ *served, t target[provider.QP],
		a sendArgs) (posted, error) {
		n, err := t.o.PostSend(a.WRs)
		return posted{n}, err
	}),
	"ibv_post_recv": on(func(_ context.Context, _ *served, t target[provider.QP],
		a recvArgs) (posted, error) {
		n, err := t.o.PostRecv(a.WRs)
		return posted{n}, err
	}),
	"ibv_modify_qp": given(func(q provider.QP, a modifyArgs) error {
		return q.Modify(a.Attr, a.Mask)
	}).moving(),
	"ibv_query_qp": asked(func(q provider.QP) (out queried, err error) {
		attr, init, err := q.Query()
		if err != nil {
			return out, err
		}
		out = queried{attr, qpArgs{Cap: init.Cap, Type: init.Type, SQSigAll: init.SQSigAll}}
		if init.SendCQ != nil {
			out.Init.SendCQ = numberOf(init.SendCQ)
		}
		if init.RecvCQ != nil {
			out.Init.RecvCQ = numberOf(init.RecvCQ)
		}
		if init.SRQ != nil {
			out.Init.SRQ = numberOf(init.SRQ)
		}
		return out, nil
	}),
	verbCause: asked(func(q provider.QP) (cause, error) { return cause{encodeError(q.Cause())}, nil }),
}

// poll polls a CQ. It charges first, because completions that are polled cannot be put back. Near
// the client's limit it polls for fewer, but always for one, because a program may have to poll
// before it can free anything. So the first one is not charged. maxUnderWay bounds how many such
// completions wait to be sent.
func poll(_ context.Context, s *served, t target[provider.CQ], a numberArgs) (polled, error) {
	if a.N < 0 {
		return polled{}, fmt.Errorf("%w: %d completions", errFrame, a.N)
	}
	first := min(a.N, 1)
	more := s.chargeSome(min(a.N, maxPolled)-first, wcBytes)
	var some polled
	defer func() { s.refund(uint64(more)*wcBytes - some.bytes()) }()
	wcs := make([]provider.WC, first+more)
	n, err := t.o.Poll(wcs)
	some.WCs = slices.Clone(wcs[:n]) // a copy: the answer may wait to be sent
	some.More = n == len(wcs) && n < a.N
	return some, err
}

// newQP registers a QP in the session; create makes it.
func (s *served) newQP(op string, device uint32, a qpArgs,
	create func(provider.QPInitAttr) (provider.QP, error)) (made, error) {
	init := provider.QPInitAttr{Cap: a.Cap, Type: a.Type, SQSigAll: a.SQSigAll}
	var err error
	if init.SendCQ, err = also[provider.CQ](s, op, a.SendCQ); err != nil {
		return made{}, err
	}
	if init.RecvCQ, err = also[provider.CQ](s, op, a.RecvCQ); err != nil {
		return made{}, err
	}
	if init.SRQ, err = also[provider.SRQ](s, op, a.SRQ); err != nil {
		return made{}, err
	}
	var q provider.QP
	h, err := s.costly(device, rankQP, qpCost(a.Cap), func(h uint32) (any, error) {
		init.Cookie = h
		var err error
		q, err = create(init)
		return q, err
	})
	if err != nil {
		return made{}, err
	}
	return made{h, q.QPN()}, nil
}
