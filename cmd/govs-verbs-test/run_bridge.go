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

// bridgeName is the provider of pairings that is the kernel provider over the bridge of exec: the C
// libraries, served by an engine in this process.
const bridgeName = "bridge"

// insideBridge reports whether this process has the bridge as runs need it: enterBridge has started
// it, or exec --no-opening-write.
func insideBridge() bool {
	return os.Getenv("GOVS_BRIDGE_LIBRARY") != "" &&
		os.Getenv("GOVS_BRIDGE_NO_OPENING_WRITE") == "1"
}

// usesBridge reports whether the bridge is a side of a pairing that is asked for.
func (c *runCmd) usesBridge() bool { return slices.ContainsFunc(c.wanted(), needsBridge) }

// checkBridge refuses what can't be had beside the bridge.
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

// enterBridge starts this process anew as exec starts a C program, so that the kernel provider
// finds the device of the bridge. It returns nil in the process that has been started so.
func (c *runCmd) enterBridge() error {
	if insideBridge() {
		// What this process starts does without.
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
	// What is sent is the scenario's.
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

// bridgeBench is bench for a run with the bridge.
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

// findBridge returns the name of the bridge's device, which it has tried.
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
