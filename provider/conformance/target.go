package conformance

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Needs is what a raw scenario needs of the side that it is played to. Scenarios that need no more
// than a [Target] offers run against it; the others need a provider that the suite has opened, on
// this host or by way of an agent.
type Needs string

// What raw scenarios need. Of the first three each includes those before it.
const (
	// NeedsListener: something listens, and answers a Request with a Reply, which may reject.
	NeedsListener Needs = "listener"

	// NeedsAccept: its program accepts each Request, keeps the connection until the peer ends it,
	// and sends nothing before the peer has sent something.
	NeedsAccept Needs = "accept"

	// NeedsReceive: its program has posted one receive of 16 octets or more before it accepts.
	NeedsReceive Needs = "receive"

	// NeedsProgram: its program does what the scenario asks for: registers memory, posts work,
	// looks at completions, answers in another way than by accepting, or is opened with options.
	NeedsProgram Needs = "program"

	// NeedsConnect: its program connects to the peer, and does what the scenario asks for.
	NeedsConnect Needs = "connect"
)

// offers are what a target can have, in the order in which each includes those before it.
var offers = []Needs{NeedsListener, NeedsAccept, NeedsReceive}

// missing returns what a scenario needs and a target with these offers lacks, "" if nothing.
func (n Needs) missing(offered Needs) string {
	if at := slices.Index(offers, n); at >= 0 && at <= slices.Index(offers, offered) {
		return ""
	}
	switch n {
	case NeedsAccept:
		return "a program that accepts"
	case NeedsReceive:
		return "a program that accepts, and has posted a receive of 16 octets"
	case NeedsConnect:
		return "a program that connects to the scripted peer"
	}
	return "a program that does what the scenario asks for"
}

// fits reports whether a scenario of this kind can need it.
func (n Needs) fits(sc *Scenario) bool {
	switch {
	case sc.Raw == nil:
		return n == ""
	case sc.RawRole == RoleResponder:
		return n == NeedsConnect
	}
	return n == NeedsProgram || slices.Contains(offers, n)
}

// A Target is a stack that the suite reaches over the network only: it neither opens its device
// nor knows its program. The raw peer connects to it, and checks what it sends.
type Target struct {
	// Name stands for it in pairings: TargetName, or the provider whose profile describes the
	// stack, and AtTarget.
	Name   string
	Addr   netip.AddrPort
	Offers Needs // NeedsListener, NeedsAccept or NeedsReceive
}

// TargetName is the name of a target whose stack is not known. If the stack is a provider's, the
// name is the provider's with the suffix AtTarget.
const (
	TargetName = "target"
	AtTarget   = "@target"
)

// OnTarget reports whether a name of a pairing is a target, and returns the provider that is its
// stack, "" if that is not known.
func OnTarget(name string) (stack string, is bool) {
	if name == TargetName {
		return "", true
	}
	stack, is = strings.CutSuffix(name, AtTarget)
	if !is {
		stack = ""
	}
	return stack, is
}

// atTarget reports whether one of the sides is a target.
func (p Pairing) atTarget() bool {
	_, i := OnTarget(p.Initiator)
	_, r := OnTarget(p.Responder)
	return i || r
}

// lacks returns why a scenario is not run against the target, "" if it is run.
func (t *Target) lacks(sc *Scenario) string {
	missing := sc.Needs.missing(t.Offers)
	if missing == "" {
		return ""
	}
	if slices.Contains(offers, sc.Needs) {
		return fmt.Sprintf("needs %s; only %q is expected of the target (--target-offers)", missing,
			t.Offers)
	}
	return fmt.Sprintf("needs %s, which no target has: use an agent (run --peer)", missing)
}
