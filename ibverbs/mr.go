package ibverbs

import (
	"math"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/govs-rdma/govs/ibverbs/internal/object"
	"github.com/govs-rdma/govs/provider"
)

// MR is a memory region: memory that work requests and, with the rights for it,
// the peer may name (struct ibv_mr).
type MR struct {
	obj   object.Object
	pd    atomic.Pointer[PD]
	now   atomic.Pointer[provider.MR] // nil in a zero MR
	mem   atomic.Pointer[[]byte]      // nil once closed
	pages []byte                      // what Close has to unmap
	words sync.RWMutex                // held while a word of mem is used (atomic.go)
}

// p returns the provider's region as it is at present, nil of a zero MR.
func (mr *MR) p() provider.MR {
	if mr == nil {
		return nil
	}
	if p := mr.now.Load(); p != nil {
		return *p
	}
	return nil
}

// RegMR registers buf (ibv_reg_mr). The MR keeps buf alive and in place until
// it is closed; in the meantime the caller may read and write it, but a byte
// that a work request or the peer is using has no defined value.
//
// buf may be Go memory or memory from mmap. An empty buf, and RemoteWrite or
// RemoteAtomic without LocalWrite, are EINVAL. The sink of an RDMA Read needs
// LocalWrite and, for programs that are to run on every iWARP device,
// RemoteWrite: the response comes in as a write (RFC 5040 section 5.2).
//
// Memory that is not mapped, or may not be written although LocalWrite is asked
// for, is EFAULT. The engine finds that out when it registers, and not what is
// unmapped or protected later: that would end the program.
//
// With AccessZeroBased the region's addresses count from 0; siw has no such
// regions (errors.ErrUnsupported).
func (pd *PD) RegMR(buf []byte, access Access) (*MR, error) {
	return pd.register("ibv_reg_mr", buf, nil, func() (provider.MR, error) { return pd.p.RegMR(buf, access) })
}

// RegMRIova is RegMR of a region whose first byte has the address iova in SGEs and
// for the peer (ibv_reg_mr_iova). The region must not reach beyond 2^64. Kernel
// devices want iova and the address of buf to be alike within a page, otherwise it
// is EINVAL; siw can't do it at all (errors.ErrUnsupported).
func (pd *PD) RegMRIova(buf []byte, iova uint64, access Access) (*MR, error) {
	return pd.register("ibv_reg_mr_iova", buf, nil, func() (provider.MR, error) { return pd.p.RegMRIova(buf, iova, access) })
}

// register enters a region that reg makes of buf.
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

// Rereg changes what flags name (ibv_rereg_mr): ReregTranslation has the region be
// over buf from now on, ReregPD moves it to pd, ReregAccess gives it the rights
// access; the other arguments are ignored. Keys and address may change: SGEs and
// what the peer was given have to be made anew. Posted work that names the old key
// completes with an error. When Rereg returns nil the device does not touch memory
// that the region is not over any more. After an error the region is as it was.
//
// Errors: EINVAL without a flag, and those of RegMR. siw has no re-registration
// (errors.ErrUnsupported); closing the region and registering anew does the same.
//
// The memory of an AllocMR region stays mapped until Close, whatever the region is
// over.
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
		return mr.obj.Errorf(op, syscall.EINVAL, "a PD of another context")
	}
	return mr.obj.Move(op, &from.obj, &pd.obj, func() error {
		if mr.pd.Load() != from {
			return mr.obj.Errorf(op, syscall.EBUSY, "another Rereg has just moved it")
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

// Bytes returns the region's memory, nil after Close. The slice of an AllocMR
// region must not be touched after Close: the memory is gone, and the access
// would be a fault that Go can't recover from.
func (mr *MR) Bytes() []byte {
	if mr == nil {
		return nil
	}
	if mem := mr.mem.Load(); mem != nil {
		return *mem
	}
	return nil
}

// Addr returns the address of the first byte as SGE.Addr and
// SendWR.RemoteAddr count it. It is not necessarily an address in this process.
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

// Access returns the rights that the region has.
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

// SGE names n bytes of the region from offset off. Octets outside the region,
// n above 2^32-1 and a closed region are an error here; an SGE put together by
// hand is checked only when it is used, which costs the connection. It does
// not allocate.
func (mr *MR) SGE(off, n int) (SGE, error) {
	p, err := mr.inside("SGE", off, n)
	if err != nil {
		return SGE{}, err
	}
	if uint64(n) > math.MaxUint32 {
		return SGE{}, mr.obj.Errorf("SGE", syscall.EINVAL, "%d bytes in one SGE", n)
	}
	return SGE{Addr: p.Addr() + uint64(off), Length: uint32(n), LKey: p.LKey()}, nil
}

// Remote names n bytes of the region from offset off for the peer. The region's rights decide what
// the peer can do with it: an access for which it lacks the right ends the connection. A region
// with none of AccessRemoteRead, AccessRemoteWrite and AccessRemoteAtomic is EINVAL. After a Rereg
// that gives it one, call Remote then, because its key changes. For a window, name the memory with
// MR.BindInfo and MW.RKey.
func (mr *MR) Remote(off, n int) (RemoteRegion, error) {
	const op = "remote region"
	p, err := mr.inside(op, off, n)
	if err != nil {
		return RemoteRegion{}, err
	}
	if p.Access()&(AccessRemoteRead|AccessRemoteWrite|AccessRemoteAtomic) == 0 {
		return RemoteRegion{}, mr.obj.Errorf(op, syscall.EINVAL,
			"the peer could not access it, as it has no right for that; register it with AccessRemoteRead, "+
				"AccessRemoteWrite or AccessRemoteAtomic")
	}
	return RemoteRegion{Addr: p.Addr() + uint64(off), Len: uint64(n), RKey: p.RKey()}, nil
}

// inside returns the provider's region if the n bytes from off are in it. op is for errors.
func (mr *MR) inside(op string, off, n int) (provider.MR, error) {
	p := mr.p()
	if p == nil {
		return nil, errNil(op, "mr")
	}
	if err := mr.obj.Check(op); err != nil {
		return nil, err
	}
	if size := p.Len(); off < 0 || n < 0 || uint64(off) > size || uint64(n) > size-uint64(off) {
		return nil, mr.obj.Errorf(op, syscall.EINVAL, "%d bytes from offset %d of a region of %d", n, off, size)
	}
	return p, nil
}

// Close deregisters the region (ibv_dereg_mr) and unmaps it if AllocMR mapped
// it. When it returns nil the device does not touch the memory any more; work
// that still names it completes with an error, and a peer that names it gets a
// Terminate. The slice given to RegMR is the caller's again. While a window is bound to
// it, it is EBUSY.
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
