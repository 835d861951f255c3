package mutants

import (
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// headerCheckMutants miss wrong headers: the headers are corrected before the engine gets
// them.
func headerCheckMutants() []*Mutant {
	return []*Mutant{
		{
			Name: "crc-unchecked", What: "takes FPDUs with a wrong CRC",
			CaughtBy: []string{
				"mpa/crc-wrong-send", "mpa/crc-wrong-write", "mpa/crc-wrong-read", "mpa/crc-zero", "mpa/crc-wrong-payload",
				"mpa/drop-after-crc-error", "mpa/crc-wrong-first", "mpa/crc-wrong-response", "mpa/crc-asked-by-responder",
			},
			wire: in(edit(anyFPDU, func(*frame) {})),
		},
		{
			Name: "ddp-version-unchecked", What: "takes segments of any DDP version",
			CaughtBy: []string{
				"ddp/untagged-version-0", "ddp/untagged-version-2", "ddp/untagged-version-3",
				"ddp/tagged-version-0", "ddp/tagged-version-2", "ddp/tagged-version-3", "ddp/later-send",
				"ddp/later-write",
			},
			wire: in(edit(anyFPDU, func(f *frame) { f.header.Version = ddp.Version })),
		},
		{
			Name: "rdmap-version-unchecked", What: "takes messages of any RDMAP version",
			CaughtBy: []string{
				"rdmap/version-0", "rdmap/version-2", "rdmap/version-3", "rdmap/write-version-0", "rdmap/write-version-2", "rdmap/write-version-3",
				"rdmap/terminate-version-layout", "ddp/later-send", "ddp/later-write",
			},
			wire: in(edit(anyFPDU, func(f *frame) {
				f.setControl(func(c *rdmap.Control) { c.Version = rdmap.Version })
			})),
		},
		{
			Name: "opcode-unchecked", What: "takes tagged segments with a wrong opcode for Writes, and untagged ones for Sends",
			CaughtBy: []string{
				"rdmap/opcode-8", "rdmap/opcode-9", "rdmap/opcode-10", "rdmap/opcode-11", "rdmap/opcode-12", "rdmap/opcode-13",
				"rdmap/opcode-14", "rdmap/opcode-15", "rdmap/opcode-8-tagged", "rdmap/write-untagged", "rdmap/send-tagged",
			},
			wire: in(edit(anyFPDU, func(f *frame) {
				if o := f.control.Opcode; o.Defined() && o.Tagged() == f.header.Tagged {
					return
				}
				right := rdmap.OpSend
				if f.header.Tagged {
					right = rdmap.OpWrite
				}
				f.setControl(func(c *rdmap.Control) { c.Opcode = right })
			})),
		},
		{
			Name: "queue-unchecked", What: "takes messages for any queue",
			CaughtBy: []string{
				"ddp/send-queue-1", "ddp/send-queue-2", "ddp/send-queue-3", "ddp/send-queue-7", "rdmap/read-queue-0",
			},
			wire: in(edit(anyFPDU, func(f *frame) {
				if qn, ok := f.control.Opcode.QN(); ok && !f.header.Tagged {
					f.header.QN = qn
				}
			})),
		},
		{
			Name: "queue-low-octet", What: "looks at the low octet of a queue number only",
			CaughtBy: []string{"ddp/later-send"},
			wire: in(edit(anyFPDU, func(f *frame) {
				if !f.header.Tagged {
					f.header.QN &= 0xff
				}
			})),
		},
		{
			Name: "later-headers-unchecked", What: "checks versions, queue and message offset in the " +
				"first FPDU of a connection only",
			CaughtBy: []string{"ddp/later-send", "ddp/later-write"},
			wire: in(edit(anyFPDU, func(f *frame) {
				if f.index == 0 {
					return
				}
				f.header.Version = ddp.Version
				f.setControl(func(c *rdmap.Control) { c.Version = rdmap.Version })
				if qn, ok := f.control.Opcode.QN(); ok && !f.header.Tagged && f.header.Last {
					f.header.QN, f.header.MO = qn, 0
				}
			})),
		},
		{
			Name: "msn-unchecked", What: "takes messages with any MSN for the next",
			CaughtBy: []string{
				"ddp/send-msn-0", "ddp/send-msn-skipped", "ddp/send-msn-5", "ddp/send-second-msn", "rdmap/read-msn-0", "rdmap/read-msn-skipped",
			},
			wire: func(*conn) wireFault {
				var done [3]uint32
				return wireFault{in: edit(anyFPDU, func(f *frame) {
					if f.header.Tagged || int(f.header.QN) >= len(done) {
						return
					}
					f.header.MSN = done[f.header.QN] + 1
					if f.header.Last {
						done[f.header.QN]++
					}
				})}
			},
		},
		{
			Name: "mo-unchecked", What: "takes segments with any MO for those that are next",
			CaughtBy: []string{
				"ddp/send-mo-not-zero", "ddp/send-mo-beyond-receive", "ddp/send-mo-wrap", "ddp/send-second-mo-gap", "ddp/send-second-mo-again",
				"rdmap/read-mo-not-zero", "rdmap/terminate-layout", "rdmap/two-errors",
			},
			wire: func(*conn) wireFault {
				var next uint32
				return wireFault{in: edit(anyFPDU, func(f *frame) {
					switch {
					case f.header.Tagged:
					case f.header.QN == rdmap.QNSend:
						f.header.MO = next
						next += uint32(len(f.payload))
						if f.header.Last {
							next = 0
						}
					default:
						f.header.MO = 0
					}
				})}
			},
		},
		{
			Name: "runts-dropped", What: "drops ULPDUs that are too short for their header, and carries on",
			CaughtBy: []string{"mpa/ulpdu-length-0", "mpa/ulpdu-length-1", "mpa/ulpdu-length-13", "mpa/ulpdu-length-17"},
			wire:     in(drop(func(f *frame) bool { return !f.startup && !f.good })),
		},
	}
}
