package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"github.com/govs-rdma/govs/provider/conformance"
	"github.com/govs-rdma/govs/provider/conformance/remote"
	"github.com/govs-rdma/govs/provider/conformance/report"
	"github.com/govs-rdma/govs/provider/conformance/scenarios"
)

type runCmd struct {
	Initiator  string     `help:"The provider that connects: engine, kernel or bridge. Default engine." placeholder:"PROVIDER"`
	Responder  string     `help:"The provider that listens: engine, kernel or bridge. Default engine." placeholder:"PROVIDER"`
	Matrix     bool       `help:"Run all four pairings. Those with the kernel are left out if it has no usable device."`
	Providers  []string   `help:"The providers of --matrix: engine,kernel or engine,bridge. Default engine,kernel." placeholder:"NAME"`
	Only       string     `help:"Run only these scenarios: glob patterns, comma-separated; an area's name stands for all in it. Default: all but those that run only by name (list says why)." placeholder:"GLOB"`
	With       []string   `help:"Run only pairings that this provider takes part in: engine, kernel or bridge. With two names, only pairings of the two." placeholder:"PROVIDER"`
	RequireSiw bool       `help:"Fail if the kernel has no usable device; with --matrix, run and fail all pairings with it. REQUIRE_SIW=1 in the environment means the same."`
	Report     string     `help:"Write index.html, report.json, junit.xml and the captures to this folder." placeholder:"DIR" type:"path"`
	JSON       string     `name:"json" help:"Write the JSON report to this file." placeholder:"FILE" type:"path"`
	JUnit      string     `name:"junit" help:"Write the JUnit report to this file." placeholder:"FILE" type:"path"`
	Seed       uint64     `help:"Seed of all random choices, above 0. Default: a random one, which is printed." placeholder:"N"`
	Collect    string     `help:"Only run, and write outcomes and captures to this folder, for compare to judge." placeholder:"DIR" type:"path"`
	Addr       netip.Addr `help:"Address of both sides. Default: that of the kernel device's interface, or 127.0.0.1." placeholder:"ADDR"`
	Interface  string     `help:"Interface to capture on. Traffic between two addresses of one host is on lo, the default. Default with an agent on another host: the one with this side's address." default:"lo" placeholder:"NETDEV"`
	Peer       string     `help:"Run between this host and the agent at this address (govs-verbs-test agent). Its providers are called engine@peer, kernel@peer and bridge@peer." placeholder:"HOST:PORT"`
	PeerAddr   netip.Addr `help:"Address of the agent's side. Default: the address of the interface under its kernel device, otherwise --peer." placeholder:"ADDR"`
	SecretFile string     `help:"File with the secret that the agent was started with. Default: GOVS_AGENT_SECRET of the environment. None is needed on a loopback address." placeholder:"FILE" type:"path"`
	Scale      float64    `help:"Stretch all time limits by this factor, as for an emulated machine. Default: the profile's, or 1." default:"1" placeholder:"FACTOR"`
	Library    string     `help:"Where the libraries of the bridge are, as for exec. Default: lib/govs beside the command's folder." placeholder:"DIR"`
	NoTshark   bool       `help:"Decode the captures without tshark as the second decoder."`
	Verbose    bool       `short:"v" help:"Print a line per run and a row per scenario even if the output is no terminal."`

	profileFlags
	targetFlags

	netdevGiven bool            // --interface was given
	peer        *remote.Session // with --peer, while it runs
}

// providerNames are the providers that a pairing can contain.
var providerNames = []string{"engine", "kernel", bridgeName}

// Help implements kong's HelpProvider.
func (*runCmd) Help() string {
	return `Without --matrix one pairing is run, or with --peer the three of engine and ` +
		`engine@peer. Scenarios with a scripted peer are run against each provider of the pairing.

In a terminal, each run has a line and each scenario a row of the result. Elsewhere, as ` +
		`in the log of a CI job, there is one line for each area, such as send or mpa; ` +
		`--verbose prints all lines and rows.

With --target the scripted peer connects to a program of any iWARP stack on any host, and ` +
		`checks what comes back over the network. That program has to accept any number of ` +
		`connections, one after the other, and to wait for its peer: rping -s -P does, and ` +
		name + ` ping --listen ADDR:PORT --persistent. A first connection, which no scenario counts, ` +
		`finds out whether iWARP is spoken there. Verbs scenarios are left out, because they need ` +
		`programs of the suite at both ends. A scenario is UNSUPPORTED if it needs more of the ` +
		`other side, such as a registered region or a connection from there; list --json prints ` +
		`what each needs. An agent (--peer) runs all of these. See docs/two-hosts.md.

The bridge is libibverbs and librdmacm over the Go engine, as with ` + name + ` exec. ` +
		`It needs neither siw nor a kernel module. ` +
		`--matrix --providers engine,bridge compares it with the engine.

The kernel's side needs an iWARP device: siw, on an interface with an address (` + name + ` link add siw0 --netdev NETDEV). ` +
		`Captures are taken on the wire, which needs CAP_NET_RAW. Without it, runs of the engine alone are captured at its sockets.`
}

