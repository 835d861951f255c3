package mutants

import (
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// sendingMutants send FPDUs that are wrong.
func sendingMutants() []*Mutant {
	data := op(rdmap.OpSend, rdmap.OpSendSE, rdmap.OpSendInvalidate, rdmap.OpSendSEInvalidate, rdmap.OpWrite, rdmap.OpReadResponse)
	return []*Mutant{
		{
			Name: "crc-wrong", What: "sends CRCs that don't fit",
			CaughtBy: []string{"send/one-octet", "rdmap/read-whole"},
			wire: out(func(f *frame) [][]byte {
				if data(f) {
					f.octets[len(f.octets)-1] ^= 1
				}
				return f.same()
			}),
		},
		{
			Name: "payload-flipped", What: "changes one bit in an octet that it sends, under a CRC that fits",
			CaughtBy: []string{
				"send/one-octet", "send/one-fpdu", "send/one-mib", "write/one-octet", "write/one-fpdu", "write/one-mib",
				"read/one-octet", "read/one-fpdu", "read/two-fpdus", "read/one-mib", "read/both-ways", "order/mixed-both-ways",
				"rdmap/read-whole", "mpa/crc-off", "mpa/one-octet-at-a-time",
			},
			wire: out(edit(data.and(filled), func(f *frame) { f.payload[len(f.payload)/2] ^= 0x10 })),
		},
		{
			Name: "send-msn-stuck", What: "gives every Send the MSN 1",
			CaughtBy: []string{"order/many-sends", "send/unsignalled", "queue/partial-post"},
			wire:     out(edit(sends, func(f *frame) { f.header.MSN = 1 })),
		},
		{
			Name: "read-msn-stuck", What: "gives every Read Request the MSN 1",
			CaughtBy: []string{"read/depth-1", "queue/send-queue-full", "rdmap/response-crossed", "rdmap/reads-outstanding"},
			wire:     out(edit(op(rdmap.OpReadRequest), func(f *frame) { f.header.MSN = 1 })),
		},
		{
			Name: "mo-zero", What: "gives every segment of a Send the MO 0",
			CaughtBy: []string{"send/two-fpdus", "send/gather-scatter"},
			wire:     out(edit(sends, func(f *frame) { f.header.MO = 0 })),
		},
		{
			Name: "last-always", What: "sets L in every segment",
			CaughtBy: []string{"write/two-fpdus", "send/two-fpdus"},
			wire:     out(edit(anyFPDU, func(f *frame) { f.header.Last = true })),
		},
		{
			Name: "write-shifted", What: "writes one octet too far",
			CaughtBy: []string{"write/one-fpdu", "write/one-octet"},
			wire:     out(edit(op(rdmap.OpWrite).and(filled), func(f *frame) { f.header.TO++ })),
		},
		{
			Name: "write-overtaken", What: "sends a Write later than the Send that was posted after it",
			CaughtBy: []string{"order/write-then-send", "write/gather"},
			wire: func(*conn) wireFault {
				// Overtaken Writes go out with the next frame. If they went out at once,
				// the peer might place them before its program checks.
				var waiting, overtaken [][]byte
				return wireFault{out: func(f *frame) [][]byte {
					if sends(f) && f.header.Last {
						overtaken, waiting = append(overtaken, waiting...), nil
						return f.same()
					}
					all := overtaken
					overtaken = nil
					if op(rdmap.OpWrite)(f) {
						waiting = append(waiting, f.octets)
						return all
					}
					return append(all, f.same()...)
				}}
			},
		},
		{
			Name: "response-short", What: "leaves the last octet of Read Responses out",
			CaughtBy: []string{"read/one-fpdu", "rdmap/read-whole", "rdmap/read-in-order"},
			wire: out(edit(op(rdmap.OpReadResponse).and(filled), func(f *frame) {
				if f.header.Last {
					f.payload = f.payload[:len(f.payload)-1]
				}
			})),
		},
		{
			Name: "response-elsewhere", What: "answers Reads with another STag than the sink's",
			CaughtBy: []string{"read/one-octet", "rdmap/read-whole", "rdmap/read-zero-length"},
			wire:     out(edit(op(rdmap.OpReadResponse), func(f *frame) { f.header.STag ^= 0x100 })),
		},
		{
			Name: "responses-crossed", What: "answers a Read later than the one that came after it",
			CaughtBy: []string{"rdmap/read-in-order", "rdmap/read-zero-length-busy"},
			wire: func(*conn) wireFault {
				var late []byte
				return wireFault{out: func(f *frame) [][]byte {
					if !op(rdmap.OpReadResponse)(f) {
						return f.same()
					}
					if late == nil {
						late = f.octets
						return nil
					}
					both := [][]byte{f.octets, late}
					late = nil
					return both
				}}
			},
		},
		{
			Name: "empty-messages-dropped", What: "does not send messages without octets",
			CaughtBy: []string{"send/zero", "write/zero", "read/zero", "rdmap/read-zero-length", "rdmap/read-zero-length-busy"},
			wire:     out(drop(data.and(empty))),
		},
		{
			Name: "solicited-forgotten", What: "sends solicited Sends as plain ones",
			CaughtBy: []string{"send/solicited", "send/solicited-with-invalidate"},
			wire: out(edit(sends, func(f *frame) {
				f.setControl(func(c *rdmap.Control) {
					switch c.Opcode {
					case rdmap.OpSendSE:
						c.Opcode = rdmap.OpSend
					case rdmap.OpSendSEInvalidate:
						c.Opcode = rdmap.OpSendInvalidate
					}
				})
			})),
		},
		{
			Name: "invalidate-forgotten", What: "sends Sends with Invalidate as plain ones",
			CaughtBy: []string{"send/with-invalidate", "send/solicited-with-invalidate"},
			wire:     out(edit(sends, plainSend)),
		},
	}
}

// plainSend takes Invalidate away from a Send.
func plainSend(f *frame) {
	f.header.ULP32 = 0
	f.setControl(func(c *rdmap.Control) {
		switch c.Opcode {
		case rdmap.OpSendInvalidate:
			c.Opcode = rdmap.OpSend
		case rdmap.OpSendSEInvalidate:
			c.Opcode = rdmap.OpSendSE
		}
	})
}
