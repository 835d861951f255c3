package memory

import (
	"fmt"
	"os"

	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/refs"
)

// Domain is a protection domain. Only its own queue pairs can use its regions and windows (RFC 5041
// section 8.2). It belongs to the object that contains it, and must not be copied.
type Domain struct {
	Table *Table
	Refs  refs.Count // its regions, its windows, and everything else that depends on it
}

// self implements ownPD.
func (p *Domain) self() *Domain { return p }

// ownPD is a provider.PD of this provider, which contains a Domain.
type ownPD interface{ self() *Domain }

// admit counts one more child of p, of a kind whose number the device limits.
func (p *Domain) admit(op, object string, of *refs.Limit) error {
	if !p.Refs.Hold() {
		return fail(op, "pd", os.ErrClosed)
	}
	if err := of.Take(); err != nil {
		p.Refs.Drop()
		return fail(op, object, err)
	}
	return nil
}

// SGEFault says which of the SGEs Resolve refuses, and why. It returns "" if Resolve would accept
// all by now, for example because a region was registered since.
func (p *Domain) SGEFault(sges []provider.SGE, need provider.Access) string {
	for i := range sges {
		if sges[i].Length == 0 {
			continue
		}
		if why := p.faultOf(&sges[i], need); why != "" {
			return fmt.Sprintf("SGE %d: %s", i, why)
		}
	}
	return ""
}

func (p *Domain) faultOf(s *provider.SGE, need provider.Access) string {
	m := p.Table.Local(s.LKey)
	switch {
	case m != nil:
	case s.LKey == 0:
		return "it has no lkey; take SGEs from MR.SGE"
	case p.Table.wasRetired(s.LKey):
		return fmt.Sprintf("the region with lkey %#x is closed; close regions after their work has completed", s.LKey)
	default:
		return fmt.Sprintf("no region has lkey %#x; take SGEs from MR.SGE", s.LKey)
	}
	defer m.Release()
	size := m.Len()
	switch off := s.Addr - m.base; {
	case m.pd != p:
		return fmt.Sprintf("the region with lkey %#x belongs to another PD; register the memory with "+
			"the PD of the queue", s.LKey)
	case m.access&need != need:
		return fmt.Sprintf("the region with lkey %#x may not be written; register it with AccessLocalWrite", s.LKey)
	case s.Addr < m.base:
		return fmt.Sprintf("its address is before the region with lkey %#x; take SGEs from MR.SGE", s.LKey)
	case off > size:
		return fmt.Sprintf("its address is beyond the end of the region with lkey %#x; take SGEs from MR.SGE", s.LKey)
	case uint64(s.Length) > size-off:
		return fmt.Sprintf("%d bytes from offset %d reach beyond the end of the region with lkey %#x, "+
			"which has %d bytes",
			s.Length, off, s.LKey, size)
	}
	return ""
}

// fail returns the error of a failed call.
func fail(op, object string, err error) error {
	return &provider.Error{Op: op, Object: object, Err: err}
}
