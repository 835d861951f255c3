package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/govs-rdma/govs/provider/conformance"
	"github.com/govs-rdma/govs/provider/conformance/capture"
	"github.com/govs-rdma/govs/provider/conformance/onengine"
	"github.com/govs-rdma/govs/provider/engine/transport"
)

// bench is the set-up for running scenarios.
type bench struct {
	pairings []conformance.Pairing
	openers  map[string]conformance.Opener
	capture  conformance.Capturer
	toPeer   conformance.Capturer // for runs with another host; nil if it is the same
	tap      transport.Tap        // nil if captures come from the wire
	target   *conformance.Target  // nil without --target
}

// peerTap returns the tap for the raw peer: a nil interface if there is no tap.
func (b *bench) peerTap() transport.Tap {
	if b.tap == nil {
		return nil
	}
	return b.tap
}

// bench chooses the pairings to run and how to capture them. It prints the pairings that it leaves
// out.
func (c *runCmd) bench(ctx context.Context, out *output) (*bench, error) {
	if c.Target != "" {
		return c.targetBench(ctx, out)
	}
	if c.peer != nil {
		return c.peerBench(out)
	}
	if c.usesBridge() {
		return c.bridgeBench(out)
	}
	b := &bench{pairings: c.wanted()}
	k, kernelErr := findKernel(c.Addr)
	if kernelErr != nil {
		if err := b.withoutKernel(c, out, kernelErr); err != nil {
			return nil, err
		}
	}
	addr := c.Addr
	switch {
	case addr.IsValid():
		if err := isOurs(addr); err != nil {
			return nil, unable(err)
		}
	case kernelErr == nil:
		addr = k.addr
	default:
		addr = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	listen := []netip.Addr{addr}
	if kernelErr == nil {
		listen = append(listen, k.addr)
	}
	if err := b.captureOn(c.Interface, listen, out, kernelErr == nil); err != nil {
		return nil, unable(err)
	}
	b.openers = map[string]conformance.Opener{
		"engine": onengine.Side{Name: "engine", Addr: addr, Tap: b.tap}.Opener(),
		"kernel": k.opener(addr, kernelErr, nil),
	}
	return b, nil
}

// isOurs returns why listening at an address on this machine fails.
func isOurs(addr netip.Addr) error {
	l, err := net.ListenTCP("tcp", net.TCPAddrFromAddrPort(netip.AddrPortFrom(addr, 0)))
	if err != nil {
		return fmt.Errorf("--addr %v has to be an address of this machine: %w", addr, err)
	}
	return l.Close()
}

// wanted returns the pairings that the flags request.
func (c *runCmd) wanted() []conformance.Pairing {
	if c.Target != "" {
		return []conformance.Pairing{{Initiator: conformance.Raw, Responder: c.targetName()}}
	}
	if c.Peer != "" && c.Initiator == "" && c.Responder == "" {
		return c.wantedWithPeer()
	}
	if !c.Matrix {
		p := conformance.Pairing{Initiator: "engine", Responder: "engine"}
		if c.Initiator != "" {
			p.Initiator = c.Initiator
		}
		if c.Responder != "" {
			p.Responder = c.Responder
		}
		return []conformance.Pairing{p}
	}
	var all []conformance.Pairing
	providers := c.Providers
	if len(providers) == 0 {
		providers = []string{"engine", "kernel"}
	}
	for _, i := range providers {
		for _, r := range providers {
			all = append(all, conformance.Pairing{Initiator: i, Responder: r})
		}
	}
	return all
}

// needsBridge reports whether the bridge takes part in a pairing.
func needsBridge(p conformance.Pairing) bool { return p.Has(bridgeName) }

// needsKernel reports whether the kernel takes part in a pairing.
func needsKernel(p conformance.Pairing) bool { return p.Has("kernel") }

// withoutKernel decides what a missing kernel device means. With --matrix, if siw is required, its
// pairings are run too, and each fails with the reason.
func (b *bench) withoutKernel(c *runCmd, out *output, why error) error {
	const remedy = "make run boots a virtual machine that has siw"
	needs := slices.ContainsFunc(b.pairings, needsKernel)
	switch {
	case c.RequireSiw && !c.Matrix:
		return unable(fmt.Errorf("siw is required; %s: %w", remedy, why))
	case c.RequireSiw:
		fmt.Fprintf(out, "siw is required, and pairings with the kernel will fail: %v; %s\n", why, remedy)
	case c.Matrix:
		all := b.pairings
		b.pairings = slices.DeleteFunc(slices.Clone(all), needsKernel)
		fmt.Fprintf(out, "left out:%s: %v; %s\n", listed(slices.DeleteFunc(all, func(p conformance.Pairing) bool { return !needsKernel(p) })), why, remedy)
	case needs:
		return unable(fmt.Errorf("a kernel device is needed; %s: %w", remedy, why))
	}
	return nil
}

// loopback is the default of --interface. It exists wherever addresses of one host reach each
// other, even if the system cannot list its interfaces (qemu-user on s390x).
const loopback = "lo"

// captureOn captures on the wire if the process may, and at the sockets otherwise. listen holds the
// addresses that runs listen on. The kernel's sockets cannot be tapped.
func (b *bench) captureOn(netdev string, listen []netip.Addr, out *output, kernelIsThere bool) error {
	if _, err := net.InterfaceByName(netdev); err != nil && netdev != loopback {
		return fmt.Errorf("--interface %s: %w", netdev, err)
	}
	w := &capture.Wire{Interface: netdev, Listen: listen}
	err := w.Usable()
	if err == nil {
		b.capture = w
		return nil
	}
	if kernelIsThere && slices.ContainsFunc(b.pairings, needsKernel) {
		return errors.Join(errors.New("pairings with the kernel have to be captured on the wire"), err)
	}
	if slices.ContainsFunc(b.pairings, needsBridge) {
		return errors.Join(errors.New("pairings with the bridge have to be captured on the wire"),
			err)
	}
	fmt.Fprintf(out, "captures are taken at the sockets: %v\n", err)
	tap := &capture.Tap{}
	b.tap, b.capture = tap, tap
	return nil
}

// listed formats pairings, each after a space.
func listed(pairings []conformance.Pairing) string {
	var text string
	for _, p := range pairings {
		text += " " + p.String()
	}
	return text
}
