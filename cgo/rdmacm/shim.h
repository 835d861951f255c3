// Functions for what cgo can't express: addresses in unions, context pointers that
// are numbers, and parameter structures that point to a caller's bytes.

#ifndef GOVS_RDMACM_SHIM_H
#define GOVS_RDMACM_SHIM_H

#if defined(__has_include)
#if !__has_include(<rdma/rdma_cma.h>)
#error "rdma/rdma_cma.h is missing: install librdmacm-dev (Debian) or rdma-core-devel (Fedora), or build with -tags nokernel for the engine alone"
#endif
#endif

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <rdma/rdma_cma.h>

// An IP address of len bytes in network order, 4 or 16 (0: no address), and a port
// in host order.
struct govs_addr {
	uint8_t ip[16];
	uint32_t len;
	uint32_t scope;
	uint16_t port;
};

// Sets an option of an id. The option's number determines the size of its value.
static inline int govs_set_option(struct rdma_cm_id *id, int option, int value)
{
	uint8_t byte = (uint8_t)value;

	if (option == RDMA_OPTION_ID_TOS || option == RDMA_OPTION_ID_ACK_TIMEOUT)
		return rdma_set_option(id, RDMA_OPTION_ID, option, &byte, sizeof(byte));
	return rdma_set_option(id, RDMA_OPTION_ID, option, &value, sizeof(value));
}

static inline struct sockaddr *govs_to_sockaddr(const struct govs_addr *a, struct sockaddr_storage *ss)
{
	memset(ss, 0, sizeof(*ss));
	if (a->len == 4) {
		struct sockaddr_in *sin = (struct sockaddr_in *)ss;

		sin->sin_family = AF_INET;
		sin->sin_port = htons(a->port);
		memcpy(&sin->sin_addr, a->ip, 4);
	} else if (a->len == 16) {
		struct sockaddr_in6 *sin6 = (struct sockaddr_in6 *)ss;

		sin6->sin6_family = AF_INET6;
		sin6->sin6_port = htons(a->port);
		sin6->sin6_scope_id = a->scope;
		memcpy(&sin6->sin6_addr, a->ip, 16);
	} else {
		return NULL;
	}
	return (struct sockaddr *)ss;
}

static inline void govs_from_sockaddr(const struct sockaddr *sa, struct govs_addr *a)
{
	memset(a, 0, sizeof(*a));
	if (sa->sa_family == AF_INET) {
		const struct sockaddr_in *sin = (const struct sockaddr_in *)sa;

		a->len = 4;
		a->port = ntohs(sin->sin_port);
		memcpy(a->ip, &sin->sin_addr, 4);
	} else if (sa->sa_family == AF_INET6) {
		const struct sockaddr_in6 *sin6 = (const struct sockaddr_in6 *)sa;

		a->len = 16;
		a->port = ntohs(sin6->sin6_port);
		a->scope = sin6->sin6_scope_id;
		memcpy(a->ip, &sin6->sin6_addr, 16);
	}
}

static inline int govs_create_id(struct rdma_event_channel *channel, struct rdma_cm_id **id, uintptr_t token,
				 enum rdma_port_space ps)
{
	return rdma_create_id(channel, id, (void *)token, ps);
}

static inline int govs_bind_addr(struct rdma_cm_id *id, const struct govs_addr *addr)
{
	struct sockaddr_storage ss;

	return rdma_bind_addr(id, govs_to_sockaddr(addr, &ss));
}

static inline int govs_resolve_addr(struct rdma_cm_id *id, const struct govs_addr *src, const struct govs_addr *dst,
				    int timeout_ms)
{
	struct sockaddr_storage s, d;

	return rdma_resolve_addr(id, govs_to_sockaddr(src, &s), govs_to_sockaddr(dst, &d), timeout_ms);
}

static inline int govs_resolve_route(struct rdma_cm_id *id, int timeout_ms)
{
	if (id->verbs == NULL) {
		errno = EINVAL;
		return -1;
	}
	return rdma_resolve_route(id, timeout_ms);
}

struct govs_conn_param {
	uint32_t qp_num;
	uint8_t responder_resources;
	uint8_t initiator_depth;
	uint8_t flow_control;
	uint8_t retry_count;
	uint8_t rnr_retry_count;
	uint8_t srq;
};

