//go:build linux

package rdmalink

import (
	"errors"
	"fmt"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/govs-rdma/govs/provider"
)

func list(conn *netlink.Conn) ([]Link, error) {
	replies, err := conn.Execute(getRequest())
	if err != nil {
		return nil, callError("RDMA_NLDEV_CMD_GET", "", err, commandHint(err))
	}
	links := make([]Link, 0, len(replies))
	for _, reply := range replies {
		link, err := parseLink(reply.Data)
		if err != nil {
			return nil, callError("RDMA_NLDEV_CMD_GET", "", err, "")
		}
		link.Ports, err = ports(conn, link)
		if errors.Is(err, unix.EINVAL) {
			continue // PORT_GET's answer for a deleted device
		}
		if err != nil {
			return nil, err
		}
		links = append(links, link)
	}
	return links, nil
}

func ports(conn *netlink.Conn, link Link) ([]Port, error) {
	replies, err := conn.Execute(portGetRequest(link.Index))
	if err != nil {
		return nil, callError("RDMA_NLDEV_CMD_PORT_GET", link.Name, err, commandHint(err))
	}
	all := make([]Port, 0, len(replies))
	for _, reply := range replies {
		port, err := parsePort(reply.Data)
		if err != nil {
			return nil, callError("RDMA_NLDEV_CMD_PORT_GET", link.Name, err, "")
		}
		all = append(all, port)
	}
	return all, nil
}

func add(conn *netlink.Conn, name, linkType, netdev string) error {
	const op = "RDMA_NLDEV_CMD_NEWLINK"
	object := fmt.Sprintf("%q of type %q on %q", name, linkType, netdev)
	if hint := misread(name, linkType, netdev); hint != "" {
		return callError(op, object, unix.EINVAL, hint)
	}
	if _, err := conn.Execute(newLinkRequest(name, linkType, netdev)); err != nil {
		return callError(op, object, err, addHint(err, name, linkType, netdev))
	}
	return nil
}

func del(conn *netlink.Conn, name string) error {
	const op = "RDMA_NLDEV_CMD_DELLINK"
	links, err := list(conn)
	if err != nil {
		return err
	}
	for _, link := range links {
		if link.Name != name {
			continue
		}
		if _, err := conn.Execute(delLinkRequest(link.Index)); err != nil {
			return callError(op, name, err, deleteHint(err))
		}
		return nil
	}
	return callError(op, name, unix.ENODEV, "there is no RDMA link of this name")
}

// deviceNameMax is IB_DEVICE_NAME_MAX of the kernel. nldev_newlink copies the type and the
// interface's name to buffers of IFNAMSIZ bytes.
const deviceNameMax = 64

// misread returns why the kernel would take a name for another name or for a pattern, or "" if it
// would not.
func misread(name, linkType, netdev string) string {
	for _, arg := range []struct {
		what, value string
		limit       int // including the terminating NUL
	}{
		{"link's name", name, deviceNameMax},
		{"link's type", linkType, unix.IFNAMSIZ},
		{"interface's name", netdev, unix.IFNAMSIZ},
	} {
		switch {
		case arg.value == "":
			return "the " + arg.what + " is empty"
		case len(arg.value) >= arg.limit:
			return fmt.Sprintf("the %s is longer than %d bytes", arg.what, arg.limit-1)
		case strings.ContainsAny(arg.value, "\x00/%"):
			return fmt.Sprintf("the %s may not contain NUL, / or %%", arg.what)
		}
	}
	return ""
}

// callError wraps the errno in err, or err itself if it has none, and adds hint.
func callError(op, object string, err error, hint string) error {
	if errno := provider.Errno(err); errno != 0 {
		err = errno
	}
	if hint != "" {
		err = fmt.Errorf("%s: %w", hint, err)
	}
	return &provider.Error{Op: op, Object: object, Err: err}
}

// dialHint returns the likely reason why the socket cannot be opened.
func dialHint(err error) string {
	if errors.Is(err, unix.EPROTONOSUPPORT) {
		return "the kernel has no RDMA support loaded; modprobe ib_core"
	}
	return ""
}

// commandHint returns the likely reason why a command is refused.
func commandHint(err error) string {
	switch {
	case errors.Is(err, unix.EPERM):
		return "CAP_NET_ADMIN in the initial user namespace is needed; run it as root"
	case errors.Is(err, unix.EOPNOTSUPP):
		return "the kernel does not know this command"
	}
	return ""
}

func addHint(err error, name, linkType, netdev string) string {
	switch {
	case errors.Is(err, unix.EEXIST):
		return fmt.Sprintf("%s has a link already; delete that one first", netdev)
	case errors.Is(err, unix.ENFILE):
		return fmt.Sprintf("an RDMA device is called %s already", name)
	case errors.Is(err, unix.ENODEV):
		return fmt.Sprintf("no network interface %s in this network namespace", netdev)
	case errors.Is(err, unix.EINVAL):
		return fmt.Sprintf("type %s is not known (modprobe %s), or it does not work on an interface like %s",
			linkType, moduleOf(linkType), netdev)
	}
	return commandHint(err)
}

func deleteHint(err error) string {
	if errors.Is(err, unix.EINVAL) {
		return "it is gone already, or it is not a link that was added"
	}
	return commandHint(err)
}

// moduleOf returns the name of the module for a link type.
func moduleOf(linkType string) string {
	if linkType == "rxe" {
		return "rdma_rxe"
	}
	return linkType
}
