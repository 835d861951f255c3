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

// Context returns the open device that the protection domain belongs to.
func (p *PD) Context() *Context { return (*Context)(p.context) }

// RegMR registers length octets at addr, with rights of enum ibv_access_flags.
// The memory must stay where it is until Dereg: it is off the Go heap, or
// pinned with a runtime.Pinner.
//
// Implements: struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access);
func (p *PD) RegMR(addr unsafe.Pointer, length int, access uint32) (*MR, error) {
	mr, err := C.govs_reg_mr(p.c(), C.uintptr_t(uintptr(addr)), C.size_t(length), C.uint(access))
	if mr == nil {
		return nil, errnoSet(err)
	}
	return (*MR)(mr), nil
}

// Dereg ends the registration. When it returns nil the device reads and writes
// the memory no more.
//
// Implements: int ibv_dereg_mr(struct ibv_mr *mr);
func (m *MR) Dereg() error { return errnoResult(C.ibv_dereg_mr(m.c())) }

// LKey returns the key for the region in SGEs.
func (m *MR) LKey() uint32 { return uint32(m.lkey) }

// RKey returns the key that peers name the region with.
func (m *MR) RKey() uint32 { return uint32(m.rkey) }
