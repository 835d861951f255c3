//go:build cgo && linux && !nokernel

package kernel

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/govs-rdma/govs/cgo/ibv"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/kernel/rdmalink"
)

// Available says whether the kernel provider was built in.
const Available = true

// New returns the kernel provider. It has no state of its own: all of it
// together drives the devices of the process.
func New() provider.Provider { return kernelProvider{} }

type kernelProvider struct{}

func (kernelProvider) Name() string { return "kernel" }

// Devices lists the devices that have a driver in libibverbs. The network
// interface under each comes from netlink, and is left empty where netlink
// tells none.
func (kernelProvider) Devices() ([]provider.DeviceInfo, error) {
	list, err := ibv.GetDeviceList()
	if err != nil {
		return nil, opError("ibv_get_device_list", "", noSupport(err))
	}
	defer list.Free()
	netdevs := make(map[string]string)
	if links, err := rdmalink.List(); err == nil {
		for _, l := range links {
			netdevs[l.Name] = l.Netdev()
		}
	}
	infos := make([]provider.DeviceInfo, 0, len(list.Devices))
	for _, d := range list.Devices {
		infos = append(infos, provider.DeviceInfo{
			Name:      d.Name(),
			Provider:  "kernel",
			NodeType:  provider.NodeType(d.NodeType()),
			Transport: provider.TransportType(d.TransportType()),
			NodeGUID:  d.GUID(),
			Netdev:    netdevs[d.Name()],
		})
	}
	return infos, nil
}

// Open opens a device by name, the first one if the name is empty.
func (kernelProvider) Open(name string) (provider.Device, error) {
	d, err := openDevice(name)
	if err != nil {
		return nil, err
	}
	return d, nil
}

// noSupport adds what to do to the errnos that mean that the kernel has no RDMA
// at all.
func noSupport(err error) error {
	switch {
	case errors.Is(err, syscall.ENOSYS):
		return fmt.Errorf("%w: the kernel has no user-space verbs; load ib_uverbs and rdma_ucm (modprobe), and siw for soft-iWARP", err)
	case errors.Is(err, syscall.ENODEV):
		return fmt.Errorf("%w: there is no RDMA device; for soft-iWARP, load siw and add a link (rdma link add siw0 type siw netdev NETDEV)", err)
	case errors.Is(err, syscall.ENOENT):
		return fmt.Errorf("%w: the rdma_cm device is missing; load rdma_ucm (modprobe)", err)
	}
	return err
}
