//go:build linux

// Package rdmalink lists, adds and deletes RDMA links over netlink, as iproute2's rdma(8) does. It
// needs neither that program nor cgo.
//
// A link is an RDMA device of the kernel. Add makes software devices such as siw on top of a
// network interface; the device then appears in libibverbs under the link's name. The messages are
// defined in include/uapi/rdma/rdma_netlink.h, client RDMA_NL_NLDEV of family NETLINK_RDMA.
//
// All functions may be called concurrently. Each opens a socket in the network namespace of the
// calling thread. Interface names are looked up there, and List can only name interfaces of this
// namespace. A caller that changes the namespace of its thread locks the goroutine to it
// (runtime.LockOSThread).
//
// Errors are a *provider.Error that wraps the kernel's errno and gives its most likely cause.
package rdmalink

import (
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/govs-rdma/govs/provider"
)

// Link is an RDMA device of the kernel.
type Link struct {
	// Index is the kernel's number of the device. It is unrelated to the order in a list of
	// libibverbs.
	Index uint32

	// Name is the device's name, such as siw0, as from ibv_get_device_name.
	Name string

	// NodeGUID identifies the device, as from ibv_get_device_guid, in host byte order.
	NodeGUID uint64

	// NodeType is the kind of device: provider.NodeRNIC for iWARP.
	NodeType provider.NodeType

	// Protocol is "iw" (iWARP), "roce", "ib", "opa" or "usnic", and empty if the kernel
	// does not report it. The kernel does not report the type with which a link was added
	// (siw, rxe).
	Protocol string

	// Ports are the device's ports in the order of their numbers, from 1; siw has one.
	Ports []Port
}

// Port is a port of a Link.
type Port struct {
	Num       uint32
	State     provider.PortState
	PhysState uint8 // 5 is LinkUp

	// Netdev is the network interface of the port, and NetdevIndex its interface index. They are
	// empty and 0 if the port has no interface, or if it is in another network namespace.
	Netdev      string
	NetdevIndex uint32
}

// Netdev returns the network interface of the first port that has one, or "" if none has.
func (l Link) Netdev() string {
	for _, port := range l.Ports {
		if port.Netdev != "" {
			return port.Netdev
		}
	}
	return ""
}

// List returns the links of the system (rdma link show). It needs no privilege. A system without
// RDMA devices has an empty list. If the kernel has no RDMA support, or has not loaded it, the
// error is EPROTONOSUPPORT. List leaves out a link that is deleted during the call.
func List() ([]Link, error) {
	conn, err := dial()
	if err != nil {
		return nil, callError("socket(NETLINK_RDMA)", "", err, dialHint(err))
	}
	defer hangUp(conn)
	return list(conn)
}

// Add makes a link called name, of type linkType ("siw" for soft iWARP, "rxe" for soft RoCE), on
// the network interface netdev (rdma link add NAME type TYPE netdev NETDEV). It needs CAP_NET_ADMIN
// in the initial user namespace. The kernel loads the module of the type if it is installed.
//
// The kernel returns EEXIST if the interface already has a link of this type, ENFILE if the name is
// taken, and ENODEV if there is no such interface. It returns EINVAL if the type is unknown or does
// not work on that kind of interface, and EPERM without the privilege. Add itself returns EINVAL
// for names that the kernel would misread.
func Add(name, linkType, netdev string) error {
	conn, err := dial()
	if err != nil {
		return callError("socket(NETLINK_RDMA)", "", err, dialHint(err))
	}
	defer hangUp(conn)
	return add(conn, name, linkType, netdev)
}

// Delete deletes the link called name (rdma link delete NAME). It needs
// CAP_NET_ADMIN in the initial user namespace.
//
// Deleting a siw link waits until every process that has opened the device has ended. This includes
// processes that have closed it, because librdmacm keeps it open. So a process that has used
// package kernel must not delete the link: it would wait for itself, forever.
//
// Errors: ENODEV if there is no such link, EINVAL if the link was not made with
// Add (a hardware device), EPERM.
func Delete(name string) error {
	conn, err := dial()
	if err != nil {
		return callError("socket(NETLINK_RDMA)", "", err, dialHint(err))
	}
	defer hangUp(conn)
	return del(conn, name)
}

func dial() (*netlink.Conn, error) {
	return netlink.Dial(unix.NETLINK_RDMA, nil)
}

// hangUp closes conn. No message is in flight that could be lost.
func hangUp(conn *netlink.Conn) {
	_ = conn.Close()
}
