package engine

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"math"
	"slices"

	"github.com/govs-rdma/govs/provider"
)

// modelCode is what a Terminate reports: layer, error type and code (RFC 5040 figure 9, RFC
// 5041 section 7.2, RFC 5044 section 8).
type modelCode uint32

func termCode(layer, etype, code uint8) modelCode {
	return modelCode(layer)<<16 | modelCode(etype)<<8 | modelCode(code)
}

// The codes that the model knows, named as in the RFCs.
var (
	mpaBadCRC    = termCode(2, 0, 2)
	mpaBadMarker = termCode(2, 0, 3) // "FPDU start/Marker and ULPDU length mismatch"

	ddpCatastrophe  = termCode(1, 0, 0)
	ddpTaggedSTag   = termCode(1, 1, 0)
	ddpTaggedBounds = termCode(1, 1, 1)
	ddpTaggedPD     = termCode(1, 1, 2)
	ddpTaggedWrap   = termCode(1, 1, 3)
	ddpTaggedVer    = termCode(1, 1, 4)
	ddpQN           = termCode(1, 2, 1)
	ddpNoBuffer     = termCode(1, 2, 2)
	ddpMSN          = termCode(1, 2, 3)
	ddpMO           = termCode(1, 2, 4)
	ddpLong         = termCode(1, 2, 5)
	ddpUntaggedVer  = termCode(1, 2, 6)

	rdmapSTag       = termCode(0, 1, 0)
	rdmapBounds     = termCode(0, 1, 1)
	rdmapRights     = termCode(0, 1, 2)
	rdmapPD         = termCode(0, 1, 3)
	rdmapWrap       = termCode(0, 1, 4)
	rdmapInvalidate = termCode(0, 1, 9)
	rdmapVersion    = termCode(0, 2, 5)
	rdmapOpcode     = termCode(0, 2, 6)
	rdmapStream     = termCode(0, 2, 7)
	rdmapCannotInv  = termCode(0, 2, 9)
	rdmapOther      = termCode(0, 2, 0xff)
)

// modelSpan is n bytes of memory at an offset.
type modelSpan struct{ at, n int }

// modelMemory is what an STag names.
type modelMemory struct {
	stag   uint32
	base   uint64
	span   modelSpan
	write  bool
	read   bool
	atomic bool
	goes   bool // the peer may invalidate it
	ours   bool // it belongs to the stream's PD, and not to another stream
	valid  bool
}

// modelRecv is a receive. modelWork is a Read, an atomic operation or a Send of our own.
type (
	modelRecv struct {
		id    uint64
		spans []modelSpan
		bad   bool // it names memory that may not be written
	}
	modelWork struct {
		id     uint64
		op     provider.WROpcode
		spans  []modelSpan
		length int
	}
)

// modelAsked is a request of ours that was sent and not answered yet.
type modelAsked struct {
	work   *modelWork // nil for the RTR indication
	atomic bool
	id     uint32 // of an Atomic Request
	stag   uint32
	to     uint64
	size   uint32
}

// modelRequest is a request of the peer that is to be answered.
type modelRequest struct {
	atomic bool
	id     uint32
	value  uint64

	stag uint32
	to   uint64
	size uint32
	mem  *modelMemory
	span modelSpan
	then []byte // what the source held when the request came
}

// modelEnd is how the stream ends.
type modelEnd struct {
	remote bool        // by a Terminate of the peer
	codes  []modelCode // our Terminate may have any of these
	ulpdu  []byte      // that has the fault, nil if it is the FPDU
	silent bool        // no Terminate may be sent
	loose  bool        // what the Terminate shows depends on which fault was found first
}

// modelConfig is what a stream is like.
type modelConfig struct {
	crc, markersRx, markersTx            bool
	wait, peerToPeer, rdmac, ext, shared bool
	depth                                int // of inbound requests
}

// model determines what the bytes that a peer sends do to memory and queues, and how the
// stream ends. It is written from RFC 5040, 5041, 5044 and 7306. If a segment has several
// faults, any of them may be reported, because the RFCs don't order the checks.
//
// It orders events like one goroutine that serves the stream: it answers the peer's requests that
// came in one piece after that piece.
type model struct {
	modelConfig
	mem      []byte
	memory   []*modelMemory
	recvs    []*modelRecv
	asked    []modelAsked
	work     []*modelWork // not on the wire yet
	posted   bool         // work is complete
	recvWCs  []provider.WC
	sendWCs  []provider.WC
	end      *modelEnd
	mayTalk  bool
	received bool

	in  []byte
	pos uint64 // of in, in the stream

	sendMSN, sendMO, readMSN, answerMSN uint32
	sendOp                              uint8 // of the Send under way
	recv                                *modelRecv
	taggedOp                            uint8
	taggedOpen, taggedPlaced            bool
	taggedSTag                          uint32
	taggedDone                          int

	requests []modelRequest // of this piece

	// may are bytes that may have been placed although the segment has a fault, because that is
	// found after placement.
	may []modelMay

	o modelOutput
}

