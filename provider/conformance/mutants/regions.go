package mutants

import (
	"errors"
	"io"

	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// regionMutants are wrong about where a region is, and about re-registration.
func regionMutants() []*Mutant {
	return []*Mutant{
		{
			Name: "addresses-ignored", What: "gives regions addresses of its own, whatever the program asks for",
			CaughtBy: []string{"memory/iova", "memory/iova-last", "memory/zero-based"},
			verbs: func(*world) *verbsFault {
				return &verbsFault{
					access: func(a provider.Access) provider.Access { return a &^ provider.AccessZeroBased },
					iova: func(p *brokenPD, buf []byte, _ uint64, access provider.Access) (provider.MR, error) {
						return p.RegMR(buf, access)
					},
				}
			},
		},
		{
			Name: "iova-in-first-page", What: "goes by the last 12 bits of the address that it is asked for",
			CaughtBy: []string{"memory/iova", "memory/iova-last"},
			verbs: func(*world) *verbsFault {
				return &verbsFault{iova: func(p *brokenPD, buf []byte, iova uint64, access provider.Access) (provider.MR, error) {
					return p.PD.RegMRIova(buf, iova&0xfff, access)
				}}
			},
		},
		{
			Name: "rereg-ignored", What: "says of every re-registration that it is done, and does nothing",
			CaughtBy: []string{"memory/rereg-refused", "memory/rereg-access", "memory/rereg-rights-lost", "memory/rereg-translation", "memory/rereg-pd"},
			verbs: func(*world) *verbsFault {
				return &verbsFault{rereg: func(m *brokenMR, _ provider.ReregFlags, _ provider.PD, _ []byte, _ provider.Access) (provider.MR, error) {
					return m, nil
				}}
			},
		},
		{
			Name: "rereg-rights-kept", What: "leaves a region the rights that re-registration takes from it",
			CaughtBy: []string{"memory/rereg-rights-lost"},
			verbs: func(*world) *verbsFault {
				return &verbsFault{rereg: func(m *brokenMR, change provider.ReregFlags, pd provider.PD,
					buf []byte, access provider.Access) (provider.MR, error) {
					if change&provider.ReregAccess != 0 {
						access |= m.MR.Access()
					}
					return m.MR.Rereg(change, pd, buf, access)
				}}
			},
		},
		{
			Name: "rereg-old-key-stays", What: "leaves the region as it was beside the one that re-registration makes of it",
			CaughtBy: []string{"memory/rereg-access", "memory/rereg-translation"},
			verbs: func(*world) *verbsFault {
				return &verbsFault{rereg: func(m *brokenMR, change provider.ReregFlags, pd provider.PD, buf []byte, access provider.Access) (provider.MR, error) {
					twin, err := m.pd.PD.RegMR(m.buf, m.MR.Access())
					if err != nil {
						return nil, err
					}
					n, err := twin.Rereg(change, pd, buf, access)
					if err != nil {
						return nil, errors.Join(err, twin.Close())
					}
					return both{n, m.MR}, nil
				}}
			},
		},
		{
			Name: "short-responses-garbled", What: "answers Reads of up to 32 octets with a wrong last octet, under a CRC that fits",
			CaughtBy: []string{"read/short-across-pages"},
			wire: out(edit(op(rdmap.OpReadResponse).and(filled), func(f *frame) {
				if n := len(f.payload); f.header.Last && n <= 32 {
					f.payload[n-1] ^= 1
				}
			})),
		},
	}
}

// both is a region with another that is closed with it.
type both struct {
	provider.MR
	other io.Closer
}

// Close implements provider.MR.
func (b both) Close() error { return errors.Join(b.MR.Close(), b.other.Close()) }

// RegMRIova implements provider.PD.
func (p *brokenPD) RegMRIova(buf []byte, iova uint64, access provider.Access) (provider.MR, error) {
	reg := p.dev.fault.iova
	if reg == nil {
		reg = func(p *brokenPD, buf []byte, iova uint64, access provider.Access) (provider.MR, error) {
			return p.PD.RegMRIova(buf, iova, access)
		}
	}
	mr, err := reg(p, buf, iova, access)
	if err != nil {
		return nil, err
	}
	if b, ok := mr.(*brokenMR); ok {
		return b, nil
	}
	return p.enter(mr, buf), nil
}

// enter wraps a region of the engine's in a brokenMR.
func (p *brokenPD) enter(mr provider.MR, buf []byte) *brokenMR {
	b := &brokenMR{MR: mr, pd: p, buf: buf}
	p.dev.world.add(b)
	return b
}

// Rereg implements provider.MR.
func (m *brokenMR) Rereg(change provider.ReregFlags, to provider.PD, buf []byte, access provider.Access) (provider.MR, error) {
	rereg := m.pd.dev.fault.rereg
	if rereg == nil {
		rereg = func(m *brokenMR, change provider.ReregFlags, pd provider.PD, buf []byte, access provider.Access) (provider.MR, error) {
			return m.MR.Rereg(change, pd, buf, access)
		}
	}
	in := m.pd
	if b, ok := to.(*brokenPD); ok {
		to = b.PD
		if change&provider.ReregPD != 0 {
			in = b
		}
	}
	old := m.RKey()
	mr, err := rereg(m, change, to, buf, access)
	if err != nil {
		return nil, err
	}
	if b, ok := mr.(*brokenMR); ok {
		return b, nil
	}
	m.pd.dev.world.remove(old)
	if change&provider.ReregTranslation == 0 {
		buf = m.buf
	}
	return in.enter(mr, buf), nil
}
