// Package mutants holds engines that are broken on purpose, each in one way. The
// suite has to notice every one of them: a check that can't fail proves nothing.
//
// They are the real engine with something in between, so that the engine's own
// code knows nothing of them: at the wire, a network that changes frames on
// their way out or in, and repairs their CRCs; at the verbs, a provider that
// changes what goes through its calls.
package mutants

import (
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine"
	"github.com/govs-rdma/govs/provider/engine/transport"
)

// A Mutant is a broken engine.
type Mutant struct {
	Name string // stable, kebab-case
	What string // what it does wrong

	// CaughtBy names a scenario that notices it.
	CaughtBy string

	wire  *wireFault
	verbs *verbsFault
}

// New makes the broken engine. opts is as with engine.New; its Network, nil for
// TCP, is what the mutant's faults at the wire stand in front of.
func (m *Mutant) New(opts *engine.Options) provider.Provider {
	var o engine.Options
	if opts != nil {
		o = *opts
	}
	if m.wire != nil {
		inner := o.Network
		if inner == nil {
			inner = transport.NewTCP(&transport.TCPOptions{CongestionControl: o.CongestionControl})
		}
		o.Network = &network{Network: inner, fault: m.wire}
	}
	p := engine.New(&o)
	if m.verbs != nil {
		p = &brokenProvider{Provider: p, fault: m.verbs}
	}
	return p
}

// All returns every mutant.
func All() []*Mutant { return append(wireMutants(), verbsMutants()...) }

// Find returns the mutant with this name, nil if there is none.
func Find(name string) *Mutant {
	for _, m := range All() {
		if m.Name == name {
			return m
		}
	}
	return nil
}
