package engine

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
)

// What is in a program beyond these is ignored: many short programs find more than a long one.
const (
	mostOps    = 48
	mostOctets = 24 << 10
)

// peer makes the bytes that a program describes.
type peer struct {
	x       *execution
	program []byte
	ops     int

	pos    uint64
	ready  []byte // octets that were not cut off yet
	octets int    // where in the noise the payload is taken from

	sendMSN, sendMO, readMSN, answerMSN uint32
	sendOp                              byte
	answered, done                      int // of the model's asked
	close, post                         bool
	messages                            int  // that take a receive
	calm                                bool // segments are legal as far as the peer knows
}

func (p *peer) u8() byte {
	if len(p.program) == 0 {
		return 0
	}
	b := p.program[0]
	p.program = p.program[1:]
	return b
}

func (p *peer) u16() int { return int(p.u8())<<8 | int(p.u8()) }

func (p *peer) over() bool { return len(p.program) == 0 && len(p.ready) == 0 }

// next returns the next piece: the bytes up to a cut, without those that the cut leaves for
// later.
func (p *peer) next() []byte {
	p.answered, p.done = 0, p.x.m.doneBefore(2)
	for len(p.program) > 0 && p.ops < mostOps && p.pos < mostOctets {
		p.ops++
		op := p.u8()
		if op&0x1f >= 0x1d {
			k := p.u16() % (1 + len(p.ready))
			if op&0x1f == 0x1d { // a few bytes are left
				k = min(int(op>>5)*3+1, len(p.ready))
			}
			piece := p.ready[:len(p.ready)-k]
			p.ready = p.ready[len(p.ready)-k:]
			return piece
		}
		p.step(op)
	}
	piece := p.ready
	p.ready = nil
	p.program = nil
	return piece
}

// local does what the program's own side does between two pieces.
func (p *peer) local() {
	x := p.x
	if p.close && x.m.memory[rigGoes].valid {
		testkit.OK(x.t, x.regions[rigGoes].Close())
		x.m.memory[rigGoes].valid = false
	}
	if p.post && x.posted < 8 && x.q.getState() == provider.QPRTS {
		x.receive([]int{48}, rigLocal)
	}
	p.close, p.post = false, false
}

// size makes a length from the next byte: short ones exactly, others roughly.
func (p *peer) size() int {
	b := int(p.u8())
	switch {
	case b < 128:
		return b
	case b < 192:
		return (b - 128) * 32
	case b < 224:
		return 1416 + (b - 192)
	}
	return 8192 + (b-224)*256
}

// payload returns n bytes, other ones each time, which must not be changed.
func (p *peer) payload(n int) []byte {
	p.octets = (p.octets + n + 1) % len(p.x.noise)
	if p.octets+n > len(p.x.noise) {
		p.octets = n % 251
	}
	return p.x.noise[p.octets:][:n]
}

// place picks where n bytes go: mostly all of them are in the memory that stag names.
func (p *peer) place(n int) (stag uint32, to uint64) {
	i := int(p.u8())
	switch {
	case i < 128:
		i = rigAll
	case i < 160:
		i = rigGoes
	default:
		i %= rigNames
	}
	size, base := 1<<16, uint64(0)
	switch {
	case i < rigRegions:
		size, base = rigSpecs[i].size, rigSpecs[i].base
	case i < rigNone:
		w := &rigWindows[i-rigRegions]
		size, base = w.n, rigSpecs[rigAll].base+uint64(w.off)
	}
	off := p.u16()
	if off >= 0xf000 { // around the end, or before the beginning
		return p.x.key(i), base + uint64(size-n+off&15-8)*uint64(off>>4&1) - uint64(off>>5&7)
	}
	return p.x.key(i), base + uint64(off%max(1, size-n+1))
}

const lastSegment = 0x40

