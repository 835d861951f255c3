// Functions for what cgo can't express: static inline verbs, unions, and context
// pointers that are numbers.

#ifndef GOVS_IBV_SHIM_H
#define GOVS_IBV_SHIM_H

#if defined(__has_include)
#if !__has_include(<infiniband/verbs.h>)
#error "infiniband/verbs.h is missing: install libibverbs-dev (Debian) or rdma-core-devel (Fedora), or build with -tags nokernel for the engine alone"
#endif
#endif

#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <infiniband/verbs.h>

// The Go side writes the unions of struct ibv_send_wr by offset.
_Static_assert(offsetof(struct ibv_send_wr, imm_data) == offsetof(struct ibv_send_wr, invalidate_rkey), "imm_data");
_Static_assert(offsetof(struct ibv_send_wr, wr.rdma.remote_addr) - offsetof(struct ibv_send_wr, wr) == 0, "rdma.remote_addr");
_Static_assert(offsetof(struct ibv_send_wr, wr.rdma.rkey) - offsetof(struct ibv_send_wr, wr) == 8, "rdma.rkey");
_Static_assert(offsetof(struct ibv_send_wr, wr.atomic.remote_addr) - offsetof(struct ibv_send_wr, wr) == 0, "atomic.remote_addr");
_Static_assert(offsetof(struct ibv_send_wr, wr.atomic.compare_add) - offsetof(struct ibv_send_wr, wr) == 8, "atomic.compare_add");
_Static_assert(offsetof(struct ibv_send_wr, wr.atomic.swap) - offsetof(struct ibv_send_wr, wr) == 16, "atomic.swap");
_Static_assert(offsetof(struct ibv_send_wr, wr.atomic.rkey) - offsetof(struct ibv_send_wr, wr) == 24, "atomic.rkey");

_Static_assert(offsetof(struct ibv_send_wr, bind_mw.rkey) - offsetof(struct ibv_send_wr, bind_mw.mw) == 8, "bind_mw.rkey");
_Static_assert(offsetof(struct ibv_send_wr, bind_mw.bind_info.mr) - offsetof(struct ibv_send_wr, bind_mw.mw) == 16, "bind_mw.mr");
_Static_assert(offsetof(struct ibv_send_wr, bind_mw.bind_info.addr) - offsetof(struct ibv_send_wr, bind_mw.mw) == 24, "bind_mw.addr");
_Static_assert(offsetof(struct ibv_send_wr, bind_mw.bind_info.length) - offsetof(struct ibv_send_wr, bind_mw.mw) == 32, "bind_mw.length");
_Static_assert(offsetof(struct ibv_send_wr, bind_mw.bind_info.mw_access_flags) - offsetof(struct ibv_send_wr, bind_mw.mw) == 40, "bind_mw.access");

static inline int govs_query_port(struct ibv_context *ctx, uint8_t port, struct ibv_port_attr *attr)
{
	return ibv_query_port(ctx, port, attr);
}

static inline ssize_t govs_query_gid_table(struct ibv_context *ctx, struct ibv_gid_entry *entries, size_t max)
{
	return ibv_query_gid_table(ctx, entries, max, 0);
}

static inline int govs_resize_cq(struct ibv_cq *cq, int cqe) { return ibv_resize_cq(cq, cqe); }

// The address is a number, because cgo would check the whole object that a pointer
// points into for Go pointers, and the region may be only a part of the object.
static inline struct ibv_mr *govs_reg_mr(struct ibv_pd *pd, uintptr_t addr, size_t length, unsigned int access)
{
	return ibv_reg_mr(pd, (void *)addr, length, access);
}

static inline struct ibv_mr *govs_reg_mr_iova(struct ibv_pd *pd, uintptr_t addr, size_t length, uint64_t iova,
					      unsigned int access)
{
	return ibv_reg_mr_iova(pd, (void *)addr, length, iova, access);
}

