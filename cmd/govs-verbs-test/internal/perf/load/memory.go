package load

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/govs-rdma/govs/ibverbs"
)

// sharedMemory is the amount of memory, in bytes, up to which QPs use different slots; beyond it
// they share them. So several small messages are not on the same cache line, and many large ones do
// not exceed the cache.
const sharedMemory = 1 << 20

// memory is the source and the sink of an end. Each of the two is an array of slots of one message,
// and is registered as often as Spec.MRs says.
type memory struct {
	size, stride int
	slots        int

	src, dst   *ibverbs.MR // own the memory
	srcs, dsts []*ibverbs.MR
	list       *ibverbs.MR // list of the regions for the peer
	seed       uint64      // of the pattern in src
}

// messageStride returns the distance between slots: messages begin on cache lines. A note may be
// longer than a message.
func messageStride(size int) int { return (max(size, maxNote) + 63) &^ 63 }

func slotsOf(s *Spec) int { return min(s.QPs, max(1, sharedMemory/messageStride(s.Size))) }

// newMemory makes the memory of an end for a complete spec.
func newMemory(pd *ibverbs.PD, s *Spec) (_ *memory, err error) {
	m := &memory{size: s.Size, stride: messageStride(s.Size), slots: slotsOf(s)}
	defer func() {
		if err != nil {
			err = errors.Join(err, m.close())
		}
	}()
	const (
		source = ibverbs.AccessLocalWrite | ibverbs.AccessRemoteRead
		sink   = ibverbs.AccessLocalWrite | ibverbs.AccessRemoteWrite
	)
	if m.src, m.srcs, err = m.register(pd, s.MRs, source); err != nil {
		return nil, err
	}
	if m.dst, m.dsts, err = m.register(pd, s.MRs, sink); err != nil {
		return nil, err
	}
	remote := m.dsts
	if s.Op == ReadBW || s.Op == ReadLat {
		remote = m.srcs
	}
	if m.list, err = pd.AllocMR(s.MRs*ibverbs.RemoteRegionSize, source); err != nil {
		return nil, err
	}
	text := m.list.Bytes()[:0]
	for _, mr := range remote {
		r, err := mr.Remote(0, m.octets())
		if err != nil {
			return nil, err
		}
		if text, err = r.AppendBinary(text); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *memory) octets() int { return m.slots * m.stride }

// register makes memory and n regions of it; the first owns it.
func (m *memory) register(pd *ibverbs.PD, n int, access ibverbs.Access) (*ibverbs.MR, []*ibverbs.MR, error) {
	own, err := pd.AllocMR(m.octets(), access)
	if err != nil {
		return nil, nil, err
	}
	all := []*ibverbs.MR{own}
	for len(all) < n {
		mr, err := pd.RegMR(own.Bytes(), access)
		if err != nil {
			return own, all, fmt.Errorf("region %d of %d: %w", len(all)+1, n, err)
		}
		all = append(all, mr)
	}
	return own, all, nil
}

func (m *memory) close() error {
	var errs []error
	for _, list := range [][]*ibverbs.MR{m.srcs, m.dsts} {
		for _, mr := range list {
			errs = append(errs, closeMR(mr, m.src, m.dst))
		}
	}
	for _, mr := range []*ibverbs.MR{m.src, m.dst, m.list} {
		if mr != nil {
			errs = append(errs, mr.Close())
		}
	}
	return errors.Join(errs...)
}

// closeMR closes a region that is not one of the owners, which come last.
func closeMR(mr *ibverbs.MR, owners ...*ibverbs.MR) error {
	for _, o := range owners {
		if mr == o {
			return nil
		}
	}
	return mr.Close()
}

// table returns the place of the list of regions.
func (m *memory) table() table {
	return table{Addr: m.list.Addr(), Len: m.list.Len(), RKey: m.list.RKey()}
}

// slot returns the offset of a lane's message.
func (m *memory) slot(lane int) int { return lane % m.slots * m.stride }

// prepare fills the sources and clears the sinks.
func (m *memory) prepare(seed uint64) {
	m.seed = seed
	for i := range m.slots {
		fillPattern(m.src.Bytes()[i*m.stride:][:m.size], seed)
	}
	clear(m.dst.Bytes())
}

// verify compares the sinks' first n bytes with the peer's pattern.
func (m *memory) verify(n int) error {
	for i := range m.slots {
		if at := hasPattern(m.dst.Bytes()[i*m.stride:][:n], ^m.seed); at >= 0 {
			return fmt.Errorf("what came is not what was sent, from byte %d of message %d on", at, i)
		}
	}
	return nil
}

// fillPattern fills b with bytes that depend on seed and position.
func fillPattern(b []byte, seed uint64) {
	x := seed
	for len(b) >= 8 {
		x = mix(x)
		binary.LittleEndian.PutUint64(b, x)
		b = b[8:]
	}
	x = mix(x)
	for i := range b {
		b[i] = byte(x >> (8 * i))
	}
}

// hasPattern returns the offset of the first byte that differs from fillPattern's, or -1 if none
// does.
func hasPattern(b []byte, seed uint64) int {
	x := seed
	var want [8]byte
	for i := 0; i < len(b); i += 8 {
		x = mix(x)
		binary.LittleEndian.PutUint64(want[:], x)
		for j, w := range want[:min(8, len(b)-i)] {
			if b[i+j] != w {
				return i + j
			}
		}
	}
	return -1
}

// mix is SplitMix64's step. It is a bijection, so no two positions below 2^64 have the same eight
// bytes.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
