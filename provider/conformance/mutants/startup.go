package mutants

import (
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// startupMutants send start-up frames that are wrong, or at the wrong time.
func startupMutants() []*Mutant {
	return []*Mutant{
		{
			Name: "crc-not-asked", What: "does not ask for CRCs in its Request",
			CaughtBy: []string{"mpa/crc-default", "mpa/request-form"},
			wire:     out(editRequest(func(f *mpa.Frame) { f.CRC = false })),
		},
		{
			Name: "crc-insisted", What: "asks for CRCs although the configuration says not to",
			CaughtBy: []string{"mpa/crc-off"},
			options:  func(o *engine.Options) { o.CRC = engine.CRCOn },
		},
		{
			Name: "crc-refused", What: "leaves CRCs out though the peer asks for them",
			CaughtBy: []string{"mpa/crc-asked-by-responder", "mpa/request-no-crc"},
			options:  func(o *engine.Options) { o.CRC = engine.CRCOff },
			wire:     in(editStart(func(_ bool, f *mpa.Frame) { f.CRC = false })),
		},
		{
			Name:     "peer-to-peer-never",
			What:     "connects as a client although peer-to-peer connections were asked for",
			CaughtBy: []string{"mpa/opens-with-send", "mpa/opens-with-write", "mpa/opens-with-read", "conn/responder-first-write", "conn/responder-first-read", "conn/responder-first-send"},
			options:  func(o *engine.Options) { o.PeerToPeer = false },
		},
		{
			Name: "fallback-never", What: "does not try revision 1 though it may",
			CaughtBy: []string{"mpa/fallback"},
			options:  func(o *engine.Options) { o.Conformance.Fallback = engine.FallbackNever },
		},
		{
			Name: "depth-off-by-one", What: "says an ORD that is one off",
			CaughtBy: []string{"mpa/request-depth-0", "mpa/request-depth-1", "mpa/request-depth-128", "mpa/request-depth-129", "mpa/request-depth-16383", "conn/read-depths"},
			wire: out(editStart(func(_ bool, f *mpa.Frame) {
				editDepths(f, func(e *mpa.Enhanced) { e.ORD ^= 1 })
			})),
		},
		{
			Name: "reject-accepts", What: "sends a Reply that accepts where its program rejects",
			CaughtBy: []string{"mpa/reject", "conn/reject"},
			wire:     out(editReply(func(f *mpa.Frame) { f.Reject = false })),
		},
		{
			Name: "accept-rejects", What: "sends a Reply that rejects where its program accepts",
			CaughtBy: []string{"send/one-octet", "mpa/request-private-data-0"},
			wire:     out(editReply(func(f *mpa.Frame) { f.Reject = true })),
		},
		{
			Name: "private-data-changed", What: "changes the private data in its start-up frames",
			CaughtBy: []string{"conn/private-data-1", "conn/private-data-56", "mpa/private-data-sent-251", "mpa/private-data-accepting-251", "mpa/private-data-rejecting-251"},
			wire: out(editStart(func(_ bool, f *mpa.Frame) {
				if n := len(f.PrivateData); n > mpa.EnhancedLen {
					f.PrivateData[n-1] ^= 0xff
				}
			})),
		},
		{
			// siw does so, too, with private data of 252 to 255 octets.
			Name: "private-data-length-wraps", What: "computes PD_Length in one octet",
			CaughtBy: []string{
				"mpa/private-data-sent-252", "mpa/private-data-sent-255", "mpa/private-data-accepting-252",
				"mpa/private-data-rejecting-252", "mpa/private-data-rejecting-255",
			},
			wire: out(editStart(func(_ bool, f *mpa.Frame) {
				n := uint16(len(f.PrivateData) & 0xff)
				f.PDLength = &n
			})),
		},
		{
			Name: "revision-2-always", What: "answers a Request of revision 1 in revision 2",
			CaughtBy: []string{"mpa/request-revision-1", "mpa/request-revision-1-s"},
			wire:     out(editReply(func(f *mpa.Frame) { f.Revision = 2 })),
		},
		{
			Name: "enhanced-always", What: "answers with enhanced connection data where the Request has none",
			CaughtBy: []string{"mpa/request-unenhanced"},
			wire: out(editReply(func(f *mpa.Frame) {
				if !f.UsesEnhanced() {
					f.Enhanced = true
					f.PrivateData = append(mpa.Enhanced{IRD: 1, ORD: 1}.AppendTo(nil), f.PrivateData...)
				}
			})),
		},
		{
			Name: "reserved-bits-set", What: "sets the reserved bits of start-up frames",
			CaughtBy: []string{"mpa/request-reserved-bits", "mpa/request-form"},
			wire:     out(editStart(func(_ bool, f *mpa.Frame) { f.Reserved = 0xf })),
		},
		{
			Name: "reject-bit-echoed", What: "copies the R bit of a Request into the Reply",
			CaughtBy: []string{"mpa/request-reject-bit"},
			wire: func(*conn) wireFault {
				set := false
				return wireFault{
					in:  editRequest(func(f *mpa.Frame) { set = f.Reject }),
					out: editReply(func(f *mpa.Frame) { f.Reject = f.Reject || set }),
				}
			},
		},
		{
			Name: "reply-never", What: "does not answer Requests",
			CaughtBy: []string{"mpa/request-private-data-0", "send/one-octet"},
			wire:     out(drop(func(f *frame) bool { return f.startup && f.reply })),
		},
		{
			Name: "speaks-first", What: "sends an FPDU after its Reply, before the initiator's first",
			CaughtBy: []string{"mpa/responder-waits"},
			wire: out(func(f *frame) [][]byte {
				if f.startup && f.good && f.reply && !f.start.Reject {
					return [][]byte{f.octets, fpdu(rdmap.WriteHeader(0, 0, true), nil, true)}
				}
				return f.same()
			}),
		},
		{
			Name: "peer-to-peer-ignored", What: "takes a peer-to-peer Request for an ordinary one",
			CaughtBy: []string{"mpa/peer-to-peer-write", "mpa/peer-to-peer-read", "mpa/peer-to-peer-send"},
			wire: in(editRequest(func(f *mpa.Frame) {
				editDepths(f, func(e *mpa.Enhanced) { e.A, e.B, e.C, e.D = false, false, false, false })
			})),
		},
		{
			Name: "markers-ignored", What: "sends no Markers to a peer that asks for them",
			CaughtBy: []string{"mpa/request-markers", "mpa/reply-markers"},
			wire:     in(editStart(func(_ bool, f *mpa.Frame) { f.Markers = false })),
		},
		{
			Name: "ord-ignored", What: "has more Reads outstanding than the peer's IRD",
			CaughtBy: []string{"mpa/reply-ird-0", "rdmap/reads-outstanding", "read/depth-1", "read/depth-3", "read/depth-4"},
			wire:     in(editReply(func(f *mpa.Frame) { editDepths(f, func(e *mpa.Enhanced) { e.IRD = 128 }) })),
			verbs: func(*world) *verbsFault {
				return &verbsFault{param: func(p *provider.ConnParam) { p.InitiatorDepth = 16 }}
			},
		},
		{
			Name: "ird-unchecked", What: "serves more Reads at a time than its IRD",
			CaughtBy: []string{"rdmap/read-beyond-ird"},
			wire: func(*conn) wireFault {
				var ird uint16
				return wireFault{
					in: editRequest(func(f *mpa.Frame) {
						editDepths(f, func(e *mpa.Enhanced) { ird, e.ORD = e.ORD, 128 })
					}),
					out: editReply(func(f *mpa.Frame) { editDepths(f, func(e *mpa.Enhanced) { e.IRD = ird }) }),
				}
			},
			verbs: func(*world) *verbsFault {
				return &verbsFault{param: func(p *provider.ConnParam) { p.ResponderResources = 128 }}
			},
		},
	}
}

// startupCheckMutants take start-up frames that they must not take, or don't take
// what they must.
func startupCheckMutants() []*Mutant {
	return []*Mutant{
		{
			Name: "startup-unchecked", What: "takes whatever begins a connection for a good start-up frame",
			CaughtBy: []string{
				"mpa/request-key-first", "mpa/request-key-last", "mpa/request-is-reply", "mpa/request-http",
				"mpa/request-private-data-513", "mpa/request-pd-length-65535", "mpa/request-enhanced-too-short",
				"mpa/request-revision-0", "mpa/request-revision-3", "mpa/request-revision-255",
				"mpa/reply-key-first", "mpa/reply-key-last", "mpa/reply-is-request", "mpa/reply-http",
				"mpa/reply-private-data-513", "mpa/reply-pd-length-65535", "mpa/reply-enhanced-too-short", "mpa/reply-enhanced-empty",
				"mpa/reply-revision-0", "mpa/reply-revision-1", "mpa/reply-revision-3", "mpa/reply-unenhanced",
				"rdmac/no-start-up", "rdmac/request-refused",
			},
			wire: in(func(f *frame) [][]byte {
				if f.startup && !(f.good && f.start.Revision == 2 && f.start.Enhanced && len(f.start.PrivateData) >= mpa.EnhancedLen) {
					return [][]byte{goodFrame(f.reply).AppendTo(nil)}
				}
				return f.same()
			}),
		},
		{
			Name: "startup-end-unchecked", What: "takes the end of a connection for a good start-up frame",
			CaughtBy: []string{
				"mpa/request-cut-fin", "mpa/request-fin", "mpa/request-reset",
				"mpa/reply-cut-fin", "mpa/reply-fin", "mpa/reply-reset",
			},
			wire: func(c *conn) wireFault {
				// deaf, because a listener that notices the end withdraws the request.
				return wireFault{deaf: !c.rx.reply, ended: func(rest []byte, started, _ bool) []byte {
					if started {
						return rest
					}
					return goodFrame(c.rx.reply).AppendTo(nil)
				}}
			},
		},
		{
			Name: "early-data-dropped", What: "drops FPDUs that come too early, and carries on",
			CaughtBy: []string{"mpa/request-data-after", "mpa/request-data-before-reply", "mpa/reply-data-after"},
			wire: func(*conn) wireFault {
				spoken := false
				return wireFault{
					out: func(f *frame) [][]byte {
						spoken = spoken || !f.startup || f.reply
						return f.same()
					},
					in: drop(func(f *frame) bool { return !f.startup && !spoken }),
				}
			},
		},
		{
			Name: "patient", What: "waits for a silent peer's start-up frame for ever",
			CaughtBy: []string{"mpa/request-silence", "mpa/request-cut-silence", "mpa/reply-silence", "mpa/reply-cut-silence"},
			options:  func(o *engine.Options) { o.StartupTimeout = 1 << 40 },
		},
		{
			Name: "reserved-bits-refused", What: "refuses start-up frames and FPDUs with reserved bits set",
			CaughtBy: []string{"mpa/reply-reserved-bits", "mpa/request-reserved-bits", "ddp/reserved-bits"},
			wire: in(func(f *frame) [][]byte {
				switch {
				case f.startup && f.good && f.start.Reserved != 0:
					f.octets[0] ^= 0xff
				case !f.startup && f.good && f.header.Reserved != 0:
					f.header.Version = 3
					return f.rebuilt()
				}
				return f.same()
			}),
		},
		{
			Name: "reply-ignored", What: "does not take Replies",
			CaughtBy: []string{"mpa/reply-private-data-0", "mpa/reply-ord-above-ird", "mpa/reply-one-octet-at-a-time"},
			wire:     in(drop(func(f *frame) bool { return f.startup && f.reply })),
		},
	}
}
