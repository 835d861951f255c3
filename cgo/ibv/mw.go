//go:build cgo && linux && !nokernel

package ibv

/*
#include "shim.h"

static inline struct ibv_mw *govs_alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type)
{
	errno = 0;
	return ibv_alloc_mw(pd, type);
}

static inline int govs_bind_mw(struct ibv_qp *qp, struct ibv_mw *mw, uint64_t wr_id, unsigned int flags, struct ibv_mr *mr,
			       uint64_t addr, uint64_t length, unsigned int access)
{
	struct ibv_mw_bind bind = {
		.wr_id = wr_id,
		.send_flags = flags,
		.bind_info = { .mr = mr, .addr = addr, .length = length, .mw_access_flags = access },
	};

	return ibv_bind_mw(qp, mw, &bind);
}

struct govs_bind {
	void *mw, *mr;
	uint64_t addr, length;
	uint32_t rkey, access;
};

static inline struct govs_bind govs_read_bind(struct ibv_send_wr *wr)
{
	return (struct govs_bind){ wr->bind_mw.mw, wr->bind_mw.bind_info.mr, wr->bind_mw.bind_info.addr,
				   wr->bind_mw.bind_info.length, wr->bind_mw.rkey,
				   wr->bind_mw.bind_info.mw_access_flags };
}
*/
import "C"

import "unsafe"

// AllocMW makes a memory window of a type of enum ibv_mw_type.
//
// Implements: struct ibv_mw *ibv_alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type);
func (p *PD) AllocMW(t uint32) (*MW, error) {
	mw, err := C.govs_alloc_mw(p.c(), C.enum_ibv_mw_type(t))
	if mw == nil {
		return nil, errnoSet(err)
	}
	return (*MW)(mw), nil
}

// Dealloc frees the window, bound or not.
//
// Implements: int ibv_dealloc_mw(struct ibv_mw *mw);
func (m *MW) Dealloc() error { return errnoResult(C.ibv_dealloc_mw(m.c())) }

// RKey returns the window's key: from the last bind with BindMW, or from SetRKey.
func (m *MW) RKey() uint32 { return uint32(m.rkey) }

// SetRKey records the key of a bind that was posted as a work request, because drivers find the
// window by this key.
func (m *MW) SetRKey(rkey uint32) { m.rkey = C.uint32_t(rkey) }

// BindInfo describes what a window is bound to (struct ibv_mw_bind_info).
type BindInfo struct {
	MR           *MR // nil for nothing
	Addr, Length uint64
	Access       uint32 // enum ibv_access_flags
}

// BindMW posts the bind of a window of type 1. The caller makes sure that nothing else posts to the
// send queue at the same time.
//
// Implements: int ibv_bind_mw(struct ibv_qp *qp, struct ibv_mw *mw, struct ibv_mw_bind *mw_bind);
func (q *QP) BindMW(mw *MW, id uint64, flags uint32, info *BindInfo) error {
	return errnoResult(C.govs_bind_mw(q.c(), mw.c(), C.uint64_t(id), C.uint(flags), info.MR.c(),
		C.uint64_t(info.Addr), C.uint64_t(info.Length), C.uint(info.Access)))
}

// IncRKey returns the key with another lowest byte.
//
// Implements: uint32_t ibv_inc_rkey(uint32_t rkey);
func IncRKey(rkey uint32) uint32 { return uint32(C.ibv_inc_rkey(C.uint32_t(rkey))) }

// SetBind sets what the window of type 2 will be bound to, and its new key. Window and region must
// exist until the work request is posted.
func (w *SendWR) SetBind(mw *MW, rkey uint32, info *BindInfo) {
	p := unsafe.Pointer(&w.anon1)
	*(**MW)(p) = mw
	*(*uint32)(unsafe.Add(p, 8)) = rkey
	*(**MR)(unsafe.Add(p, 16)) = info.MR
	*(*uint64)(unsafe.Add(p, 24)) = info.Addr
	*(*uint64)(unsafe.Add(p, 32)) = info.Length
	*(*uint32)(unsafe.Add(p, 40)) = info.Access
}

// bind holds the C fields of a work request, for tests, because test files cannot use cgo.
type bind struct {
	mw, mr       unsafe.Pointer
	addr, length uint64
	rkey, access uint32
}

func readBind(w *SendWR) bind {
	c := C.govs_read_bind((*C.struct_ibv_send_wr)(w))
	return bind{c.mw, c.mr, uint64(c.addr), uint64(c.length), uint32(c.rkey), uint32(c.access)}
}
