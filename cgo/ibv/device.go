//go:build cgo && linux && !nokernel

package ibv

/*
#include "shim.h"
*/
import "C"

import (
	"encoding/binary"
	"unsafe"
)

// DeviceList is the result of GetDeviceList. Its devices are valid until Free; opened ones stay
// valid until they are closed.
type DeviceList struct {
	Devices []*Device
	list    **C.struct_ibv_device
}

// GetDeviceList lists the RDMA devices that have a driver in user space.
//
// Implements: struct ibv_device **ibv_get_device_list(int *num_devices);
func GetDeviceList() (*DeviceList, error) {
	var n C.int
	list, err := C.ibv_get_device_list(&n)
	if list == nil {
		return nil, errnoSet(err)
	}
	l := &DeviceList{list: list}
	for _, d := range unsafe.Slice(list, int(n)) {
		l.Devices = append(l.Devices, (*Device)(d))
	}
	return l, nil
}

// Free ends the list.
//
// Implements: void ibv_free_device_list(struct ibv_device **list);
func (l *DeviceList) Free() {
	C.ibv_free_device_list(l.list)
	l.list, l.Devices = nil, nil
}

// Name returns the kernel's name of the device, such as "siw0".
//
// Implements: const char *ibv_get_device_name(struct ibv_device *device);
func (d *Device) Name() string { return C.GoString(C.ibv_get_device_name(d.c())) }

// Index returns the kernel's index of the device, or -1 if the kernel reports none.
//
// Implements: int ibv_get_device_index(struct ibv_device *device);
func (d *Device) Index() int { return int(C.ibv_get_device_index(d.c())) }

// GUID returns the node GUID in host order.
//
// Implements: __be64 ibv_get_device_guid(struct ibv_device *device);
func (d *Device) GUID() uint64 { return hostOrder(C.ibv_get_device_guid(d.c())) }

// NodeType returns enum ibv_node_type.
func (d *Device) NodeType() int32 { return int32(d.node_type) }

// TransportType returns enum ibv_transport_type.
func (d *Device) TransportType() int32 { return int32(d.transport_type) }

// IBDevPath returns the device's directory in sysfs.
func (d *Device) IBDevPath() string { return goString(d.ibdev_path[:]) }

// OpenDevice opens a device from a list that has not been freed.
//
// Implements: struct ibv_context *ibv_open_device(struct ibv_device *device);
func OpenDevice(d *Device) (*Context, error) {
	ctx, err := C.ibv_open_device(d.c())
	if ctx == nil {
		return nil, errnoSet(err)
	}
	return (*Context)(ctx), nil
}

// Close closes a device that OpenDevice opened. Contexts of
// rdmacm.GetDevices are librdmacm's and must not be closed.
//
// Implements: int ibv_close_device(struct ibv_context *context);
func (c *Context) Close() error { return errnoResult(C.ibv_close_device(c.c())) }

// Device returns the device of the context.
func (c *Context) Device() *Device { return (*Device)(c.device) }

// AsyncFD returns the file descriptor of the asynchronous events.
func (c *Context) AsyncFD() int { return int(c.async_fd) }

// NumCompVectors returns the number of the device's completion vectors.
func (c *Context) NumCompVectors() int { return int(c.num_comp_vectors) }

// DeviceAttr is struct ibv_device_attr without fields that are only for InfiniBand. GUIDs are in
// host order.
type DeviceAttr struct {
	FWVer                       string
	NodeGUID, SysImageGUID      uint64
	MaxMRSize, PageSizeCap      uint64
	VendorID, VendorPartID      uint32
	HWVer, DeviceCapFlags       uint32
	MaxQP, MaxQPWR              int
	MaxSGE, MaxSGERd            int
	MaxCQ, MaxCQE               int
	MaxMR, MaxPD, MaxMW         int
	MaxQPRdAtom, MaxResRdAtom   int
	MaxQPInitRdAtom, AtomicCap  int
	MaxSRQ, MaxSRQWR, MaxSRQSGE int
	MaxPkeys                    uint16
	LocalCAAckDelay             uint8
	PhysPortCnt                 uint8
}

