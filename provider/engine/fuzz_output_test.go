package engine

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"slices"

	"github.com/govs-rdma/govs/provider"
)

// modelOutput follows what a stream sends.
type modelOutput struct {
	in                          []byte
	pos                         uint64
	sendMSN, readMSN, answerMSN uint32
	rtr                         bool // a Read as RTR indication comes first
	done                        int  // bytes of the response under way
	terminate                   []byte
}

func newModelOutput() modelOutput { return modelOutput{sendMSN: 1, readMSN: 1, answerMSN: 1} }

// output takes what the stream has sent after a piece of its peer's bytes.
func (m *model) output(sent []byte) error {
	o := &m.o
	o.in = append(o.in, sent...)
	for len(o.in) > 0 {
		f := unframe(o.in, o.pos, m.markersTx)
		switch {
		case !f.whole:
			return fmt.Errorf("part of an FPDU: % .60x", o.in)
		case m.crc && !f.crc, !f.marker:
			return fmt.Errorf("CRC right %v, markers right %v", f.crc, f.marker)
		case o.terminate != nil:
			return fmt.Errorf("an FPDU was sent after a Terminate: % .60x", f.ulpdu)
		case !m.mayTalk:
			return fmt.Errorf("an FPDU was sent before the first one has come")
		}
		if err := m.sent(f.ulpdu); err != nil {
			return fmt.Errorf("%w: % .60x", err, f.ulpdu)
		}
		o.in = o.in[f.octets:]
		o.pos += uint64(f.octets)
	}
	return nil
}

func (m *model) sent(u []byte) error {
	o := &m.o
	s, _ := parseSegment(u, len(u))
	version := uint8(1)
	if m.rdmac {
		version = 0
	}
	if s.short || s.dv != version || s.rv != version || u[0]&0x3c != 0 || u[1]&0x30 != 0 ||
		s.t != (s.op == 0 || s.op == 2) {
		return fmt.Errorf("a header that is illegal")
	}
	switch s.op {
	case 1:
		return m.sentRequest(&s, 28)
	case 10:
		return m.sentRequest(&s, 52)
	case 2:
		return m.sentResponse(&s)
	case 3:
		if s.qn != 0 || s.msn != o.sendMSN || s.mo != 0 || !s.l ||
			len(m.work) == 0 || m.work[0].op != provider.WRSend || s.n != m.work[0].length {
			return fmt.Errorf("a Send out of turn")
		}
		o.sendMSN++
		m.sendWCs = append(m.sendWCs, provider.WC{WRID: m.work[0].id})
		m.work = m.work[1:]
		return nil
	case 7:
		if s.qn != 2 || s.msn != 1 || s.mo != 0 || !s.l || s.n < 4 {
			return fmt.Errorf("a Terminate with an illegal header")
		}
		o.terminate = bytes.Clone(s.payload)
		return nil
	case 11:
		if len(m.requests) == 0 || !m.requests[0].atomic ||
			s.qn != 3 || s.msn != o.answerMSN || s.mo != 0 || !s.l || s.n != 12 {
			return fmt.Errorf("an Atomic Response out of turn")
		}
		q := &m.requests[0]
		if binary.BigEndian.Uint32(s.payload) != q.id || binary.BigEndian.Uint64(s.payload[4:]) != q.value {
			return fmt.Errorf("an Atomic Response to request %d, which found %#x", q.id, q.value)
		}
		o.answerMSN++
		m.requests = m.requests[1:]
		return nil
	}
	return fmt.Errorf("a message that neither side asked for")
}

// sentRequest takes a Read or Atomic Request of ours.
func (m *model) sentRequest(s *segment, length int) error {
	o := &m.o
	if s.qn != 1 || s.msn != o.readMSN || s.mo != 0 || !s.l || s.n != length {
		return fmt.Errorf("a request that is illegal")
	}
	o.readMSN++
	a := modelAsked{atomic: length == 52}
	if o.rtr {
		o.rtr = false
	} else {
		if len(m.work) == 0 {
			return fmt.Errorf("a request that was not posted")
		}
		a.work = m.work[0]
		m.work = m.work[1:]
		if a.atomic == (a.work.op == provider.WRRDMARead) {
			return fmt.Errorf("a request for work %d, which is another operation", a.work.id)
		}
	}
	p := s.payload
	if a.atomic {
		a.id = binary.BigEndian.Uint32(p[4:])
	} else {
		a.stag, a.to, a.size = binary.BigEndian.Uint32(p), binary.BigEndian.Uint64(p[4:]), binary.BigEndian.Uint32(p[12:])
		if a.work != nil && int(a.size) != a.work.length || a.work == nil && a.size != 0 {
			return fmt.Errorf("a Read of %d bytes", a.size)
		}
	}
	m.asked = append(m.asked, a)
	return nil
}

// sentResponse takes a segment of the response to the peer's oldest Read Request. Its
// bytes may have been fetched at any time since that came (RFC 5040 section 5.5).
func (m *model) sentResponse(s *segment) error {
	o := &m.o
	if len(m.requests) == 0 || m.requests[0].atomic {
		return fmt.Errorf("a Read Response out of turn")
	}
	q := &m.requests[0]
	if s.stag != q.stag || s.to != q.to+uint64(o.done) || o.done+s.n > int(q.size) || s.l != (o.done+s.n == int(q.size)) {
		return fmt.Errorf("not byte %d of the response to %d bytes to %#x of %#x", o.done, q.size, q.to, q.stag)
	}
	if s.n > 0 {
		now, then := m.mem[q.span.at+o.done:][:s.n], q.then[o.done:][:s.n]
		if !bytes.Equal(s.payload, now) {
			for i, b := range s.payload {
				if b != now[i] && b != then[i] && !m.mayBe(q.span.at+o.done+i, b) {
					return fmt.Errorf("byte %d of the response was never in the region", o.done+i)
				}
			}
		}
	}
	if o.done += s.n; s.l {
		o.done = 0
		m.requests = m.requests[1:]
	}
	return nil
}

