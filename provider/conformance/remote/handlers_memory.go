package remote

import (
	"context"

	"github.com/govs-rdma/govs/provider"
)

// regionOf describes a region.
func regionOf(h uint32, m provider.MR) region {
	return region{h, m.Addr(), m.Len(), m.LKey(), m.RKey(), m.Access()}
}

// newRegion registers a region in the session; create makes it.
func (s *served) newRegion(device uint32, create func() (provider.MR, error)) (region, error) {
	var m provider.MR
	h, err := s.add(device, rankMR, objectBytes, func(uint32) (any, error) {
		var err error
		m, err = create()
		return m, err
	})
	if err != nil {
		return region{}, err
	}
	return regionOf(h, m), nil
}

func register(op string) handler {
	return on(func(_ context.Context, s *served, t target[provider.PD], a regArgs) (region, error) {
		buf, err := s.buffer(op, t.h, a.Span)
		if err != nil {
			return region{}, err
		}
		return s.newRegion(t.device, func() (provider.MR, error) {
			if a.Iova != nil {
				return t.o.RegMRIova(buf, *a.Iova, a.Access)
			}
			return t.o.RegMR(buf, a.Access)
		})
	})
}

var memoryVerbs = map[string]handler{
	"ibv_reg_mr":      register("ibv_reg_mr"),
	"ibv_reg_mr_iova": register("ibv_reg_mr_iova"),
	"ibv_dereg_mr":    ending(provider.MR.Close).moving(),
	"ibv_rereg_mr": on(func(_ context.Context, s *served, t target[provider.MR],
		a reregArgs) (region, error) {
		const op = "ibv_rereg_mr"
		to, err := also[provider.PD](s, op, a.PD)
		if err != nil {
			return region{}, err
		}
		buf, err := s.buffer(op, t.h, a.Span)
		if err != nil {
			return region{}, err
		}
		r, err := s.newRegion(t.device, func() (provider.MR, error) {
			return t.o.Rereg(a.Change, to, buf, a.Access)
		})
		if err == nil {
			s.remove(t.h)
		}
		return r, err
	}).moving(),
	"ib_alloc_mr": on(func(_ context.Context, s *served, t target[provider.PD],
		a fastArgs) (region, error) {
		return s.newRegion(t.device, func() (provider.MR, error) {
			return t.o.AllocFastRegMR(a.MaxLen)
		})
	}),
	"ib_map_mr_sg": on(func(_ context.Context, s *served, t target[provider.FastRegMR],
		a span) (none, error) {
		buf, err := s.buffer("ib_map_mr_sg", t.h, a)
		if err != nil {
			return none{}, err
		}
		return none{}, t.o.Map(buf)
	}),
	verbRegion: asked(func(m provider.MR) (region, error) { return regionOf(0, m), nil }),
	"ibv_alloc_mw": on(func(_ context.Context, s *served, t target[provider.PD],
		a mwArgs) (made, error) {
		return s.made(t.device, rankMW, func(uint32) (any, error) { return t.o.AllocMW(a.Type) })
	}),
	verbKey:          asked(func(w provider.MW) (uint32, error) { return w.RKey(), nil }),
	"ibv_dealloc_mw": ending(provider.MW.Close),
	"ibv_bind_mw": on(func(_ context.Context, s *served, t target[provider.QP],
		a bindArgs) (none, error) {
		w, err := also[provider.MW](s, "ibv_bind_mw", a.MW)
		if err != nil {
			return none{}, err
		}
		return none{}, t.o.BindMW(w, a.WRID, a.Flags, a.Info)
	}),
}
