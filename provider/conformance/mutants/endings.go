package mutants

import (
	"github.com/govs-rdma/govs/provider/iwarp"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// endingMutants end connections the wrong way.
func endingMutants() []*Mutant {
	terminates := op(rdmap.OpTerminate)
	return []*Mutant{
		{
			Name: "terminate-never", What: "ends a connection without a Terminate",
			CaughtBy: []string{
				"protection/write-bad-key", "protection/read-bad-key", "protection/no-receive", "protection/receive-too-small",
				"rdmap/local-fault", "mpa/terminate-with-data-pending", "rdmap/post-after-terminate",
			},
			wire: out(drop(terminates)),
		},
		{
			Name: "terminate-twice", What: "sends its Terminate twice",
			CaughtBy: []string{"protection/write-bad-key", "ddp/write-unknown-stag"},
			wire: out(func(f *frame) [][]byte {
				if terminates(f) {
					return [][]byte{f.octets, f.octets}
				}
				return f.same()
			}),
		},
		{
			Name: "terminate-other-code", What: "gives a wrong reason in its Terminates",
			CaughtBy: []string{
				"protection/write-bad-key", "rdmap/read-wrap", "ddp/write-wrap", "rdmap/response-unasked", "rdmap/invalidate-unknown",
				"product/two-faults", "product/two-faults-atomic",
			},
			wire: out(edit(terminates.and(filled), func(f *frame) { f.payload[1] = 0x0e })),
		},
		{
			Name: "terminate-without-headers", What: "shows no headers in its Terminates",
			CaughtBy: []string{"rdmap/terminate-layout", "rdmap/terminate-read-layout", "rdmap/terminate-version-layout"},
			wire:     out(edit(terminates, rewriteTerminate(func(t *rdmap.Terminate) []byte { t.M, t.D, t.R = false, false, false; return t.AppendTo(nil) }))),
		},
		{
			Name: "terminate-in-siw-layout", What: "packs the control field of Terminates as siw does",
			CaughtBy: []string{"rdmap/terminate-layout", "rdmap/terminate-read-layout", "rdmap/terminate-version-layout"},
			wire:     out(edit(terminates, rewriteTerminate(func(t *rdmap.Terminate) []byte { return t.AppendSIW(nil) }))),
		},
		{
			Name: "terminate-one-reason", What: "gives the same reason in every Terminate",
			CaughtBy: []string{"rdmap/local-fault", "ddp/send-msn-0"},
			wire: out(edit(terminates, rewriteTerminate(func(t *rdmap.Terminate) []byte {
				t.Layer, t.EType, t.Code = iwarp.LayerDDP, iwarp.DDPTaggedBuffer, iwarp.DDPTaggedInvalidSTag
				return t.AppendTo(nil)
			}))),
		},
		{
			Name: "terminate-ignored", What: "carries on when the peer has sent a Terminate",
			CaughtBy: []string{
				"rdmap/terminated", "rdmap/terminated-siw-layout", "rdmap/terminated-unknown-code", "rdmap/terminated-cut",
				"rdmap/terminated-control-cut", "rdmap/terminated-then-more", "rdmap/terminate-queue-0",
			},
			wire: in(drop(terminates)),
		},
		{
			Name: "fin-never", What: "does not close connections",
			CaughtBy: []string{
				"conn/disconnect-initiator", "conn/disconnect-responder", "mpa/request-key-first", "mpa/reply-ord-above-ird",
				"mpa/peer-to-peer-closed-early", "mpa/wildcard-listen", "rdmap/post-after-fin", "rdmap/response-never",
			},
			wire: func(*conn) wireFault { return wireFault{ending: endNever} },
		},
		{
			Name: "fin-is-reset", What: "resets connections where it should close them",
			CaughtBy: []string{"conn/shutdown", "rdmap/post-after-fin"},
			wire:     func(*conn) wireFault { return wireFault{ending: endReset} },
		},
		{
			Name:     "end-before-segments",
			What:     "reports the end of a connection before the segments that came before it",
			CaughtBy: []string{"rdmap/sends-before-end"},
			wire:     func(*conn) wireFault { return wireFault{endFirst: true} },
		},
	}
}

// rewriteTerminate encodes Terminates in another way.
func rewriteTerminate(encode func(*rdmap.Terminate) []byte) func(*frame) {
	return func(f *frame) {
		if t, err := rdmap.ParseTerminate(f.payload, rdmap.PhaseAfterFirstFPDU); err == nil {
			f.payload = encode(&t.Terminate)
		}
	}
}
