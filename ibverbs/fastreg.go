package ibverbs

import (
	"syscall"

	"github.com/govs-rdma/govs/provider"
)

// AllocFastRegMR makes a region without memory, which work requests register and
// invalidate, any number of times and at no more cost than a post (ib_alloc_mr of the
// kernel's verbs, Allocate Non-Shared Memory Region STag of the RDMA Consortium's;
// libibverbs has none). It can hold up to maxLen bytes at a time.
//
//	err = mr.Map(buf)
//	err = qp.PostSend(ibverbs.SendWR{Opcode: ibverbs.WRRegMR, RKey: ibverbs.IncRKey(mr.RKey()),
//		Access: ibverbs.AccessLocalWrite | ibverbs.AccessRemoteWrite})
//	sge, err := mr.SGE(0, len(buf)) // for work that is posted after it
//	err = qp.PostSend(ibverbs.SendWR{Opcode: ibverbs.WRLocalInv, Flags: ibverbs.SendFence, InvalidateRKey: mr.RKey()})
//
// Its methods describe the registration that was posted last. It is over when a
// WRLocalInv is done, or when the peer has sent a Send with Invalidate, for which it
// needs AccessRemoteInvalidate: nobody can use the region then, neither the program nor
// peers. Only then can it be registered again, and must be with a key that differs in its
// lowest byte. A Read that is under way when its sink is invalidated ends the
// connection: SendFence has the invalidation wait for it.
//
// Rereg is for other regions. The kernel provider has none of this
// (errors.ErrUnsupported).
func (pd *PD) AllocFastRegMR(maxLen uint64) (*MR, error) {
	return pd.register("ib_alloc_mr", nil, nil, func() (provider.MR, error) { return pd.p.AllocFastRegMR(maxLen) })
}

// Map says what the next WRRegMR that is posted registers (ib_map_mr_sg), for a region
// of AllocFastRegMR; others are EINVAL. An empty buf, and one beyond what the region was
// made for, are EINVAL, memory that is not there is EFAULT. Bytes returns buf from then
// on. The region that is registered at the moment stays what it is.
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
		return mr.obj.Errorf(op, syscall.EINVAL, "the region is registered all its life: AllocFastRegMR makes those that are not")
	}
	mr.words.Lock()
	defer mr.words.Unlock()
	if err := fast.Map(buf); err != nil {
		return err
	}
	if mr.mem.Load() != nil { // it has not been closed
		mr.mem.Store(&buf)
	}
	return nil
}
