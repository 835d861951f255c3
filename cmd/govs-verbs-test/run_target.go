package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/alecthomas/kong"

	"github.com/govs-rdma/govs/provider/conformance"
	"github.com/govs-rdma/govs/provider/conformance/capture"
	"github.com/govs-rdma/govs/provider/conformance/scenarios"
)

// targetFlags are the flags for a target.
type targetFlags struct {
	Target string `help:"Play the scenarios of the scripted peer to what listens at this address: any iWARP stack, with any program that accepts connections and waits for its peer, such as rping -s -P." placeholder:"HOST:PORT"`
	Offers string `name:"target-offers" enum:"listener,accept,receive" default:"receive" help:"What the program at --target does: listener, it answers Requests; accept, it accepts them and waits for its peer; receive, it has also posted a receive of 16 bytes, as rping -s has. Default receive." placeholder:"WHAT"`
	Stack  string `name:"target-stack" help:"The provider whose profile describes the stack at --target, as kernel for siw. Default: no profile, so that every difference fails." placeholder:"PROVIDER"`
}

// offered describes, in a run's output, what is expected of a target.
var offered = map[conformance.Needs]string{
	conformance.NeedsListener: "has to answer Requests",
	conformance.NeedsAccept:   "has to accept connections, and to wait for its peer",
	conformance.NeedsReceive: "has to accept connections with a receive of 16 bytes posted, and to " +
		"wait for its peer",
}

// targetName is the name of the target in pairings.
func (c *runCmd) targetName() string {
	if c.Stack == "" {
		return conformance.TargetName
	}
	return c.Stack + conformance.AtTarget
}

// checkTarget refuses flags that exclude --target, or that require it.
func (c *runCmd) checkTarget(k *kong.Context) error {
	if c.Target == "" {
		for _, flag := range []string{"target-offers", "target-stack"} {
			if given(k, flag) {
				return fmt.Errorf("--%s is for --target: add that, or leave the option out", flag)
			}
		}
		return nil
	}
	for _, flag := range []string{"initiator", "responder", "matrix", "providers", "with", "peer",
		"addr", "interface", "require-siw"} {
		if given(k, flag) {
			return fmt.Errorf("--%s does not go with --target, which is the one provider of the run "+
				"and is not opened by it", flag)
		}
	}
	if c.Stack != "" && !slices.Contains(providerNames, c.Stack) {
		return fmt.Errorf(`--target-stack must be one of "%s" but got %q`,
			strings.Join(providerNames, `","`), c.Stack)
	}
	if err := checkAddress(c.Target, false); err != nil {
		return fmt.Errorf("--target %w", err)
	}
	chosen, err := scenarios.Suite().Select(c.Only)
	if err == nil && countRaw(chosen) == 0 {
		err = errors.New("--target runs scenarios of the scripted peer, and --only selects none of " +
			"them; the subcommand list says of which kind each is")
	}
	return err
}

func countRaw(list []*conformance.Scenario) int {
	n := 0
	for _, sc := range list {
		if sc.Raw != nil {
			n++
		}
	}
	return n
}

// targetBench returns the bench for a run against a target. It captures at the sockets of the
// scripted peer. All connections have the target's port, so a capture at the interface would
// contain the ends of the previous run's connections.
func (c *runCmd) targetBench(ctx context.Context, out *output) (*bench, error) {
	addr, err := resolve(ctx, c.Target, false)
	if err != nil {
		return nil, unable(fmt.Errorf("--target: %w", err))
	}
	tap := &capture.Tap{}
	target := &conformance.Target{
		Name: c.targetName(), Addr: addr, Offers: conformance.Needs(c.Offers),
	}
	chosen, err := scenarios.Suite().Select(c.Only)
	if err != nil {
		return nil, unable(err)
	}
	fmt.Fprintf(out, "target %v, which %s (--target-offers %s)\n", addr, offered[target.Offers],
		c.Offers)
	if left := len(chosen) - countRaw(chosen); left > 0 {
		fmt.Fprintf(out, "left out, because both of their sides are programs of the suite, which an "+
			"agent has (--peer): %d verbs scenarios\n", left)
	}
	// A single scenario is not preceded by a probe, because the program may serve only one client.
	if countRaw(chosen) > 1 {
		if err := target.Probe(ctx, c.Scale); err != nil {
			return nil, unable(fmt.Errorf("--target: %w", err))
		}
	}
	return &bench{pairings: c.wanted(), capture: tap, tap: tap, target: target}, nil
}
