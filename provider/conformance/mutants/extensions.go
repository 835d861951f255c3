package mutants

import (
	"slices"

	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// extensionMutants are wrong about RFC 7306, or about when it is spoken.
func extensionMutants() []*Mutant {
	atomics := op(rdmap.OpAtomicRequest)
	return []*Mutant{
		{
			Name: "extensions-unasked", What: "speaks RFC 7306 though its program has not said so",
			CaughtBy: []string{"ext/immediate-off", "ext/atomic-off", "rdmap/opcode-8", "rdmap/opcode-9"},
			options:  func(o *engine.Options) { o.Extensions = true },
		},
		{
			Name: "immediate-reversed", What: "takes Immediate Data in the order of a little-endian host",
			CaughtBy: []string{"ext/send-immediate", "ext/write-immediate"},
			wire:     in(edit(op(rdmap.OpImmediate, rdmap.OpImmediateSE), func(f *frame) { slices.Reverse(f.payload) })),
		},
		{
			Name: "atomic-off-by-one", What: "adds, or swaps in, one more than it was asked to",
			CaughtBy: []string{"ext/fetch-add", "ext/compare-and-swap"},
			wire:     in(edit(atomics, atomicRequest(func(r *rdmap.AtomicRequest) { r.Data++ }))),
		},
		{
			Name: "atomic-masks-ignored", What: "takes words for whole where only some of their bits are meant",
			CaughtBy: []string{"ext/masked"},
			wire: in(edit(atomics, atomicRequest(func(r *rdmap.AtomicRequest) {
				r.CompareMask = ^uint64(0)
				if r.Mask = 0; r.Op == rdmap.AtomicCmpSwap {
					r.Mask = ^uint64(0)
				}
			}))),
		},
		{
			Name: "atomic-rights-ignored", What: "gives every region the right to atomic operations",
			CaughtBy: []string{"product/rights-atomic", "ext/atomic-no-right"},
			verbs: func(*world) *verbsFault {
				return &verbsFault{access: func(a provider.Access) provider.Access {
					if a&provider.AccessLocalWrite == 0 {
						return a // it can't have one without the other
					}
					return a | provider.AccessRemoteAtomic
				}}
			},
			options: func(o *engine.Options) { o.Extensions = true },
		},
		{
			Name: "atomic-target-mended", What: "does an atomic operation on the word that it finds near by",
			CaughtBy: []string{"ext/atomic-out-of-bounds", "ext/atomic-unaligned"},
			wire: func(c *conn) wireFault {
				return wireFault{in: edit(atomics, atomicRequest(func(r *rdmap.AtomicRequest) {
					if mr, ok := c.world().find(r.STag); ok {
						r.TO = mr.base
					}
				}))}
			},
		},
	}
}

// atomicRequest changes an Atomic Request that can be read.
func atomicRequest(change func(*rdmap.AtomicRequest)) func(*frame) {
	return func(f *frame) {
		r, err := rdmap.ParseAtomicRequest(f.payload)
		if err != nil {
			return
		}
		change(&r)
		f.payload = r.AppendTo(nil)
	}
}

// rdmacMutants are wrong about when the RDMA Consortium's version is spoken.
func rdmacMutants() []*Mutant {
	return []*Mutant{
		{
			Name: "rdmac-deaf", What: "has the IETF's version only, whatever its program says",
			CaughtBy: []string{
				"rdmac/both", "rdmac/permitted", "rdmac/request-permitted", "rdmac/reply-permitted", "rdmac/send-version-1",
				"rdmac/write-version-1", "rdmac/rdmap-version-1", "rdmac/send-msn-ahead", "rdmac/write-out-of-bounds",
			},
			options: func(o *engine.Options) { o.Conformance.RDMAC = mpa.RDMACRefused },
		},
		{
			Name: "rdmac-unasked", What: "speaks the RDMA Consortium's version though its program has not permitted it",
			CaughtBy: []string{"rdmac/request-refused", "rdmac/reply-refused"},
			options: func(o *engine.Options) {
				o.Conformance.RDMAC = max(o.Conformance.RDMAC, mpa.RDMACPermitted)
			},
		},
		{
			Name: "rdmac-only", What: "speaks the RDMA Consortium's version where it is only permitted",
			CaughtBy: []string{"rdmac/not-needed"},
			options: func(o *engine.Options) {
				if o.Conformance.RDMAC == mpa.RDMACPermitted {
					o.Conformance.RDMAC = mpa.RDMACOnly
				}
			},
		},
	}
}
