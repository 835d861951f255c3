package ibverbs

import (
	"syscall"

	"github.com/govs-rdma/govs/provider"
)

// AllocFastRegMR makes a region without memory. Work requests register and invalidate it, any
// number of times, at the cost of a post. It holds up to maxLen bytes at a time. It is ib_alloc_mr
// of the kernel's verbs and Allocate Non-Shared Memory Region STag of the RDMA Consortium's verbs;
// libibverbs has no such call.
//
//	err = mr.Map(buf)
//	err = qp.PostSend(ibverbs.SendWR{Opcode: ibverbs.WRRegMR, RKey: ibverbs.IncRKey(mr.RKey()),
//		Access: ibverbs.AccessLocalWrite | ibverbs.AccessRemoteWrite})
//	sge, err := mr.SGE(0, len(buf)) // for work that is posted after it
//	err = qp.PostSend(ibverbs.SendWR{Opcode: ibverbs.WRLocalInv, Flags: ibverbs.SendFence, InvalidateRKey: mr.RKey()})
//
// The region's methods describe the registration that was posted last. A registration ends when a
// WRLocalInv is done, or when the peer has sent a Send with Invalidate, which needs
// AccessRemoteInvalidate. Then neither the program nor peers can use the region. Only then can it
// be registered again, with a key that differs in its lowest byte. Invalidating the sink of an
// outstanding Read ends the connection: SendFence makes the invalidation wait for the Read.
//
// Rereg does not work on such a region. The kernel provider does not have them
// (errors.ErrUnsupported).
func (pd *PD) AllocFastRegMR(maxLen uint64) (*MR, error) {
	return pd.register("ib_alloc_mr", nil, nil, func() (provider.MR, error) { return pd.p.AllocFastRegMR(maxLen) })
}

// Map sets the memory that the next posted WRRegMR registers (ib_map_mr_sg). EINVAL: the region is
// not of AllocFastRegMR, or buf is empty or longer than the region's maxLen. EFAULT: buf is not
// mapped. From then on Bytes returns buf. The current registration does not change.
func (mr *MR) Map(buf []byte) error {
	const op = "ib_map_mr_sg"
	p := mr.p()
	if p == nil {
		return errNil(op, "mr")
	}
	if err := mr.obj.Check(op); err != nil {
		return err
	}
	fast, is := p.(provider.FastRegMR)
	if !is {
		return mr.obj.Errorf(op, syscall.EINVAL, "the region is always registered; make one with AllocFastRegMR")
	}
	mr.words.Lock()
	defer mr.words.Unlock()
	if err := fast.Map(buf); err != nil {
		return err
	}
	if mr.mem.Load() != nil { // not closed
		mr.mem.Store(&buf)
	}
	return nil
}
