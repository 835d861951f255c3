package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/conformance"
	"github.com/govs-rdma/govs/provider/conformance/capture"
	"github.com/govs-rdma/govs/provider/engine"
	"github.com/govs-rdma/govs/provider/engine/transport"
	"github.com/govs-rdma/govs/provider/kernel"
)

// kernelBench is the kernel device that scenarios use.
type kernelBench struct {
	device string
	addr   netip.Addr // of the interface under it
}

// findKernel finds the first iWARP device of the kernel whose interface has an
// address, or has the one that is wanted. The error says what is missing and
// what adds it.
func findKernel(wanted string) (kernelBench, error) {
	devices, err := kernel.New().Devices()
	if err != nil {
		return kernelBench{}, fmt.Errorf("no kernel provider: %w", err)
	}
	why := "the kernel has no RDMA device: load siw and run govs-verbs-test link add siw0 --netdev NETDEV, or use ci/vm/run"
	for _, d := range devices {
		if d.Transport != provider.TransportIWARP {
			why = fmt.Sprintf("%s is not an iWARP device", d.Name)
			continue
		}
		addrs, err := addresses(d.Netdev)
		if err != nil {
			why = fmt.Sprintf("%s: %v", d.Name, err)
			continue
		}
		for _, a := range addrs {
			if wanted == "" || a.String() == wanted {
				return kernelBench{d.Name, a}, nil
			}
		}
		why = fmt.Sprintf("%s on %s has no address%s: ip addr add 192.0.2.1/24 dev %s", d.Name, d.Netdev, prefix(" ", wanted), d.Netdev)
	}
	return kernelBench{}, errors.New("no usable kernel device: " + why)
}

func prefix(p, s string) string {
	if s == "" {
		return ""
	}
	return p + s
}

// addresses returns the unicast addresses of an interface, IPv4 first, without
// link-local ones.
func addresses(netdev string) ([]netip.Addr, error) {
	if netdev == "" {
		return nil, errors.New("its network interface is not known")
	}
	ifc, err := net.InterfaceByName(netdev)
	if err != nil {
		return nil, err
	}
	list, err := ifc.Addrs()
	if err != nil {
		return nil, err
	}
	var v4, v6 []netip.Addr
	for _, a := range list {
		p, err := netip.ParsePrefix(a.String())
		switch {
		case err != nil || p.Addr().IsLinkLocalUnicast():
		case p.Addr().Is4():
			v4 = append(v4, p.Addr())
		default:
			v6 = append(v6, p.Addr())
		}
	}
	return append(v4, v6...), nil
}

// address decides which address both sides use.
func (c *runCmd) address(k kernelBench) (netip.Addr, error) {
	switch {
	case c.Addr != "":
		addr, err := netip.ParseAddr(c.Addr)
		if err != nil {
			return netip.Addr{}, fmt.Errorf("--addr: %w", err)
		}
		return addr, nil
	case k.addr.IsValid():
		return k.addr, nil
	}
	return netip.AddrFrom4([4]byte{127, 0, 0, 1}), nil
}

// opener opens the kernel device; err says why there is none.
func (k kernelBench) opener(addr netip.Addr, err error) conformance.Opener {
	return func([]string) (*conformance.Endpoint, error) {
		if err != nil {
			return nil, err
		}
		vctx, err := ibverbs.Open(kernel.New(), k.device)
		if err != nil {
			return nil, err
		}
		return &conformance.Endpoint{Name: "kernel", Context: vctx, Addr: addr}, nil
	}
}

// engineOpener opens an engine of its own for each run.
func engineOpener(addr netip.Addr, tap *capture.Tap) conformance.Opener {
	return func(options []string) (*conformance.Endpoint, error) {
		opts, err := engineOptions(options)
		if err != nil {
			return nil, err
		}
		if tap != nil {
			opts.Network = transport.NewTCP(&transport.TCPOptions{Tap: tap})
		}
		vctx, err := ibverbs.Open(engine.New(opts), "")
		if err != nil {
			return nil, err
		}
		return &conformance.Endpoint{Name: "engine", Context: vctx, Addr: addr}, nil
	}
}

// engineOptions reads a scenario's options.
func engineOptions(options []string) (*engine.Options, error) {
	opts := &engine.Options{}
	for _, o := range options {
		key, value, _ := strings.Cut(o, "=")
		if err := setOption(opts, key, value); err != nil {
			return nil, fmt.Errorf("scenario option %q: %w", o, err)
		}
	}
	return opts, nil
}

func setOption(opts *engine.Options, key, value string) error {
	switch key {
	case "crc":
		policy, ok := map[string]engine.CRCPolicy{"on": engine.CRCOn, "required": engine.CRCRequired, "off": engine.CRCOff}[value]
		if !ok {
			return errors.New("not on, required or off")
		}
		opts.CRC = policy
	case "placement":
		p, ok := map[string]engine.Placement{"verified": engine.PlaceVerified, "streaming": engine.PlaceStreaming}[value]
		if !ok {
			return errors.New("not verified or streaming")
		}
		opts.Placement = p
	case "markers":
		opts.Markers = value == "on"
	case "startup":
		d, err := time.ParseDuration(value)
		if err != nil {
			return err
		}
		opts.StartupTimeout = d
	default:
		return errors.New("no such option")
	}
	return nil
}
