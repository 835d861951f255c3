package mutants

import (
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// messageCheckMutants accept segments that don't make a message, or make the wrong
// message of them.
func messageCheckMutants() []*Mutant {
	writes := op(rdmap.OpWrite)
	return []*Mutant{
		{
			Name: "opcode-change-unchecked", What: "lets the opcode change between the segments of a Send",
			CaughtBy: []string{"rdmap/send-second-opcode"},
			wire: func(*conn) wireFault {
				var first rdmap.Opcode
				open := false
				return wireFault{in: edit(sends, func(f *frame) {
					if open {
						f.setControl(func(c *rdmap.Control) { c.Opcode = first })
					}
					first, open = f.control.Opcode, !f.header.Last
				})}
			},
		},
		{
			Name: "read-request-lenient", What: "takes Read Requests of the wrong length",
			CaughtBy: []string{"rdmap/read-not-last", "rdmap/read-too-long", "rdmap/read-too-short"},
			wire: in(edit(op(rdmap.OpReadRequest), func(f *frame) {
				f.header.Last = true
				whole := make([]byte, rdmap.ReadRequestLen)
				copy(whole, f.payload)
				f.payload = whole
			})),
		},
		{
			Name: "responses-unchecked", What: "takes any Read Response for what it asked for",
			CaughtBy: []string{
				"rdmap/response-other-stag", "rdmap/response-other-to", "rdmap/response-too-long", "rdmap/response-too-short", "rdmap/response-empty",
				"rdmap/response-last-missing", "rdmap/response-second-stag", "rdmap/response-second-to", "rdmap/response-second-opcode",
				"rdmap/response-unasked", "rdmap/response-crossed",
			},
			wire: func(*conn) wireFault { return (&responses{}).fault() },
		},
		{
			Name: "send-without-receive-dropped", What: "drops Sends that no receive is posted for, and carries on",
			CaughtBy: []string{"ddp/send-no-receive", "protection/no-receive"},
			wire: func(c *conn) wireFault {
				begun, open := 0, false
				return wireFault{in: drop(func(f *frame) bool {
					if !sends(f) {
						return false
					}
					if !open {
						begun++
					}
					open = !f.header.Last
					return begun > c.world().receivesPosted()
				})}
			},
		},
		{
			Name: "first-segments-lost", What: "places only the last segment of a Write or Read Response",
			CaughtBy: []string{"ddp/write-tiny-segments", "ddp/write-falling-offsets", "ddp/interleaved", "rdmap/response-tiny-segments"},
			wire:     in(drop(op(rdmap.OpWrite, rdmap.OpReadResponse).and(func(f *frame) bool { return !f.header.Last }))),
		},
		{
			Name: "segments-are-messages", What: "takes every segment of a Send for a whole message",
			CaughtBy: []string{"ddp/send-tiny-segments", "ddp/send-empty-segments", "ddp/send-too-long-second", "ddp/interleaved"},
			wire:     in(edit(sends, func(f *frame) { f.header.Last = true })),
		},
		{
			Name:     "write-continues",
			What:     "places the segments of a Write one after the other, whatever their TO",
			CaughtBy: []string{"ddp/write-falling-offsets", "ddp/write-second-stag"},
			wire: func(*conn) wireFault {
				var stag uint32
				var next uint64
				open := false
				return wireFault{in: edit(writes, func(f *frame) {
					if open {
						f.header.STag, f.header.TO = stag, next
					}
					stag, next, open = f.header.STag, f.header.TO+uint64(len(f.payload)), !f.header.Last
				})}
			},
		},
		{
			Name: "arrivals-flipped", What: "changes one bit of what it places",
			CaughtBy: []string{
				"ddp/write-at-both-ends", "ddp/write-empty-first-segment", "mpa/longest-ulpdu", "mpa/many-in-one-segment", "mpa/pad-not-zero",
				"rdmap/invalidate", "send/inline", "write/two-fpdus",
			},
			wire: in(edit(op(rdmap.OpWrite, rdmap.OpSend, rdmap.OpSendInvalidate).and(filled), func(f *frame) { f.payload[0] ^= 0x10 })),
		},
		{
			Name: "empty-write-checked", What: "checks STag and TO of Writes without octets",
			CaughtBy: []string{"ddp/write-zero-length"},
			wire:     in(edit(writes.and(empty), func(f *frame) { f.payload = []byte{0} })),
		},
		{
			Name: "empty-send-lost", What: "does not deliver Sends without octets",
			CaughtBy: []string{"ddp/send-zero-length", "send/zero"},
			wire:     in(drop(sends.and(empty))),
		},
		{
			Name: "invalidate-ignored", What: "takes Sends with Invalidate for plain ones",
			CaughtBy: []string{
				"rdmap/invalidate", "rdmap/invalidate-unknown", "rdmap/invalidate-wrong-key", "rdmap/invalidate-other-pd", "rdmap/invalidate-no-right",
				"rdmap/invalidate-refused-then-send", "send/with-invalidate",
			},
			wire: in(edit(sends, plainSend)),
		},
	}
}

// responses corrects Read Responses: they get the STag, TO and length of the Read Request
// that is next.
type responses struct {
	asked  []rdmap.ReadRequest
	placed uint32 // of the first
}

func (r *responses) fault() wireFault {
	return wireFault{
		out: func(f *frame) [][]byte {
			if op(rdmap.OpReadRequest)(f) {
				if req, err := rdmap.ParseReadRequest(f.payload); err == nil {
					r.asked = append(r.asked, req)
				}
			}
			return f.same()
		},
		in: func(f *frame) [][]byte {
			if !op(rdmap.OpReadResponse)(f) && !(op(rdmap.OpWrite)(f) && r.placed > 0) {
				return f.same()
			}
			if len(r.asked) == 0 {
				return nil
			}
			r.correct(f)
			return f.rebuilt()
		},
	}
}

func (r *responses) correct(f *frame) {
	req := r.asked[0]
	room := int(req.Size - r.placed)
	f.setControl(func(c *rdmap.Control) { c.Opcode = rdmap.OpReadResponse })
	f.header.STag, f.header.TO = req.SinkSTag, req.SinkTO+uint64(r.placed)
	if f.header.Last || len(f.payload) >= room {
		whole := make([]byte, room)
		copy(whole, f.payload)
		f.payload, f.header.Last = whole, true
		r.asked, r.placed = r.asked[1:], 0
		return
	}
	r.placed += uint32(len(f.payload))
}
