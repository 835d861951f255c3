package wire

import (
	"bytes"
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// assembly puts packets back into streams. All packets of a connection are kept
// until the end, so that nothing depends on the order in which they were
// captured.
type assembly struct {
	port    uint16
	packets int
	skipped skipped
	current map[[2]netip.AddrPort]*stream
	streams []*stream
}

func newAssembly(port uint16) *assembly {
	return &assembly{port: port, current: make(map[[2]netip.AddrPort]*stream)}
}

// add takes a segment and returns the stream that it belongs to, or nil if that stream is not
// wanted. The segment's payload must not change afterwards.
func (a *assembly) add(t tcpSegment, at time.Time) *stream {
	if a.port != 0 && t.src.Port() != a.port && t.dst.Port() != a.port {
		return nil
	}
	key := [2]netip.AddrPort{t.src, t.dst}
	if key[0].Compare(key[1]) > 0 {
		key[0], key[1] = key[1], key[0]
	}
	s := a.current[key]
	if s == nil || s.replacedBy(t) {
		s = a.open(t, at)
		a.current[key] = s
		a.streams = append(a.streams, s)
	}
	if !s.over {
		s.add(t, at)
	}
	return s
}

// open begins a stream with its first packet and decides which end is the initiator: the
// sender of the SYN, or else the end without the port that was asked for, or else the
// sender of the first packet. decode corrects the last of these where the start-up frames
// say otherwise.
func (a *assembly) open(t tcpSegment, at time.Time) *stream {
	s := &stream{client: t.src, server: t.dst, start: at, known: t.syn}
	if t.syn && t.acks || !t.syn && a.port != 0 && t.src.Port() == a.port && t.dst.Port() != a.port {
		s.client, s.server = t.dst, t.src
	}
	return s
}

// stream is one TCP connection.
type stream struct {
	client, server netip.AddrPort
	known          bool // a SYN says who the client is
	over           bool // a Live does not take more packets of it
	start          time.Time
	halves         [2]half // 0 from the client
}

// half is what one side sent: first as it was captured, and after assemble as
// it was sent.
type half struct {
	pieces   []piece
	any      bool   // a packet was seen
	last     uint32 // sequence number of the latest packet
	lastAt   int64  // its position, which counts from the first packet's
	isn      *int64 // position of the first octet, where the SYN was seen
	isnValue uint32 // the SYN's sequence number
	finAt    *int64 // position of the FIN
	acked    int64  // position up to which the other side has acknowledged
	end      []Frame

	octets []byte
	times  []stamp
	lack   string // what is missing after octets; empty if nothing is
	note   string // something unusual about the octets
}

// piece is the payload of one packet.
type piece struct {
	at      int64 // position
	octets  []byte
	missing int // octets that the packet had beyond those
	time    time.Time
}

// stamp says that the octets before end had come by time.
type stamp struct {
	end  uint64
	time time.Time
}

// replacedBy reports whether a SYN opens another connection between the same
// two ports.
func (s *stream) replacedBy(t tcpSegment) bool {
	if !t.syn {
		return false
	}
	h := s.half(t.src)
	return h.isn != nil && h.isnValue != t.seq || h.isn == nil && h.any
}

func (s *stream) half(src netip.AddrPort) *half {
	if src == s.client {
		return &s.halves[0]
	}
	return &s.halves[1]
}

func (s *stream) add(t tcpSegment, at time.Time) {
	h, other := s.half(t.src), s.half(t.dst)
	if !h.any {
		h.any, h.last = true, t.seq
	}
	// Sequence numbers wrap; the way from one packet to the next is short.
	h.lastAt += int64(int32(t.seq - h.last))
	h.last = t.seq
	first := h.lastAt
	if t.syn {
		first++
		if h.isn == nil {
			h.isn, h.isnValue = &first, t.seq
		}
	}
	if len(t.payload) > 0 || t.missing > 0 {
		h.pieces = append(h.pieces, piece{first, t.payload, t.missing, at})
	}
	switch {
	case t.rst:
		h.ended(KindRST, at)
	case t.fin:
		end := first + int64(len(t.payload)+t.missing)
		if h.finAt == nil {
			h.finAt = &end
		}
		h.ended(KindFIN, at)
	}
	if t.acks && !t.rst {
		other.acknowledged(t.ack)
	}
}

// acknowledged notes how far the other side has received. Numbers that are far off, as in
// garbage, are ignored.
func (h *half) acknowledged(ack uint32) {
	const window = 1 << 30
	if ahead := int64(int32(ack - h.last)); h.any && ahead < window {
		h.acked = max(h.acked, h.lastAt+ahead)
	}
}

// ended records the first FIN and the first RST of a direction.
func (h *half) ended(kind Kind, at time.Time) {
	for _, f := range h.end {
		if f.Kind == kind {
			return
		}
	}
	h.end = append(h.end, Frame{Kind: kind, Time: at})
}

// assemble puts the pieces together, up to the first octet that is missing. A Live calls it
// again for each new packet.
func (h *half) assemble() {
	h.octets, h.times, h.lack, h.note = nil, nil, "", ""
	slices.SortStableFunc(h.pieces, func(x, y piece) int { return cmp.Compare(x.at, y.at) })
	origin, known := h.origin()
	pos := origin
	var latest time.Time
	for i, p := range h.pieces {
		end := p.at + int64(len(p.octets))
		switch {
		case p.at > pos:
			h.lack = fmt.Sprintf("%d octets are missing from the capture here, and %d after "+
				"them are not decoded", p.at-pos, h.behind(i, p.at))
			return
		case end > pos:
			h.compare(p, origin, pos)
			h.octets = append(h.octets, p.octets[pos-p.at:]...)
			pos = end
			if p.time.After(latest) {
				latest = p.time
			}
			h.times = append(h.times, stamp{uint64(len(h.octets)), latest})
		default:
			h.compare(p, origin, pos)
		}
		if p.missing > 0 && end == pos && !h.covered(i+1, end) {
			h.lack = fmt.Sprintf("the capture has only the beginning of a packet: %d octets are missing here", p.missing)
			return
		}
	}
	if sent := h.sentUpTo(pos); known && sent > pos {
		h.lack = fmt.Sprintf("the last %d octets that were sent are missing from the capture", sent-pos)
	}
}

// origin returns the position of the stream's first octet, and whether that is
// known for sure, or else of the first one captured.
func (h *half) origin() (at int64, known bool) {
	if h.isn != nil {
		return *h.isn, true
	}
	if len(h.pieces) > 0 {
		return h.pieces[0].at, true
	}
	return 0, false
}

// behind counts the octets between from and the end of the pieces from the i-th on.
func (h *half) behind(i int, from int64) int64 {
	end := from
	for _, p := range h.pieces[i:] {
		end = max(end, p.at+int64(len(p.octets)))
	}
	return end - from
}

// covered reports whether a later piece has the octet at pos, because the packet was cut
// short and another copy of it was not.
func (h *half) covered(from int, pos int64) bool {
	for _, p := range h.pieces[from:] {
		if p.at <= pos && p.at+int64(len(p.octets)) > pos {
			return true
		}
	}
	return false
}

// compare notes a retransmission whose octets differ from those that came first. It ignores one
// repeated octet, because the octet of a keep-alive may be anything.
func (h *half) compare(p piece, origin, pos int64) {
	from, to := max(p.at, origin), min(p.at+int64(len(p.octets)), pos)
	if to-from <= 1 || h.note != "" {
		return
	}
	if !bytes.Equal(h.octets[from-origin:to-origin], p.octets[from-p.at:to-p.at]) {
		h.note = fmt.Sprintf("octets from %d on were sent again with another content", from-origin)
	}
}

// sentUpTo returns the position up to which octets were sent, according to the FIN or the other
// side's acknowledgements, which count the FIN as an octet. If one octet more than was seen is
// acknowledged, it may also be a FIN that the capture lacks.
func (h *half) sentUpTo(pos int64) int64 {
	if h.finAt != nil {
		return *h.finAt
	}
	if h.acked == pos+1 {
		return pos
	}
	return h.acked
}

// at returns when the octet before offset end had come.
func (h *half) at(end uint64) time.Time {
	if len(h.times) == 0 {
		return time.Time{}
	}
	return h.times[h.find(end)].time
}

// find returns the index of the packet that brought the octet before offset end.
func (h *half) find(end uint64) int {
	i, _ := slices.BinarySearchFunc(h.times, end, func(s stamp, e uint64) int { return cmp.Compare(s.end, e) })
	return min(i, len(h.times)-1)
}

// packet returns the packet that brought the first of the n octets at offset at.
func (h *half) packet(at uint64, n int) Packet {
	i := h.find(at + 1)
	var from uint64
	if i > 0 {
		from = h.times[i-1].end
	}
	return Packet{Time: h.times[i].time, Offset: int(at - from), Len: int(h.times[i].end - from), Span: h.find(at+uint64(n)) - i + 1}
}
