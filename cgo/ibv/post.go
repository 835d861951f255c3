//go:build cgo && linux && !nokernel

package ibv

/*
#cgo noescape govs_post_send
#cgo nocallback govs_post_send
#cgo noescape govs_post_recv
#cgo nocallback govs_post_recv
#include "shim.h"
*/
import "C"

import (
	"syscall"
	"unsafe"
)

// SGE is struct ibv_sge.
type SGE C.struct_ibv_sge

func (s *SGE) set(addr uint64, length, lkey uint32) {
	s.addr, s.length, s.lkey = C.uint64_t(addr), C.uint32_t(length), C.uint32_t(lkey)
}

// SendWR is struct ibv_send_wr, in the memory of a SendBatch.
type SendWR C.struct_ibv_send_wr

// SendBatch is C memory for a list of send work requests, for one poster at a time. Add adds a work
// request and returns a pointer for setting its fields; PostSend posts them all.
type SendBatch struct {
	wrs       []SendWR
	sges      []SGE // maxSGE per work request
	inline    []byte
	n         int
	maxSGE    int
	maxInline int
}

// NewSendBatch returns a batch of at most maxWR work requests, each with at most
// maxSGE scatter/gather entries or maxInline bytes of inline data.
func NewSendBatch(maxWR, maxSGE, maxInline int) (*SendBatch, error) {
	maxWR, maxSGE, maxInline = max(maxWR, 1), max(maxSGE, 1), max(maxInline, 0)
	b := &SendBatch{
		wrs:       cArray[SendWR](maxWR),
		sges:      cArray[SGE](maxWR * maxSGE),
		inline:    cArray[byte](maxWR * maxInline),
		maxSGE:    maxSGE,
		maxInline: maxInline,
	}
	if b.wrs == nil || b.sges == nil || (b.inline == nil && maxInline > 0) {
		b.Free()
		return nil, syscall.ENOMEM
	}
	return b, nil
}

// Free frees the memory. It may be called more than once.
func (b *SendBatch) Free() {
	cFree(b.wrs)
	cFree(b.sges)
	cFree(b.inline)
	*b = SendBatch{}
}

// Reset empties the batch.
func (b *SendBatch) Reset() { b.n = 0 }

// Len returns the number of work requests in the batch.
func (b *SendBatch) Len() int { return b.n }

// Full reports whether Add would panic.
func (b *SendBatch) Full() bool { return b.n == len(b.wrs) }

// Add appends a work request with the opcode of enum ibv_wr_opcode and the flags
// of enum ibv_send_flags, and returns it for its other fields to be set. It
// panics if the batch is full.
func (b *SendBatch) Add(id uint64, opcode, flags uint32) *SendWR {
	w := &b.wrs[b.n]
	*w = SendWR{
		wr_id:      C.uint64_t(id),
		sg_list:    (*C.struct_ibv_sge)(&b.sges[b.n*b.maxSGE]),
		opcode:     C.enum_ibv_wr_opcode(opcode),
		send_flags: C.uint(flags),
	}
	if b.n > 0 {
		b.wrs[b.n-1].next = (*C.struct_ibv_send_wr)(w)
	}
	b.n++
	return w
}

// SetID changes the wr_id of the last work request.
func (b *SendBatch) SetID(id uint64) { b.wrs[b.n-1].wr_id = C.uint64_t(id) }

// Drop removes the last work request.
func (b *SendBatch) Drop() {
	b.n--
	if b.n > 0 {
		b.wrs[b.n-1].next = nil
	}
}

// AddSGE appends an entry to the last work request. It returns false if that has as many as the
// batch can hold.
func (b *SendBatch) AddSGE(addr uint64, length, lkey uint32) bool {
	w := &b.wrs[b.n-1]
	if int(w.num_sge) == b.maxSGE {
		return false
	}
	b.sges[(b.n-1)*b.maxSGE+int(w.num_sge)].set(addr, length, lkey)
	w.num_sge++
	return true
}

// SetInline copies p as the payload of the last work request, which must have the flag
// IBV_SEND_INLINE. It returns false if p is longer than the batch can hold.
func (b *SendBatch) SetInline(p []byte) bool {
	if len(p) > b.maxInline {
		return false
	}
	w := &b.wrs[b.n-1]
	w.num_sge = 0
	if len(p) == 0 {
		return true
	}
	dst := b.inline[(b.n-1)*b.maxInline:][:len(p)]
	copy(dst, p)
	b.sges[(b.n-1)*b.maxSGE].set(uint64(uintptr(unsafe.Pointer(&dst[0]))), uint32(len(p)), 0)
	w.num_sge = 1
	return true
}

// SetImm sets the immediate data, given in host order.
func (w *SendWR) SetImm(imm uint32) { w.SetInvalidateRKey(fromBE32(imm)) }