// Validate implements kong's check.
func (c *runCmd) Validate(k *kong.Context) error {
	if err := checkOnly(k, c.Only); err != nil {
		return err
	}
	if err := c.checkProviders(); err != nil {
		return err
	}
	if err := c.checkBridge(); err != nil {
		return err
	}
	if err := c.checkTarget(k); err != nil {
		return err
	}
	c.netdevGiven = given(k, "interface")
	c.Addr, c.PeerAddr = c.Addr.Unmap(), c.PeerAddr.Unmap()
	if err := c.checkPeer(); err != nil {
		return err
	}
	if os.Getenv("REQUIRE_SIW") == "1" && !c.usesBridge() && c.Peer == "" && c.Target == "" {
		c.RequireSiw = true
	}
	switch {
	case given(k, "seed") && c.Seed == 0:
		return errors.New("--seed 0: has to be above 0")
	case len(c.Providers) > 0 && !c.Matrix:
		return errors.New("--providers are those of --matrix: add it, or give --initiator and " +
			"--responder")
	case c.Matrix && (c.Initiator != "" || c.Responder != ""):
		return errors.New("--matrix takes all pairings: leave out either it or --initiator and --responder")
	case c.Collect != "" && (c.Report != "" || c.JSON != "" || c.JUnit != ""):
		return errors.New("--collect only runs: the command compare writes the reports")
	case !(c.Scale > 0 && c.Scale <= 1000):
		return fmt.Errorf("--scale %v: has to be above 0, and at most 1000", c.Scale)
	}
	if err := c.checkWith(); err != nil {
		return err
	}
	known, err := c.load()
	if err != nil {
		return err
	}
	if !given(k, "scale") {
		c.Scale = known.scale(c.wanted())
	}
	_, err = scenarios.Suite().Select(c.Only)
	return err
}

// checkWith refuses a --with that matches no pairing.
func (c *runCmd) checkWith() error {
	if slices.ContainsFunc(c.wanted(),
		func(p conformance.Pairing) bool { return p.HasAll(c.With) }) {
		return nil
	}
	matrix := "--matrix"
	if slices.Contains(c.With, bridgeName) {
		matrix += " --providers engine,bridge"
	}
	names := strings.Join(c.With, ",")
	if len(c.With) > 1 {
		return fmt.Errorf("--with %s: none of the pairings%s is of these: add %s",
			names, listed(c.wanted()), matrix)
	}
	return fmt.Errorf("--with %s: %[1]s takes no part in%s: add %s, or --initiator or "+
		"--responder %[1]s", names, listed(c.wanted()), matrix)
}

// checkProviders refuses unknown names of providers.
func (c *runCmd) checkProviders() error {
	check := func(flag, value string) error {
		near, far := conformance.OnPeer(value)
		if value == "" || slices.Contains(providerNames, near) && (!far || c.Peer != "") {
			return nil
		}
		if far && slices.Contains(providerNames, near) {
			return fmt.Errorf("--%s %s: add --peer, the address of the agent", flag, value)
		}
		return fmt.Errorf(`--%s must be one of "%s" but got %q`, flag,
			strings.Join(providerNames, `","`), value)
	}
	err := errors.Join(check("initiator", c.Initiator), check("responder", c.Responder))
	for _, value := range c.With {
		err = errors.Join(err, check("with", value))
	}
	for i, value := range c.Providers {
		if value == "" || slices.Contains(c.Providers[:i], value) {
			return fmt.Errorf("--providers %s: each has to be given once",
				strings.Join(c.Providers, ","))
		}
		err = errors.Join(err, check("providers", value))
	}
	return err
}

// checkOnly refuses an empty --only, for example from an unset shell variable, because it would run
// everything.
func checkOnly(k *kong.Context, only string) error {
	if given(k, "only") && only == "" {
		return errors.New("--only is empty: give it a pattern, or leave it out for all")
	}
	return nil
}

