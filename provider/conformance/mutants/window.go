package mutants

import (
	"maps"

	"github.com/govs-rdma/govs/provider"
)

// windowMutants are wrong about windows and local invalidation.
func windowMutants() []*Mutant {
	return []*Mutant{
		{
			Name: "window-wide", What: "binds windows to 32 octets more than asked for",
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
			Name: "window-rights-ignored", What: "binds windows to be read and written, whatever they " +
				"are asked to be bound for",
			CaughtBy: []string{"product/window-rights"},
			verbs: func(*world) *verbsFault {
				return &verbsFault{bind: func(info *provider.MWBindInfo) {
					if info.Length > 0 {
						info.Access |= provider.AccessRemoteWrite | provider.AccessRemoteRead
					}
				}}
			},
		},
		{
			Name: "window-never-unbound", What: "binds a window again where it is to unbind it",
			CaughtBy: []string{"window/type-1"},
			verbs: func(*world) *verbsFault {
				var last provider.MWBindInfo // the scenarios bind one window at a time
				return &verbsFault{bind: func(info *provider.MWBindInfo) {
					if info.Length > 0 {
						last = *info
					} else if info.Access == 0 {
						*info = last
					}
				}}
			},
		},
		{
			Name: "local-invalidation-ignored", What: "completes a local invalidation without having done it",
			CaughtBy: []string{"window/invalidated", "window/registered", "window/keeps-region",
				"product/window-under-reads"},
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
		{
			Name: "window-for-all", What: "lets the peers of all connections use a window that was bound for one of them",
			CaughtBy: []string{"window/other-connection"},
			verbs:    func(*world) *verbsFault { return &verbsFault{windowsForAll: true} },
			wire: func(c *conn) wireFault {
				return wireFault{in: edit(anyFPDU, func(f *frame) {
					named(f, func(stag *uint32, _, _ uint64) {
						if sends(f) {
							c.world().shut(*stag)
						} else {
							*stag = c.world().instead(*stag)
						}
					})
				})}
			},
		},
		{
			Name: "registration-read-only", What: "registers regions for work requests without the right of remote writing",
			CaughtBy: []string{"window/registered"},
			verbs: sending(func(wr *provider.SendWR) {
				if wr.Opcode == provider.WRRegMR {
					wr.Access &^= provider.AccessRemoteWrite
				}
			}),
		},
	}
}

// windows replaces windows of type 2 by regions, for a fault that opens windows to all QPs. Each
// region has the same octets, addresses and rights as its window.
type windows struct {
	memory map[uint32]memory // by lkey
	stands map[uint32]stand  // by the window's key
}

// stand is the key of a region, and the QP whose window it stands for.
type stand struct {
	key uint32
	qp  *brokenQP
}

// memory is what a region was registered with.
type memory struct {
	pd   *brokenPD
	buf  []byte
	base uint64
}

// lend records the memory of a region to which windows may be bound.
func (w *world) lend(mr provider.MR, pd *brokenPD, buf []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.windows.memory == nil {
		w.windows = windows{make(map[uint32]memory), make(map[uint32]stand)}
	}
	w.windows.memory[mr.LKey()] = memory{pd, buf, mr.Addr()}
}

// follow registers regions that stand for the windows that wrs bind, and forgets the regions of
// windows that wrs invalidate. wrs are posted. No peer uses a window before its bind is done.
func (w *world) follow(q *brokenQP, wrs []provider.SendWR) {
	for k := range wrs {
		wr := &wrs[k]
		switch {
		case wr.Opcode == provider.WRLocalInv:
			w.shut(wr.InvalidateRKey)
		case wr.Bind != nil:
			w.mu.Lock()
			m, ok := w.windows.memory[wr.Bind.LKey]
			w.mu.Unlock()
			off, n := wr.Bind.Addr-m.base, uint64(len(m.buf))
			if !ok || off > n || wr.Bind.Length > n-off || wr.Bind.Access&provider.AccessZeroBased != 0 {
				continue
			}
			mr, err := m.pd.PD.RegMRIova(m.buf[off:off+wr.Bind.Length], wr.Bind.Addr, wr.Bind.Access|provider.AccessLocalWrite)
			if err != nil {
				continue
			}
			m.pd.keep(mr)
			w.mu.Lock()
			w.windows.stands[wr.RKey] = stand{mr.RKey(), q}
			w.mu.Unlock()
		}
	}
}

// instead returns the key of the region that stands for the window, or else the window's own key.
func (w *world) instead(stag uint32) uint32 {
	w.mu.Lock()
	defer w.mu.Unlock()
	if other, ok := w.windows.stands[stag]; ok {
		return other.key
	}
	return stag
}

// shut forgets the region that stands for the window.
func (w *world) shut(stag uint32) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.windows.stands, stag)
}

// parted forgets the regions that stand for the windows of q.
func (w *world) parted(q *brokenQP) {
	w.mu.Lock()
	defer w.mu.Unlock()
	maps.DeleteFunc(w.windows.stands, func(_ uint32, s stand) bool { return s.qp == q })
}

type brokenMW struct {
	provider.MW
	dev *brokenDevice
}

// AllocMW implements provider.PD.
func (p *brokenPD) AllocMW(t provider.MWType) (provider.MW, error) {
	w, err := p.PD.AllocMW(t)
	if err != nil {
		return nil, err
	}
	return &brokenMW{w, p.dev}, nil
}

// Close implements provider.MW.
func (w *brokenMW) Close() error {
	w.dev.world.shut(w.RKey())
	return w.MW.Close()
}

// BindMW implements provider.QP.
func (q *brokenQP) BindMW(w provider.MW, wrid uint64, flags provider.SendFlags, info provider.MWBindInfo) error {
	if b, ok := w.(*brokenMW); ok {
		w = b.MW
	}
	if f := q.dev.fault.bind; f != nil {
		f(&info)
	}
	return q.QP.BindMW(w, wrid, flags, info)
}

// boundBy applies f to the binds among wrs, which are copies.
func boundBy(wrs []provider.SendWR, f func(*provider.MWBindInfo)) {
	for k := range wrs {
		if b := wrs[k].Bind; b != nil {
			info := *b
			f(&info)
			wrs[k].Bind = &info
		}
	}
}
