//go:build cgo && linux && !nokernel

package kernel

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/govs-rdma/govs/cgo/ibv"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/kernel/rdmalink"
)

// Available reports whether the kernel provider was built in.
const Available = true

// New returns the kernel provider. It has no state: every such provider uses the same devices of
// the process.
func New() provider.Provider { return kernelProvider{} }

type kernelProvider struct{}

func (kernelProvider) Name() string { return "kernel" }

// Devices lists the devices that have a driver in libibverbs. An empty list is an error only if the
// kernel has devices, which the libraries then cannot reach. The network interface of each device
// comes from netlink; it is empty if netlink reports none.
func (kernelProvider) Devices() ([]provider.DeviceInfo, error) {
	list, err := ibv.GetDeviceList()
	if err != nil {
		return nil, opError("ibv_get_device_list", "", noSupport(err))
	}
	defer list.Free()
	if len(list.Devices) == 0 {
		if why := whyNotListed(""); why != "" {
			return nil, opError("ibv_get_device_list", "", fmt.Errorf("%s: %w",
				why, syscall.ENODEV))
		}
	}
	// By name and GUID, because over the bridge libibverbs lists the bridge's device and netlink
	// the kernel's.
	type identity struct {
		name string
		guid uint64
	}
	netdevs := make(map[identity]string)
	if links, err := rdmalink.List(); err == nil {
		for _, l := range links {
			netdevs[identity{l.Name, l.NodeGUID}] = l.Netdev()
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
			Netdev:    netdevs[identity{d.Name(), d.GUID()}],
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

// siwTellsState reports whether siw's ibv_query_qp returns the state, which it does from Linux 6.8
// on (commit 0b988c1bee28). In earlier versions the field holds random bytes of the kernel's heap.
var siwTellsState = sync.OnceValue(func() bool {
	var uts unix.Utsname
	if unix.Uname(&uts) != nil {
		return false
	}
	return releaseAtLeast(unix.ByteSliceToString(uts.Release[:]), 6, 8)
})

// releaseAtLeast reports whether a kernel's release, such as "6.1.0-44-amd64", is at least a
// version. A release that it cannot parse counts as old.
func releaseAtLeast(release string, major, minor int) bool {
	fields := strings.FieldsFunc(release, func(r rune) bool { return r < '0' || r > '9' })
	if len(fields) < 2 {
		return false
	}
	gotMajor, err1 := strconv.Atoi(fields[0])
	gotMinor, err2 := strconv.Atoi(fields[1])
	if err1 != nil || err2 != nil {
		return false
	}
	return gotMajor > major || gotMajor == major && gotMinor >= minor
}
