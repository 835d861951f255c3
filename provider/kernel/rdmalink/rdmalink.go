//go:build linux

// Package rdmalink lists, adds and deletes RDMA links over netlink, as
// iproute2's rdma(8) does: it needs neither that program nor cgo.
//
// A link is an RDMA device of the kernel. Software devices such as siw are made
// by Add on top of a network interface; the device then appears in libibverbs
// under the link's name. The messages are those of include/uapi/rdma/
// rdma_netlink.h, client RDMA_NL_NLDEV of family NETLINK_RDMA.
//
// All functions may be called concurrently. Each opens a socket of its own, in
// the network namespace of the calling thread: that is where interface names
// are looked up, and the only one whose interfaces List can name. A caller that
// changes the namespace of its thread locks the goroutine to it
// (runtime.LockOSThread).
//
// What fails is a *provider.Error that wraps the kernel's errno and says what
// it most likely means.
package rdmalink

import (
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/govs-rdma/govs/provider"
)

// Link is an RDMA device of the kernel.
type Link struct {
	// Index is the kernel's number of the device. It says nothing about the
	// order in a list of libibverbs.
	Index uint32

	// Name is the device's name, such as siw0: what ibv_get_device_name gives.
	Name string

	// NodeGUID identifies the device: what ibv_get_device_guid gives, in host
	// byte order.
	NodeGUID uint64

	// NodeType is what the device is: provider.NodeRNIC for iWARP.
	NodeType provider.NodeType

	// Protocol is "iw" (iWARP), "roce", "ib", "opa" or "usnic", and empty if the kernel
	// does not report it. The kernel does not report the type with which a link was added
	// (siw, rxe).
	Protocol string

	// Ports of the device in the order of their numbers, from 1; siw has one.
	Ports []Port
}

// Port is a port of a Link.
type Port struct {
	Num       uint32
	State     provider.PortState
	PhysState uint8 // 5 is LinkUp

	// Netdev is the network interface under the port, and NetdevIndex its
	// interface index. Empty and 0 if there is none, or if it is in another
	// network namespace.
	Netdev      string
	NetdevIndex uint32
}

// Netdev is the network interface of the first port that has one, empty if none
// has.
func (l Link) Netdev() string {
	for _, port := range l.Ports {
		if port.Netdev != "" {
			return port.Netdev
		}
	}
	return ""
}

// List returns the links of the system (rdma link show). It needs no privilege.
// A system without RDMA devices has an empty list; a kernel that has no RDMA
// support, or has not loaded it, gives EPROTONOSUPPORT. A link that is deleted
// meanwhile is left out.
func List() ([]Link, error) {
	conn, err := dial()
	if err != nil {
		return nil, callError("socket(NETLINK_RDMA)", "", err, dialHint(err))
	}
	defer hangUp(conn)
	return list(conn)
}

// Add makes a link called name, of type linkType ("siw" for soft iWARP, "rxe"
// for soft RoCE), on the network interface netdev (rdma link add NAME type TYPE
// netdev NETDEV). It needs CAP_NET_ADMIN in the initial user namespace. The
// kernel loads the module of the type by itself if it is installed.
//
// Errors: EEXIST if the interface has a link of this type already, ENFILE if
// the name is taken, ENODEV if there is no such interface, EINVAL if the type
// is not known or does not work on that kind of interface, EPERM. Names that
// the kernel would misread are EINVAL without asking it.
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
// With a siw link it waits for the end of every process that has opened the device, also
// of those that have closed it since, because librdmacm keeps it open. A process that has
// used package kernel must therefore not delete the link itself: it would wait for
// itself, for ever.
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

// hangUp closes conn. Nothing is in flight that closing could lose.
func hangUp(conn *netlink.Conn) {
	_ = conn.Close()
}