func (p *peer) tagged(op, last byte, stag uint32, to uint64, payload []byte) []byte {
	version := byte(1)
	if p.x.m.rdmac {
		version = 0
	}
	u := append(make([]byte, 0, 14+len(payload)), 0x80|last|version, version<<6|op)
	u = binary.BigEndian.AppendUint32(u, stag)
	u = binary.BigEndian.AppendUint64(u, to)
	return append(u, payload...)
}

func (p *peer) untagged(op, last byte, ulp32, qn, msn, mo uint32, payload []byte) []byte {
	version := byte(1)
	if p.x.m.rdmac {
		version = 0
	}
	u := append(make([]byte, 0, 18+len(payload)), last|version, version<<6|op)
	for _, v := range []uint32{ulp32, qn, msn, mo} {
		u = binary.BigEndian.AppendUint32(u, v)
	}
	return append(u, payload...)
}

// step makes one FPDU, or several of the same. The low five bits of op say what it is. The
// others say whether the segment is not the last of its message, is changed, or has a wrong CRC.
func (p *peer) step(op byte) {
	last := byte(lastSegment)
	if how := op >> 5; how == 4 || how == 5 {
		last = 0
	}
	change, broken := op>>5 == 6 && !p.calm, byte(0)
	if op>>5 == 7 && !p.calm {
		broken = 1 + op&1
	}
	var u []byte
	repeat := 1
	switch what := op & 0x1f; {
	case what < 7:
		n := p.size()
		stag, to := p.place(n)
		u = p.tagged(0, last, stag, to, p.payload(n))
		if what >= 5 && n <= 1<<10 { // as many as Run takes together
			repeat = 2 + int(p.u8()%9)
		}
	case what < 15:
		u = p.send(what-7, last)
	case what < 19:
		n := p.size()
		stag, to := p.place(n)
		body := binary.BigEndian.AppendUint32(nil, 0x51)
		body = binary.BigEndian.AppendUint64(body, 0x52)
		body = binary.BigEndian.AppendUint32(body, uint32(n))
		body = binary.BigEndian.AppendUint32(body, stag)
		body = binary.BigEndian.AppendUint64(body, to)
		many := 1
		if what == 18 {
			many += int(p.u8() % 6)
		}
		for ; many > 1; many-- {
			p.frame(p.untagged(1, lastSegment, 0, 1, p.readMSN, 0, body), 0)
			p.readMSN++
		}
		u = p.untagged(1, lastSegment, 0, 1, p.readMSN, 0, body)
		p.readMSN++
	case what < 23:
		u = p.answer()
	case what == 23 && !p.calm:
		u = p.untagged(7, lastSegment, 0, 2, 1, 0, p.payload(p.size()%60))
	case what == 24:
		u = p.untagged(8+p.u8()&1, lastSegment, 0, 0, p.sendMSN, 0, p.payload(8))
		p.sendMSN++
		p.messages++
	case what <= 25:
		stag, to := p.place(8)
		how := p.u8()
		if how < 224 { // aligned
			to &^= 7
		}
		code := how & 1 * 2
		if how >= 240 {
			code = how & 15
		}
		body := []byte{0, 0, 0, code, 9, 9, 9, how}
		body = binary.BigEndian.AppendUint32(body, stag)
		body = binary.BigEndian.AppendUint64(body, to)
		body = append(body, p.payload(32)...)
		u = p.untagged(10, lastSegment, 0, 1, p.readMSN, 0, body)
		p.readMSN++
	case what == 26: // a segment without payload
		stag, to := p.place(0)
		u = p.tagged(p.u8()>>7*2, last, stag, to, nil)
	case what == 27:
		p.close = p.close || op&0x20 != 0
		p.post = p.post || op&0x40 != 0
		return
	case p.calm:
		return
	case op&0x80 == 0:
		u = bytes.Clone(p.payload(p.size()))
	default: // bytes as they are
		n := min(int(op>>5)*4+1, len(p.program))
		p.ready = append(p.ready, p.program[:n]...)
		p.pos += uint64(n)
		p.program = p.program[n:]
		return
	}
	if change && len(u) > 0 {
		for range 1 + p.u8()&1 {
			u[int(p.u8())%min(len(u), 48)] ^= p.u8()
		}
	}
	for range repeat {
		p.frame(u, broken)
	}
}

