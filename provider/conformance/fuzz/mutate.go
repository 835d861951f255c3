package fuzz

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// mutate changes at most one thing of a valid sequence, and says what.
func (g *generator) mutate(s *Sequence) string {
	n := len(s.Frames)
	if s.Barrier {
		n-- // it has to say that the frames before it were taken
	}
	switch k := g.IntN(20); {
	case k < 3 || n == 0 && k >= 5:
		return "valid"
	case k < 5:
		return g.startup(s)
	case k < 6:
		return g.order(s, n)
	}
	i := g.IntN(n)
	f := &s.Frames[i]
	before := slices.Clone(f.Bytes)
	var what string
	switch {
	case g.one(10):
		f.CRC = 1 << g.IntN(32)
		return fmt.Sprintf("frame %d: a bit of the CRC", i+1)
	case g.one(8):
		what = g.resize(f)
	default:
		what = g.field(f)
	}
	if g.one(6) { // the CRC is that of the frame as it was
		f.CRC = 0xffffffff
		if len(before) == len(f.Bytes) {
			f.CRC = mpa.CRC(0, before) ^ mpa.CRC(0, f.Bytes)
		}
		what += ", CRC not repaired"
	}
	return fmt.Sprintf("frame %d: %s", i+1, what)
}

// startup changes a field of the Request. It never asks for peer-to-peer mode, which siw's kernel
// may not survive (kernel-notes/siw-crash-peer-to-peer.md).
func (g *generator) startup(s *Sequence) string {
	const flags, revision, length, depths = 16, 17, 18, 20 // where they are
	b := s.Request
	switch g.IntN(7) {
	case 0:
		i := g.IntN(flags)
		b[i] ^= 1 << g.IntN(8)
		return fmt.Sprintf("Request: key byte %d", i)
	case 1:
		bit := byte(1) << g.IntN(8)
		b[flags] ^= bit
		return fmt.Sprintf("Request: flag %#02x", bit)
	case 2:
		b[revision] = []byte{0, 1, 3, 255}[g.IntN(4)]
		return fmt.Sprintf("Request: revision %d", b[revision])
	case 3:
		n := binary.BigEndian.Uint16(b[length:])
		n += uint16(g.IntN(9) - 4)
		binary.BigEndian.PutUint16(b[length:], n)
		return fmt.Sprintf("Request: PD_Length %d", n)
	case 4:
		v := uint16([]int{0, 1, 3, 5, 128, 129, 0x3fff}[g.IntN(7)])
		at := depths + 2*g.IntN(2)
		binary.BigEndian.PutUint16(b[at:], v)
		return fmt.Sprintf("Request: depth at %d is %d", at, v)
	case 5:
		s.Request = b[:depths+g.IntN(len(b)-depths)]
		binary.BigEndian.PutUint16(b[length:], uint16(len(s.Request)-depths))
		return fmt.Sprintf("Request: private data of %d bytes", len(s.Request)-depths)
	}
	s.Request = append(b, g.bytes(1+g.IntN(8))...)
	return "Request: bytes after it"
}

// order drops, repeats or swaps frames.
func (g *generator) order(s *Sequence, n int) string {
	i := g.IntN(n)
	switch k := g.IntN(3); {
	case k == 0:
		s.Frames = slices.Delete(s.Frames, i, i+1)
		return fmt.Sprintf("frame %d left out", i+1)
	case k == 1 && n > 1:
		i = g.IntN(n - 1)
		s.Frames[i], s.Frames[i+1] = s.Frames[i+1], s.Frames[i]
		return fmt.Sprintf("frames %d and %d swapped", i+1, i+2)
	}
	s.Frames = slices.Insert(s.Frames, i, s.Frames[i])
	s.Frames[i].Bytes = slices.Clone(s.Frames[i].Bytes)
	return fmt.Sprintf("frame %d twice", i+1)
}

// resize changes the payload's length, and the length field with it.
func (g *generator) resize(f *Frame) string {
	n := f.length()
	ulpdu := f.Bytes[mpa.HeaderLen : mpa.HeaderLen+n]
	more := g.IntN(9) - 4
	if g.one(4) {
		more = -g.IntN(n + 1)
	}
	switch {
	case more <= 0:
		ulpdu = ulpdu[:max(n+more, 0)]
	default:
		ulpdu = append(slices.Clone(ulpdu), g.bytes(more)...)
	}
	b := append(mpa.AppendHeader(nil, uint16(len(ulpdu))), ulpdu...)
	f.Bytes = append(b, make([]byte, mpa.PadLen(len(ulpdu)))...)
	f.Refs = slices.DeleteFunc(f.Refs, func(r Ref) bool { return r.At+r.Width > len(f.Bytes) })
	return fmt.Sprintf("a ULPDU of %d bytes instead of %d", len(ulpdu), n)
}

