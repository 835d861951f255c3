//go:build cgo && linux && !nokernel

package ibv

/*
#include "shim.h"
*/
import "C"

import "unsafe"

// AllocPD allocates a protection domain.
//
// Implements: struct ibv_pd *ibv_alloc_pd(struct ibv_context *context);
func (c *Context) AllocPD() (*PD, error) {
	pd, err := C.ibv_alloc_pd(c.c())
	if pd == nil {
		return nil, errnoSet(err)
	}
	return (*PD)(pd), nil
}

// Dealloc frees the protection domain.
//
// Implements: int ibv_dealloc_pd(struct ibv_pd *pd);
func (p *PD) Dealloc() error { return errnoResult(C.ibv_dealloc_pd(p.c())) }

// Context returns the protection domain's context.
func (p *PD) Context() *Context { return (*Context)(p.context) }

// RegMR registers length bytes at addr, with rights of enum ibv_access_flags. The memory must stay
// in place until Dereg: it must be off the Go heap, or pinned with a runtime.Pinner.
//
// Implements: struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access);
func (p *PD) RegMR(addr unsafe.Pointer, length int, access uint32) (*MR, error) {
	mr, err := C.govs_reg_mr(p.c(), C.uintptr_t(uintptr(addr)), C.size_t(length), C.uint(access))
	if mr == nil {
		return nil, errnoSet(err)
	}
	return (*MR)(mr), nil
}

// RegMRIova registers memory as RegMR does; work requests and peers name its first byte by the
// address iova.
//
// Implements: struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, int access);
func (p *PD) RegMRIova(addr unsafe.Pointer, length int, iova uint64, access uint32) (*MR, error) {
	mr, err := C.govs_reg_mr_iova(p.c(), C.uintptr_t(uintptr(addr)), C.size_t(length), C.uint64_t(iova), C.uint(access))
	if mr == nil {
		return nil, errnoSet(err)
	}
	return (*MR)(mr), nil
}

// Rereg changes what flags (enum ibv_rereg_mr_flags) name, and perhaps the keys. The error is the
// errno, not the enum ibv_rereg_mr_err_code. After EINVAL from libibverbs itself, and after
// EOPNOTSUPP, the region is unchanged. After any other error it is unusable but still has to be
// deregistered.
//
// Implements: int ibv_rereg_mr(struct ibv_mr *mr, int flags, struct ibv_pd *pd, void *addr, size_t length, int access);
func (m *MR) Rereg(flags uint32, pd *PD, addr unsafe.Pointer, length int, access uint32) error {
	code, err := C.govs_rereg_mr(m.c(), C.int(flags), pd.c(), C.uintptr_t(uintptr(addr)), C.size_t(length), C.int(access))
	if code == 0 {
		return nil
	}
	return errnoSet(err)
}

// Dereg ends the registration. After it has returned nil, the device neither reads nor
// writes the memory.
//
// Implements: int ibv_dereg_mr(struct ibv_mr *mr);
func (m *MR) Dereg() error { return errnoResult(C.ibv_dereg_mr(m.c())) }

// LKey returns the key for the region in SGEs.
func (m *MR) LKey() uint32 { return uint32(m.lkey) }

// RKey returns the key with which peers name the region.
func (m *MR) RKey() uint32 { return uint32(m.rkey) }
