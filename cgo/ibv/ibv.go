//go:build cgo && linux && !nokernel

package ibv

/*
#cgo LDFLAGS: -libverbs
#include "shim.h"
*/
import "C"

import (
	"syscall"
	"unsafe"
)

// Available reports whether libibverbs was built in.
const Available = true

// WhyUnavailable returns what the build lacks, or "" if it lacks nothing.
func WhyUnavailable() string { return "" }

// The objects of libibverbs. The package comment describes their pointers.
type (
	// Device is a struct ibv_device.
	Device C.struct_ibv_device
	// Context is a struct ibv_context.
	Context C.struct_ibv_context
	// PD is a struct ibv_pd.
	PD C.struct_ibv_pd
	// MR is a struct ibv_mr.
	MR C.struct_ibv_mr
	// MW is a struct ibv_mw.
	MW C.struct_ibv_mw
	// CompChannel is a struct ibv_comp_channel.
	CompChannel C.struct_ibv_comp_channel
	// CQ is a struct ibv_cq.
	CQ C.struct_ibv_cq
	// QP is a struct ibv_qp.
	QP C.struct_ibv_qp
	// SRQ is a struct ibv_srq.
	SRQ C.struct_ibv_srq
)

func (d *Device) c() *C.struct_ibv_device             { return (*C.struct_ibv_device)(d) }
func (c *Context) c() *C.struct_ibv_context           { return (*C.struct_ibv_context)(c) }
func (p *PD) c() *C.struct_ibv_pd                     { return (*C.struct_ibv_pd)(p) }
func (m *MR) c() *C.struct_ibv_mr                     { return (*C.struct_ibv_mr)(m) }
func (m *MW) c() *C.struct_ibv_mw                     { return (*C.struct_ibv_mw)(m) }
func (ch *CompChannel) c() *C.struct_ibv_comp_channel { return (*C.struct_ibv_comp_channel)(ch) }
func (q *CQ) c() *C.struct_ibv_cq                     { return (*C.struct_ibv_cq)(q) }
func (q *QP) c() *C.struct_ibv_qp                     { return (*C.struct_ibv_qp)(q) }
func (s *SRQ) c() *C.struct_ibv_srq                   { return (*C.struct_ibv_srq)(s) }

// ForkInit makes fork(2) safe for registered memory, at the cost of a system call per registration.
// It must be called before anything is registered.
//
// Go programs rarely need it. os/exec starts children with CLONE_VM|CLONE_VFORK, which copies no
// page, and kernels from 5.12 on copy pinned pages at fork.
//
// Implements: int ibv_fork_init(void);
func ForkInit() error { return errnoResult(C.ibv_fork_init()) }

// IsForkInitialized returns enum ibv_fork_status: 0 disabled, 1 enabled, 2 not
// needed because the kernel copies pinned pages.
//
// Implements: enum ibv_fork_status ibv_is_fork_initialized(void);
func IsForkInitialized() int { return int(C.ibv_is_fork_initialized()) }

// WCStatusStr returns libibverbs' text for an enum ibv_wc_status.
//
// Implements: const char *ibv_wc_status_str(enum ibv_wc_status status);
func WCStatusStr(status uint32) string {
	return C.GoString(C.ibv_wc_status_str(C.enum_ibv_wc_status(status)))
}

// EventTypeStr returns libibverbs' text for an enum ibv_event_type.
//
// Implements: const char *ibv_event_type_str(enum ibv_event_type event);
func EventTypeStr(event uint32) string {
	return C.GoString(C.ibv_event_type_str(C.enum_ibv_event_type(event)))
}

// NodeTypeStr returns libibverbs' text for an enum ibv_node_type.
//
// Implements: const char *ibv_node_type_str(enum ibv_node_type node_type);
func NodeTypeStr(t int32) string {
	return C.GoString(C.ibv_node_type_str(C.enum_ibv_node_type(t)))
}

// PortStateStr returns libibverbs' text for an enum ibv_port_state.
//
// Implements: const char *ibv_port_state_str(enum ibv_port_state port_state);
func PortStateStr(s uint32) string {
	return C.GoString(C.ibv_port_state_str(C.enum_ibv_port_state(s)))
}

// errnoResult converts the result of a call that returns an errno, positive or negative, to an
// error.
func errnoResult(rc C.int) error {
	switch {
	case rc == 0:
		return nil
	case rc < 0:
		rc = -rc
	}
	return syscall.Errno(rc)
}

// errnoSet converts the errno of a call that failed with NULL or -1 to an error. If the driver
// failed without setting errno, it returns EIO.
func errnoSet(err error) error {
	if errno, ok := err.(syscall.Errno); ok && errno != 0 {
		return errno
	}
	return syscall.EIO
}

// goString returns the string in a fixed-size char array, which may lack a terminating NUL.
func goString(s []C.char) string {
	b := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s))
	for i, c := range b {
		if c == 0 {
			return string(b[:i])
		}
	}
	return string(b)
}

// cArray returns n zeroed elements in C memory, or nil if n is 0 or memory has run out.
func cArray[T any](n int) []T {
	var t T
	if n == 0 {
		return nil
	}
	p := C.calloc(C.size_t(n), C.size_t(unsafe.Sizeof(t)))
	if p == nil {
		return nil
	}
	return unsafe.Slice((*T)(p), n)
}

// cFree frees memory of cArray.
func cFree[T any](s []T) { C.free(unsafe.Pointer(unsafe.SliceData(s))) }
