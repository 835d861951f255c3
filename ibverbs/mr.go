package ibverbs

import (
	"fmt"
	"math"
	"os"
	"sync/atomic"
	"syscall"

	"github.com/govs-rdma/govs/ibverbs/internal/object"
	"github.com/govs-rdma/govs/provider"
)

// MR is a memory region: memory that work requests and, with the rights for it,
// the peer may name (struct ibv_mr).
type MR struct {
	obj   object.Object
	pd    *PD
	p     provider.MR
	mem   atomic.Pointer[[]byte] // nil once closed
	pages []byte                 // what Close has to unmap
}

// RegMR registers buf (ibv_reg_mr). The MR keeps buf alive and in place until
// it is closed; in the meantime the caller may read and write it, but an octet
// that a work request or the peer is using has no defined value.
//
// buf may be Go memory or memory from mmap. An empty buf, and RemoteWrite or
// RemoteAtomic without LocalWrite, are EINVAL. The sink of an RDMA Read needs
// LocalWrite and, for programs that are to run on every iWARP device,
// RemoteWrite: the response comes in as a write (RFC 5040 section 5.2).
func (pd *PD) RegMR(buf []byte, access Access) (*MR, error) {
	return pd.register(buf, nil, access)
}

// AllocMR maps n octets of fresh zeroed memory and registers them (mmap and
// ibv_reg_mr). The memory starts on a page, is off the Go heap, so that the
// garbage collector neither scans nor accounts it, and is unmapped by Close.
func (pd *PD) AllocMR(n int, access Access) (*MR, error) {
	if err := pd.ok("ibv_reg_mr"); err != nil {
		return nil, err
	}
	page := os.Getpagesize()
	if n <= 0 || n > math.MaxInt-page {
		return nil, pd.obj.Errorf("ibv_reg_mr", syscall.EINVAL, "a region of %d octets", n)
	}
	size := (n + page - 1) &^ (page - 1)
	pages, err := syscall.Mmap(-1, 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		return nil, &Error{Op: "mmap", Object: fmt.Sprintf("%d octets", size), Err: err}
	}
	mr, err := pd.register(pages[:n:n], pages, access)
	if err != nil {
		_ = syscall.Munmap(pages)
		return nil, err
	}
	return mr, nil
}

func (pd *PD) register(buf, pages []byte, access Access) (*MR, error) {
	const op = "ibv_reg_mr"
	if err := pd.ok(op); err != nil {
		return nil, err
	}
	mr := &MR{pd: pd, pages: pages}
	mr.obj.Describe("MR", "mr of "+pd.ctx.Name(), "ibv_dereg_mr")
	if err := mr.obj.Open(op, &pd.obj); err != nil {
		return nil, err
	}
	var err error
	if mr.p, err = pd.p.RegMR(buf, access); err != nil {
		mr.obj.Abandon()
		return nil, err
	}
	mr.obj.Describe("MR", fmt.Sprintf("mr %#x", mr.p.LKey()), "ibv_dereg_mr")
	mr.mem.Store(&buf)
	return mr, nil
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

// Addr returns the address of the first octet as SGE.Addr and
// SendWR.RemoteAddr count it. It is not necessarily an address in this process.
func (mr *MR) Addr() uint64 {
	if mr == nil || mr.p == nil {
		return 0
	}
	return mr.p.Addr()
}

// Len returns the region's length in octets.
func (mr *MR) Len() uint64 {
	if mr == nil || mr.p == nil {
		return 0
	}
	return mr.p.Len()
}

// LKey returns the key for SGE.LKey.
func (mr *MR) LKey() uint32 {
	if mr == nil || mr.p == nil {
		return 0
	}
	return mr.p.LKey()
}

// RKey returns the key that the peer puts into SendWR.RKey: the STag.
func (mr *MR) RKey() uint32 {
	if mr == nil || mr.p == nil {
		return 0
	}
	return mr.p.RKey()
}

// Access returns the rights that the region has.
func (mr *MR) Access() Access {
	if mr == nil || mr.p == nil {
		return 0
	}
	return mr.p.Access()
}

// PD returns the PD that the region is registered with.
func (mr *MR) PD() *PD {
	if mr == nil {
		return nil
	}
	return mr.pd
}

// SGE names n octets of the region from offset off. Octets outside the region,
// n above 2^32-1 and a closed region are an error here; an SGE put together by
// hand is checked only when it is used, which costs the connection. It does
// not allocate.
func (mr *MR) SGE(off, n int) (SGE, error) {
	if err := mr.inside(off, n); err != nil {
		return SGE{}, err
	}
	if n > math.MaxUint32 {
		return SGE{}, mr.obj.Errorf("SGE", syscall.EINVAL, "%d octets in one SGE", n)
	}
	return SGE{Addr: mr.p.Addr() + uint64(off), Length: uint32(n), LKey: mr.p.LKey()}, nil
}

// Remote names n octets of the region from offset off for the peer. The
// region's rights decide what the peer can do with it.
func (mr *MR) Remote(off, n int) (RemoteRegion, error) {
	if err := mr.inside(off, n); err != nil {
		return RemoteRegion{}, err
	}
	return RemoteRegion{Addr: mr.p.Addr() + uint64(off), Len: uint64(n), RKey: mr.p.RKey()}, nil
}

func (mr *MR) inside(off, n int) error {
	if mr == nil || mr.p == nil {
		return errNil("SGE", "mr")
	}
	if err := mr.obj.Check("SGE"); err != nil {
		return err
	}
	if size := mr.p.Len(); off < 0 || n < 0 || uint64(off) > size || uint64(n) > size-uint64(off) {
		return mr.obj.Errorf("SGE", syscall.EINVAL, "%d octets from offset %d of a region of %d", n, off, size)
	}
	return nil
}

// Close deregisters the region (ibv_dereg_mr) and unmaps it if AllocMR mapped
// it. When it returns nil the device does not touch the memory any more; work
// that still names it completes with an error, and a peer that names it gets a
// Terminate. The slice given to RegMR is the caller's again.
func (mr *MR) Close() error {
	if mr == nil || mr.p == nil {
		return nil
	}
	return mr.obj.Close(func() error {
		if err := mr.p.Close(); err != nil {
			return err
		}
		mr.mem.Store(nil)
		if mr.pages == nil {
			return nil
		}
		if err := syscall.Munmap(mr.pages); err != nil {
			return &Error{Op: "munmap", Object: mr.obj.Name(), Err: err}
		}
		return nil
	})
}
