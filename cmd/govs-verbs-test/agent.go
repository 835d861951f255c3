package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/conformance"
	"github.com/govs-rdma/govs/provider/conformance/capture"
	"github.com/govs-rdma/govs/provider/conformance/onengine"
	"github.com/govs-rdma/govs/provider/conformance/remote"
	"github.com/govs-rdma/govs/provider/kernel"
)

type agentCmd struct {
	Listen     string     `help:"Address of the control connection. Port 0 takes one that is free, and prints it." required:"" placeholder:"ADDR:PORT"`
	Provider   []string   `help:"The providers to serve: engine, kernel, bridge. Default engine,kernel." placeholder:"NAME"`
	SecretFile string     `help:"File with the secret that a run has to know, of at least 16 bytes. Default: GOVS_AGENT_SECRET of the environment. None is needed on a loopback address." placeholder:"FILE" type:"path"`
	Addr       netip.Addr `help:"Address of the kernel device's interface, if it has several." placeholder:"ADDR"`
	Interface  string     `help:"Interface to capture on. Default: the one with the address of --listen." placeholder:"NETDEV"`
	Library    string     `help:"Where the libraries of the bridge are, as for exec. Default: lib/govs beside the command's folder." placeholder:"DIR"`
	Scale      float64    `help:"Multiply by this factor the time after which a silent client counts as gone. Default 1." default:"1" placeholder:"FACTOR"`
}

// Help implements kong's HelpProvider.
func (*agentCmd) Help() string {
	return `Serves one run at a time, until it is interrupted. On the other host:

    ` + name + ` run --peer THIS_HOST:PORT --secret-file FILE

A run uses this host's devices for one side of each scenario; the scenarios themselves, ` +
		`their judge and the report are on the other host. Whoever knows the secret can use the ` +
		`devices, as this user. The control connection is authenticated, but not encrypted. See ` +
		`docs/two-hosts.md.`
}

// Validate implements kong's check.
func (c *agentCmd) Validate() error {
	for i, p := range c.Provider {
		if !slices.Contains(providerNames, p) || slices.Contains(c.Provider[:i], p) {
			return fmt.Errorf("--provider %s: each of %s at most once", strings.Join(c.Provider, ","),
				strings.Join(providerNames, ", "))
		}
	}
	if slices.Contains(c.Provider, bridgeName) && slices.Contains(c.Provider, "kernel") {
		return errors.New("--provider: bridge and kernel can't be in one process, where libibverbs " +
			"finds the bridge's device and not the kernel's; run an agent for each")
	}
	if !(c.Scale > 0 && c.Scale <= 1000) {
		return fmt.Errorf("--scale %v: has to be above 0, and at most 1000", c.Scale)
	}
	if c.Listen == "" {
		return nil // kong reports that it is missing
	}
	if err := checkAddress(c.Listen, true); err != nil {
		return fmt.Errorf("--listen %w", err)
	}
	c.Addr = c.Addr.Unmap()
	return nil
}

// Run serves until ctx ends.
func (c *agentCmd) Run(ctx context.Context, out *output) error {
	if slices.Contains(c.Provider, bridgeName) {
		if err := (&runCmd{Library: c.Library}).enterBridge(); err != nil {
			return unable(err)
		}
	}
	secret, err := readSecret(c.SecretFile)
	if err != nil {
		return unable(err)
	}
	addr, err := resolve(ctx, c.Listen, true)
	if err != nil {
		return unable(err)
	}
	if err := remote.CheckSecret(secret, addr.Addr()); err != nil {
		return unable(explainSecret(fmt.Errorf("--listen %s: %w", c.Listen, err)))
	}
	l, err := net.Listen("tcp", addr.String())
	if err != nil {
		return unable(err)
	}
	a := &remote.Agent{Secret: secret, Patience: time.Duration(float64(remote.Patience) * max(1, c.Scale)),
		Log: func(format string, args ...any) {
			fmt.Fprintf(out, "%s  %s\n", time.Now().UTC().Format("15:04:05"), fmt.Sprintf(format, args...))
		}}
	a.Host = remote.Host{Build: version(), Kernel: kernelRelease(), KernelVersion: kernelVersion(),
		Siw: os.Getenv("VM_SIW"), CPUs: runtime.NumCPU()}
	s := &agentSide{cmd: c, addr: addr.Addr()}
	s.capture(a)
	s.offers(a)
	for _, o := range a.Host.Offers {
		a.Log("%s: %s", o.Name, cond(o.Why == "", "served", "not served: "+o.Why))
	}
	a.Log("listening on %s; captures: %s", l.Addr(), cond(a.Host.Captures == "", "none", a.Host.Captures))
	return a.Serve(ctx, l)
}

