//go:build cgo && linux && !nokernel

package ibv

/*
#cgo noescape govs_poll_cq
#cgo nocallback govs_poll_cq
#cgo nocallback govs_req_notify_cq
#include "shim.h"
*/
import "C"

import (
	"math/bits"
	"syscall"
	"unsafe"
)

// CreateCompChannel makes a completion channel.
//
// Implements: struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context);
func (c *Context) CreateCompChannel() (*CompChannel, error) {
	ch, err := C.ibv_create_comp_channel(c.c())
	if ch == nil {
		return nil, errnoSet(err)
	}
	return (*CompChannel)(ch), nil
}

// Destroy frees the channel and closes its file descriptor. It returns EBUSY while CQs use it.
//
// Implements: int ibv_destroy_comp_channel(struct ibv_comp_channel *channel);
func (ch *CompChannel) Destroy() error { return errnoResult(C.ibv_destroy_comp_channel(ch.c())) }

// FD returns the channel's file descriptor. It is readable while an event waits.
func (ch *CompChannel) FD() int { return int(ch.fd) }

// CreateCQ makes a completion queue for at least cqe completions. The token is its cq_context,
// which GetCQEvent and GetAsyncEvent return. A nil channel means no events.
//
// Implements: struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe, void *cq_context, struct ibv_comp_channel *channel, int comp_vector);
func (c *Context) CreateCQ(cqe int, token uintptr, ch *CompChannel, compVector int) (*CQ, error) {
	cq, err := C.govs_create_cq(c.c(), C.int(cqe), C.uintptr_t(token), ch.c(), C.int(compVector))
	if cq == nil {
		return nil, errnoSet(err)
	}
	return (*CQ)(cq), nil
}

// Destroy frees the CQ. It waits, in C, until every fetched event of the CQ has been acknowledged.
//
// Implements: int ibv_destroy_cq(struct ibv_cq *cq);
func (q *CQ) Destroy() error { return errnoResult(C.ibv_destroy_cq(q.c())) }

// Resize changes the capacity to at least cqe; CQE returns the new one. It returns EINVAL if cqe is
// less than the number of completions in the CQ, and EOPNOTSUPP if the driver cannot resize.
//
// Implements: int ibv_resize_cq(struct ibv_cq *cq, int cqe);
func (q *CQ) Resize(cqe int) error { return errnoResult(C.govs_resize_cq(q.c(), C.int(cqe))) }

// CQE returns the capacity that was granted.
func (q *CQ) CQE() int { return int(q.cqe) }

// GetCQEvent reads an event from the channel and returns its CQ, as a pointer and as its token. It
// returns EAGAIN if there is none and the descriptor is non-blocking. The event must be
// acknowledged before the CQ is destroyed.
//
// Implements: int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cq_context);
func (ch *CompChannel) GetCQEvent() (*CQ, uintptr, error) {
	var cq *C.struct_ibv_cq
	var token C.uintptr_t
	if rc, err := C.govs_get_cq_event(ch.c(), &cq, &token); rc != 0 {
		return nil, 0, errnoSet(err)
	}
	return (*CQ)(cq), uintptr(token), nil
}

// AckEvents acknowledges n events of the CQ.
//
// Implements: void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int nevents);
func (q *CQ) AckEvents(n uint) { C.ibv_ack_cq_events(q.c(), C.uint(n)) }

// ReqNotify asks for an event with the next completion, or the next solicited
// one.
//
// Implements: int ibv_req_notify_cq(struct ibv_cq *cq, int solicited_only);
func (q *CQ) ReqNotify(solicitedOnly bool) error {
	var s C.int
	if solicitedOnly {
		s = 1
	}
	return errnoResult(C.govs_req_notify_cq(q.c(), s))
}

// WC is struct ibv_wc, in C memory.
type WC C.struct_ibv_wc

// WRID returns wr_id.
func (w *WC) WRID() uint64 { return uint64(w.wr_id) }

// Status returns enum ibv_wc_status.
func (w *WC) Status() uint32 { return uint32(w.status) }

// Opcode returns enum ibv_wc_opcode, valid only with a status of success.
func (w *WC) Opcode() uint32 { return uint32(w.opcode) }

// VendorErr returns the driver's own error code.
func (w *WC) VendorErr() uint32 { return uint32(w.vendor_err) }

// ByteLen returns the number of bytes that a receive or a Read placed.
func (w *WC) ByteLen() uint32 { return uint32(w.byte_len) }

// QPNum returns the number of the QP.
func (w *WC) QPNum() uint32 { return uint32(w.qp_num) }

// Flags returns enum ibv_wc_flags.
func (w *WC) Flags() uint32 { return uint32(w.wc_flags) }

// Imm returns the immediate data in host order, valid with IBV_WC_WITH_IMM.
func (w *WC) Imm() uint32 { return fromBE32(w.InvalidatedRKey()) }

// InvalidatedRKey returns the key that the peer invalidated, valid with
// IBV_WC_WITH_INV.
func (w *WC) InvalidatedRKey() uint32 { return *(*uint32)(unsafe.Pointer(&w.anon0)) }

// WCBatch is C memory for completions, for one poller at a time.
type WCBatch struct{ wcs []WC }

// NewWCBatch returns a batch for n completions, at least one.
func NewWCBatch(n int) (*WCBatch, error) {
	wcs := cArray[WC](max(n, 1))
	if wcs == nil {
		return nil, syscall.ENOMEM
	}
	return &WCBatch{wcs: wcs}, nil
}

// Free frees the memory; it may be called again.
func (b *WCBatch) Free() {
	cFree(b.wcs)
	b.wcs = nil
}

// At returns the completion with index i, valid until the next Poll.
func (b *WCBatch) At(i int) *WC { return &b.wcs[i] }

// Poll moves at most n completions, and no more than the batch holds, from the CQ to the batch and
// returns their number.
//
// Implements: int ibv_poll_cq(struct ibv_cq *cq, int num_entries, struct ibv_wc *wc);
func (q *CQ) Poll(b *WCBatch, n int) (int, error) {
	n = min(n, len(b.wcs))
	if n <= 0 {
		return 0, nil
	}
	got := C.govs_poll_cq(q.c(), C.int(n), (*C.struct_ibv_wc)(unsafe.SliceData(b.wcs)))
	if got < 0 {
		return 0, errnoResult(got)
	}
	return int(got), nil
}

// fromBE32 converts a big-endian number in memory to a host number, and the other way round.
func fromBE32(v uint32) uint32 {
	if littleEndian {
		return bits.ReverseBytes32(v)
	}
	return v
}

var littleEndian = func() bool {
	v := uint16(1)
	return *(*byte)(unsafe.Pointer(&v)) == 1
}()
