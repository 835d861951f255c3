package memory

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"os"
	"syscall"

	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/refs"
	"github.com/govs-rdma/govs/provider/engine/internal/rundown"
)

// Region is a memory region.
//
// Its bytes are touched only between acquire and Release, by code that never waits for a peer: a
// non-blocking read or write of a socket, or a copy. Therefore Close is a barrier (RFC 5040 section
// 5.2, RFC 5042 section 6.2.2) that always ends. If the region is over an object, Close returns
// after the running calls of the object's methods have returned.
type Region struct {
	pd     *Domain
	key    uint32 // its key in Table: its STag, or with an owner the index of its STags
	stag   uint32
	base   uint64 // Addr
	buf    []byte // the user's; held so that it stays alive; empty for an object
	access provider.Access
	peer   *Peer // if not nil, only this peer may use it (a window of type 2)

	// owner is nil for a region that stays registered all its life. The owner changes the fields
	// above, from stag on, while both gates are shut. So they are read only after acquire, and stag
	// is then compared once more.
	owner stagOwner

	// The object that the region is over if it is not memory (see object.go).
	src    io.ReaderAt
	dst    io.WriterAt // nil if it can't be written
	length uint64

	local   rundown.Gate // uses on behalf of our own work requests
	remote  rundown.Gate // uses through an STag that the peer named; shut for good by invalidation
	windows refs.Count   // windows bound to it; ends with the region
}

const (
	mrRights = provider.AccessLocalWrite | provider.AccessRemoteWrite | provider.AccessRemoteRead |
		provider.AccessRemoteInvalidate | provider.AccessZeroBased | provider.AccessMWBind
	mrDropped = provider.AccessRemoteAtomic // accepted and not granted, as siw does; but see grants

	mrPage     = 4096
	mrBaseBits = 47 // as an address of user space has; base + len never wraps
)

// MaxRegion is DeviceAttr.MaxMRSize. A slice cannot be longer on 64 bits.
const MaxRegion = 1<<mrBaseBits - mrPage

// RegMR implements provider.PD.
func (p *Domain) RegMR(buf []byte, access provider.Access) (provider.MR, error) {
	return asMR(p.regMR("ibv_reg_mr", buf, randomBase(), access))
}

// RegMRIova implements provider.PD. Unlike with the kernel, buf and iova may have different offsets
// in a page, because an address is located by subtraction.
func (p *Domain) RegMRIova(buf []byte, iova uint64, access provider.Access) (provider.MR, error) {
	const op = "ibv_reg_mr_iova"
	if iova > math.MaxUint64-uint64(len(buf)) {
		return nil, fail(op, fmt.Sprintf("%d bytes", len(buf)),
			fmt.Errorf("they begin at address %#x, and reach beyond 2^64: %w",
				iova, syscall.EINVAL))
	}
	return asMR(p.regMR(op, buf, iova, access))
}

// asMR returns a nil interface, not a nil *Region in one, after an error.
func asMR(m *Region, err error) (provider.MR, error) {
	if err != nil {
		return nil, err
	}
	return m, nil
}

// regMR registers buf at address base, or 0 with AccessZeroBased.
func (p *Domain) regMR(op string, buf []byte, base uint64, access provider.Access) (
	*Region, error) {
	object := fmt.Sprintf("%d bytes", len(buf))
	writable := access&provider.AccessLocalWrite != 0
	if err := checkRegion(len(buf), access); err != nil {
		return nil, fail(op, object, err)
	}
	if err := probe(buf, writable); err != nil {
		return nil, fail(op, object, err)
	}
	if access&provider.AccessZeroBased != 0 {
		base = 0
	}
	m := &Region{pd: p, base: base, buf: buf[:len(buf):len(buf)], access: access & p.Table.grants}
	if err := p.enter(op, object, m); err != nil {
		return nil, err
	}
	return m, nil
}

// checkRegion checks the length and the rights of a new region.
func checkRegion(n int, access provider.Access) error {
	switch unknown := access &^ (mrRights | mrDropped); {
	case n == 0:
		return fmt.Errorf("the buffer is empty; pass at least 1 byte: %w", syscall.EINVAL)
	case uint64(n) > MaxRegion:
		return fmt.Errorf("a region has at most %d bytes: %w", uint64(MaxRegion), syscall.EINVAL)
	case unknown != 0:
		return fmt.Errorf("unknown access rights %#x; use the constants of Access: %w", uint32(unknown), syscall.EINVAL)
	case access&provider.AccessLocalWrite == 0 && access&(provider.AccessRemoteWrite|provider.AccessRemoteAtomic) != 0:
		return fmt.Errorf("AccessRemoteWrite and AccessRemoteAtomic need AccessLocalWrite, too: %w", syscall.EINVAL)
	}
	return nil
}

// enter makes m a region of the device.
func (p *Domain) enter(op, object string, m *Region) error {
	if err := p.admit(op, object, &p.Table.MRs); err != nil {
		return err
	}
	m.local.Init()
	m.remote.Init()
	p.Table.insert(m)
	return nil
}

// randomBase returns a random page-aligned address, because a peer must not learn real addresses of
// the process (RFC 5042 section 7.3). It is below 2^47, so that adding a region's length does not
// wrap.
func randomBase() uint64 {
	var b [8]byte
	rand.Read(b[:]) // never fails: it ends the program instead
	base := binary.LittleEndian.Uint64(b[:]) >> (64 - mrBaseBits) &^ (mrPage - 1)
	return max(base, mrPage)
}

// STag returns the name by which peers use the region. It must be read during a use of the region,
// because the STag of a window, or of a region that work requests register, changes between uses.
func (m *Region) STag() uint32 { return m.stag }

