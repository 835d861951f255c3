package mutants

import (
	"slices"

	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// srqMutants are wrong about shared receive queues.
func srqMutants() []*Mutant {
	return []*Mutant{
		{
			Name: "srq-newest-first", What: "posts a list of receives to a shared queue from its end",
			CaughtBy: []string{"srq/shared"},
			verbs: func(*world) *verbsFault {
				return &verbsFault{srqPost: func(wrs []provider.RecvWR) []provider.RecvWR {
					wrs = slices.Clone(wrs)
					slices.Reverse(wrs)
					return wrs
				}}
			},
		},
		{
			Name: "srq-limit-deaf", What: "takes the limit of a shared queue and forgets it",
			CaughtBy: []string{"srq/limit"},
			verbs: func(*world) *verbsFault {
				return &verbsFault{srqModify: func(a *provider.SRQAttr) {
					if a.Limit < 1<<16 { // more is refused
						a.Limit = 0
					}
				}}
			},
		},
		{
			Name: "srq-solicited-ignored", What: "takes solicited Sends for plain ones if it has a " +
				"shared queue",
			CaughtBy: []string{"srq/solicited"},
			wire: func(c *conn) wireFault {
				return wireFault{in: edit(op(rdmap.OpSendSE), func(f *frame) {
					if c.world().shares.Load() {
						f.setControl(func(c *rdmap.Control) { c.Opcode = rdmap.OpSend })
					}
				})}
			},
		},
		{
			Name: "srq-receives-twice", What: "posts each receive to a shared queue twice",
			CaughtBy: []string{"srq/empty"},
			verbs: func(*world) *verbsFault {
				return &verbsFault{srqPost: func(wrs []provider.RecvWR) []provider.RecvWR {
					return slices.Repeat(wrs, 2)
				}}
			},
		},
	}
}

type brokenSRQ struct {
	provider.SRQ
	dev *brokenDevice
}

// CreateSRQ implements provider.PD.
func (p *brokenPD) CreateSRQ(init provider.SRQInitAttr) (provider.SRQ, error) {
	srq, err := p.PD.CreateSRQ(init)
	if err != nil {
		return nil, err
	}
	p.dev.world.shares.Store(true)
	return &brokenSRQ{srq, p.dev}, nil
}

// PostRecv implements provider.SRQ.
func (s *brokenSRQ) PostRecv(wrs []provider.RecvWR) (int, error) {
	all := len(wrs)
	if f := s.dev.fault.srqPost; f != nil {
		wrs = f(wrs)
	}
	n, err := s.SRQ.PostRecv(wrs)
	return min(n, all), err
}

// Modify implements provider.SRQ.
func (s *brokenSRQ) Modify(attr provider.SRQAttr, mask provider.SRQAttrMask) error {
	if f := s.dev.fault.srqModify; f != nil {
		f(&attr)
	}
	return s.SRQ.Modify(attr, mask)
}
