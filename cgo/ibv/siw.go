//go:build cgo && linux && !nokernel

package ibv

/*
#include "shim.h"
#include <unistd.h>
#include <rdma/ib_user_verbs.h>
#include <rdma/siw-abi.h>

struct govs_siw_create_cq_resp {
	struct ib_uverbs_create_cq_resp core;
	struct siw_uresp_create_cq siw;
};

// Creates a CQ of one entry as libsiw does, but does not map it. Returns 0 or an
// errno.
static inline int govs_siw_reserve(struct ibv_context *ctx, uint32_t *handle, uint64_t *key)
{
	struct govs_siw_create_cq_resp resp = {};
	struct {
		struct ib_uverbs_cmd_hdr hdr;
		struct ib_uverbs_create_cq cq;
	} cmd = {
		.hdr = {
			.command = IB_USER_VERBS_CMD_CREATE_CQ,
			.in_words = sizeof(cmd) / 4,
			.out_words = sizeof(resp) / 4,
		},
		.cq = { .response = (uintptr_t)&resp, .cqe = 1, .comp_channel = -1 },
	};
	ssize_t n = write(ctx->cmd_fd, &cmd, sizeof(cmd));

	if (n != (ssize_t)sizeof(cmd))
		return n < 0 ? errno : EIO;
	*handle = resp.core.cq_handle;
	*key = resp.siw.cq_key;
	return 0;
}

static inline int govs_siw_release(struct ibv_context *ctx, uint32_t handle)
{
	struct ib_uverbs_destroy_cq_resp resp = {};
	struct {
		struct ib_uverbs_cmd_hdr hdr;
		struct ib_uverbs_destroy_cq cq;
	} cmd = {
		.hdr = {
			.command = IB_USER_VERBS_CMD_DESTROY_CQ,
			.in_words = sizeof(cmd) / 4,
			.out_words = sizeof(resp) / 4,
		},
		.cq = { .response = (uintptr_t)&resp, .cq_handle = handle },
	};
	ssize_t n = write(ctx->cmd_fd, &cmd, sizeof(cmd));

	if (n != (ssize_t)sizeof(cmd))
		return n < 0 ? errno : EIO;
	return 0;
}

_Static_assert(sizeof(struct govs_siw_create_cq_resp) == 24, "struct govs_siw_create_cq_resp");
*/
import "C"

// SiwInvalidKey is the mmap key that libsiw takes to mean "none" (SIW_INVAL_UOBJ_KEY). The kernel
// assigns it like any other key, and libsiw then fails, without an errno, to create the CQ, QP or
// SRQ.
const SiwInvalidKey = C.SIW_INVAL_UOBJ_KEY

// SiwReservation is a CQ of a siw device that exists only in the kernel; libsiw does not know it.
// It keeps the kernel from assigning its mmap key to another queue.
type SiwReservation struct {
	Key    uint64 // the assigned mmap key
	ctx    *Context
	handle C.uint32_t
}

// SiwReserve makes a reservation on the lowest free page of the context's keys. The context must be
// of a siw device. There is no C call for this. It writes the command CREATE_CQ of the kernel's ABI
// (rdma/ib_user_verbs.h, rdma/siw-abi.h) to the descriptor that libsiw uses.
func (c *Context) SiwReserve() (*SiwReservation, error) {
	r := &SiwReservation{ctx: c}
	var key C.uint64_t
	if rc := C.govs_siw_reserve(c.c(), &r.handle, &key); rc != 0 {
		return nil, errnoResult(rc)
	}
	r.Key = uint64(key)
	return r, nil
}

// Release frees the key. It may be called once.
func (r *SiwReservation) Release() error { return errnoResult(C.govs_siw_release(r.ctx.c(), r.handle)) }
