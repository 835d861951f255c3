//go:build cgo && linux && !nokernel

package rdmacm

/*
#include "shim.h"

static inline int govs_create_qp(struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	return rdma_create_qp(id, pd, attr);
}
*/
import "C"

import (
	"net/netip"
	"slices"
	"syscall"
	"unsafe"

	"github.com/govs-rdma/govs/cgo/ibv"
)

// CreateID makes an id in the port space RDMA_PS_TCP. The token is its context, which its events
// have in Event.Token.
//
// Implements: int rdma_create_id(struct rdma_event_channel *channel, struct rdma_cm_id **id, void *context, enum rdma_port_space ps);
func (ch *EventChannel) CreateID(token uintptr) (*ID, error) {
	var id *C.struct_rdma_cm_id
	if rc, err := C.govs_create_id(ch.c(), &id, C.uintptr_t(token), C.RDMA_PS_TCP); rc != 0 {
		return nil, errnoSet(err)
	}
	return (*ID)(id), nil
}

// Destroy frees the id and ends its connection. It waits, in C, until every fetched event of the id
// has been acknowledged. In the kernel it also waits until a running Connect of the id has
// returned.
//
// Implements: int rdma_destroy_id(struct rdma_cm_id *id);
func (id *ID) Destroy() error {
	rc, err := C.rdma_destroy_id(id.c())
	return result(rc, err)
}

// SetContext changes the id's context. An id that came with a CONNECT_REQUEST gets its own token
// this way.
func (id *ID) SetContext(token uintptr) { C.govs_set_context(id.c(), C.uintptr_t(token)) }

// Verbs returns the open device that the id is bound to, or nil if it is not bound.
func (id *ID) Verbs() *ibv.Context { return (*ibv.Context)(unsafe.Pointer(id.verbs)) }

// QP returns the queue pair that CreateQP made, or nil if there is none.
func (id *ID) QP() *ibv.QP { return (*ibv.QP)(unsafe.Pointer(id.qp)) }

// BindAddr binds the id to a local address, and so to a device.
//
// Implements: int rdma_bind_addr(struct rdma_cm_id *id, struct sockaddr *addr);
func (id *ID) BindAddr(addr netip.AddrPort) error {
	a, err := toC(addr)
	if err != nil {
		return err
	}
	rc, err := C.govs_bind_addr(id.c(), &a)
	return result(rc, err)
}

// ResolveAddr begins to resolve dst, from src if that is valid.
//
// Implements: int rdma_resolve_addr(struct rdma_cm_id *id, struct sockaddr *src_addr, struct sockaddr *dst_addr, int timeout_ms);
func (id *ID) ResolveAddr(src, dst netip.AddrPort, timeoutMillis int) error {
	s, err := toC(src)
	if err != nil {
		return err
	}
	d, err := toC(dst)
	if err != nil {
		return err
	}
	rc, err := C.govs_resolve_addr(id.c(), &s, &d, C.int(timeoutMillis))
	return result(rc, err)
}

// ResolveRoute begins to resolve the route to the resolved address.
//
// Implements: int rdma_resolve_route(struct rdma_cm_id *id, int timeout_ms);
func (id *ID) ResolveRoute(timeoutMillis int) error {
	rc, err := C.govs_resolve_route(id.c(), C.int(timeoutMillis))
	return result(rc, err)
}

// CreateQP makes the id's queue pair and stores the sizes granted in attr.Cap.
// pd must belong to id.Verbs.
//
// Implements: int rdma_create_qp(struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_qp_init_attr *qp_init_attr);
func (id *ID) CreateQP(pd *ibv.PD, attr *ibv.QPInitAttr) (*ibv.QP, error) {
	var c C.struct_ibv_qp_init_attr
	attr.Put(unsafe.Pointer(&c))
	if rc, err := C.govs_create_qp(id.c(), (*C.struct_ibv_pd)(unsafe.Pointer(pd)), &c); rc != 0 {
		return nil, errnoSet(err)
	}
	attr.TakeCap(unsafe.Pointer(&c))
	return id.QP(), nil
}

// DestroyQP frees the queue pair that CreateQP made.
//
// Implements: void rdma_destroy_qp(struct rdma_cm_id *id);
func (id *ID) DestroyQP() { C.rdma_destroy_qp(id.c()) }

// ModifyQP moves a queue pair that CreateQP has not made to a state (enum ibv_qp_state), with the
// attributes of the id's connection. reads is max_dest_rd_atomic for RTR and max_rd_atomic for RTS;
// a negative value means the negotiated one. On iWARP the kernel does this itself.
//
// Implements: int rdma_init_qp_attr(struct rdma_cm_id *id, struct ibv_qp_attr *qp_attr, int *qp_attr_mask);
func (id *ID) ModifyQP(qp *ibv.QP, state uint32, reads int) error {
	rc := C.govs_modify_qp(id.c(), (*C.struct_ibv_qp)(unsafe.Pointer(qp)), C.int(state), C.int(reads))
	if rc != 0 {
		return syscall.Errno(rc)
	}
	return nil
}

// Establish completes the connection after a CONNECT_RESPONSE. An id gets this event on InfiniBand
// and RoCE if it has no queue pair from CreateQP.
//
// Implements: int rdma_establish(struct rdma_cm_id *id);
func (id *ID) Establish() error {
	rc, err := C.rdma_establish(id.c())
	return result(rc, err)
}

