//go:build cgo && linux && !nokernel

package ibv

/*
#include "shim.h"

static inline struct ibv_qp *govs_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	return ibv_create_qp(pd, attr);
}

static inline void govs_set_qp_context(struct ibv_qp_init_attr *attr, uintptr_t token)
{
	attr->qp_context = (void *)token;
}
*/
import "C"

import "unsafe"

// QPCap is struct ibv_qp_cap.
type QPCap struct {
	MaxSendWR, MaxRecvWR   uint32
	MaxSendSGE, MaxRecvSGE uint32
	MaxInlineData          uint32
}

// QPInitAttr is struct ibv_qp_init_attr.
type QPInitAttr struct {
	Token    uintptr // qp_context, which GetAsyncEvent returns
	SendCQ   *CQ
	RecvCQ   *CQ
	SRQ      *SRQ // nil for none
	Cap      QPCap
	Type     uint32 // enum ibv_qp_type
	SQSigAll bool
}

// Put stores a in the struct ibv_qp_init_attr at p. Package rdmacm needs it, because its cgo types
// differ from this package's.
func (a *QPInitAttr) Put(p unsafe.Pointer) {
	c := (*C.struct_ibv_qp_init_attr)(p)
	*c = C.struct_ibv_qp_init_attr{
		send_cq: a.SendCQ.c(),
		recv_cq: a.RecvCQ.c(),
		srq:     a.SRQ.c(),
		cap:     a.Cap.c(),
		qp_type: C.enum_ibv_qp_type(a.Type),
	}
	if a.SQSigAll {
		c.sq_sig_all = 1
	}
	C.govs_set_qp_context(c, C.uintptr_t(a.Token))
}

// TakeCap stores the sizes that a create call has granted in a. p is the struct that Put filled.
func (a *QPInitAttr) TakeCap(p unsafe.Pointer) {
	a.Cap.from(&(*C.struct_ibv_qp_init_attr)(p).cap)
}

// SizeofQPInitAttr is the size of struct ibv_qp_init_attr in bytes.
const SizeofQPInitAttr = C.sizeof_struct_ibv_qp_init_attr

func (k *QPCap) c() C.struct_ibv_qp_cap {
	return C.struct_ibv_qp_cap{
		max_send_wr:     C.uint32_t(k.MaxSendWR),
		max_recv_wr:     C.uint32_t(k.MaxRecvWR),
		max_send_sge:    C.uint32_t(k.MaxSendSGE),
		max_recv_sge:    C.uint32_t(k.MaxRecvSGE),
		max_inline_data: C.uint32_t(k.MaxInlineData),
	}
}

func (k *QPCap) from(c *C.struct_ibv_qp_cap) {
	*k = QPCap{
		MaxSendWR:     uint32(c.max_send_wr),
		MaxRecvWR:     uint32(c.max_recv_wr),
		MaxSendSGE:    uint32(c.max_send_sge),
		MaxRecvSGE:    uint32(c.max_recv_sge),
		MaxInlineData: uint32(c.max_inline_data),
	}
}

// CreateQP makes a queue pair and stores the sizes granted in attr.Cap.
//
// Implements: struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *qp_init_attr);
func (p *PD) CreateQP(attr *QPInitAttr) (*QP, error) {
	var c C.struct_ibv_qp_init_attr
	attr.Put(unsafe.Pointer(&c))
	qp, err := C.govs_create_qp(p.c(), &c)
	if qp == nil {
		return nil, errnoSet(err)
	}
	attr.TakeCap(unsafe.Pointer(&c))
	return (*QP)(qp), nil
}

// Destroy frees the queue pair. It waits, in C, until every fetched asynchronous event of the queue
// pair has been acknowledged.
//
// Implements: int ibv_destroy_qp(struct ibv_qp *qp);
func (q *QP) Destroy() error { return errnoResult(C.ibv_destroy_qp(q.c())) }

// QPNum returns the number of the queue pair.
func (q *QP) QPNum() uint32 { return uint32(q.qp_num) }

