package mutants

import (
	"github.com/govs-rdma/govs/provider"
)

// windowMutants are wrong about windows and local invalidation.
func windowMutants() []*Mutant {
	return []*Mutant{
		{
			Name: "window-wide", What: "binds windows to 32 octets more than it was told",
			CaughtBy: []string{"window/beyond-end"},
			verbs: func(*world) *verbsFault {
				return &verbsFault{bind: func(info *provider.MWBindInfo) {
					if info.Length > 0 {
						info.Length += 32
					}
				}}
			},
		},
		{
			Name: "window-never-unbound", What: "binds a window again where it is to unbind it",
			CaughtBy: []string{"window/type-1"},
			verbs: func(*world) *verbsFault {
				var last provider.MWBindInfo // the scenarios bind one after the other
				return &verbsFault{bind: func(info *provider.MWBindInfo) {
					if info.Length > 0 {
						last = *info
					}
					*info = last
				}}
			},
		},
		{
			Name: "local-invalidation-ignored", What: "completes a local invalidation without having done it",
			CaughtBy: []string{"window/invalidated", "window/registered", "window/keeps-region"},
			verbs: func(*world) *verbsFault {
				return &verbsFault{postSend: func(wrs []provider.SendWR) {
					for k := range wrs {
						if wrs[k].Opcode == provider.WRLocalInv {
							wrs[k].Opcode = provider.WRRDMAWrite
						}
					}
				}}
			},
		},
	}
}

// BindMW implements provider.QP.
func (q *brokenQP) BindMW(w provider.MW, wrid uint64, flags provider.SendFlags, info provider.MWBindInfo) error {
	if f := q.dev.fault.bind; f != nil {
		f(&info)
	}
	return q.QP.BindMW(w, wrid, flags, info)
}

// boundBy has f change what the binds among wrs, which are copies, are to.
func boundBy(wrs []provider.SendWR, f func(*provider.MWBindInfo)) {
	for k := range wrs {
		if b := wrs[k].Bind; b != nil {
			info := *b
			f(&info)
			wrs[k].Bind = &info
		}
	}
}
