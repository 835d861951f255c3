package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/conformance"
	"github.com/govs-rdma/govs/provider/conformance/capture"
	"github.com/govs-rdma/govs/provider/conformance/onengine"
	"github.com/govs-rdma/govs/provider/conformance/remote"
	"github.com/govs-rdma/govs/provider/engine"
)

// secretVariable is the environment variable with the secret of agents.
const secretVariable = "GOVS_AGENT_SECRET"

// readSecret returns the secret from a file, or from the environment if file is empty. The end of
// the file's last line is not part of the secret.
func readSecret(file string) ([]byte, error) {
	if file == "" {
		return []byte(os.Getenv(secretVariable)), nil
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("--secret-file: %w", err)
	}
	secret := strings.TrimRight(string(data), "\r\n")
	if secret == "" {
		return nil, fmt.Errorf("--secret-file: %s is empty", file)
	}
	return []byte(secret), nil
}

// explainSecret adds to an error about a secret how to provide one.
func explainSecret(err error) error {
	return fmt.Errorf("%w; --secret-file or %s has it, the same on both hosts", err, secretVariable)
}

// checkPeer refuses flags that exclude --peer, or that require it.
func (c *runCmd) checkPeer() error {
	if c.Peer == "" {
		switch {
		case c.PeerAddr.IsValid():
			return errors.New("--peer-addr is for --peer: add that, or leave the option out")
		case c.SecretFile != "":
			return errors.New("--secret-file is for --peer: add that, or leave the option out")
		}
		return nil
	}
	if err := checkAddress(c.Peer, false); err != nil {
		return fmt.Errorf("--peer %w", err)
	}
	if c.RequireSiw && !slices.ContainsFunc(c.wanted(), needsKernel) {
		return errors.New("--require-siw is about this host's siw, which takes no part in this run")
	}
	for _, p := range c.wanted() {
		_, i := conformance.OnPeer(p.Initiator)
		if _, r := conformance.OnPeer(p.Responder); i && r {
			return fmt.Errorf("%s: one side has to be on this host, where the packets are captured", p)
		}
	}
	if !slices.ContainsFunc(c.wanted(), needsPeer) {
		return fmt.Errorf("--peer takes no part in%s: name a provider of it, as engine%s", listed(c.wanted()),
			conformance.AtPeer)
	}
	return nil
}

// needsPeer reports whether the other host takes part in a pairing.
func needsPeer(p conformance.Pairing) bool {
	return strings.HasSuffix(p.Initiator, conformance.AtPeer) ||
		strings.HasSuffix(p.Responder, conformance.AtPeer)
}

// wantedWithPeer returns the pairings with the other host when no two providers are named. They are
// the pairings of --providers, or the likely ones of the two hosts, and the pairings that these are
// compared with.
func (c *runCmd) wantedWithPeer() []conformance.Pairing {
	providers := c.Providers
	if len(providers) == 0 {
		providers = []string{"engine", "engine" + conformance.AtPeer}
		if c.Matrix {
			providers = append(providers, "kernel"+conformance.AtPeer)
		}
	}
	var all []conformance.Pairing
	for _, i := range providers {
		for _, r := range providers {
			p := conformance.Pairing{Initiator: i, Responder: r}
			_, farI := conformance.OnPeer(i)
			_, farR := conformance.OnPeer(r)
			// A run with both sides there is better started there. Pairings within this host only
			// serve for comparison.
			if farI && farR || !farI && !farR && (i != "engine" || r != "engine") {
				continue
			}
			all = append(all, p)
		}
	}
	return all
}

// meetPeer connects to the agent of --peer.
func (c *runCmd) meetPeer(ctx context.Context, out *output) error {
	if c.Peer == "" {
		return nil
	}
	secret, err := readSecret(c.SecretFile)
	if err != nil {
		return err
	}
	s, err := remote.Dial(ctx, c.Peer, remote.Options{Secret: secret, Build: version(),
		Patience: time.Duration(float64(remote.Patience) * max(1, c.Scale))})
	if err != nil {
		return explainPeer(err, secret)
	}
	c.peer = s
	h := s.Host()
	fmt.Fprintf(out, "agent at %s: govs %s, kernel %s, %d CPUs\n", c.Peer, h.Build, h.Kernel, h.CPUs)
	if h.Build != version() {
		fmt.Fprintf(out, "this is govs %s: what differs between the two releases may show\n", version())
	}
	return nil
}