// SetInvalidateRKey sets the key to invalidate.
func (w *SendWR) SetInvalidateRKey(rkey uint32) { *(*uint32)(unsafe.Pointer(&w.anon0)) = rkey }

// SetRDMA sets the peer's buffer of a Write or a Read.
func (w *SendWR) SetRDMA(addr uint64, rkey uint32) {
	*(*uint64)(unsafe.Pointer(&w.wr[0])) = addr
	*(*uint32)(unsafe.Pointer(&w.wr[8])) = rkey
}

// SetAtomic sets the peer's word and the operands of an atomic operation.
func (w *SendWR) SetAtomic(addr, compareAdd, swap uint64, rkey uint32) {
	*(*uint64)(unsafe.Pointer(&w.wr[0])) = addr
	*(*uint64)(unsafe.Pointer(&w.wr[8])) = compareAdd
	*(*uint64)(unsafe.Pointer(&w.wr[16])) = swap
	*(*uint32)(unsafe.Pointer(&w.wr[24])) = rkey
}

// PostSend posts the batch, in one call into C, and returns the number of accepted work requests.
// With an error and fewer than b.Len() accepted, the next one was refused. With an error and all of
// them accepted, the driver could not notify the device (as libsiw does if its doorbell fails).
//
// Implements: int ibv_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad_wr);
func (q *QP) PostSend(b *SendBatch) (int, error) {
	if b.n == 0 {
		return 0, nil
	}
	return posted(C.govs_post_send(q.c(), (*C.struct_ibv_send_wr)(&b.wrs[0]), C.int(b.n)))
}

// RecvWR is struct ibv_recv_wr, in the memory of a RecvBatch.
type RecvWR C.struct_ibv_recv_wr

// RecvBatch is C memory for a list of receive work requests, for one poster at a time.
type RecvBatch struct {
	wrs    []RecvWR
	sges   []SGE
	n      int
	maxSGE int
}

// NewRecvBatch returns a batch of at most maxWR work requests, each with at most
// maxSGE scatter/gather entries.
func NewRecvBatch(maxWR, maxSGE int) (*RecvBatch, error) {
	maxWR, maxSGE = max(maxWR, 1), max(maxSGE, 1)
	b := &RecvBatch{
		wrs:    cArray[RecvWR](maxWR),
		sges:   cArray[SGE](maxWR * maxSGE),
		maxSGE: maxSGE,
	}
	if b.wrs == nil || b.sges == nil {
		b.Free()
		return nil, syscall.ENOMEM
	}
	return b, nil
}

// Free frees the memory. It may be called more than once.
func (b *RecvBatch) Free() {
	cFree(b.wrs)
	cFree(b.sges)
	*b = RecvBatch{}
}

// Reset empties the batch.
func (b *RecvBatch) Reset() { b.n = 0 }

// Len returns the number of work requests in the batch.
func (b *RecvBatch) Len() int { return b.n }

// Full reports whether Add would panic.
func (b *RecvBatch) Full() bool { return b.n == len(b.wrs) }

// Add appends a work request without entries. It panics if the batch is full.
func (b *RecvBatch) Add(id uint64) {
	w := &b.wrs[b.n]
	*w = RecvWR{wr_id: C.uint64_t(id), sg_list: (*C.struct_ibv_sge)(&b.sges[b.n*b.maxSGE])}
	if b.n > 0 {
		b.wrs[b.n-1].next = (*C.struct_ibv_recv_wr)(w)
	}
	b.n++
}

// SetID changes the wr_id of the last work request.
func (b *RecvBatch) SetID(id uint64) { b.wrs[b.n-1].wr_id = C.uint64_t(id) }

// Drop removes the last work request.
func (b *RecvBatch) Drop() {
	b.n--
	if b.n > 0 {
		b.wrs[b.n-1].next = nil
	}
}

// AddSGE appends an entry to the last work request. It returns false if that has as many as the
// batch can hold.
func (b *RecvBatch) AddSGE(addr uint64, length, lkey uint32) bool {
	w := &b.wrs[b.n-1]
	if int(w.num_sge) == b.maxSGE {
		return false
	}
	b.sges[(b.n-1)*b.maxSGE+int(w.num_sge)].set(addr, length, lkey)
	w.num_sge++
	return true
}

// PostRecv posts the batch, with the rules of PostSend.
//
// Implements: int ibv_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad_wr);
func (q *QP) PostRecv(b *RecvBatch) (int, error) {
	if b.n == 0 {
		return 0, nil
	}
	return posted(C.govs_post_recv(q.c(), (*C.struct_ibv_recv_wr)(&b.wrs[0]), C.int(b.n)))
}

// posted decodes the result of a posting shim.
func posted(r C.int64_t) (int, error) {
	n, errno := int(uint32(r)), syscall.Errno(uint64(r)>>32)
	if errno != 0 {
		return n, errno
	}
	return n, nil
}
