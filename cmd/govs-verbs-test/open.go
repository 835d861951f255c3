package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/auto"
	"github.com/govs-rdma/govs/provider/conformance"
	"github.com/govs-rdma/govs/provider/engine"
	"github.com/govs-rdma/govs/provider/kernel"
)

// kernelBench is the kernel device that scenarios use.
type kernelBench struct {
	device string
	addr   netip.Addr // of its network interface
}

// findKernel finds the first usable iWARP device of the kernel whose interface has an address, or
// has the wanted one. The error lists what each device lacks, and how to add it if that is
// possible.
func findKernel(wanted netip.Addr) (kernelBench, error) {
	p := kernel.New()
	devices, err := p.Devices()
	if err != nil {
		return kernelBench{}, err
	}
	var why []string
	for _, d := range devices {
		if d.Transport != provider.TransportIWARP {
			why = append(why, d.Name+" is not an iWARP device")
			continue
		}
		addr, err := addressOf(d, wanted)
		if err == nil {
			err = auto.Try(p, d.Name, &auto.Options{Addr: addr})
		}
		if err == nil {
			return kernelBench{d.Name, addr}, nil
		}
		why = append(why, fmt.Sprintf("%s: %v", d.Name, err))
	}
	if len(why) == 0 {
		why = []string{"the kernel has no RDMA device; " + name + " link add siw0 --netdev NETDEV adds one"}
	}
	return kernelBench{}, errors.New("no usable kernel device: " + strings.Join(why, "; "))
}

// addressOf returns the wanted address of a device's interface, or its first one if none is wanted,
// IPv4 before IPv6. It skips link-local addresses unless they are wanted, because they would need a
// zone everywhere.
func addressOf(d provider.DeviceInfo, wanted netip.Addr) (netip.Addr, error) {
	if d.Netdev == "" {
		return netip.Addr{}, errors.New("its network interface is not known")
	}
	ifc, err := net.InterfaceByName(d.Netdev)
	if err != nil {
		return netip.Addr{}, err
	}
	list, err := ifc.Addrs()
	if err != nil {
		return netip.Addr{}, err
	}
	var found netip.Addr
	for _, a := range list {
		p, err := netip.ParsePrefix(a.String())
		if err != nil || !wanted.IsValid() && p.Addr().IsLinkLocalUnicast() ||
			wanted.IsValid() && !hasAddr(ifc, p.Addr(), wanted) {
			continue
		}
		if !found.IsValid() || p.Addr().Is4() && !found.Is4() {
			found = p.Addr()
		}
	}
	if found.IsValid() {
		return found.WithZone(wanted.Zone()), nil
	}
	if wanted.IsValid() {
		return netip.Addr{}, fmt.Errorf("%s under it doesn't have the address %v; ip addr lists those it has",
			d.Netdev, wanted)
	}
	return netip.Addr{}, fmt.Errorf("%s under it has no address; ip addr add 192.0.2.1/24 dev %s adds one", d.Netdev, d.Netdev)
}

// opener opens the kernel device; err is the reason if there is none. wrap, if not nil, wraps the
// provider.
func (k kernelBench) opener(addr netip.Addr, err error, wrap wrapper) conformance.Opener {
	return func([]string) (*conformance.Endpoint, error) {
		if err != nil {
			return nil, err
		}
		vctx, err := ibverbs.Open(wrap.of(kernel.New()), k.device)
		if err != nil {
			return nil, err
		}
		return &conformance.Endpoint{Name: "kernel", Context: vctx, Addr: addr, Fixed: true}, nil
	}
}

// wrapper wraps a provider; a nil wrapper does nothing.
type wrapper func(provider.Provider) provider.Provider

func (w wrapper) of(p provider.Provider) provider.Provider {
	if w == nil {
		return p
	}
	return w(p)
}

// openProvider opens a device of the provider that --provider names, for use with addr, and prints
// one line with its choice and the reason. If auto chose the engine because the kernel has no
// device, the line is short, because most machines have none. opts are for the engine; nil means
// defaults.
func openProvider(which string, addr netip.Addr, opts *engine.Options) (*ibverbs.Context, string, error) {
	var p provider.Provider
	why := which + ": as asked"
	switch which {
	case "engine":
		p = engine.New(opts)
	case "kernel":
		p = kernel.New()
	default:
		a := auto.New(&auto.Options{Addr: addr, Engine: opts})
		p, why = a, a.Why()
		if devices, err := kernel.New().Devices(); err != nil || len(devices) == 0 {
			why = a.Name() + ": the kernel has no device (" + name + " devices prints why)"
		}
	}
	vctx, err := ibverbs.Open(p, "")
	return vctx, "provider " + why, err
}
