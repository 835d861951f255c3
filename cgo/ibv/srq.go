//go:build cgo && linux && !nokernel

package ibv

/*
#cgo noescape govs_post_srq_recv
#cgo nocallback govs_post_srq_recv
#include "shim.h"

static inline struct ibv_srq *govs_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *attr, uintptr_t token)
{
	attr->srq_context = (void *)token;
	return ibv_create_srq(pd, attr);
}
*/
import "C"

// SRQAttr is struct ibv_srq_attr.
type SRQAttr struct{ MaxWR, MaxSGE, Limit uint32 }

func (a *SRQAttr) c() C.struct_ibv_srq_attr {
	return C.struct_ibv_srq_attr{max_wr: C.uint32_t(a.MaxWR), max_sge: C.uint32_t(a.MaxSGE), srq_limit: C.uint32_t(a.Limit)}
}

func (a *SRQAttr) from(c *C.struct_ibv_srq_attr) {
	*a = SRQAttr{MaxWR: uint32(c.max_wr), MaxSGE: uint32(c.max_sge), Limit: uint32(c.srq_limit)}
}

// CreateSRQ makes a shared receive queue and stores the sizes granted in attr. The token is its
// srq_context, which GetAsyncEvent returns.
//
// Implements: struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *srq_init_attr);
func (p *PD) CreateSRQ(attr *SRQAttr, token uintptr) (*SRQ, error) {
	c := C.struct_ibv_srq_init_attr{attr: attr.c()}
	srq, err := C.govs_create_srq(p.c(), &c, C.uintptr_t(token))
	if srq == nil {
		return nil, errnoSet(err)
	}
	attr.from(&c.attr)
	return (*SRQ)(srq), nil
}

// Destroy frees the shared receive queue.
//
// Implements: int ibv_destroy_srq(struct ibv_srq *srq);
func (s *SRQ) Destroy() error { return errnoResult(C.ibv_destroy_srq(s.c())) }

// Modify sets the attributes that mask names (enum ibv_srq_attr_mask).
//
// Implements: int ibv_modify_srq(struct ibv_srq *srq, struct ibv_srq_attr *srq_attr, int srq_attr_mask);
func (s *SRQ) Modify(attr SRQAttr, mask uint32) error {
	c := attr.c()
	return errnoResult(C.ibv_modify_srq(s.c(), &c, C.int(mask)))
}

// Query returns the attributes.
//
// Implements: int ibv_query_srq(struct ibv_srq *srq, struct ibv_srq_attr *srq_attr);
func (s *SRQ) Query() (SRQAttr, error) {
	var c C.struct_ibv_srq_attr
	if err := errnoResult(C.ibv_query_srq(s.c(), &c)); err != nil {
		return SRQAttr{}, err
	}
	var attr SRQAttr
	attr.from(&c)
	return attr, nil
}

// PostRecv posts the batch to the shared receive queue, with the rules of
// QP.PostSend.
//
// Implements: int ibv_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *recv_wr, struct ibv_recv_wr **bad_recv_wr);
func (s *SRQ) PostRecv(b *RecvBatch) (int, error) {
	if b.n == 0 {
		return 0, nil
	}
	return posted(C.govs_post_srq_recv(s.c(), (*C.struct_ibv_recv_wr)(&b.wrs[0]), C.int(b.n)))
}