// QueryDevice returns the device's limits.
//
// Implements: int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *device_attr);
func (c *Context) QueryDevice() (DeviceAttr, error) {
	var a C.struct_ibv_device_attr
	if err := errnoResult(C.ibv_query_device(c.c(), &a)); err != nil {
		return DeviceAttr{}, err
	}
	return DeviceAttr{
		FWVer:           goString(a.fw_ver[:]),
		NodeGUID:        hostOrder(a.node_guid),
		SysImageGUID:    hostOrder(a.sys_image_guid),
		MaxMRSize:       uint64(a.max_mr_size),
		PageSizeCap:     uint64(a.page_size_cap),
		VendorID:        uint32(a.vendor_id),
		VendorPartID:    uint32(a.vendor_part_id),
		HWVer:           uint32(a.hw_ver),
		DeviceCapFlags:  uint32(a.device_cap_flags),
		MaxQP:           int(a.max_qp),
		MaxQPWR:         int(a.max_qp_wr),
		MaxSGE:          int(a.max_sge),
		MaxSGERd:        int(a.max_sge_rd),
		MaxCQ:           int(a.max_cq),
		MaxCQE:          int(a.max_cqe),
		MaxMR:           int(a.max_mr),
		MaxPD:           int(a.max_pd),
		MaxMW:           int(a.max_mw),
		MaxQPRdAtom:     int(a.max_qp_rd_atom),
		MaxResRdAtom:    int(a.max_res_rd_atom),
		MaxQPInitRdAtom: int(a.max_qp_init_rd_atom),
		AtomicCap:       int(a.atomic_cap),
		MaxSRQ:          int(a.max_srq),
		MaxSRQWR:        int(a.max_srq_wr),
		MaxSRQSGE:       int(a.max_srq_sge),
		MaxPkeys:        uint16(a.max_pkeys),
		LocalCAAckDelay: uint8(a.local_ca_ack_delay),
		PhysPortCnt:     uint8(a.phys_port_cnt),
	}, nil
}

// PortAttr is struct ibv_port_attr without fields that are only for InfiniBand.
type PortAttr struct {
	State             uint32 // enum ibv_port_state
	MaxMTU, ActiveMTU uint32 // enum ibv_mtu: 1 is 256 bytes, 5 is 4096
	GIDTblLen         int
	PortCapFlags      uint32
	MaxMsgSz          uint32
	PkeyTblLen        uint16
	LinkLayer         uint8
	PhysState         uint8
	ActiveWidth       uint8
	ActiveSpeed       uint8
}

// QueryPort returns the attributes of a port; ports count from 1.
//
// Implements: int ibv_query_port(struct ibv_context *context, uint8_t port_num, struct _compat_ibv_port_attr *port_attr);
func (c *Context) QueryPort(port uint8) (PortAttr, error) {
	var a C.struct_ibv_port_attr
	if err := errnoResult(C.govs_query_port(c.c(), C.uint8_t(port), &a)); err != nil {
		return PortAttr{}, err
	}
	return PortAttr{
		State:        uint32(a.state),
		MaxMTU:       uint32(a.max_mtu),
		ActiveMTU:    uint32(a.active_mtu),
		GIDTblLen:    int(a.gid_tbl_len),
		PortCapFlags: uint32(a.port_cap_flags),
		MaxMsgSz:     uint32(a.max_msg_sz),
		PkeyTblLen:   uint16(a.pkey_tbl_len),
		LinkLayer:    uint8(a.link_layer),
		PhysState:    uint8(a.phys_state),
		ActiveWidth:  uint8(a.active_width),
		ActiveSpeed:  uint8(a.active_speed),
	}, nil
}