// Run runs the scenarios, and judges them unless it only collects.
func (c *runCmd) Run(ctx context.Context, out *output) error {
	if c.usesBridge() {
		if err := c.enterBridge(); err != nil {
			return unable(err)
		}
	}
	if c.Seed == 0 {
		c.Seed = uint64(rand.Uint32()) + 1
	}
	known, err := c.load()
	if err != nil {
		return unable(err)
	}
	j := judging{
		Report: c.Report, JSON: c.JSON, JUnit: c.JUnit, NoTshark: c.NoTshark, Verbose: c.Verbose,
		Profiles: known,
	}
	if err := j.prepare(); err != nil {
		return unable(err)
	}
	if err := c.meetPeer(ctx, out); err != nil {
		return unable(err)
	}
	defer c.leavePeer()
	b, err := c.bench(ctx, out)
	if err != nil {
		return err
	}
	dir, cleanup, err := c.workDir()
	if err != nil {
		return unable(err)
	}
	defer cleanup()

	col := &conformance.Collection{
		Schema: conformance.CollectionSchema, Started: time.Now().UTC(), Version: version(), Kernel: kernelRelease(), KernelVersion: kernelVersion(), CPUs: runtime.NumCPU(),
		Siw: os.Getenv("VM_SIW"), Seed: c.Seed, Only: c.Only,
	}
	if err := c.describePeer(ctx, col); err != nil {
		return unable(err)
	}
	if b.target != nil {
		col.Target = b.target.Addr.String()
	}
	if c.RequireSiw {
		col.Require = []string{"kernel"}
	}
	fmt.Fprintf(out, "seed %d, captures from the %s, pairings%s\n", c.Seed, b.capture.Source(), listed(b.pairings))
	known.noteIdle(out, b.pairings)
	cfg := conformance.Config{
		Suite: scenarios.Suite(), Only: c.Only, With: c.With, Pairings: b.pairings, Open: b.openers,
		Seed: c.Seed, Scale: c.Scale,
		Capture: b.capture, CaptureToPeer: b.toPeer, Dir: dir, Tap: b.peerTap(),
		LeaveOut: known.leavesOut, Target: b.target,
	}
	progress, err := newProgress(out, &cfg, c.Verbose || out.terminal())
	if err != nil {
		return err
	}
	cfg.Progress = progress.ran
	if c.peer != nil {
		cfg.Lost, cfg.Why = c.peer.Done(), c.peer.Err
		if source := c.peer.Host().Captures; source != "" {
			cfg.CaptureAtPeer = &peerCapturer{ctx, c.peer, source}
		}
	}
	col.Outcomes, err = conformance.Run(ctx, cfg)
	if err != nil {
		if c.Collect != "" { // nothing will refer to these captures
			_ = removeCaptures(dir, col.Outcomes)
		}
		return fmt.Errorf("interrupted after %d of %d runs; nothing was judged (seed %d)",
			len(col.Outcomes), progress.total, c.Seed)
	}
	short := c.cutShort(len(col.Outcomes), progress.total)
	if c.Collect != "" && short != nil {
		_ = removeCaptures(dir, col.Outcomes)
		return fmt.Errorf("%w, and nothing was collected", short)
	}
	if c.Collect != "" {
		file := filepath.Join(dir, collectionFile)
		if err := report.WriteJSON(file, col); err != nil {
			return err
		}
		fmt.Fprintf(out, "%d runs collected in %s\n", len(col.Outcomes), file)
		return nil
	}
	judged := j.judge(ctx, out, col, dir)
	if left := progress.total - len(col.Outcomes); b.target != nil && left > 0 {
		last := col.Outcomes[len(col.Outcomes)-1]
		return fmt.Errorf("%s; %d of %d runs were left out", last.Setup, left, progress.total)
	}
	if short != nil {
		return short
	}
	return judged
}

// collectionFile is the name of a collection's file, beside its captures.
const collectionFile = "collection.json"

// workDir returns the folder for captures: the folder to collect in, or a temporary one that
// cleanup removes.
func (c *runCmd) workDir() (dir string, cleanup func(), err error) {
	if c.Collect == "" {
		dir, err := os.MkdirTemp("", "govs-")
		return dir, func() { _ = os.RemoveAll(dir) }, err
	}
	if err := os.MkdirAll(c.Collect, 0o755); err != nil {
		return "", nil, err
	}
	return c.Collect, func() {}, removeCollection(c.Collect)
}

// removeCollection removes an earlier run's collection from a folder, and nothing else.
func removeCollection(dir string) error {
	file := filepath.Join(dir, collectionFile)
	old, err := report.ReadCollection(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove the collection there, or collect in another folder: %w", err)
	}
	if err := removeCaptures(dir, old.Outcomes); err != nil {
		return err
	}
	return os.Remove(file)
}

// removeCaptures removes the captures of runs from the folder of their collection.
func removeCaptures(dir string, outcomes []conformance.Outcome) error {
	for i := range outcomes {
		for _, capture := range []string{outcomes[i].Capture, outcomes[i].CaptureAtPeer} {
			if capture == "" || filepath.Base(capture) != capture {
				continue
			}
			if err := os.Remove(filepath.Join(dir, capture)); err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
		}
	}
	return nil
}
