package engine

import (
	"encoding/binary"

	"github.com/govs-rdma/govs/provider"
)

// invalidateCodes report an STag that the peer may not invalidate: RFC 5040 figure 9 has the
// code with two error types.
var invalidateCodes = []modelCode{rdmapInvalidate, rdmapCannotInv}

// judge returns everything that is wrong with a segment.
func (m *model) judge(s *segment) (errs []modelCode) {
	if s.short {
		return []modelCode{mpaBadMarker}
	}
	bad := func(is bool, codes ...modelCode) {
		if is {
			errs = append(errs, codes...)
		}
	}
	version := uint8(1)
	if m.rdmac {
		version = 0
	}
	if s.t {
		bad(s.dv != version, ddpTaggedVer)
	} else {
		bad(s.dv != version, ddpUntaggedVer)
	}
	bad(s.rv != version, rdmapVersion)
	bad(s.op > 7 && !(m.ext && s.op <= 11), rdmapOpcode)
	bad(s.t != (s.op == 0 || s.op == 2), rdmapOpcode)
	if len(errs) > 0 {
		return errs // the other fields have no meaning then
	}
	if s.t {
		bad(m.taggedOpen && m.taggedOp != s.op, rdmapOpcode)
	}
	switch s.op {
	case 0:
		m.judgeWrite(s, bad)
	case 1:
		m.judgeReadRequest(s, bad)
	case 2:
		m.judgeReadResponse(s, bad)
	case 7:
		m.untagged(s, 2, 1, 0, bad)
		bad(s.n > 52 || !s.l, ddpLong)
		bad(s.n < 4, rdmapOther)
	case 8, 9:
		m.untagged(s, 0, m.sendMSN, m.sendMO, bad)
		bad(m.recv != nil, rdmapOpcode)
		bad(s.n != 8 || !s.l, rdmapOther)
		bad(m.buffer() == nil, ddpNoBuffer)
	case 10:
		m.judgeAtomicRequest(s, bad)
	case 11:
		m.untagged(s, 3, m.answerMSN, 0, bad)
		bad(len(m.asked) == 0 || !m.asked[0].atomic, rdmapOpcode)
		bad(s.n > 12 || !s.l, ddpLong)
		bad(s.n < 12, rdmapOther)
		bad(s.n == 12 && len(m.asked) > 0 && len(s.payload) == 12 &&
			binary.BigEndian.Uint32(s.payload) != m.asked[0].id, rdmapOther)
	default:
		m.judgeSend(s, bad)
	}
	return errs
}

// untagged checks queue, message and offset (RFC 5041 section 7.1).
func (m *model) untagged(s *segment, qn, msn, mo uint32, bad func(bool, ...modelCode)) {
	bad(s.qn != qn, ddpQN, rdmapOpcode)
	bad(s.msn != msn, ddpMSN)
	bad(s.mo != mo, ddpMO)
}

func (m *model) judgeWrite(s *segment, bad func(bool, ...modelCode)) {
	if s.n == 0 {
		return // RFC 5041 section 5.2: neither STag nor TO is looked at
	}
	_, _, errs := m.access(s.stag, s.to, s.n, mayWrite, &writeCodes)
	bad(len(errs) > 0, errs...)
	bad(m.taggedOpen && m.taggedPlaced && m.taggedSTag != s.stag, ddpTaggedSTag)
}

func (m *model) judgeSend(s *segment, bad func(bool, ...modelCode)) {
	m.untagged(s, 0, m.sendMSN, m.sendMO, bad)
	bad(m.recv != nil && m.sendOp != s.op, rdmapOpcode)
	if m.isRTR(s) {
		return
	}
	r := m.buffer()
	if r == nil {
		bad(true, ddpNoBuffer)
		return
	}
	bad(uint64(s.mo)+uint64(s.n) > uint64(lengthOf(r.spans)), ddpLong)
	bad(r.bad && s.n > 0, ddpCatastrophe)
	if s.l && (s.op == 4 || s.op == 6) {
		x := m.find(s.ulp32)
		bad(x == nil || !x.ours || !x.goes, invalidateCodes...)
	}
}

// isRTR reports whether a segment is an RTR indication, which takes no receive (RFC 6581
// section 9.2).
func (m *model) isRTR(s *segment) bool {
	return !m.received && m.peerToPeer && m.wait && s.op == 3 && s.l && s.n == 0
}

func (m *model) judgeReadRequest(s *segment, bad func(bool, ...modelCode)) {
	m.untagged(s, 1, m.readMSN, 0, bad)
	bad(len(m.requests) >= m.depth, ddpNoBuffer)
	bad(s.n > 28 || !s.l, ddpLong)
	bad(s.n < 28, rdmapOther)
	if len(s.payload) != 28 || s.n != 28 {
		return
	}
	size := binary.BigEndian.Uint32(s.payload[12:])
	if size == 0 {
		return
	}
	stag, to := binary.BigEndian.Uint32(s.payload[16:]), binary.BigEndian.Uint64(s.payload[20:])
	_, _, errs := m.access(stag, to, int(size), mayRead, &readCodes)
	bad(len(errs) > 0, errs...)
}

func (m *model) judgeReadResponse(s *segment, bad func(bool, ...modelCode)) {
	if len(m.asked) == 0 || m.asked[0].atomic {
		bad(true, rdmapOpcode)
		return
	}
	a := &m.asked[0]
	done := m.doneBefore(2)
	if s.n > 0 {
		bad(s.stag != a.stag, ddpTaggedSTag)
		bad(s.to != a.to+uint64(done), ddpTaggedBounds)
		bad(done+s.n > int(a.size), ddpTaggedBounds)
	}
	bad(s.l && done+s.n != int(a.size), ddpTaggedBounds)
}

