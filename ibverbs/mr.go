package ibverbs

import (
	"math"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/govs-rdma/govs/ibverbs/internal/object"
	"github.com/govs-rdma/govs/provider"
)

// MR is a memory region: memory that work requests may name, and peers if its rights permit it
// (struct ibv_mr).
type MR struct {
	obj   object.Object
	pd    atomic.Pointer[PD]
	now   atomic.Pointer[provider.MR] // nil in a zero MR
	mem   atomic.Pointer[[]byte]      // nil once closed
	pages []byte                      // mapped memory that Close unmaps
	words sync.RWMutex                // read-locked while atomic.go uses a word of mem
}

// p returns the provider's current region, nil for a zero MR.
func (mr *MR) p() provider.MR {
	if mr == nil {
		return nil
	}
	if p := mr.now.Load(); p != nil {
		return *p
	}
	return nil
}

// RegMR registers buf (ibv_reg_mr). The MR keeps buf alive and in place until Close. Until then the
// caller may read and write buf, but a byte that a work request or the peer is using has no defined
// value.
//
// buf may be Go memory or memory from mmap. An empty buf is EINVAL, and so is RemoteWrite or
// RemoteAtomic without LocalWrite. The sink of an RDMA Read needs LocalWrite. A program for all
// iWARP devices also needs RemoteWrite there, because the response arrives as a write (RFC 5040
// section 5.2); AccessReadSink has both.
//
// Memory that is not mapped is EFAULT, and so is read-only memory with LocalWrite. The engine
// checks this only when it registers: it cannot detect memory that is unmapped or protected later,
// which ends the program.
//
// With AccessZeroBased the region's addresses count from 0; siw has no such regions
// (errors.ErrUnsupported).
func (pd *PD) RegMR(buf []byte, access Access) (*MR, error) {
	return pd.register("ibv_reg_mr", buf, nil, func() (provider.MR, error) { return pd.p.RegMR(buf, access) })
}

// RegMRIova registers buf as RegMR does, but its first byte has the address iova in SGEs and for
// the peer (ibv_reg_mr_iova). The region must not reach beyond 2^64. Kernel devices return EINVAL
// unless iova and the address of buf are at the same offset in a page; siw cannot do it at all
// (errors.ErrUnsupported).
func (pd *PD) RegMRIova(buf []byte, iova uint64, access Access) (*MR, error) {
	return pd.register("ibv_reg_mr_iova", buf, nil, func() (provider.MR, error) { return pd.p.RegMRIova(buf, iova, access) })
}

// register makes an MR of the region that reg registers. buf is the region's memory, and pages is
// what Close unmaps.
func (pd *PD) register(op string, buf, pages []byte, reg func() (provider.MR, error)) (*MR, error) {
	if err := pd.ok(op); err != nil {
		return nil, err
	}
	mr := &MR{pages: pages}
	mr.pd.Store(pd)
	mr.obj.Describe(object.KindMR, pd.ctx.Name())
	if err := mr.obj.Open(op, &pd.obj); err != nil {
		return nil, err
	}
	p, err := reg()
	if err != nil {
		mr.obj.Abandon()
		return nil, err
	}
	mr.now.Store(&p)
	mr.obj.Number(p.LKey())
	mr.mem.Store(&buf)
	mr.obj.List(mr)
	return mr, nil
}

// Rereg changes what flags name (ibv_rereg_mr): ReregTranslation makes buf the region's memory,
// ReregPD moves the region to pd, ReregAccess gives it the rights access. Other arguments are
// ignored. Keys and address may change, so make SGEs anew, and give the peer the new key and
// address. Posted work that names the old key completes with an error. After Rereg returns nil, the
// device does not access memory that has left the region. After an error the region is unchanged.
//
// Errors: EINVAL without a flag, and the errors of RegMR. siw has no re-registration
// (errors.ErrUnsupported); close the region and register a new one instead.
//
// The memory of an AllocMR region stays mapped until Close, even if Rereg has replaced it.
func (mr *MR) Rereg(flags ReregFlags, pd *PD, buf []byte, access Access) error {
	const op = "ibv_rereg_mr"
	old := mr.p()
	if old == nil {
		return errNil(op, "mr")
	}
	from := mr.pd.Load()
	if flags&ReregPD == 0 {
		pd = from
	} else if err := pd.ok(op); err != nil {
		return err
	} else if pd.ctx != from.ctx {
		return mr.obj.Errorf(op, syscall.EINVAL,
			"the PD belongs to another context; use one of the region's context")
	}
	return mr.obj.Move(op, &from.obj, &pd.obj, func() error {
		if mr.pd.Load() != from {
			return mr.obj.Errorf(op, syscall.EBUSY, "another Rereg has just moved it; call Rereg again")
		}
		p, err := (*mr.now.Load()).Rereg(flags, pd.p, buf, access)
		if err != nil {
			return err
		}
		mr.pd.Store(pd)
		mr.now.Store(&p)
		mr.obj.Number(p.LKey())
		if flags&ReregTranslation != 0 {
			mr.mem.Store(&buf)
		}
		return nil
	})
}

// Bytes returns the region's memory, nil after Close. Do not touch the slice of an AllocMR or
// MapFile region after Close: the memory is unmapped, and the access is a fault from which Go
// cannot recover.
func (mr *MR) Bytes() []byte {
	if mr == nil {
		return nil
	}
	if mem := mr.mem.Load(); mem != nil {
		return *mem
	}
	return nil
}

// Addr returns the address of the first byte for SGE.Addr and SendWR.RemoteAddr. It is not
// necessarily an address in this process.
func (mr *MR) Addr() uint64 {
	if p := mr.p(); p != nil {
		return p.Addr()
	}
	return 0
}

