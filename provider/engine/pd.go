package engine

import (
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/memory"
)

// pd is a protection domain. Its children are MRs, MWs, QPs and SRQs.
type pd struct {
	memory.Domain
	dev *device
}

// AllocPD implements provider.Device.
func (d *device) AllocPD() (provider.PD, error) {
	const op = "ibv_alloc_pd"
	if !d.refs.Hold() {
		return nil, failClosed(op, DeviceName)
	}
	if err := d.pds.Take(); err != nil {
		d.refs.Drop()
		return nil, fail(op, DeviceName, err)
	}
	return &pd{dev: d, Domain: memory.Domain{Table: d.memory}}, nil
}

func (p *pd) name() string { return "pd" }

// CreateQP implements provider.PD.
func (p *pd) CreateQP(init provider.QPInitAttr) (provider.QP, error) {
	if p.Refs.Closed() {
		return nil, failClosed("ibv_create_qp", p.name())
	}
	q, err := newQP(p, init)
	if err != nil {
		return nil, err // not q: a nil *qp is not a nil interface
	}
	return q, nil
}

// Close implements provider.PD.
func (p *pd) Close() error {
	first, busy := p.Refs.End()
	if busy {
		return failBusy("ibv_dealloc_pd", p.name(), "MRs, MWs, QPs or SRQs")
	}
	if first {
		p.dev.pds.Give()
		p.dev.refs.Drop()
	}
	return nil
}