// judgeAtomicRequest checks an Atomic Request as RFC 7306 sections 5.2.1 and 8.2 say,
// with the codes of a Read's source.
func (m *model) judgeAtomicRequest(s *segment, bad func(bool, ...modelCode)) {
	m.untagged(s, 1, m.readMSN, 0, bad)
	bad(len(m.requests) >= m.depth, ddpNoBuffer)
	bad(s.n > 52 || !s.l, ddpLong)
	bad(s.n < 52, rdmapOther)
	if len(s.payload) != 52 || s.n != 52 {
		return
	}
	op := s.payload[3] & 15
	bad(op != 0 && op != 2, rdmapOpcode)
	stag, to := binary.BigEndian.Uint32(s.payload[8:]), binary.BigEndian.Uint64(s.payload[12:])
	_, span, errs := m.access(stag, to, 8, mayAtomic, &readCodes)
	bad(len(errs) > 0, errs...)
	bad(len(errs) == 0 && span.at%8 != 0, rdmapStream)
}

// apply does what a segment without faults asks for.
func (m *model) apply(s *segment, first bool) {
	switch s.op {
	case 0, 2:
		m.place(m.target(s), s.payload)
		m.applyTagged(s)
	case 1:
		m.readMSN++
		p := s.payload
		q := modelRequest{
			stag: binary.BigEndian.Uint32(p), to: binary.BigEndian.Uint64(p[4:]),
			size: binary.BigEndian.Uint32(p[12:]),
		}
		if q.size > 0 {
			stag, to := binary.BigEndian.Uint32(p[16:]), binary.BigEndian.Uint64(p[20:])
			q.mem, q.span, _ = m.access(stag, to, int(q.size), mayRead, &readCodes)
			q.then = append(q.then, m.mem[q.span.at:q.span.at+q.span.n]...)
		}
		m.requests = append(m.requests, q)
	case 7:
		m.end = &modelEnd{remote: true}
	case 8, 9:
		r := m.takeRecv()
		m.recv = nil
		m.sendMSN++
		m.recvWCs = append(m.recvWCs, provider.WC{
			WRID: r.id, Flags: provider.WCWithImm, Imm: binary.BigEndian.Uint32(s.payload),
		})
	case 10:
		m.applyAtomic(s.payload)
	case 11:
		m.answerMSN++
		a := m.asked[0]
		m.asked = m.asked[1:]
		var word [8]byte
		binary.NativeEndian.PutUint64(word[:], binary.BigEndian.Uint64(s.payload[4:]))
		m.place(sub(a.work.spans, 0, 8), word[:])
		m.sendWCs = append(m.sendWCs, provider.WC{WRID: a.work.id, ByteLen: 8})
	default:
		m.applySend(s, first)
	}
}

func (m *model) applyTagged(s *segment) {
	if !m.taggedOpen {
		m.taggedOpen, m.taggedOp, m.taggedPlaced, m.taggedDone = true, s.op, false, 0
	}
	if s.n > 0 {
		m.taggedPlaced, m.taggedSTag = true, s.stag
	}
	m.taggedDone += s.n
	if !s.l {
		return
	}
	m.taggedOpen = false
	if s.op == 2 {
		a := m.asked[0]
		m.asked = m.asked[1:]
		if a.work != nil {
			m.sendWCs = append(m.sendWCs, provider.WC{WRID: a.work.id, ByteLen: a.size})
		}
	}
}

func (m *model) takeRecv() *modelRecv {
	r := m.buffer()
	if m.recv == nil {
		m.recvs = m.recvs[1:]
	}
	return r
}

func (m *model) applySend(s *segment, first bool) {
	if first && m.peerToPeer && m.wait && s.op == 3 && s.l && s.n == 0 {
		m.sendMSN++
		return
	}
	m.place(m.target(s), s.payload)
	r := m.takeRecv()
	m.recv, m.sendOp = r, s.op
	m.sendMO += uint32(s.n)
	if !s.l {
		return
	}
	wc := provider.WC{WRID: r.id, ByteLen: m.sendMO}
	if s.op == 4 || s.op == 6 {
		m.find(s.ulp32).valid = false
		wc.Flags, wc.InvalidatedRKey = provider.WCWithInv, s.ulp32
	}
	m.recvWCs = append(m.recvWCs, wc)
	m.recv, m.sendMO = nil, 0
	m.sendMSN++
}

// applyAtomic does what RFC 7306 section 5.1 says, field by field and bit by bit.
func (m *model) applyAtomic(p []byte) {
	m.readMSN++
	_, span, _ := m.access(binary.BigEndian.Uint32(p[8:]), binary.BigEndian.Uint64(p[12:]), 8, mayAtomic, &readCodes)
	word := m.mem[span.at : span.at+8]
	old := binary.NativeEndian.Uint64(word)
	data, mask := binary.BigEndian.Uint64(p[20:]), binary.BigEndian.Uint64(p[28:])
	compare, compareMask := binary.BigEndian.Uint64(p[36:]), binary.BigEndian.Uint64(p[44:])
	value := old
	if p[3]&15 == 0 {
		carry := uint64(0)
		value = 0
		for bit := range 64 {
			sum := old>>bit&1 + data>>bit&1 + carry
			value |= sum & 1 << bit
			if carry = sum >> 1; mask>>bit&1 == 1 {
				carry = 0
			}
		}
	} else if (old^compare)&compareMask == 0 {
		value = old&^mask | data&mask
	}
	binary.NativeEndian.PutUint64(word, value)
	m.requests = append(m.requests, modelRequest{atomic: true, id: binary.BigEndian.Uint32(p[4:]), value: old})
}
