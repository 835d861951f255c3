package mutants

import (
	"encoding/binary"

	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// Offsets in a ULPDU, in octets (RFC 5041 figures 4 and 5).
const (
	atSTag = 2
	atTO   = 6
	atMSN  = 10
	atMO   = 14
)

func (f *frame) opcode() rdmap.Opcode { return rdmap.ParseControl(f.header.ULPCtl).Opcode }

// is reports whether the frame is an FPDU of one of the opcodes.
func (f *frame) is(ops ...rdmap.Opcode) bool {
	if f.startup {
		return false
	}
	for _, op := range ops {
		if f.opcode() == op {
			return true
		}
	}
	return false
}

// onlyFor applies a change to FPDUs of an opcode, and lets the rest pass.
func onlyFor(op rdmap.Opcode, change func(*frame) [][]byte) func(*frame) [][]byte {
	return func(f *frame) [][]byte {
		if !f.is(op) {
			return [][]byte{f.octets}
		}
		return change(f)
	}
}

// inStartup applies a change to one of the start-up frames.
func inStartup(reply bool, change func(f *frame, flags, words []byte)) func(*frame) [][]byte {
	return func(f *frame) [][]byte {
		if f.startup && f.reply == reply {
			flags, words := f.startupWords()
			change(f, flags, words)
		}
		return [][]byte{f.octets}
	}
}

func wireMutants() []*Mutant {
	return append(startupMutants(), []*Mutant{
		{
			Name: "crc-wrong", What: "sends CRCs that don't fit", CaughtBy: "send/one-octet",
			wire: &wireFault{out: onlyFor(rdmap.OpSend, func(f *frame) [][]byte {
				f.octets[len(f.octets)-1] ^= 1
				return [][]byte{f.octets}
			})},
		},
		{
			Name: "msn-stuck", What: "gives every Send the MSN 1", CaughtBy: "order/many-sends",
			wire: &wireFault{out: onlyFor(rdmap.OpSend, func(f *frame) [][]byte {
				f.patch(atMSN, func(uint32) uint32 { return 1 })
				return f.same()
			})},
		},
		{
			Name: "mo-zero", What: "gives every segment the MO 0", CaughtBy: "send/two-fpdus",
			wire: &wireFault{out: onlyFor(rdmap.OpSend, func(f *frame) [][]byte {
				f.patch(atMO, func(uint32) uint32 { return 0 })
				return f.same()
			})},
		},
		{
			Name: "last-always", What: "sets L in every segment", CaughtBy: "send/two-fpdus",
			wire: &wireFault{out: func(f *frame) [][]byte {
				if !f.startup {
					f.octets[mpa.HeaderLen] |= 0x40
				}
				return f.same()
			}},
		},
		{
			Name: "write-shifted", What: "writes one octet too far", CaughtBy: "write/one-fpdu",
			wire: &wireFault{out: onlyFor(rdmap.OpWrite, func(f *frame) [][]byte {
				b := f.octets[mpa.HeaderLen+atTO:]
				binary.BigEndian.PutUint64(b, binary.BigEndian.Uint64(b)+1)
				return f.same()
			})},
		},
		{
			Name: "payload-flipped", What: "changes an octet of what it writes", CaughtBy: "write/one-mib",
			wire: &wireFault{out: onlyFor(rdmap.OpWrite, func(f *frame) [][]byte {
				if n := len(f.payload); n > 0 {
					f.payload[n/2] ^= 0x10
				}
				return f.same()
			})},
		},
		{
			Name: "response-short", What: "leaves the last octet of a Read Response out", CaughtBy: "read/one-fpdu",
			wire: &wireFault{out: onlyFor(rdmap.OpReadResponse, func(f *frame) [][]byte {
				if len(f.payload) == 0 {
					return f.same()
				}
				return [][]byte{f.rebuilt(f.header, f.payload[:len(f.payload)-1])}
			})},
		},
		{
			Name: "response-elsewhere", What: "answers Reads with another STag than the sink's", CaughtBy: "read/one-octet",
			wire: &wireFault{out: onlyFor(rdmap.OpReadResponse, func(f *frame) [][]byte {
				f.patch(atSTag, func(s uint32) uint32 { return s ^ 0x100 })
				return f.same()
			})},
		},
		{
			Name: "terminate-never", What: "ends a connection without a Terminate", CaughtBy: "protection/write-bad-key",
			wire: &wireFault{out: onlyFor(rdmap.OpTerminate, func(*frame) [][]byte { return nil })},
		},
		{
			Name: "terminate-twice", What: "sends its Terminate twice", CaughtBy: "protection/write-bad-key",
			wire: &wireFault{out: onlyFor(rdmap.OpTerminate, func(f *frame) [][]byte { return [][]byte{f.octets, f.octets} })},
		},
		{
			Name: "terminate-other-code", What: "gives the wrong reason in a Terminate", CaughtBy: "protection/write-bad-key",
			wire: &wireFault{out: onlyFor(rdmap.OpTerminate, func(f *frame) [][]byte {
				f.payload[1] = 0x0e
				return f.same()
			})},
		},
		{
			Name: "empty-send-dropped", What: "does not send Sends without octets", CaughtBy: "send/zero",
			wire: &wireFault{out: onlyFor(rdmap.OpSend, func(f *frame) [][]byte {
				if len(f.payload) == 0 {
					return nil
				}
				return f.same()
			})},
		},
		{
			Name: "solicited-forgotten", What: "sends solicited Sends as plain ones", CaughtBy: "send/solicited",
			wire: &wireFault{out: onlyFor(rdmap.OpSendSE, func(f *frame) [][]byte {
				f.octets[mpa.HeaderLen+1] = rdmap.Control{Version: rdmap.Version, Opcode: rdmap.OpSend}.Octet()
				return f.same()
			})},
		},
		{
			Name: "invalidate-forgotten", What: "sends a Send with Invalidate as a plain one", CaughtBy: "send/with-invalidate",
			wire: &wireFault{out: onlyFor(rdmap.OpSendInvalidate, func(f *frame) [][]byte {
				f.octets[mpa.HeaderLen+1] = rdmap.Control{Version: rdmap.Version, Opcode: rdmap.OpSend}.Octet()
				f.patch(2, func(uint32) uint32 { return 0 })
				return f.same()
			})},
		},
		{
			Name: "crc-unchecked", What: "takes FPDUs with a wrong CRC for good", CaughtBy: "mpa/crc-wrong-send",
			wire: &wireFault{in: func(f *frame) [][]byte {
				if f.startup {
					return [][]byte{f.octets}
				}
				return f.same()
			}},
		},
		{
			Name: "version-unchecked", What: "takes any DDP version for its own", CaughtBy: "ddp/version-0",
			wire: &wireFault{in: func(f *frame) [][]byte {
				if !f.startup {
					f.octets[mpa.HeaderLen] = f.octets[mpa.HeaderLen]&^3 | 1
				}
				return f.same()
			}},
		},
		{
			Name: "msn-unchecked", What: "takes any MSN of a Send for the next", CaughtBy: "ddp/send-msn-ahead",
			wire: &wireFault{in: onlyFor(rdmap.OpSend, func(f *frame) [][]byte {
				next, _ := f.conn.recall("msn")
				f.patch(atMSN, func(uint32) uint32 { return uint32(next) + 1 })
				if f.header.Last {
					f.conn.remember("msn", next+1)
				}
				return f.same()
			})},
		},
		{
			Name: "qn-unchecked", What: "takes any queue number of a Send for 0", CaughtBy: "ddp/send-qn-3",
			wire: &wireFault{in: onlyFor(rdmap.OpSend, func(f *frame) [][]byte {
				f.patch(6, func(uint32) uint32 { return 0 })
				return f.same()
			})},
		},
	}...)
}

func startupMutants() []*Mutant {
	return []*Mutant{
		{
			Name: "crc-not-asked", What: "does not ask for CRC", CaughtBy: "send/one-octet",
			wire: &wireFault{out: inStartup(false, func(_ *frame, flags, _ []byte) { flags[0] &^= 0x40 })},
		},
		{
			Name: "depths-swapped", What: "swaps IRD and ORD in its Reply", CaughtBy: "conn/read-depths",
			wire: &wireFault{out: inStartup(true, func(_ *frame, _, words []byte) {
				if words != nil {
					words[0], words[1], words[2], words[3] = words[2], words[3], words[0], words[1]
				}
			})},
		},
		{
			Name: "reject-accepts", What: "sends a Reply that accepts where it rejects", CaughtBy: "conn/reject",
			wire: &wireFault{out: inStartup(true, func(_ *frame, flags, _ []byte) { flags[0] &^= 0x20 })},
		},
		{
			Name: "private-data-changed", What: "changes the private data of its Request", CaughtBy: "conn/private-data-56",
			wire: &wireFault{out: inStartup(false, func(f *frame, _, _ []byte) {
				if n := len(f.octets); n > mpa.FrameHeaderLen+mpa.EnhancedLen {
					f.octets[n-1] ^= 0xff
				}
			})},
		},
	}
}