// explainPeer adds advice to an error of connecting to an agent.
func explainPeer(err error, secret []byte) error {
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("nobody listens there; start the agent first, on that host "+
			"(govs-verbs-test agent --listen ADDR:PORT): %w", err)
	case errors.Is(err, remote.ErrSecret) && len(secret) == 0:
		return explainSecret(fmt.Errorf("%w, and this end has none", err))
	case errors.Is(err, remote.ErrSecret), errors.Is(err, remote.ErrWeakSecret):
		return explainSecret(err)
	}
	return err
}

// cutShort returns why runs were left out because the agent has gone, nil if none was. An agent may
// be stopped while the runs are judged.
func (c *runCmd) cutShort(done, total int) error {
	if c.peer == nil || c.peer.Err() == nil || done == total {
		return nil
	}
	return fmt.Errorf("%w; %d of %d runs were left out", c.peer.Err(), total-done, total)
}

func (c *runCmd) leavePeer() {
	if c.peer != nil {
		_ = c.peer.Close()
	}
}

// describePeer records the conditions on the other host.
func (c *runCmd) describePeer(ctx context.Context, col *conformance.Collection) error {
	if c.peer == nil {
		return nil
	}
	ahead, within, err := c.peer.Clock(ctx)
	if err != nil {
		return err
	}
	h := c.peer.Host()
	col.Peer = &conformance.PeerHost{Address: c.Peer, Version: h.Build, Kernel: h.Kernel,
		KernelVersion: h.KernelVersion, Siw: h.Siw, CPUs: h.CPUs,
		ClockAhead: ahead.Nanoseconds(), ClockWithin: within.Nanoseconds()}
	return nil
}

// peerBench returns the bench for a run between two hosts.
func (c *runCmd) peerBench(out *output) (*bench, error) {
	ours := c.Addr
	if !ours.IsValid() {
		ours = c.peer.LocalAddr()
	}
	if err := isOurs(ours); err != nil {
		return nil, unable(err)
	}
	b := &bench{openers: make(map[string]conformance.Opener)}
	c.leaveOut(b, out)
	if !slices.ContainsFunc(b.pairings, needsPeer) {
		return nil, unable(errors.New("the agent has no provider for any pairing that is asked for"))
	}
	netdev, err := c.netdev(ours)
	if err != nil {
		return nil, unable(err)
	}
	usesKernel := slices.ContainsFunc(b.pairings, needsKernel)
	listen := c.listening(ours)
	if err := b.captureOn(loopback, listen, out, usesKernel); err != nil {
		return nil, unable(err)
	}
	if _, wire := b.capture.(*capture.Wire); wire && netdev != loopback {
		w := &capture.Wire{Interface: netdev, Lossy: true, Listen: listen}
		if err := w.Usable(); err != nil {
			return nil, unable(err)
		}
		b.toPeer = w
	}
	beside := wrapper(c.peer.Beside)
	b.openers["engine"] = onengine.Side{Name: "engine", Addr: ours, Tap: b.tap,
		New: func(o *engine.Options) provider.Provider { return beside(engine.New(o)) }}.Opener()
	if usesKernel {
		k, err := findKernel(ours)
		if err != nil {
			return nil, unable(err)
		}
		b.openers["kernel"] = k.opener(ours, nil, beside)
	}
	if c.usesBridge() {
		device, err := findBridge(ours)
		if err != nil {
			return nil, unable(err)
		}
		b.openers[bridgeName] = bridgeOpener(device, ours, beside)
	}
	for _, offer := range c.peer.Host().Offers {
		b.openers[offer.Name+conformance.AtPeer] = c.farOpener(offer, ours)
	}
	return b, nil
}

