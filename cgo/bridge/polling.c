// The calls of libibverbs that poll a completion queue.
#define _GNU_SOURCE
#include "preload.h"

#include <errno.h>
#include <infiniband/verbs.h>

// libsiw finds completions in memory, without a call. A program that polls an empty CQ spins: its time is used
// to move data, which is quicker than waking a thread of the library for it.
static int (*siw_poll)(struct ibv_cq *, int, struct ibv_wc *);
static int (*siw_notify)(struct ibv_cq *, int);

// begin_poll is begin_call without an errno: on siw these calls make no system call, so that a handler may make them.
static struct library *begin_poll(void)
{
	int saved = errno;
	struct library *lib = begin_call();
	errno = saved;
	return lib;
}

static int poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc)
{
	int got = siw_poll(cq, n, wc);
	uint64_t device = got ? 0 : device_of(cq->context->cmd_fd);
	struct library *lib;
	if (!device || !(lib = begin_poll()))
		return got;
	lib->progress(device, cq->handle);
	end_call(lib);
	return siw_poll(cq, n, wc);
}

static int req_notify_cq(struct ibv_cq *cq, int solicited)
{
	int failed = siw_notify(cq, solicited);
	uint64_t device = device_of(cq->context->cmd_fd);
	struct library *lib;
	if (device && (lib = begin_poll())) {
		lib->attend(device, cq->handle); // a program that asks for an event is about to sleep
		end_call(lib);
	}
	return failed;
}

#undef ibv_open_device
PUBLIC struct ibv_context *ibv_open_device(struct ibv_device *dev)
{
	static struct ibv_context *(*real)(struct ibv_device *);
	if (!real)
		*(void **)&real = dlvsym(RTLD_NEXT, "ibv_open_device", "IBVERBS_1.1");
	if (!real) { // the program has loaded libibverbs for itself
		void *handle = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_NOLOAD);
		if (handle)
			*(void **)&real = dlvsym(handle, "ibv_open_device", "IBVERBS_1.1");
	}
	if (!real) {
		errno = ENOSYS;
		return NULL;
	}
	struct ibv_context *context = real(dev);
	if (context && device_of(context->cmd_fd)) {
		siw_poll = context->ops.poll_cq;
		siw_notify = context->ops.req_notify_cq;
		context->ops.poll_cq = poll_cq;
		context->ops.req_notify_cq = req_notify_cq;
	}
	return context;
}
