package mutants

import (
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// memoryMutants do not protect memory as they should.
func memoryMutants() []*Mutant {
	const everything = provider.AccessLocalWrite | provider.AccessRemoteRead | provider.AccessRemoteWrite | provider.AccessRemoteInvalidate | provider.AccessMWBind
	const margin = 64
	return []*Mutant{
		{
			Name: "rights-ignored", What: "gives every region all rights",
			CaughtBy: []string{
				"protection/write-no-right", "protection/read-no-right", "ddp/write-read-only", "ddp/write-no-right",
				"rdmap/read-no-right", "rdmap/read-private", "rdmap/invalidate-no-right", "window/no-right",
				"product/rights-write", "product/rights-read", "product/two-faults", "product/window-rights",
			},
			verbs: func(*world) *verbsFault {
				return &verbsFault{access: func(a provider.Access) provider.Access { return a | everything }}
			},
		},
		{
			Name: "local-write-ignored", What: "gives every region the right of local writing",
			CaughtBy: []string{"product/rights-send", "product/rights-read", "product/rights-atomic",
				"product/two-faults-atomic"},
			verbs: func(*world) *verbsFault {
				return &verbsFault{access: func(a provider.Access) provider.Access {
					return a | provider.AccessLocalWrite
				}}
			},
		},
		{
			Name: "bounds-loose", What: "has regions begin 64 octets too early and end 64 octets too late",
			CaughtBy: []string{
				"protection/write-beyond-end", "protection/write-before-start", "protection/read-beyond-end", "protection/read-before-start",
				"protection/local-beyond-end", "ddp/write-beyond-end", "ddp/write-before-start", "ddp/write-second-beyond-end",
				"rdmap/read-beyond-end", "rdmap/read-before-start", "rdmap/terminate-read-layout",
			},
			verbs: func(*world) *verbsFault { return &verbsFault{margin: margin} },
		},
		{
			Name: "start-early", What: "has regions begin one octet too early",
			CaughtBy: []string{
				"ddp/write-before-start", "rdmap/read-before-start",
				"protection/write-before-start", "protection/read-before-start",
			},
			verbs: func(*world) *verbsFault { return &verbsFault{early: 1} },
		},
		{
			Name: "neighbour-touched", What: "writes one octet more than it was sent",
			CaughtBy: []string{"write/one-octet", "ddp/write-at-both-ends"},
			verbs:    func(*world) *verbsFault { return &verbsFault{margin: margin} },
			wire: in(edit(op(rdmap.OpWrite).and(filled), func(f *frame) {
				if len(f.payload) < 60_000 {
					f.payload = append(f.payload[:len(f.payload):len(f.payload)], 0)
				}
			})),
		},
		{
			Name: "receive-overrun", What: "places up to 64 octets beyond the end of a receive",
			CaughtBy: []string{"protection/receive-too-small", "ddp/send-too-long", "ddp/send-too-long-second"},
			verbs: func(*world) *verbsFault {
				return &verbsFault{margin: margin, postRecv: func(wrs []provider.RecvWR) {
					for k := range wrs {
						list := append([]provider.SGE(nil), wrs[k].SGList...)
						if n := len(list); n > 0 && list[n-1].Length > 0 {
							list[n-1].Length += margin
						}
						wrs[k].SGList = list
					}
				}}
			},
		},
		{
			Name: "pd-ignored", What: "has one protection domain for all",
			CaughtBy: []string{
				"protection/write-other-pd", "protection/read-other-pd", "ddp/write-other-pd",
				"rdmap/read-other-pd", "rdmap/invalidate-other-pd",
			},
			verbs: func(*world) *verbsFault { return &verbsFault{onePD: true} },
		},
		{
			Name: "deregistration-ignored", What: "keeps regions that were deregistered until their PD goes",
			CaughtBy: []string{"protection/write-closed-region", "protection/read-closed-region", "ddp/write-deregistered", "rdmap/read-deregistered"},
			verbs:    func(*world) *verbsFault { return &verbsFault{keepMRs: true} },
		},
		{
			Name: "key-octet-unchecked", What: "looks at the index of an STag only, not at its key octet",
			CaughtBy: []string{
				"protection/write-wrong-key-octet", "protection/read-wrong-key-octet", "ddp/write-wrong-key", "rdmap/read-wrong-key", "rdmap/invalidate-wrong-key",
			},
			wire: func(c *conn) wireFault {
				return wireFault{in: edit(anyFPDU, func(f *frame) {
					named(f, func(stag *uint32, _ uint64, _ uint64) {
						if r, ok := c.world().byIndex(*stag); ok {
							*stag = r.stag
						}
					})
				})}
			},
		},
		{
			Name: "unknown-key-dropped", What: "drops what names an STag that it does not know, and carries on",
			CaughtBy: []string{
				"protection/write-bad-key", "protection/read-bad-key", "ddp/write-unknown-stag", "ddp/write-deregistered", "ddp/drop-after-error",
				"mpa/terminate-with-data-pending", "rdmap/read-unknown-stag", "rdmap/read-deregistered", "rdmap/invalidate-unknown",
				"window/other-connection",
			},
			wire: func(c *conn) wireFault {
				return wireFault{in: drop(func(f *frame) bool {
					unknown := false
					named(f, func(stag *uint32, _ uint64, length uint64) {
						_, ok := c.world().find(*stag)
						unknown = !ok && length > 0
					})
					return unknown
				})}
			},
		},
		{
			Name: "out-of-bounds-dropped", What: "drops what reaches out of a region, and carries on",
			CaughtBy: []string{"ddp/write-wrap", "rdmap/read-wrap", "rdmap/read-4-gib", "protection/write-beyond-end", "protection/read-before-start"},
			wire: func(c *conn) wireFault {
				return wireFault{in: drop(func(f *frame) bool {
					outside := false
					named(f, func(stag *uint32, to uint64, length uint64) {
						if r, ok := c.world().find(*stag); ok && length > 0 && !sends(f) {
							outside = ddp.Wraps(to, length) || to < r.base || to+length > r.base+r.length
						}
					})
					return outside
				})}
			},
		},
	}
}

// is reports whether the frame is an FPDU of an opcode.
func (f *frame) is(o rdmap.Opcode) bool { return op(o)(f) }

// named calls with for what a frame of the peer names of our memory, if anything: the target of a
// Write, the source of a Read, or the region that a Send invalidates, whose length counts as one
// octet. The function may change the STag.
func named(f *frame, with func(stag *uint32, to, length uint64)) {
	switch {
	case f.is(rdmap.OpWrite):
		with(&f.header.STag, f.header.TO, uint64(len(f.payload)))
	case f.is(rdmap.OpReadRequest):
		req, err := rdmap.ParseReadRequest(f.payload)
		if err != nil || len(f.payload) != rdmap.ReadRequestLen {
			return
		}
		with(&req.SourceSTag, req.SourceTO, uint64(req.Size))
		f.payload = req.AppendTo(nil)
	case f.is(rdmap.OpSendInvalidate), f.is(rdmap.OpSendSEInvalidate):
		with(&f.header.ULP32, 0, 1)
	}
}