// leaveOut gives the bench the wanted pairings without those for which the agent lacks a provider,
// and prints what it leaves out.
func (c *runCmd) leaveOut(b *bench, out *output) {
	why := make(map[string]string)
	for _, p := range c.wanted() {
		lacking := false
		for _, name := range []string{p.Initiator, p.Responder} {
			wanted, far := conformance.OnPeer(name)
			if !far {
				continue
			}
			reason := "it was not started with it (--provider)"
			for _, o := range c.peer.Host().Offers {
				if o.Name == wanted {
					reason = o.Why
				}
			}
			if reason != "" {
				lacking, why[wanted] = true, reason
			}
		}
		if lacking {
			continue
		}
		b.pairings = append(b.pairings, p)
	}
	for wanted, reason := range why {
		fmt.Fprintf(out, "left out: pairings with %s%s: the agent can't use it: %s\n", wanted,
			conformance.AtPeer, reason)
	}
}

// farAddr returns the address at which a provider of the agent listens.
func (c *runCmd) farAddr(o remote.Offer) netip.Addr {
	switch {
	case c.PeerAddr.IsValid():
		return c.PeerAddr
	case o.Addr.IsValid():
		return o.Addr
	}
	return c.peer.RemoteAddr()
}

// listening returns the addresses that runs with the agent listen on.
func (c *runCmd) listening(ours netip.Addr) []netip.Addr {
	all := []netip.Addr{ours}
	for _, o := range c.peer.Host().Offers {
		all = append(all, c.farAddr(o))
	}
	return all
}

// farOpener opens a provider of the agent.
func (c *runCmd) farOpener(o remote.Offer, ours netip.Addr) conformance.Opener {
	addr := c.farAddr(o)
	return func(options []string) (*conformance.Endpoint, error) {
		p := &keeping{Provider: c.peer.Provider(o.Name, options)}
		vctx, err := ibverbs.Open(p, "")
		if err != nil {
			return nil, err
		}
		return &conformance.Endpoint{Name: o.Name, Context: vctx, Addr: addr, Fixed: o.Fixed,
			Opposite: ours, Memory: p.device}, nil
	}
}

// keeping is a provider that keeps the device that it has opened.
type keeping struct {
	provider.Provider
	device *remote.Device
}

// Open implements provider.Provider.
func (k *keeping) Open(name string) (provider.Device, error) {
	d, err := k.Provider.Open(name)
	if err != nil {
		return nil, err
	}
	k.device = d.(*remote.Device)
	return d, nil
}

// netdev returns the interface to capture on. It is --interface if that was given, or if the other
// side is on this host as well; otherwise it is the interface with our address. The address of the
// agent does not show where the other side is, because ssh may forward a port of this host to it.
func (c *runCmd) netdev(ours netip.Addr) (string, error) {
	elsewhere := func(o remote.Offer) bool { return o.Why == "" && isOurs(c.farAddr(o)) != nil }
	if c.netdevGiven || !slices.ContainsFunc(c.peer.Host().Offers, elsewhere) {
		return c.Interface, nil
	}
	return netdevOf(ours)
}

// netdevOf returns the interface with an address.
func netdevOf(addr netip.Addr) (string, error) {
	all, err := net.Interfaces()
	if err != nil {
		return "", err
	}
	for _, ifc := range all {
		list, err := ifc.Addrs()
		if err != nil {
			return "", err
		}
		for _, a := range list {
			p, err := netip.ParsePrefix(a.String())
			if err == nil && (hasAddr(&ifc, p.Addr(), addr) || addr.IsLoopback() && p.Addr().IsLoopback()) {
				return ifc.Name, nil
			}
		}
	}
	return "", fmt.Errorf("no interface has the address %v: --interface says which to capture on", addr)
}

// peerCapturer makes the agent record.
type peerCapturer struct {
	ctx    context.Context
	peer   *remote.Session
	source string
}

// Source implements conformance.Capturer.
func (p *peerCapturer) Source() string { return p.source }

// Start implements conformance.Capturer.
func (p *peerCapturer) Start(port uint16) (conformance.Capture, error) {
	return &peerCapture{p, port}, p.peer.StartCapture(p.ctx, port)
}

type peerCapture struct {
	*peerCapturer
	port uint16
}

// Stop implements conformance.Capture.
func (p *peerCapture) Stop(name string) error {
	file, err := p.peer.StopCapture(p.ctx, p.port)
	if err != nil {
		return err
	}
	return os.WriteFile(name, file, 0o644)
}