// Listen begins to listen for connection requests.
//
// Implements: int rdma_listen(struct rdma_cm_id *id, int backlog);
func (id *ID) Listen(backlog int) error {
	rc, err := C.rdma_listen(id.c(), C.int(backlog))
	return result(rc, err)
}

// ConnParam is struct rdma_conn_param.
type ConnParam struct {
	PrivateData        []byte // at most 255 bytes
	ResponderResources uint8
	InitiatorDepth     uint8
	FlowControl        uint8
	RetryCount         uint8
	RNRRetryCount      uint8
	SRQ                uint8
	QPNum              uint32 // ignored if CreateQP made the id's queue pair
}

func (p *ConnParam) c() C.struct_govs_conn_param {
	return C.struct_govs_conn_param{
		qp_num:              C.uint32_t(p.QPNum),
		responder_resources: C.uint8_t(p.ResponderResources),
		initiator_depth:     C.uint8_t(p.InitiatorDepth),
		flow_control:        C.uint8_t(p.FlowControl),
		retry_count:         C.uint8_t(p.RetryCount),
		rnr_retry_count:     C.uint8_t(p.RNRRetryCount),
		srq:                 C.uint8_t(p.SRQ),
	}
}

func paramFrom(c *C.struct_govs_conn_param) ConnParam {
	return ConnParam{
		QPNum:              uint32(c.qp_num),
		ResponderResources: uint8(c.responder_resources),
		InitiatorDepth:     uint8(c.initiator_depth),
		FlowControl:        uint8(c.flow_control),
		RetryCount:         uint8(c.retry_count),
		RNRRetryCount:      uint8(c.rnr_retry_count),
		SRQ:                uint8(c.srq),
	}
}

// private returns a C copy of p for a call that takes the length in a byte. p itself may be part of
// an object with Go pointers, which cgo would refuse.
func private(p []byte) (unsafe.Pointer, C.uint8_t, error) {
	if len(p) > 255 {
		return nil, 0, syscall.EINVAL
	}
	return unsafe.Pointer(unsafe.SliceData(slices.Clone(p))), C.uint8_t(len(p)), nil
}

// Connect asks the peer for a connection. On iWARP it blocks the calling thread during the TCP
// handshake, which may take minutes. It copies the private data.
//
// Implements: int rdma_connect(struct rdma_cm_id *id, struct rdma_conn_param *conn_param);
func (id *ID) Connect(param *ConnParam) error {
	p, n, err := private(param.PrivateData)
	if err != nil {
		return err
	}
	c := param.c()
	rc, err := C.govs_connect(id.c(), &c, p, n)
	return result(rc, err)
}

// Accept accepts the connection request that the id came with. It copies the private data.
//
// Implements: int rdma_accept(struct rdma_cm_id *id, struct rdma_conn_param *conn_param);
func (id *ID) Accept(param *ConnParam) error {
	p, n, err := private(param.PrivateData)
	if err != nil {
		return err
	}
	c := param.c()
	rc, err := C.govs_accept(id.c(), &c, p, n)
	return result(rc, err)
}

// Reject refuses the connection request that the id came with. It copies the private data.
//
// Implements: int rdma_reject(struct rdma_cm_id *id, const void *private_data, uint8_t private_data_len);
func (id *ID) Reject(privateData []byte) error {
	p, n, err := private(privateData)
	if err != nil {
		return err
	}
	rc, err := C.rdma_reject(id.c(), p, n)
	return result(rc, err)
}

// Disconnect ends the connection. On iWARP librdmacm moves the id's QP to SQD
// first.
//
// Implements: int rdma_disconnect(struct rdma_cm_id *id);
func (id *ID) Disconnect() error {
	rc, err := C.rdma_disconnect(id.c())
	return result(rc, err)
}

// Migrate moves the id, and its events that have not been fetched, to another channel. It waits, in
// C, until every event of the id that was fetched from the old one has been acknowledged.
//
// Implements: int rdma_migrate_id(struct rdma_cm_id *id, struct rdma_event_channel *channel);
func (id *ID) Migrate(ch *EventChannel) error {
	rc, err := C.rdma_migrate_id(id.c(), ch.c())
	return result(rc, err)
}

// SetOption sets an option of level RDMA_OPTION_ID.
//
// Implements: int rdma_set_option(struct rdma_cm_id *id, int level, int optname, void *optval, size_t optlen);
func (id *ID) SetOption(option, value int) error {
	rc, err := C.govs_set_option(id.c(), C.int(option), C.int(value))
	return result(rc, err)
}

// LocalAddr returns the id's own address; it is not valid if the id has none.
//
// Implements: static inline struct sockaddr *rdma_get_local_addr(struct rdma_cm_id *id);
func (id *ID) LocalAddr() netip.AddrPort {
	var a C.struct_govs_addr
	C.govs_local_addr(id.c(), &a)
	return fromC(&a)
}

// PeerAddr returns the peer's address; it is not valid if unknown.
//
// Implements: static inline struct sockaddr *rdma_get_peer_addr(struct rdma_cm_id *id);
func (id *ID) PeerAddr() netip.AddrPort {
	var a C.struct_govs_addr
	C.govs_peer_addr(id.c(), &a)
	return fromC(&a)
}
