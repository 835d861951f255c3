//go:build cgo && linux && !nokernel

package kernel

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/govs-rdma/govs/cgo/ibv"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/kernel/rdmalink"
)

const rdmaCMNode = "/dev/infiniband/rdma_cm"

// noSupport adds a remedy to the errnos that mean that the kernel has no RDMA support.
func noSupport(err error) error {
	switch {
	case errors.Is(err, syscall.ENOSYS):
		return fmt.Errorf("the kernel has no user-space verbs; load ib_uverbs and rdma_ucm (modprobe), and "+
			"siw for soft-iWARP: %w", err)
	case errors.Is(err, syscall.ENOENT):
		if denied := denied(rdmaCMNode); denied != nil {
			return denied
		}
		return fmt.Errorf("the rdma_cm device is missing; load rdma_ucm (modprobe): %w", err)
	}
	return err
}

// whyNoDevice explains why librdmacm has no device with this name, or no device if name is empty.
// The libraries omit unusable devices without an error.
func whyNoDevice(name string) error {
	if err := whyNotOpened(name); err != nil {
		return err
	}
	if why := whyNotListed(name); why != "" {
		return fmt.Errorf("%s: %w", why, syscall.ENODEV)
	}
	if name != "" {
		return fmt.Errorf("there is no RDMA device of that name; rdma link lists those there are: %w",
			syscall.ENODEV)
	}
	return fmt.Errorf("there is no RDMA device; for soft-iWARP, load siw and add a link (rdma link add siw0 type "+
		"siw netdev NETDEV): %w", syscall.ENODEV)
}

// whyNotOpened opens a device that libibverbs lists, and returns the error of opening it.
func whyNotOpened(name string) error {
	list, err := ibv.GetDeviceList()
	if err != nil {
		return noSupport(err)
	}
	defer list.Free()
	for _, d := range list.Devices {
		if name != "" && name != d.Name() {
			continue
		}
		verbs, err := ibv.OpenDevice(d)
		if err == nil {
			err = verbs.Close()
		}
		if err == nil {
			continue
		}
		if denied := denied(uverbsNode(d.Name())); denied != nil {
			return denied
		}
		return err
	}
	return nil
}

// denied returns an error if this process may not open a device node. The libraries return ENOENT
// whatever the cause.
func denied(node string) error {
	f, err := os.OpenFile(node, os.O_RDWR, 0)
	if err == nil {
		_ = f.Close() // it was only opened
	}
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("this process may not open %s; give its user access to the file, or run as root: %w",
			node, syscall.EACCES)
	}
	return nil
}

// whyNotListed explains why libibverbs does not list a kernel device with this name, or any if name
// is empty. It returns "" if the kernel has no such device.
func whyNotListed(name string) string {
	links, err := rdmalink.List()
	if err != nil {
		return ""
	}
	for _, l := range links {
		if name != "" && name != l.Name {
			continue
		}
		node := uverbsNode(l.Name)
		if node == "" {
			return fmt.Sprintf("the kernel has %s, but no user-space verbs for it; load ib_uverbs (modprobe)", l.Name)
		}
		if _, err := os.Stat(node); errors.Is(err, fs.ErrNotExist) {
			return fmt.Sprintf(
				"the kernel has %s, but %s is missing; a container needs it (--device)", l.Name, node)
		}
		return fmt.Sprintf("the kernel has %s, but libibverbs has no driver for it; Debian's are in ibverbs-providers", l.Name)
	}
	return ""
}

// uverbsNode returns the device node of an RDMA device, or "" if it has none.
func uverbsNode(name string) string {
	files, err := filepath.Glob("/sys/class/infiniband_verbs/uverbs*/ibdev")
	if err != nil {
		return "" // only a bad pattern causes an error
	}
	for _, file := range files {
		if b, err := os.ReadFile(file); err == nil && strings.TrimSpace(string(b)) == name {
			return "/dev/infiniband/" + filepath.Base(filepath.Dir(file))
		}
	}
	return ""
}

// explain adds a cause to failures that siw reports with the same status: EINVAL for every Reply
// that it cannot read or does not accept (siw_proc_mpareply).
func (d *device) explain(ev *provider.CMEvent) {
	if ev.Type == provider.CMConnectError && ev.Status == -int(syscall.EINVAL) && ev.Cause == nil && d.siw {
		ev.Cause = errBadReply
	}
}

var errBadReply = errors.New("the peer's MPA Reply is not valid, or the peer ended the connection before siw had read it; " +
	"siw does not report which")
