package engine

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/govs-rdma/govs/provider"
)

// gate admits uses of something until it is shut, and lets the one who shuts
// it wait for the uses in progress. enter and leave are one atomic addition.
type gate struct {
	n       atomic.Int64 // uses in progress, plus gateShut once shut
	once    sync.Once
	drained chan struct{} // closed when shut and the last use has left
}

const gateShut = 1 << 62

func (g *gate) init() { g.drained = make(chan struct{}) }

// enter begins a use. It reports false if the gate is shut.
func (g *gate) enter() bool {
	if g.n.Add(1) < gateShut {
		return true
	}
	g.leave()
	return false
}

// leave ends a use.
func (g *gate) leave() {
	if g.n.Add(-1) == gateShut {
		g.once.Do(func() { close(g.drained) })
	}
}

// shut lets no further use begin, and returns when none is in progress. It may
// be called several times, also concurrently.
func (g *gate) shut() {
	for {
		n := g.n.Load()
		if n >= gateShut {
			break
		}
		if g.n.CompareAndSwap(n, n+gateShut) {
			if n == 0 {
				g.once.Do(func() { close(g.drained) })
			}
			break
		}
	}
	<-g.drained
}

// isShut reports whether shut was called.
func (g *gate) isShut() bool { return g.n.Load() >= gateShut }

// mr is a memory region.
//
// Whoever touches its octets does so between acquire and release, with no wait
// for anybody else in between: a non-blocking read or write of a socket, or a
// copy. That is what makes Close a barrier (RFC 5040 section 5.2, RFC 5042
// section 6.2.2) that always ends.
type mr struct {
	pd     *pd
	stag   uint32
	base   uint64 // Addr
	buf    []byte // the user's; held so that it stays alive
	access provider.Access

	local  gate // uses on behalf of our own work requests
	remote gate // uses through an STag that the peer named; shut for good by invalidation
	closed atomic.Bool
}

const (
	mrRights  = provider.AccessLocalWrite | provider.AccessRemoteWrite | provider.AccessRemoteRead | provider.AccessRemoteInvalidate | provider.AccessZeroBased
	mrDropped = provider.AccessRemoteAtomic | provider.AccessMWBind // accepted and not granted, as siw does

	mrPage     = 4096
	mrBaseBits = 47 // as an address of user space has; base + len never wraps
)

// maxMRSize is what DeviceAttr tells. A slice cannot be longer on 64 bits.
const maxMRSize = 1<<mrBaseBits - mrPage

// RegMR implements provider.PD.
func (p *pd) RegMR(buf []byte, access provider.Access) (provider.MR, error) {
	const op = "ibv_reg_mr"
	object := fmt.Sprintf("%d octets", len(buf))
	writable := access&provider.AccessLocalWrite != 0
	switch {
	case len(buf) == 0,
		uint64(len(buf)) > maxMRSize,
		access&^(mrRights|mrDropped) != 0,
		!writable && access&(provider.AccessRemoteWrite|provider.AccessRemoteAtomic) != 0:
		return nil, fail(op, object, syscall.EINVAL)
	}
	if !p.life.hold() {
		return nil, failClosed(op, p.name())
	}
	if err := p.dev.mrs.take(); err != nil {
		p.life.drop()
		return nil, fail(op, object, err)
	}
	m := &mr{pd: p, buf: buf[:len(buf):len(buf)], access: access & mrRights}
	if access&provider.AccessZeroBased == 0 {
		m.base = randomBase()
	}
	m.local.init()
	m.remote.init()
	p.dev.stags.insert(m)
	return m, nil
}

// randomBase returns a page aligned address that says nothing about the
// process, whose real addresses a peer has no business to know (RFC 5042
// section 7.3). It is at most 2^47, so that adding a region's length to it
// doesn't wrap.
func randomBase() uint64 {
	var b [8]byte
	rand.Read(b[:]) // never fails: it ends the program instead
	base := binary.LittleEndian.Uint64(b[:]) >> (64 - mrBaseBits) &^ (mrPage - 1)
	return max(base, mrPage)
}

// acquire begins a use of the region by a work request of ours. It reports
// false if the region is closed. release ends the use.
func (m *mr) acquire() bool { return m.local.enter() }

func (m *mr) release() { m.local.leave() }

// acquireRemote begins a use of the region through an STag that the peer
// named. It reports false if the region is closed or was invalidated.
// releaseRemote ends the use.
func (m *mr) acquireRemote() bool { return m.remote.enter() }

func (m *mr) releaseRemote() { m.remote.leave() }

// useRemote is acquireRemote and slice. It returns nil, with nothing acquired,
// if either fails.
func (m *mr) useRemote(addr, n uint64) []byte {
	b, ok := m.slice(addr, n)
	if !ok || !m.acquireRemote() {
		return nil
	}
	return b
}

// slice returns the n octets at address addr, to be touched between acquire
// and release only. It reports false if not all of them are in the region.
// With n = 0 addr may be one past the end.
//
//rfc:5041 DDP-7.1t3-01
func (m *mr) slice(addr, n uint64) ([]byte, bool) {
	size := uint64(len(m.buf))
	off := addr - m.base // huge if addr is below
	if off > size || n > size-off {
		return nil, false
	}
	return m.buf[off : off+n : off+n], true
}

// Addr implements provider.MR.
func (m *mr) Addr() uint64 { return m.base }

// Len implements provider.MR.
func (m *mr) Len() uint64 { return uint64(len(m.buf)) }

// LKey implements provider.MR.
func (m *mr) LKey() uint32 { return m.stag }

// RKey implements provider.MR.
func (m *mr) RKey() uint32 { return m.stag }

// Access implements provider.MR.
func (m *mr) Access() provider.Access { return m.access }

// Close implements provider.MR. It may be called by a goroutine that polls:
// nobody holds a use of a region while it waits for something.
func (m *mr) Close() error {
	first := !m.closed.Swap(true)
	m.local.shut()
	m.remote.shut()
	if first {
		m.pd.dev.stags.remove(m)
		m.pd.dev.mrs.give()
		m.pd.life.drop()
	}
	return nil
}