// field changes one field of a frame's headers, or a bit of its payload.
func (g *generator) field(f *Frame) string {
	h, payload, err := ddp.Parse(f.Bytes[mpa.HeaderLen:])
	if err != nil {
		panic("fuzz: a generated frame has no header: " + err.Error())
	}
	switch g.IntN(6) {
	case 0:
		return g.small(f, "length field", 0, 2)
	case 1:
		bit := 1 << g.IntN(16)
		f.Bytes[atControl] ^= byte(bit >> 8)
		f.Bytes[atULPCtl] ^= byte(bit)
		return fmt.Sprintf("control bit %#04x", bit)
	case 2:
		op := g.IntN(16)
		f.Bytes[atULPCtl] = f.Bytes[atULPCtl]&^0xf | byte(op)
		return fmt.Sprintf("opcode %d", op)
	case 3:
		if len(payload) > 0 && rdmap.ParseControl(h.ULPCtl).Opcode != rdmap.OpReadRequest {
			i := len(f.Bytes) - 1 - g.IntN(len(payload))
			f.Bytes[i] ^= 1 << g.IntN(8)
			return "a bit of payload or pad"
		}
	}
	switch op := rdmap.ParseControl(h.ULPCtl).Opcode; {
	case h.Tagged && g.one(2):
		return g.stag(f, atSTag)
	case h.Tagged:
		return g.small(f, "TO", atTO, 8)
	case op == rdmap.OpReadRequest && g.one(4):
		return g.stag(f, atReadSTag)
	case op == rdmap.OpReadRequest && g.one(3):
		return g.small(f, "source TO", atReadTO, 8)
	case op == rdmap.OpReadRequest && g.one(3):
		return g.small(f, "size", atReadSize, 4)
	case op.Invalidates() && g.one(3):
		return g.stag(f, atSTag)
	}
	return []func() string{
		func() string { return g.small(f, "QN", atQN, 4) },
		func() string { return g.small(f, "MSN", atMSN, 4) },
		func() string { return g.small(f, "MO", atMO, 4) },
	}[g.IntN(3)]()
}

// small adds a small number to a field, a large one, or overwrites it with an extreme value.
func (g *generator) small(f *Frame, name string, at, width int) string {
	var delta uint64
	switch g.IntN(8) {
	case 0:
		delta = RegionSize
	case 1:
		delta = ^uint64(RegionSize) + 1
	case 2:
		v := []uint64{0, ^uint64(0), ^uint64(7), 1 << 31}[g.IntN(4)]
		f.put(at, width, v)
		f.Refs = slices.DeleteFunc(f.Refs, func(r Ref) bool { return r.At == at })
		return fmt.Sprintf("%s is %#x", name, f.get(at, width))
	default:
		delta = uint64([]int{1, -1, 4, -4, 8}[g.IntN(5)])
	}
	f.put(at, width, f.get(at, width)+delta)
	return fmt.Sprintf("%s %+d", name, int64(delta))
}

// stag makes a field name another region, one with another key, or none.
func (g *generator) stag(f *Frame, at int) string {
	to := slices.IndexFunc(f.Refs, func(r Ref) bool { return r.At == at+4 })
	i := slices.IndexFunc(f.Refs, func(r Ref) bool { return r.At == at })
	switch k := g.IntN(4); {
	case k == 0:
		f.put(at, 4, f.get(at, 4)+1)
		return "key of the STag"
	case k == 1 || i < 0:
		f.put(at, 4, 0x5a5a5a00)
		f.Refs = slices.DeleteFunc(f.Refs, func(r Ref) bool { return r.At == at })
		return "an STag that names nothing"
	}
	was, r := f.Refs[i].Region, Region(g.IntN(int(regions)))
	f.Refs[i].Region = r
	f.put(at, 4, uint64(r.stag()))
	if to >= 0 {
		f.Refs[to].Region = r
		f.put(at+4, 8, f.get(at+4, 8)-was.to()+r.to())
	}
	return fmt.Sprintf("STag of region %s", r)
}

func (f *Frame) get(at, width int) uint64 {
	var b [8]byte
	copy(b[8-width:], f.Bytes[at:at+width])
	return binary.BigEndian.Uint64(b[:])
}

func (f *Frame) put(at, width int, v uint64) {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], v)
	copy(f.Bytes[at:at+width], b[8-width:])
}