func cond(ok bool, yes, no string) string {
	if ok {
		return yes
	}
	return no
}

// agentSide is what an agent's runs use.
type agentSide struct {
	cmd    *agentCmd
	addr   netip.Addr // from --listen
	tap    *capture.Tap
	kernel kernelBench
	bridge string // the bridge's device
}

// offers finds out which providers there are, and makes the agent open them.
func (s *agentSide) offers(a *remote.Agent) {
	wanted := s.cmd.Provider
	if len(wanted) == 0 {
		wanted = []string{"engine", "kernel"}
	}
	for _, w := range wanted {
		o := remote.Offer{Name: w, Addr: s.cmd.Addr}
		var err error
		switch w {
		case "kernel":
			o.Fixed = true
			s.kernel, err = findKernel(s.cmd.Addr)
			o.Addr = s.kernel.addr
		case bridgeName:
			o.Fixed = true
			at := s.cmd.Addr
			if !at.IsValid() {
				at = s.addr
			}
			s.bridge, err = findBridge(at)
		}
		if err != nil {
			o.Why = err.Error()
		}
		a.Host.Offers = append(a.Host.Offers, o)
	}
	a.Open = func(wanted string, options []string) (provider.Provider, error) {
		for _, o := range a.Host.Offers {
			if o.Name == wanted && o.Why == "" {
				return s.open(wanted, options)
			}
		}
		return nil, &provider.UnsupportedError{Feature: "the provider " + wanted,
			Reason: "the agent was not started with it, or lacks what it needs"}
	}
}

func (s *agentSide) open(wanted string, options []string) (provider.Provider, error) {
	switch wanted {
	case "kernel":
		return &oneDevice{kernel.New(), s.kernel.device}, nil
	case bridgeName:
		return &oneDevice{kernel.New(), s.bridge}, nil
	}
	var side onengine.Side
	if s.tap != nil {
		side.Tap = s.tap
	}
	return side.Provider(options)
}

// oneDevice is a provider that opens the same device whatever name it gets.
type oneDevice struct {
	provider.Provider
	device string
}

// Open implements provider.Provider.
func (o *oneDevice) Open(string) (provider.Device, error) { return o.Provider.Open(o.device) }

// captureLimit is the limit for all captures of a run together, in bytes.
const captureLimit = 256 << 20

// capture makes the agent take captures, on the wire if the process may.
func (s *agentSide) capture(a *remote.Agent) {
	var c conformance.Capturer
	netdev := s.cmd.Interface
	if netdev == "" {
		netdev, _ = netdevOf(s.addr)
	}
	w := &capture.Wire{Interface: netdev, Lossy: netdev != loopback, Limit: captureLimit}
	if netdev != "" && w.Usable() == nil {
		c = w
	} else {
		s.tap = &capture.Tap{Limit: captureLimit}
		c = s.tap
	}
	a.Host.Captures = c.Source()
	a.Capture = func(port uint16) (func() ([]byte, error), error) {
		running, err := c.Start(port)
		if err != nil {
			return nil, err
		}
		return func() ([]byte, error) { return captured(running) }, nil
	}
}

// captured ends a recording and returns its file.
func captured(running conformance.Capture) ([]byte, error) {
	dir, err := os.MkdirTemp("", "govs-agent-")
	if err != nil { // still ends the recording; no file can exist below /dev/null
		_ = running.Stop(filepath.Join(os.DevNull, "run.pcapng"))
		return nil, err
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "run.pcapng")
	if err := running.Stop(file); err != nil {
		return nil, err
	}
	return os.ReadFile(file)
}