// after checks what holds when a piece was taken and answered. ended is how the stream has
// ended, nil if it goes on.
func (m *model) after(ended *provider.TerminateError) error {
	if ended != nil && m.end == nil {
		code := termCode(ended.Layer, ended.EType, ended.ECode)
		gone := len(m.requests) > 0 && m.requests[0].mem != nil && !m.requests[0].mem.valid
		switch {
		case !ended.Remote && gone && code == rdmapSTag:
			m.end = &modelEnd{codes: []modelCode{code}, loose: true}
		default:
			return fmt.Errorf("the stream ended with %w", ended)
		}
	}
	switch {
	case m.end == nil && m.due():
		return fmt.Errorf("work %d was not sent, with %d requests unanswered", m.work[0].id,
			len(m.asked))
	case m.end == nil && len(m.requests) > 0:
		return fmt.Errorf("%d requests of the peer are not answered", len(m.requests))
	case m.end != nil && ended == nil:
		return fmt.Errorf("the stream goes on; it has to end with one of %06x, by the peer: %v", m.end.codes, m.end.remote)
	case m.end == nil:
		return nil
	}
	m.requests = nil
	if ended.Remote != m.end.remote {
		return fmt.Errorf("the stream ended with %w; that the peer had to end it is %v", ended,
			m.end.remote)
	}
	if code := termCode(ended.Layer, ended.EType, ended.ECode); !m.end.remote && !slices.Contains(m.end.codes, code) {
		return fmt.Errorf("the stream ended with %w, want one of %06x", ended, m.end.codes)
	}
	return m.terminated(ended)
}

// due reports whether the next work of ours has to be sent by now.
func (m *model) due() bool {
	if len(m.work) == 0 || !m.mayTalk || !m.posted {
		return false
	}
	if m.work[0].op == provider.WRSend { // with a fence
		return len(m.asked) == 0
	}
	return len(m.asked) < rigORD
}

// terminated checks the Terminate that was sent (RFC 5040 section 4.8).
func (m *model) terminated(ended *provider.TerminateError) error {
	p := m.o.terminate
	if m.end.remote || m.end.silent {
		if p != nil {
			return fmt.Errorf("a Terminate was sent: % x", p)
		}
		return nil
	}
	if p == nil {
		return fmt.Errorf("no Terminate was sent about %w", ended)
	}
	if p[0] != ended.Layer<<4|ended.EType || p[1] != ended.ECode || p[2]&0x1f != 0 || p[3] != 0 {
		return fmt.Errorf("the Terminate % x does not report %w", p, ended)
	}
	rest, length, header, read := p[4:], -1, []byte(nil), []byte(nil)
	take := func(n int) []byte {
		n = min(n, len(rest))
		b := rest[:n]
		rest = rest[n:]
		return b
	}
	if p[2]&0x80 != 0 {
		length = int(binary.BigEndian.Uint16(append(bytes.Clone(take(2)), 0, 0)))
	}
	if p[2]&0x40 != 0 && len(rest) > 0 {
		n := 18
		if rest[0]&0x80 != 0 {
			n = 14
		}
		header = take(n)
	}
	if p[2]&0x20 != 0 {
		read = take(28)
	}
	if len(rest) > 0 || length < 0 != (header == nil) || read != nil && (header == nil || len(read) != 28) {
		return fmt.Errorf("the Terminate % x does not have the parts that its header says", p)
	}
	u := m.end.ulpdu
	if m.end.loose {
		return nil
	}
	if u == nil && header != nil || header != nil && (length != len(u) || !bytes.HasPrefix(u, header)) {
		return fmt.Errorf("the Terminate % x shows another segment than % .60x", p, u)
	}
	if read != nil && !bytes.Equal(read, u[18:]) {
		return fmt.Errorf("the Terminate % x shows another Read Request than % x", p, u)
	}
	return nil
}

// appendFrame appends body, which is an FPDU without its CRC, at pos of a stream, with the CRC,
// and with markers if markers is true. With wrong the markers don't point to the FPDU's start.
func appendFrame(b []byte, pos *uint64, body []byte, markers, crc, wrong bool) []byte {
	if !markers {
		b = append(b, body...)
		sum := uint32(0)
		if crc {
			sum = crc32.Checksum(body, castagnoli)
		}
		*pos += uint64(len(body) + 4)
		return binary.LittleEndian.AppendUint32(b, sum)
	}
	sum := uint32(0)
	start := *pos
	begun := false
	add := func(octets []byte, covered bool) {
		for len(octets) > 0 {
			if *pos%512 == 0 {
				marker := []byte{0, 0, 0, 0}
				if begun {
					binary.BigEndian.PutUint16(marker[2:], uint16(*pos-start))
				}
				if wrong {
					marker[3] ^= 8
				}
				sum = crc32.Update(sum, castagnoli, marker)
				b = append(b, marker...)
				*pos += 4
			}
			n := min(len(octets), 512-int(*pos%512))
			if !begun {
				start, begun = *pos, true
			}
			if covered {
				sum = crc32.Update(sum, castagnoli, octets[:n])
			}
			b = append(b, octets[:n]...)
			*pos += uint64(n)
			octets = octets[n:]
		}
	}
	add(body, true)
	add([]byte{0, 0, 0, 0}, false)
	if crc {
		binary.LittleEndian.PutUint32(b[len(b)-4:], sum)
	}
	return b
}