// QPAttr is struct ibv_qp_attr, without addresses and alternate paths.
type QPAttr struct {
	State           uint32 // enum ibv_qp_state
	CurState        uint32
	AccessFlags     uint32
	Cap             QPCap
	MaxRdAtomic     uint8
	MaxDestRdAtomic uint8

	EnSQDAsyncNotify bool

	// Not on iWARP.
	PathMTU     uint32 // enum ibv_mtu
	DestQPNum   uint32
	RQPSN       uint32
	SQPSN       uint32
	PkeyIndex   uint16
	PortNum     uint8
	Timeout     uint8
	RetryCnt    uint8
	RNRRetry    uint8
	MinRNRTimer uint8
}

// Modify sets the attributes that mask names (enum ibv_qp_attr_mask).
//
// Implements: int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int attr_mask);
func (q *QP) Modify(attr *QPAttr, mask uint32) error {
	c := C.struct_ibv_qp_attr{
		qp_state:           C.enum_ibv_qp_state(attr.State),
		cur_qp_state:       C.enum_ibv_qp_state(attr.CurState),
		qp_access_flags:    C.uint(attr.AccessFlags),
		cap:                attr.Cap.c(),
		max_rd_atomic:      C.uint8_t(attr.MaxRdAtomic),
		max_dest_rd_atomic: C.uint8_t(attr.MaxDestRdAtomic),
		path_mtu:           C.enum_ibv_mtu(attr.PathMTU),
		dest_qp_num:        C.uint32_t(attr.DestQPNum),
		rq_psn:             C.uint32_t(attr.RQPSN),
		sq_psn:             C.uint32_t(attr.SQPSN),
		pkey_index:         C.uint16_t(attr.PkeyIndex),
		port_num:           C.uint8_t(attr.PortNum),
		timeout:            C.uint8_t(attr.Timeout),
		retry_cnt:          C.uint8_t(attr.RetryCnt),
		rnr_retry:          C.uint8_t(attr.RNRRetry),
		min_rnr_timer:      C.uint8_t(attr.MinRNRTimer),
	}
	if attr.EnSQDAsyncNotify {
		c.en_sqd_async_notify = 1
	}
	return errnoResult(C.ibv_modify_qp(q.c(), &c, C.int(mask)))
}

// Query returns the attributes that mask names (a driver may return more) and the sizes that the
// queue pair was made with.
//
// Implements: int ibv_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int attr_mask, struct ibv_qp_init_attr *init_attr);
func (q *QP) Query(mask uint32) (QPAttr, QPInitAttr, error) {
	var c C.struct_ibv_qp_attr
	var ci C.struct_ibv_qp_init_attr
	if err := errnoResult(C.ibv_query_qp(q.c(), &c, C.int(mask), &ci)); err != nil {
		return QPAttr{}, QPInitAttr{}, err
	}
	attr := QPAttr{
		State:           uint32(c.qp_state),
		CurState:        uint32(c.cur_qp_state),
		AccessFlags:     uint32(c.qp_access_flags),
		MaxRdAtomic:     uint8(c.max_rd_atomic),
		MaxDestRdAtomic: uint8(c.max_dest_rd_atomic),
		PathMTU:         uint32(c.path_mtu),
		DestQPNum:       uint32(c.dest_qp_num),
		RQPSN:           uint32(c.rq_psn),
		SQPSN:           uint32(c.sq_psn),
		PkeyIndex:       uint16(c.pkey_index),
		PortNum:         uint8(c.port_num),
		Timeout:         uint8(c.timeout),
		RetryCnt:        uint8(c.retry_cnt),
		RNRRetry:        uint8(c.rnr_retry),
		MinRNRTimer:     uint8(c.min_rnr_timer),
	}
	attr.Cap.from(&c.cap)
	init := QPInitAttr{
		Token:    uintptr(C.govs_qp_context(q.c())),
		SendCQ:   (*CQ)(q.send_cq),
		RecvCQ:   (*CQ)(q.recv_cq),
		SRQ:      (*SRQ)(q.srq),
		Type:     uint32(q.qp_type),
		SQSigAll: ci.sq_sig_all != 0,
	}
	init.Cap.from(&ci.cap)
	return attr, init, nil
}
