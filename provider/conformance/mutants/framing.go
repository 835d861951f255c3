package mutants

import "github.com/govs-rdma/govs/provider/iwarp/mpa"

// framingMutants take FPDUs apart the wrong way.
func framingMutants() []*Mutant {
	return []*Mutant{
		{
			Name: "pieces-lost", What: "loses what TCP has cut between two reads",
			CaughtBy: []string{"mpa/one-octet-at-a-time", "mpa/split-anywhere", "mpa/request-one-octet-at-a-time", "mpa/reply-one-octet-at-a-time"},
			wire:     func(*conn) wireFault { return wireFault{pieces: true} },
		},
		{
			Name: "crowd-lost", What: "loses FPDUs that come after another in one read",
			CaughtBy: []string{"mpa/many-in-one-segment", "order/many-sends"},
			wire:     func(*conn) wireFault { return wireFault{crowd: true} },
		},
		{
			Name: "pad-checked", What: "refuses FPDUs whose pad is not zero",
			CaughtBy: []string{"mpa/pad-not-zero"},
			wire: in(func(f *frame) [][]byte {
				if !anyFPDU(f) {
					return f.same()
				}
				end := mpa.HeaderLen + f.header.Len() + len(f.payload)
				for _, octet := range f.octets[end : len(f.octets)-mpa.CRCLen] {
					if octet != 0 {
						f.header.Version = 3
						return f.rebuilt()
					}
				}
				return f.same()
			}),
		},
		{
			Name: "long-fpdus-dropped", What: "drops FPDUs whose length does not fit 15 bits",
			CaughtBy: []string{"mpa/longest-ulpdu", "send/one-fpdu", "write/one-fpdu", "read/one-fpdu", "send/one-mib"},
			wire:     in(drop(func(f *frame) bool { return !f.startup && len(f.octets) >= 1<<15 })),
		},
		{
			Name: "cut-completed", What: "fills up an FPDU that the end of the connection cuts off, and delivers it",
			CaughtBy: []string{"mpa/cut-then-fin", "mpa/cut-then-reset"},
			wire: func(*conn) wireFault {
				return wireFault{ended: func(rest []byte, started, crc bool) []byte {
					_, n, ok := mpa.ParseHeader(rest)
					if !started || !ok {
						return rest
					}
					whole := make([]byte, n)
					copy(whole, rest)
					if crc {
						mpa.SealFPDU(whole)
					}
					return whole
				}}
			},
		},
	}
}