// indicate sends an RTR indication (RFC 6581 section 9.2), or none.
func (p *peer) indicate() {
	switch p.u8() & 3 {
	case 0:
		p.frame(p.untagged(3, lastSegment, 0, 0, p.sendMSN, 0, nil), 0)
		p.sendMSN++
	case 1:
		p.frame(p.tagged(0, lastSegment, 0, 0, nil), 0)
	case 2:
		p.frame(p.untagged(1, lastSegment, 0, 1, p.readMSN, 0, make([]byte, 28)), 0)
		p.readMSN++
	}
}

// send makes the next segment of a Send.
func (p *peer) send(what, last byte) []byte {
	ops := [8]byte{3, 3, 3, 5, 4, 6, 3, 3}
	if p.sendMO == 0 {
		p.sendOp = ops[what]
	}
	inv := uint32(0)
	if p.sendOp == 4 || p.sendOp == 6 {
		names := [8]int{
			rigGoes, rigGoes, rigOwnWindow, rigOtherWindow, rigAll, rigForeign, rigNone,
			rigAnyWindow,
		}
		inv = p.x.key(names[p.u8()&7])
	}
	n := p.size()
	if p.messages < len(p.x.receives) && p.u8() < 240 {
		n %= 1 + max(0, lengthOf(p.x.receives[p.messages].spans)-int(p.sendMO))
	}
	data := p.payload(n)
	u := p.untagged(p.sendOp, last, inv, 0, p.sendMSN, p.sendMO, data)
	if p.sendMO += uint32(len(data)); last != 0 {
		p.sendMSN, p.sendMO = p.sendMSN+1, 0
		p.messages++
	}
	return u
}

// answer makes a segment of the response to the oldest request that is not answered.
func (p *peer) answer() []byte {
	if p.answered >= len(p.x.m.asked) {
		return p.tagged(2, lastSegment, 1, 2, p.payload(4))
	}
	a := &p.x.m.asked[p.answered]
	if a.atomic {
		p.answered++
		p.answerMSN++
		answer := append(binary.BigEndian.AppendUint32(nil, a.id), p.payload(8)...)
		return p.untagged(11, lastSegment, 0, 3, p.answerMSN-1, 0, answer)
	}
	left := max(int(a.size)-p.done, 0)
	n := left
	last := byte(lastSegment)
	switch part := p.u8(); {
	case part < 64 && part > 0:
		n = min(left, int(part)*(1+left/64))
	case part >= 240 && !p.calm:
		n += int(part & 7)
		last = part & 8 << 3
	}
	if n < left {
		last = 0
	}
	u := p.tagged(2, last, a.stag, a.to+uint64(p.done), p.payload(n))
	if p.done += n; last != 0 {
		p.answered, p.done = p.answered+1, 0
	}
	return u
}

// frame makes an FPDU from a ULPDU (RFC 5044 sections 4.1 to 4.4). If broken is 1 its CRC is
// wrong, if it is 2 its markers are, if it has any.
func (p *peer) frame(ulpdu []byte, broken byte) {
	if len(ulpdu) > 0xffff {
		panic(fmt.Sprintf("a ULPDU of %d bytes", len(ulpdu)))
	}
	body := binary.BigEndian.AppendUint16(p.x.body[:0], uint16(len(ulpdu)))
	body = append(body, ulpdu...)
	for len(body)%4 != 0 {
		body = append(body, 0)
	}
	p.x.body = body
	p.ready = appendFrame(p.ready, &p.pos, body, p.x.m.markersRx, p.x.m.crc, broken == 2)
	if broken == 1 {
		p.ready[len(p.ready)-1] ^= 1
	}
}
