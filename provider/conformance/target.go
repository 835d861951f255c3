package conformance

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/govs-rdma/govs/provider/conformance/rawpeer"
	"github.com/govs-rdma/govs/provider/iwarp"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
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

// probeTime is how long a target may take to accept a TCP connection, and to answer a Request,
// before scaling.
const probeTime = 5 * time.Second

// Probe connects to the target as a client does, and leaves. The error says that nothing there
// speaks iWARP, or that its program does not accept what it is said to accept. Otherwise every
// scenario would fail, and none would say why. Probe checks nothing else in the answer; scenarios
// do. When ctx ends before the answer, the error is the context's.
func (t *Target) Probe(ctx context.Context, scale float64) error {
	wait := time.Duration(float64(probeTime) * scale)
	dialCtx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	p, err := rawpeer.Dial(dialCtx, t.Addr, nil)
	if err != nil {
		return t.unreachable(err)
	}
	defer p.Close()
	p.Over = ctx.Done()
	if err := p.Send(rawpeer.Request(true, 1, 1, nil).AppendTo(nil)); err != nil {
		return fmt.Errorf("sending an MPA Request to %v: %w", t.Addr, err)
	}
	f, err := p.ReadFrame(mpa.KindReply, wait)
	var bad *iwarp.Error
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("asking whether %v answers an MPA Request: %w", t.Addr, ctx.Err())
	case err == nil && f.Reject && t.Offers != NeedsListener:
		return fmt.Errorf("the program at %v rejects connections, and %q is expected of it: "+
			"start one that accepts them, or expect %q only", t.Addr, t.Offers, NeedsListener)
	case err == nil:
		select {
		case <-time.After(time.Duration(float64(acceptTime) * scale)):
		case <-ctx.Done():
		}
		_ = p.CloseWrite()
		_, _ = p.Drain(wait) // until the program has left, too
		return nil
	case errors.Is(err, rawpeer.ErrSilence):
		return fmt.Errorf("%v accepts TCP connections, but has not answered an MPA Request within "+
			"%v (%w): an iWARP stack has to listen there, with a program that accepts connections",
			t.Addr, wait, err)
	case errors.As(err, &bad) && (bad == mpa.ErrKey || bad == mpa.ErrTwoInitiator):
		answer, _ := p.Drain(0)
		return fmt.Errorf("what listens at %v does not speak iWARP: it has answered an MPA Request "+
			"with %q: is the port right?", t.Addr, answer[:min(len(answer), 40)])
	case bad == nil && t.Offers != NeedsListener:
		return fmt.Errorf("%v has ended a connection after an MPA Request of revision 2, without a "+
			"Reply (%v), and %q is expected of it: an iWARP stack has to listen there, with a "+
			"program that accepts connections", t.Addr, err, t.Offers)
	}
	return nil
}

// unreachable explains why there is no TCP connection to the target.
func (t *Target) unreachable(err error) error {
	return fmt.Errorf("no TCP connection to the target; a program has to listen there during the "+
		"whole run, such as rping -s -P: %w", err)
}