type modelMay struct {
	at   int
	data []byte
}

func newModel(c modelConfig) *model {
	return &model{modelConfig: c, sendMSN: 1, readMSN: 1, answerMSN: 1, mayTalk: !c.wait, o: newModelOutput()}
}

// feed takes what came in one piece.
func (m *model) feed(piece []byte) {
	m.in = append(m.in, piece...)
	for m.end == nil {
		f := unframe(m.in, m.pos, m.markersRx)
		if !f.whole {
			return
		}
		m.fpdu(f)
		m.in = m.in[f.octets:]
		m.pos += uint64(f.octets)
	}
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// frame is an FPDU (RFC 5044 section 4).
type frame struct {
	whole          bool
	ulpdu          []byte // as far as it has come
	length, octets int    // of the ULPDU, and of the FPDU
	crc, marker    bool   // whether they are right
}

// unframe parses an FPDU that begins at pos of the stream, with its markers.
func unframe(b []byte, pos uint64, markers bool) (f frame) {
	if !markers {
		return unframePlain(b)
	}
	var data []byte
	sum, at, start := uint32(0), 0, uint64(0)
	f.marker = true
	f.length = -1
	total := 2
	for len(data) < total {
		if (pos+uint64(at))%512 == 0 {
			if len(b) < at+4 {
				break
			}
			want := uint16(0)
			if len(data) > 0 {
				want = uint16(pos + uint64(at) - start)
			}
			f.marker = f.marker && binary.BigEndian.Uint16(b[at+2:])&^3 == want
			sum = crc32.Update(sum, castagnoli, b[at:at+4])
			at += 4
			continue
		}
		if at == len(b) {
			break
		}
		if len(data) == 0 {
			start = pos + uint64(at)
		}
		n := min(total-len(data), len(b)-at, 512-int((pos+uint64(at))%512))
		if body := total - 4 - len(data); total > 2 && body > 0 {
			n = min(n, body)
		}
		chunk := b[at : at+n]
		if total == 2 || len(data) < total-4 {
			sum = crc32.Update(sum, castagnoli, chunk)
		}
		data = append(data, chunk...)
		at += n
		if total == 2 && len(data) == 2 {
			f.length = int(binary.BigEndian.Uint16(data))
			total = (2+f.length+3)&^3 + 4
		}
	}
	if f.length < 0 {
		return f
	}
	f.ulpdu = data[2:min(len(data), 2+f.length)]
	if f.whole = len(data) == total; f.whole {
		f.octets = at
		f.crc = binary.LittleEndian.Uint32(data[total-4:]) == sum
	}
	return f
}

// unframePlain parses an FPDU without markers. The ULPDU is a part of b.
func unframePlain(b []byte) (f frame) {
	if len(b) < 2 {
		f.length = -1
		return f
	}
	f.length, f.marker = int(binary.BigEndian.Uint16(b)), true
	f.octets = (2+f.length+3)&^3 + 4
	f.ulpdu = b[2:min(len(b), 2+f.length)]
	if f.whole = len(b) >= f.octets; f.whole {
		body := b[:f.octets-4]
		f.crc = binary.LittleEndian.Uint32(b[len(body):]) == crc32.Checksum(body, castagnoli)
	}
	return f
}

// fpdu takes a whole FPDU.
func (m *model) fpdu(f frame) {
	s, _ := parseSegment(f.ulpdu, f.length)
	if m.crc && !f.crc {
		m.end = &modelEnd{codes: []modelCode{mpaBadCRC}, silent: !m.mayTalk}
		return
	}
	if !f.marker {
		m.end = &modelEnd{codes: []modelCode{mpaBadMarker}, silent: !m.mayTalk}
		return
	}
	first := !m.received
	m.received, m.mayTalk = true, true
	if errs := m.judge(&s); len(errs) > 0 {
		m.end = &modelEnd{codes: errs, ulpdu: f.ulpdu}
		if s.short {
			m.end.ulpdu = nil
		}
		// found at the end of the Send, after its bytes were placed
		if slices.Equal(errs, invalidateCodes) {
			m.may = append(m.may, m.placement(&s)...)
		}
		return
	}
	m.may = nil
	m.apply(&s, first)
}

// segment is a DDP segment with its RDMAP header.
type segment struct {
	short       bool
	header      int
	t, l        bool
	dv, rv, op  uint8
	stag        uint32
	to          uint64
	ulp32       uint32
	qn, msn, mo uint32
	n           int    // bytes of payload
	payload     []byte // as far as it has come
}

// parseSegment parses a ULPDU (RFC 5041 section 4, RFC 5040 section 4.1) of which perhaps only a
// part has come. It reports false if that is not enough.
func parseSegment(u []byte, length int) (s segment, ok bool) {
	switch {
	case length < 2:
		return segment{short: true}, true
	case len(u) < 1:
		return s, false
	}
	s.header = 18
	if s.t = u[0]&0x80 != 0; s.t {
		s.header = 14
	}
	switch {
	case length < s.header:
		return segment{short: true}, true
	case len(u) < s.header:
		return s, false
	}
	s.l = u[0]&0x40 != 0
	s.dv, s.rv, s.op = u[0]&3, u[1]>>6, u[1]&15
	if s.t {
		s.stag, s.to = binary.BigEndian.Uint32(u[2:]), binary.BigEndian.Uint64(u[6:])
	} else {
		s.ulp32, s.qn = binary.BigEndian.Uint32(u[2:]), binary.BigEndian.Uint32(u[6:])
		s.msn, s.mo = binary.BigEndian.Uint32(u[10:]), binary.BigEndian.Uint32(u[14:])
	}
	s.payload, s.n = u[s.header:], length-s.header
	return s, true
}

// find returns what an STag names, nil if nothing.
func (m *model) find(stag uint32) *modelMemory {
	for _, x := range m.memory {
		if x.valid && x.stag == stag {
			return x
		}
	}
	return nil
}

// accessCodes are the codes of the faults that an access may have.
type accessCodes struct{ stag, pd, rights, wrap, bounds modelCode }

var (
	writeCodes = accessCodes{ddpTaggedSTag, ddpTaggedPD, ddpTaggedSTag, ddpTaggedWrap, ddpTaggedBounds}
	readCodes  = accessCodes{rdmapSTag, rdmapPD, rdmapRights, rdmapWrap, rdmapBounds}
)

// access returns where the n bytes are that stag and to name, and the fault of the access.
func (m *model) access(
	stag uint32, to uint64, n int, may func(*modelMemory) bool, c *accessCodes,
) (x *modelMemory, span modelSpan, errs []modelCode) {
	x = m.find(stag)
	if x == nil {
		return nil, span, []modelCode{c.stag}
	}
	if !x.ours {
		errs = append(errs, c.pd)
	}
	if !may(x) {
		errs = append(errs, c.rights)
	}
	if to > math.MaxUint64-uint64(n) {
		errs = append(errs, c.wrap)
	}
	if off := to - x.base; to < x.base || off > uint64(x.span.n) || uint64(n) > uint64(x.span.n)-off {
		errs = append(errs, c.bounds)
	} else {
		span = modelSpan{x.span.at + int(off), n}
	}
	return x, span, errs
}

func mayWrite(x *modelMemory) bool  { return x.write }
func mayRead(x *modelMemory) bool   { return x.read }
func mayAtomic(x *modelMemory) bool { return x.atomic }

// buffer is the receive that a segment of a Send is for, nil if there is none.
func (m *model) buffer() *modelRecv {
	if m.recv != nil {
		return m.recv
	}
	if len(m.recvs) == 0 {
		return nil
	}
	return m.recvs[0]
}

// sub returns n bytes at an offset of spans, or fewer if spans end before.
func sub(spans []modelSpan, off, n int) (out []modelSpan) {
	for _, s := range spans {
		if skip := min(off, s.n); skip < s.n && n > 0 {
			k := min(s.n-skip, n)
			out = append(out, modelSpan{s.at + skip, k})
			n -= k
			off = 0
			continue
		}
		off -= s.n
	}
	return out
}

func lengthOf(spans []modelSpan) (n int) {
	for _, s := range spans {
		n += s.n
	}
	return n
}

// target returns where the payload of a segment without faults goes.
func (m *model) target(s *segment) []modelSpan {
	switch {
	case s.n == 0:
	case s.op == 0:
		_, span, _ := m.access(s.stag, s.to, s.n, mayWrite, &writeCodes)
		return []modelSpan{span}
	case s.op == 2:
		return sub(m.asked[0].work.spans, m.doneBefore(2), s.n)
	case s.op >= 3 && s.op <= 6:
		return sub(m.buffer().spans, int(s.mo), s.n)
	}
	return nil
}

func (m *model) doneBefore(op uint8) int {
	if m.taggedOpen && m.taggedOp == op {
		return m.taggedDone
	}
	return 0
}

// placement returns where the payload of a segment is placed.
func (m *model) placement(s *segment) (all []modelMay) {
	p := s.payload
	for _, t := range m.target(s) {
		n := min(t.n, len(p))
		all = append(all, modelMay{t.at, slices.Clone(p[:n])})
		p = p[n:]
	}
	return all
}

func (m *model) place(spans []modelSpan, data []byte) {
	for _, s := range spans {
		data = data[copy(m.mem[s.at:s.at+s.n], data):]
	}
}

// final compares all memory. It returns the first byte that can't be as it is.
func (m *model) final(got []byte) (at int, ok bool) {
	if bytes.Equal(got, m.mem) {
		return 0, true
	}
	for i := range got {
		if got[i] == m.mem[i] {
			continue
		}
		if !m.mayBe(i, got[i]) {
			return i, false
		}
	}
	return 0, true
}

// mayBe reports whether the byte may be at i although its segment has a fault.
func (m *model) mayBe(i int, octet byte) bool {
	return slices.ContainsFunc(m.may, func(x modelMay) bool {
		return i >= x.at && i < x.at+len(x.data) && x.data[i-x.at] == octet
	})
}