// IsObject reports whether the region is over an object, so that Slice finds nothing in it.
func (m *Region) IsObject() bool { return m.src != nil }

// acquire begins a use of the region by a work request of ours. It reports
// false if the region is closed. Release ends the use.
func (m *Region) acquire() bool { return m.local.Enter() }

// Release ends a use that Table.Local has begun.
func (m *Region) Release() { m.local.Leave() }

// acquireRemote begins a use of the region through an STag that the peer
// named. It reports false if the region is closed or was invalidated.
// ReleaseRemote ends the use.
func (m *Region) acquireRemote() bool { return m.remote.Enter() }

// ReleaseRemote ends a use by the peer.
func (m *Region) ReleaseRemote() { m.remote.Leave() }

// Slice returns the n bytes at address addr, to be touched only between acquire and Release. It
// reports false if not all of them are in the region. With n = 0, addr may be one past the end.
//
//rfc:5041 DDP-7.1t3-01 Tagged: TO within registered range
func (m *Region) Slice(addr, n uint64) ([]byte, bool) {
	size := uint64(len(m.buf))
	off := addr - m.base // huge if addr is below
	if off > size || n > size-off {
		return nil, false
	}
	return m.buf[off : off+n : off+n], true
}

// allows reports whether work requests of p may use the region with the rights need. It must be
// called after acquire.
func (m *Region) allows(p *Domain, need provider.Access) bool {
	return m.pd == p && m.access&need == need
}

// Octets returns the bytes that an SGE of a work request of p names, to be touched only between
// acquire and Release. It reports false if the region is of another protection domain, lacks one of
// the rights need, or does not contain all of the bytes.
func (m *Region) Octets(p *Domain, s *provider.SGE, need provider.Access) ([]byte, bool) {
	b, ok := m.Slice(s.Addr, uint64(s.Length))
	return b, ok && m.allows(p, need)
}

// Addr implements provider.MR.
func (m *Region) Addr() uint64 { return m.base }

// Len implements provider.MR.
func (m *Region) Len() uint64 {
	if m.src != nil {
		return m.length
	}
	return uint64(len(m.buf))
}

// contains reports whether the n bytes at address addr are in the region, even if that is an
// object.
func (m *Region) contains(addr, n uint64) bool {
	off := addr - m.base
	return off <= m.Len() && n <= m.Len()-off
}

// LKey implements provider.MR.
func (m *Region) LKey() uint32 { return m.stag }

// RKey implements provider.MR.
func (m *Region) RKey() uint32 { return m.stag }

// Access implements provider.MR.
func (m *Region) Access() provider.Access { return m.access }

// Close implements provider.MR. A goroutine that polls may call it, because no goroutine has a
// region in use while it waits for something.
func (m *Region) Close() error {
	if _, busy := m.tryClose(); busy {
		return failBound("ibv_dereg_mr", m.name())
	}
	return nil
}

// tryClose closes the region. first is true for the call that did it, busy if a window prevents it.
func (m *Region) tryClose() (first, busy bool) {
	if first, busy = m.windows.End(); busy {
		return false, true
	}
	m.local.Shut()
	m.remote.Shut()
	if first {
		m.pd.Table.remove(m)
		m.pd.Table.MRs.Give()
		m.pd.Refs.Drop()
	}
	return first, false
}

var errForeignPD = fmt.Errorf("belongs to another device or provider; pass one of this device: %w", syscall.EINVAL)

// Rereg implements provider.MR. The region gets another STag, because a peer that has the old one
// was given it for the old region. Work that names the old STag fails. The new region exists before
// the old one ends, so a failure changes nothing. Its addresses stay the same unless the memory
// changes.
func (m *Region) Rereg(change provider.ReregFlags, to provider.PD, buf []byte,
	access provider.Access) (provider.MR, error) {
	const op = "ibv_rereg_mr"
	if m.windows.Closed() {
		return nil, fail(op, m.name(), os.ErrClosed)
	}
	if change == 0 || change&^provider.ReregAll != 0 {
		return nil, fail(op, m.name(), fmt.Errorf("the flags are %#x, and must be one or more "+
			"of %#x: %w", uint32(change), uint32(provider.ReregAll), syscall.EINVAL))
	}
	if m.src != nil {
		return nil, fail(op, m.name(), &provider.UnsupportedError{
			Feature: "re-registration of the region of an object",
			Reason:  "close it and register anew",
		})
	}
	p, base := m.pd, m.base
	if change&provider.ReregPD != 0 {
		other, ours := to.(ownPD)
		if !ours || other.self().Table != p.Table {
			return nil, fail(op, "pd", errForeignPD)
		}
		p = other.self()
	}
	if change&provider.ReregTranslation == 0 {
		buf = m.buf
	} else {
		base = randomBase()
	}
	if change&provider.ReregAccess == 0 {
		access = m.access
	} else if access&provider.AccessZeroBased == 0 && base == 0 {
		base = randomBase()
	}
	n, err := p.regMR(op, buf, base, access)
	if err != nil {
		return nil, err
	}
	first, busy := m.tryClose()
	if !first {
		n.tryClose()
	}
	switch {
	case busy:
		return nil, failBound(op, m.name())
	case !first:
		return nil, fail(op, m.name(), os.ErrClosed)
	}
	return n, nil
}

func (m *Region) name() string { return fmt.Sprintf("mr %#x", m.stag) }

// failBound returns the error of ending a region while windows are bound to it.
func failBound(op, object string) error {
	return fail(op, object, fmt.Errorf("windows are bound to it; close or invalidate them first: %w",
		syscall.EBUSY))
}

// endPeerUse ends the use that Peer.region began. m may be nil.
func (m *Region) endPeerUse() {
	if m != nil {
		m.ReleaseRemote()
	}
}