// Len returns the region's length in bytes.
func (mr *MR) Len() uint64 {
	if p := mr.p(); p != nil {
		return p.Len()
	}
	return 0
}

// LKey returns the key for SGE.LKey.
func (mr *MR) LKey() uint32 {
	if p := mr.p(); p != nil {
		return p.LKey()
	}
	return 0
}

// RKey returns the key that the peer puts into SendWR.RKey: the STag.
func (mr *MR) RKey() uint32 {
	if p := mr.p(); p != nil {
		return p.RKey()
	}
	return 0
}

// Access returns the region's rights.
func (mr *MR) Access() Access {
	if p := mr.p(); p != nil {
		return p.Access()
	}
	return 0
}

// PD returns the PD that the region is registered with.
func (mr *MR) PD() *PD {
	if mr == nil {
		return nil
	}
	return mr.pd.Load()
}

// SGE returns an SGE of n bytes of the region from offset off. Bytes outside the region, n above
// 2^32-1 and a closed region are errors here. An SGE that a program fills in itself is checked only
// when it is used, and its error ends the connection. SGE does not allocate.
func (mr *MR) SGE(off, n int) (SGE, error) {
	const op = "MR.SGE"
	p, err := mr.inside(op, off, n)
	if err != nil {
		return SGE{}, err
	}
	if uint64(n) > math.MaxUint32 {
		return SGE{}, mr.obj.Errorf(op, syscall.EINVAL, "one SGE has at most 2^32-1 "+
			"bytes, and %d are asked for; use several", n)
	}
	return SGE{Addr: p.Addr() + uint64(off), Length: uint32(n), LKey: p.LKey()}, nil
}

// Remote names n bytes of the region from offset off for the peer. The region needs the right for
// what the peer does with it, because an access without the right ends the connection. A region
// with none of AccessRemoteRead, AccessRemoteWrite and AccessRemoteAtomic is EINVAL. If Rereg adds
// a right, call Remote after it, because the key changes. For a window, name the memory with
// MR.BindInfo and MW.RKey.
func (mr *MR) Remote(off, n int) (RemoteRegion, error) {
	const op = "MR.Remote"
	p, err := mr.inside(op, off, n)
	if err != nil {
		return RemoteRegion{}, err
	}
	if p.Access()&(AccessRemoteRead|AccessRemoteWrite|AccessRemoteAtomic) == 0 {
		return RemoteRegion{}, mr.obj.Errorf(op, syscall.EINVAL,
			"its rights let no peer access it; register it with AccessRemoteRead, AccessRemoteWrite or "+
				"AccessRemoteAtomic")
	}
	return RemoteRegion{Addr: p.Addr() + uint64(off), Len: uint64(n), RKey: p.RKey()}, nil
}

// inside returns the provider's region if the n bytes from off are in it. op names the call in
// errors.
func (mr *MR) inside(op string, off, n int) (provider.MR, error) {
	p := mr.p()
	if p == nil {
		return nil, errNil(op, "mr")
	}
	if err := mr.obj.Check(op); err != nil {
		return nil, err
	}
	if size := p.Len(); off < 0 || n < 0 || uint64(off) > size || uint64(n) > size-uint64(off) {
		return nil, mr.obj.Errorf(op, syscall.EINVAL,
			"%d bytes from offset %d are not within the region, which has %d", n, off, size)
	}
	return p, nil
}

// Close deregisters the region (ibv_dereg_mr) and unmaps it if AllocMR or MapFile mapped it. After
// Close returns nil, the device does not access the memory, and the slice given to RegMR is the
// caller's again. Posted work that names the region completes with an error, and a peer that names
// it receives a Terminate. While a window is bound to the region, Close returns EBUSY.
func (mr *MR) Close() error {
	if mr.p() == nil {
		return nil
	}
	return mr.obj.Close(func() error {
		if err := mr.p().Close(); err != nil {
			return err
		}
		mr.words.Lock()
		mr.mem.Store(nil)
		mr.words.Unlock()
		if mr.pages == nil {
			return nil
		}
		if err := unmap(mr.pages); err != nil {
			return &Error{Op: "munmap", Object: mr.obj.Name(), Err: err}
		}
		return nil
	})
}

// AllocFastRegMR makes a region without memory. Work requests register and invalidate it, any
// number of times, at the cost of a post. It holds up to maxLen bytes at a time. It is ib_alloc_mr
// of the kernel's verbs, and "Allocate Non-Shared Memory Region STag" of the RDMA Consortium's;
// libibverbs has no such call.
//
//	err = mr.Map(buf)
//	err = qp.PostSend(ibverbs.SendWR{Opcode: ibverbs.WRRegMR, RKey: ibverbs.IncRKey(mr.RKey()),
//		Access: ibverbs.AccessLocalWrite | ibverbs.AccessRemoteWrite})
//	sge, err := mr.SGE(0, len(buf)) // for work that is posted after it
//	err = qp.PostSend(ibverbs.SendWR{Opcode: ibverbs.WRLocalInv, Flags: ibverbs.SendFence, InvalidateRKey: mr.RKey()})
//
// The region's methods, except Bytes, describe the registration that was posted last. A
// registration ends when a WRLocalInv is done, or when the peer has sent a Send with Invalidate,
// which needs AccessRemoteInvalidate. Then neither the program nor peers can use the region. Only
// then can it be registered again, with a key that differs in its lowest byte. Invalidating the
// sink of an outstanding Read ends the connection: SendFence makes the invalidation wait for the
// Read.
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
