package main

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"syscall"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/provider/auto"
	"github.com/govs-rdma/govs/provider/conformance"
	"github.com/govs-rdma/govs/provider/conformance/onengine"
	"github.com/govs-rdma/govs/provider/kernel"
)

// bridgeName is the name in pairings of the kernel provider over the bridge of exec: the C
// libraries, served by an engine in this process.
const bridgeName = "bridge"

// insideBridge reports whether this process has the bridge as runs need it, because enterBridge or
// exec --no-opening-write has started the process.
func insideBridge() bool {
	return os.Getenv("GOVS_BRIDGE_LIBRARY") != "" &&
		os.Getenv("GOVS_BRIDGE_NO_OPENING_WRITE") == "1"
}

// usesBridge reports whether the bridge is a side of a requested pairing.
func (c *runCmd) usesBridge() bool { return slices.ContainsFunc(c.wanted(), needsBridge) }

// checkBridge refuses flags that exclude the bridge.
func (c *runCmd) checkBridge() error {
	switch {
	case !c.usesBridge():
		return nil
	case slices.ContainsFunc(c.wanted(), needsKernel):
		return errors.New("bridge and kernel can't be in one run: in a process with the bridge, " +
			"libibverbs finds its device and not the kernel's; run each of them with the engine")
	case c.RequireSiw:
		return errors.New("--require-siw: siw takes no part in a run with the bridge, in whose " +
			"process libibverbs does not find it")
	}
	return nil
}

// enterBridge restarts this process as exec starts a C program, so that the kernel provider finds
// the device of the bridge. In the restarted process it returns nil.
func (c *runCmd) enterBridge() error {
	if insideBridge() {
		// Processes that this one starts run without the bridge.
		return os.Unsetenv("LD_PRELOAD")
	}
	if !kernel.Available {
		return errors.New("the bridge is used through the kernel provider, which this build is " +
			"without: build it with cgo, libibverbs-dev and librdmacm-dev")
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if err := canPreload(self); err != nil {
		return fmt.Errorf("%s: %w", self, err)
	}
	// Only the scenario decides what is sent.
	x := &execCmd{CRC: "preferred", Library: c.Library, NoOpeningWrite: true}
	libraries, err := x.libraries()
	if err != nil {
		return err
	}
	sysfs, err := sysfsFolder()
	if err != nil {
		return fmt.Errorf("the files that stand for sysfs: %w", err)
	}
	env, err := x.environment(os.Environ(), libraries, sysfs)
	if err != nil {
		return err
	}
	return fmt.Errorf("%s: %w", self, syscall.Exec("/proc/self/exe", os.Args, env))
}

// bridgeBench returns the bench for a run with the bridge.
func (c *runCmd) bridgeBench(out *output) (*bench, error) {
	addr := c.Addr
	if !addr.IsValid() {
		addr = netip.AddrFrom4([4]byte{127, 0, 0, 1})
	}
	if err := isOurs(addr); err != nil {
		return nil, unable(err)
	}
	device, err := findBridge(addr)
	if err != nil {
		return nil, unable(err)
	}
	b := &bench{pairings: c.wanted()}
	if err := b.captureOn(c.Interface, []netip.Addr{addr}, out, false); err != nil {
		return nil, unable(err)
	}
	b.openers = map[string]conformance.Opener{
		"engine":   onengine.Side{Name: "engine", Addr: addr}.Opener(),
		bridgeName: bridgeOpener(device, addr, nil),
	}
	return b, nil
}

// bridgeOpener opens the bridge's device.
func bridgeOpener(device string, addr netip.Addr, wrap wrapper) conformance.Opener {
	return func([]string) (*conformance.Endpoint, error) {
		vctx, err := ibverbs.Open(wrap.of(kernel.New()), device)
		if err != nil {
			return nil, err
		}
		return &conformance.Endpoint{Name: bridgeName, Context: vctx, Addr: addr, Fixed: true}, nil
	}
}

// findBridge returns the name of the bridge's device after trying the device.
func findBridge(addr netip.Addr) (string, error) {
	p := kernel.New()
	devices, err := p.Devices()
	if err != nil {
		return "", fmt.Errorf("the bridge: %w", err)
	}
	if len(devices) != 1 {
		return "", fmt.Errorf("the bridge: libibverbs finds %d devices, not the bridge's; is "+
			"its driver for siw installed (ibverbs-providers)?", len(devices))
	}
	name := devices[0].Name
	if err := auto.Try(p, name, &auto.Options{Addr: addr}); err != nil {
		return "", fmt.Errorf("the bridge: %s: %w", name, err)
	}
	return name, nil
}
