// Package mutants holds engines that are broken on purpose, each in one way. The
// suite has to notice every one of them, and every scenario of the suite has to
// notice one: a check that can't fail proves nothing.
//
// They are the real engine with a layer around it, so that the engine's own code has no
// faults built in: at the wire, a network that changes frames on their way out or in, and
// repairs their CRCs; at the verbs, a provider that changes what goes through its calls.
package mutants

import (
	"sync"
	"sync/atomic"

	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine"
	"github.com/govs-rdma/govs/provider/engine/transport"
)

// A Mutant is a broken engine.
type Mutant struct {
	Name string // stable, kebab-case
	What string // what it does wrong, as the rest of a sentence that begins with "It"

	// CaughtBy are the slugs of scenarios that fail on it; there are others. The
	// first is the one that is about what it does wrong.
	CaughtBy []string

	// Each of the layers may be nil. What they return is for one device, or for one
	// stream.
	options func(*engine.Options)
	network func() *networkFault
	wire    func(*conn) wireFault
	verbs   func(*world) *verbsFault
}

// New makes the broken engine. opts is as with engine.New; its Network, nil for TCP, is
// the network to which the mutant adds its faults at the wire.
func (m *Mutant) New(opts *engine.Options) provider.Provider {
	var o engine.Options
	if opts != nil {
		o = *opts
	}
	if m.options != nil {
		m.options(&o)
	}
	inner := o.Network
	if inner == nil {
		inner = transport.NewTCP(&o.TCP)
		o.TCP = transport.TCPOptions{}
	}
	w := &world{regions: make(map[uint32]region)}
	n := &network{Network: inner, world: w, mutant: m}
	if m.network != nil {
		n.fault = *m.network()
	}
	o.Network = n
	p := &brokenProvider{Provider: engine.New(&o), world: w, network: n}
	if m.verbs != nil {
		p.fault = *m.verbs(w)
	}
	return p
}

// All returns every mutant.
func All() []*Mutant {
	var all []*Mutant
	for _, list := range [][]*Mutant{
		startupMutants(), startupCheckMutants(), sendingMutants(), endingMutants(),
		headerCheckMutants(), messageCheckMutants(), memoryMutants(), framingMutants(), verbsMutants(), objectMutants(), srqMutants(), windowMutants(), cmMutants(),
		stateMutants(), regionMutants(),
		extensionMutants(), rdmacMutants(),
	} {
		all = append(all, list...)
	}
	return all
}

// Find returns the mutant with this name, nil if there is none.
func Find(name string) *Mutant {
	for _, m := range All() {
		if m.Name == name {
			return m
		}
	}
	return nil
}

// world is the state of a mutant's verbs' side that its wire's side needs.
type world struct {
	mu       sync.Mutex
	regions  map[uint32]region // by STag
	receives int               // posted so far, on all QPs
	windows  windows

	shares atomic.Bool // there is, or was, a shared receive queue
}

// region is a registered region as peers name it.
type region struct {
	stag   uint32
	base   uint64
	length uint64
	access provider.Access
}

func (w *world) add(mr provider.MR) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.regions[mr.RKey()] = region{mr.RKey(), mr.Addr(), mr.Len(), mr.Access()}
}

func (w *world) remove(stag uint32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.regions, stag)
}

// find returns the region of an STag.
func (w *world) find(stag uint32) (region, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	r, ok := w.regions[stag]
	return r, ok
}

// byIndex returns the region whose STag differs from this one in its key octet
// at most.
func (w *world) byIndex(stag uint32) (region, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range w.regions {
		if r.stag>>8 == stag>>8 {
			return r, true
		}
	}
	return region{}, false
}

func (w *world) posted(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.receives += n
}

func (w *world) receivesPosted() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.receives
}