static inline int govs_connect_accept(int (*call)(struct rdma_cm_id *, struct rdma_conn_param *), struct rdma_cm_id *id,
				      const struct govs_conn_param *p, const void *private_data, uint8_t len)
{
	struct rdma_conn_param param = {
		.private_data = private_data,
		.private_data_len = len,
		.responder_resources = p->responder_resources,
		.initiator_depth = p->initiator_depth,
		.flow_control = p->flow_control,
		.retry_count = p->retry_count,
		.rnr_retry_count = p->rnr_retry_count,
		.srq = p->srq,
		.qp_num = p->qp_num,
	};

	if (id->verbs == NULL) {
		errno = EINVAL;
		return -1;
	}
	return call(id, &param);
}

// The signal that Interrupt sends. By convention nobody uses the highest signals,
// and Go's runtime has a handler for them that does nothing.
static inline int govs_interrupt_signal(void) { return SIGRTMAX - 2; }

// On iWARP rdma_connect waits for the TCP handshake. Any signal makes the kernel
// abort the handshake and start again, and Go's runtime sends signals all the
// time. The peer sees a connection that is closed at once, which ends the listener
// if the peer is siw, and the second attempt may find the ports in TIME_WAIT. So
// all signals but Interrupt's and the signals of faults are blocked.
static inline int govs_connect(struct rdma_cm_id *id, const struct govs_conn_param *p, const void *private_data,
			       uint8_t len)
{
	static const int faults[] = { SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS };
	sigset_t wait, before;
	int rc, err;

	sigfillset(&wait);
	sigdelset(&wait, govs_interrupt_signal());
	for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++)
		sigdelset(&wait, faults[i]);
	pthread_sigmask(SIG_BLOCK, &wait, &before);
	rc = govs_connect_accept(rdma_connect, id, p, private_data, len);
	err = errno;
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	errno = err;
	return rc;
}

static inline int govs_accept(struct rdma_cm_id *id, const struct govs_conn_param *p, const void *private_data,
			      uint8_t len)
{
	return govs_connect_accept(rdma_accept, id, p, private_data, len);
}

// An event with everything that it points to, so that one cgo call copies it.
struct govs_cm_event {
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;
	struct rdma_cm_id *listen_id;
	uintptr_t token;
	int type;
	int status;
	struct govs_conn_param param;
	uint8_t private_data_len;
	uint8_t private_data[256];
};

static inline int govs_get_cm_event(struct rdma_event_channel *channel, struct govs_cm_event *out)
{
	struct rdma_cm_event *ev;
	const struct rdma_conn_param *conn;
	int rc = rdma_get_cm_event(channel, &ev);

	if (rc)
		return rc;
	out->event = ev;
	out->id = ev->id;
	out->listen_id = ev->listen_id;
	out->token = (uintptr_t)ev->id->context;
	out->type = ev->event;
	out->status = ev->status;
	out->private_data_len = 0;
	// Only multicast events of RDMA_PS_TCP ids have other parameters, and they
	// need a join that this package does not offer.
	conn = &ev->param.conn;
	out->param = (struct govs_conn_param){
		.qp_num = conn->qp_num,
		.responder_resources = conn->responder_resources,
		.initiator_depth = conn->initiator_depth,
		.flow_control = conn->flow_control,
		.retry_count = conn->retry_count,
		.rnr_retry_count = conn->rnr_retry_count,
		.srq = conn->srq,
	};
	if (conn->private_data && conn->private_data_len) {
		out->private_data_len = conn->private_data_len;
		memcpy(out->private_data, conn->private_data, conn->private_data_len);
	}
	return 0;
}

// Moves a QP that the caller made to a state of the connection setup, with the
// attributes that the connection manager has for that state.
static inline int govs_modify_qp(struct rdma_cm_id *id, struct ibv_qp *qp, int state, int reads)
{
	struct ibv_qp_attr attr = { .qp_state = (enum ibv_qp_state)state };
	int mask = 0, rc;

	if (rdma_init_qp_attr(id, &attr, &mask))
		return errno;
	if (mask & IBV_QP_MAX_DEST_RD_ATOMIC && reads >= 0)
		attr.max_dest_rd_atomic = (uint8_t)reads;
	if (mask & IBV_QP_MAX_QP_RD_ATOMIC && reads >= 0)
		attr.max_rd_atomic = (uint8_t)reads;
	rc = ibv_modify_qp(qp, &attr, mask);
	return rc < 0 ? -rc : rc;
}

static inline void govs_set_context(struct rdma_cm_id *id, uintptr_t token) { id->context = (void *)token; }

static inline void govs_local_addr(struct rdma_cm_id *id, struct govs_addr *a)
{
	govs_from_sockaddr(rdma_get_local_addr(id), a);
}

static inline void govs_peer_addr(struct rdma_cm_id *id, struct govs_addr *a)
{
	govs_from_sockaddr(rdma_get_peer_addr(id), a);
}

#endif