static inline int govs_rereg_mr(struct ibv_mr *mr, int flags, struct ibv_pd *pd, uintptr_t addr, size_t length,
				int access)
{
	errno = 0;
	return ibv_rereg_mr(mr, flags, pd, (void *)addr, length, access);
}

static inline struct ibv_cq *govs_create_cq(struct ibv_context *ctx, int cqe, uintptr_t token,
					    struct ibv_comp_channel *channel, int comp_vector)
{
	return ibv_create_cq(ctx, cqe, (void *)token, channel, comp_vector);
}

static inline int govs_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, uintptr_t *token)
{
	void *ctx = NULL;
	int rc = ibv_get_cq_event(channel, cq, &ctx);

	*token = (uintptr_t)ctx;
	return rc;
}

static inline uintptr_t govs_qp_context(struct ibv_qp *qp) { return (uintptr_t)qp->qp_context; }

// govs_async_token returns the number that the object of ev was created with, or
// the port's number if the event is about no object.
static inline uintptr_t govs_async_token(struct ibv_async_event *ev, int *kind)
{
	switch (ev->event_type) {
	case IBV_EVENT_CQ_ERR:
		*kind = 1;
		return (uintptr_t)ev->element.cq->cq_context;
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR:
	case IBV_EVENT_COMM_EST:
	case IBV_EVENT_SQ_DRAINED:
	case IBV_EVENT_PATH_MIG:
	case IBV_EVENT_PATH_MIG_ERR:
	case IBV_EVENT_QP_LAST_WQE_REACHED:
		*kind = 2;
		return (uintptr_t)ev->element.qp->qp_context;
	case IBV_EVENT_SRQ_ERR:
	case IBV_EVENT_SRQ_LIMIT_REACHED:
		*kind = 3;
		return (uintptr_t)ev->element.srq->srq_context;
	case IBV_EVENT_WQ_FATAL:
		*kind = 4;
		return (uintptr_t)ev->element.wq->wq_context;
	default:
		*kind = 0;
		return (uintptr_t)ev->element.port_num;
	}
}

// A post call returns in bad_wr the request that it refused. libsiw differs
// from ibv_post_send(3) in these ways:
//
// - It returns a negative errno instead of a positive one.
// - It returns -1, with errno set, if its doorbell fails.
// - It loses the error of a refused request when it rings the doorbell for the
//   requests before it: it returns 0 with bad_wr set. Posting again from that
//   request on returns its error, or succeeds if the queue has room by then.
//
// An error with bad_wr NULL means that the queue has all requests, but the
// doorbell failed: nothing was refused.
#define GOVS_POST(call, obj, wr, n)                                            \
	int done = 0;                                                          \
	while (done < (n)) {                                                   \
		__typeof__(wr) bad = NULL;                                     \
		errno = 0;                                                     \
		int rc = call((obj), (wr) + done, &bad);                       \
		int taken = bad ? (int)(bad - ((wr) + done)) : (n)-done;       \
		if (rc == -1 && errno != 0)                                    \
			rc = errno;                                            \
		else if (rc < 0)                                               \
			rc = -rc;                                              \
		if (rc == 0 && taken == 0)                                     \
			rc = EIO;                                              \
		done += taken;                                                 \
		if (rc)                                                        \
			return (int64_t)rc << 32 | done;                       \
	}                                                                      \
	return done;

// The post functions return the number of requests that the queue has taken in the
// low half of the result, and the errno in the high half.
static inline int64_t govs_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, int n)
{
	GOVS_POST(ibv_post_send, qp, wr, n)
}

static inline int64_t govs_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, int n)
{
	GOVS_POST(ibv_post_recv, qp, wr, n)
}

static inline int64_t govs_post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, int n)
{
	GOVS_POST(ibv_post_srq_recv, srq, wr, n)
}

static inline int govs_poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc) { return ibv_poll_cq(cq, n, wc); }

static inline int govs_req_notify_cq(struct ibv_cq *cq, int solicited_only)
{
	return ibv_req_notify_cq(cq, solicited_only);
}

#endif
