//go:build cgo && linux && !nokernel

package rdmacm

/*
#cgo LDFLAGS: -lrdmacm -libverbs
#include "shim.h"
*/
import "C"

import (
	"net"
	"net/netip"
	"strconv"
	"syscall"
	"unsafe"

	"github.com/govs-rdma/govs/cgo/ibv"
)

// Available reports whether librdmacm was built in.
const Available = true

// WhyUnavailable returns what the build lacks, or "" if it lacks nothing.
func WhyUnavailable() string { return "" }

// The objects of librdmacm. The package comment describes their pointers.
type (
	// EventChannel is a struct rdma_event_channel.
	EventChannel C.struct_rdma_event_channel
	// ID is a struct rdma_cm_id.
	ID C.struct_rdma_cm_id
)

func (ch *EventChannel) c() *C.struct_rdma_event_channel { return (*C.struct_rdma_event_channel)(ch) }
func (id *ID) c() *C.struct_rdma_cm_id                   { return (*C.struct_rdma_cm_id)(id) }

// DeviceList is the result of GetDevices. librdmacm owns its contexts: they stay open until Free,
// and a device has the same context in every list of the process.
type DeviceList struct {
	Contexts []*ibv.Context
	list     **C.struct_ibv_context
}

// GetDevices opens all RDMA devices, if they are not open yet, and lists them. It returns ENODEV if
// there are none.
//
// Implements: struct ibv_context **rdma_get_devices(int *num_devices);
func GetDevices() (*DeviceList, error) {
	var n C.int
	list, err := C.rdma_get_devices(&n)
	if list == nil {
		return nil, errnoSet(err)
	}
	l := &DeviceList{list: list}
	for _, ctx := range unsafe.Slice(list, int(n)) {
		l.Contexts = append(l.Contexts, (*ibv.Context)(unsafe.Pointer(ctx)))
	}
	return l, nil
}

// Free ends the list.
//
// Implements: void rdma_free_devices(struct ibv_context **list);
func (l *DeviceList) Free() {
	C.rdma_free_devices(l.list)
	l.list, l.Contexts = nil, nil
}

// EventStr returns librdmacm's name for an enum rdma_cm_event_type.
//
// Implements: const char *rdma_event_str(enum rdma_cm_event_type event);
func EventStr(event uint32) string {
	return C.GoString(C.rdma_event_str(C.enum_rdma_cm_event_type(event)))
}

// Constants returns the values of the enumerations that the package passes through, by C name. The
// values are from the header that the package was built with.
func Constants() map[string]int64 {
	return map[string]int64{
		// enum rdma_cm_event_type
		"RDMA_CM_EVENT_ADDR_RESOLVED":    C.RDMA_CM_EVENT_ADDR_RESOLVED,
		"RDMA_CM_EVENT_ADDR_ERROR":       C.RDMA_CM_EVENT_ADDR_ERROR,
		"RDMA_CM_EVENT_ROUTE_RESOLVED":   C.RDMA_CM_EVENT_ROUTE_RESOLVED,
		"RDMA_CM_EVENT_ROUTE_ERROR":      C.RDMA_CM_EVENT_ROUTE_ERROR,
		"RDMA_CM_EVENT_CONNECT_REQUEST":  C.RDMA_CM_EVENT_CONNECT_REQUEST,
		"RDMA_CM_EVENT_CONNECT_RESPONSE": C.RDMA_CM_EVENT_CONNECT_RESPONSE,
		"RDMA_CM_EVENT_CONNECT_ERROR":    C.RDMA_CM_EVENT_CONNECT_ERROR,
		"RDMA_CM_EVENT_UNREACHABLE":      C.RDMA_CM_EVENT_UNREACHABLE,
		"RDMA_CM_EVENT_REJECTED":         C.RDMA_CM_EVENT_REJECTED,
		"RDMA_CM_EVENT_ESTABLISHED":      C.RDMA_CM_EVENT_ESTABLISHED,
		"RDMA_CM_EVENT_DISCONNECTED":     C.RDMA_CM_EVENT_DISCONNECTED,
		"RDMA_CM_EVENT_DEVICE_REMOVAL":   C.RDMA_CM_EVENT_DEVICE_REMOVAL,
		"RDMA_CM_EVENT_MULTICAST_JOIN":   C.RDMA_CM_EVENT_MULTICAST_JOIN,
		"RDMA_CM_EVENT_MULTICAST_ERROR":  C.RDMA_CM_EVENT_MULTICAST_ERROR,
		"RDMA_CM_EVENT_ADDR_CHANGE":      C.RDMA_CM_EVENT_ADDR_CHANGE,
		"RDMA_CM_EVENT_TIMEWAIT_EXIT":    C.RDMA_CM_EVENT_TIMEWAIT_EXIT,
		// enum rdma_port_space
		"RDMA_PS_TCP": C.RDMA_PS_TCP,
		// unnamed
		"RDMA_MAX_RESP_RES":   C.RDMA_MAX_RESP_RES,
		"RDMA_MAX_INIT_DEPTH": C.RDMA_MAX_INIT_DEPTH,
	}
}

// errnoSet converts the errno of a call that failed with NULL or -1 to an error.
func errnoSet(err error) error {
	if errno, ok := err.(syscall.Errno); ok && errno != 0 {
		return errno
	}
	return syscall.EIO
}

// result converts the result of a call that returns 0 or -1 to an error.
func result(rc C.int, err error) error {
	if rc == 0 {
		return nil
	}
	return errnoSet(err)
}

// toC converts an address; the zero AddrPort becomes a null address. An IPv6 zone is an interface's
// name or number.
func toC(a netip.AddrPort) (C.struct_govs_addr, error) {
	c := C.struct_govs_addr{port: C.uint16_t(a.Port())}
	ip := a.Addr().Unmap()
	switch {
	case ip.Is4():
		b := ip.As4()
		copy((*[16]byte)(unsafe.Pointer(&c.ip))[:], b[:])
		c.len = 4
	case ip.Is6():
		b := ip.As16()
		copy((*[16]byte)(unsafe.Pointer(&c.ip))[:], b[:])
		c.len = 16
		if zone := ip.Zone(); zone != "" {
			scope, err := zoneIndex(zone)
			if err != nil {
				return c, err
			}
			c.scope = C.uint32_t(scope)
		}
	}
	return c, nil
}

func zoneIndex(zone string) (uint32, error) {
	if n, err := strconv.ParseUint(zone, 10, 32); err == nil {
		return uint32(n), nil
	}
	ifi, err := net.InterfaceByName(zone)
	if err != nil {
		return 0, syscall.ENODEV
	}
	return uint32(ifi.Index), nil
}

func fromC(c *C.struct_govs_addr) netip.AddrPort {
	b := (*[16]byte)(unsafe.Pointer(&c.ip))
	var ip netip.Addr
	switch c.len {
	case 4:
		ip = netip.AddrFrom4([4]byte(b[:4]))
	case 16:
		ip = netip.AddrFrom16(*b)
		if c.scope != 0 {
			ip = ip.WithZone(strconv.FormatUint(uint64(c.scope), 10))
		}
	default:
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(ip, uint16(c.port))
}