// QueryGID returns an entry of a port's GID table, in network order.
//
// Implements: int ibv_query_gid(struct ibv_context *context, uint8_t port_num, int index, union ibv_gid *gid);
func (c *Context) QueryGID(port uint8, index int) ([16]byte, error) {
	var gid C.union_ibv_gid
	// The call returns -1, but sets errno only if its read of sysfs failed.
	if rc, err := C.ibv_query_gid(c.c(), C.uint8_t(port), C.int(index), &gid); rc != 0 {
		return [16]byte{}, errnoSet(err)
	}
	return [16]byte(gid), nil
}

// GIDEntry is struct ibv_gid_entry.
type GIDEntry struct {
	GID           [16]byte // network order
	Index         uint32
	Port          uint32
	Type          uint32 // enum ibv_gid_type
	NetdevIfindex uint32
}

// QueryGIDTable returns the valid entries of the device's GID tables, at most max.
//
// Implements: ssize_t ibv_query_gid_table(struct ibv_context *context, struct ibv_gid_entry *entries, size_t max_entries, uint32_t flags);
func (c *Context) QueryGIDTable(max int) ([]GIDEntry, error) {
	if max < 1 {
		return nil, nil
	}
	table := make([]C.struct_ibv_gid_entry, max)
	n := C.govs_query_gid_table(c.c(), unsafe.SliceData(table), C.size_t(max))
	if n < 0 {
		return nil, errnoResult(C.int(-n))
	}
	var entries []GIDEntry
	for i := range table[:n] {
		e := &table[i]
		entries = append(entries, GIDEntry{
			GID: [16]byte(e.gid), Index: uint32(e.gid_index), Port: uint32(e.port_num), Type: uint32(e.gid_type), NetdevIfindex: uint32(e.ndev_ifindex),
		})
	}
	return entries, nil
}

// QueryPkey returns an entry of a port's P_Key table, in host order.
//
// Implements: int ibv_query_pkey(struct ibv_context *context, uint8_t port_num, int index, __be16 *pkey);
func (c *Context) QueryPkey(port uint8, index int) (uint16, error) {
	var be C.__be16
	if rc, err := C.ibv_query_pkey(c.c(), C.uint8_t(port), C.int(index), &be); rc != 0 {
		return 0, errnoSet(err)
	}
	var b [2]byte
	binary.NativeEndian.PutUint16(b[:], uint16(be))
	return binary.BigEndian.Uint16(b[:]), nil
}

func hostOrder(be C.__be64) uint64 {
	var b [8]byte
	binary.NativeEndian.PutUint64(b[:], uint64(be))
	return binary.BigEndian.Uint64(b[:])
}

// AsyncObject is the kind of object in an AsyncEvent.
type AsyncObject int

// Kinds of objects.
const (
	AsyncPort AsyncObject = iota
	AsyncCQ
	AsyncQP
	AsyncSRQ
	AsyncWQ
)

// AsyncEvent is struct ibv_async_event. Destroying the object waits until the event is
// acknowledged.
type AsyncEvent struct {
	Type   uint32 // enum ibv_event_type
	Object AsyncObject
	Token  uintptr // the object's context; the port's number for AsyncPort
	raw    C.struct_ibv_async_event
}

// GetAsyncEvent reads an event from the device's descriptor. It returns EAGAIN if there is none and
// the descriptor is non-blocking.
//
// Implements: int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event);
func (c *Context) GetAsyncEvent() (AsyncEvent, error) {
	var ev AsyncEvent
	if rc, err := C.ibv_get_async_event(c.c(), &ev.raw); rc != 0 {
		return AsyncEvent{}, errnoSet(err)
	}
	var kind C.int
	ev.Token = uintptr(C.govs_async_token(&ev.raw, &kind))
	ev.Type, ev.Object = uint32(ev.raw.event_type), AsyncObject(kind)
	return ev, nil
}

// Ack acknowledges the event, once.
//
// Implements: void ibv_ack_async_event(struct ibv_async_event *event);
func (ev *AsyncEvent) Ack() { C.ibv_ack_async_event(&ev.raw) }
