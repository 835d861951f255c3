package ibverbs

import (
	"github.com/govs-rdma/govs/ibverbs/internal/object"
	"github.com/govs-rdma/govs/provider"
)

// PD is a protection domain (struct ibv_pd). A QP can access only MRs of its own PD, whatever key
// it is given.
type PD struct {
	obj object.Object
	ctx *Context
	p   provider.PD
}

// AllocPD makes a protection domain (ibv_alloc_pd).
func (c *Context) AllocPD() (*PD, error) {
	const op = "ibv_alloc_pd"
	if err := c.ok(op); err != nil {
		return nil, err
	}
	pd := &PD{ctx: c}
	pd.obj.Describe(object.KindPD, c.Name())
	if err := pd.obj.Open(op, &c.obj); err != nil {
		return nil, err
	}
	var err error
	if pd.p, err = c.dev.AllocPD(); err != nil {
		pd.obj.Abandon()
		return nil, err
	}
	pd.obj.List(pd)
	return pd, nil
}

func (pd *PD) ok(op string) error {
	if pd == nil || pd.p == nil {
		return errNil(op, "pd")
	}
	return pd.obj.Check(op)
}

// Context returns the context that the PD was made from.
func (pd *PD) Context() *Context {
	if pd == nil {
		return nil
	}
	return pd.ctx
}

// Close frees the PD (ibv_dealloc_pd). While an MR, MW, QP or SRQ of it is open, Close returns
// EBUSY and says so.
func (pd *PD) Close() error {
	if pd == nil || pd.p == nil {
		return nil
	}
	return pd.obj.Close(pd.p.Close)
}
