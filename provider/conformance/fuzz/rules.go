package fuzz

import (
	"slices"

	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// A rule explains differences between the engine (a) and siw (b) by a note of kernel-notes/. key, a
// and b are path.Match patterns; an empty one matches all.
type rule struct {
	note, key, a, b string
	when            func(*stream) bool // nil: always
}

const (
	flushed = "IBV_WC_WR_FLUSH_ERR"
	general = "IBV_WC_GENERAL_ERR"
	tooLong = "IBV_WC_LOC_LEN_ERR"
)

// rules are in the order in which they are tried. Those without a key come first: siw does not stop
// where the engine does, or the other way round, and all that follows may differ.
var rules = []rule{
	{note: "siw-start-up", when: oddRequest},
	{note: "siw-crc-default", when: func(s *stream) bool { return !s.crc && s.any(wrongCRC) }},
	{note: "siw-crc-default", key: "reply", a: "5*", b: "1*", when: func(s *stream) bool { return !s.crc }},
	{note: "siw-crc-split", when: cutInCRC},
	{note: "siw-header-checks", when: has(wrongFormat)},
	{note: "siw-header-checks", when: opcodeChanges},
	{note: "siw-write-order", when: writeOutOfOrder},
	{note: "siw-offset-wrap", when: has(wraps)},
	{note: "siw-invalidate", when: oddInvalidate},
	{note: "siw-remote-read-unchecked", when: has(readsPrivate)},
	{note: "siw-read-responses", when: oddResponse},
	{note: "siw-places-before-crc", when: func(s *stream) bool { return s.cut }},

	{note: "siw-terminate-layout", key: "terminate form"},
	{note: "siw-error-reports", key: "terminate", a: "1/2/*", b: "1/2/0x02"},
	{note: "siw-zero-length-read", key: "answer", when: has(readsNothing)},
	{note: "siw-short-page-crossing", key: "answer", when: has(crossesPage)},
	{note: "siw-error-reports", key: "receive *", a: flushed, b: general},
	{note: "siw-error-reports", key: "read *", b: general},
	{note: "siw-terminate-reset", key: "end", a: "FIN", b: "RST"},
	{note: "siw-responder-speaks-first", key: "terminate", a: "-", b: "*/*/*", when: wrongAtOnce},
	{note: "siw-places-before-crc", key: "memory *", when: has(wrongCRC)},
	{note: "siw-places-before-crc", key: "terminate", a: "2/0/0x02", when: has(wrongCRC)},
	{note: "siw-places-before-crc", key: "receive *", a: flushed, b: tooLong, when: has(wrongCRC)},
	{note: "siw-read-depth", key: "terminate", a: "*/*/*", b: "-", when: has(reads)},
	{note: "siw-sge-checks", key: "receive *", a: flushed, when: has(refusedRead)},
	{note: "siw-sge-checks", key: "memory *", when: has(refusedRead)},
	{note: "siw-sge-checks", key: "read *", a: flushed, when: has(refusedRead)},
}

// any reports whether a segment has a property.
func (s *stream) any(is func(*segment) bool) bool { return slices.ContainsFunc(s.segments, is) }

func has(is func(*segment) bool) func(*stream) bool {
	return func(s *stream) bool { return s.any(is) }
}

// oddRequest: the Request is not a correct one that siw sends itself, apart from its C.
func oddRequest(s *stream) bool {
	f, n, err := mpa.ParseFrame(s.request, mpa.KindRequest)
	if err != nil || n != len(s.request) || f.Markers || f.Reject || f.Reserved != 0 ||
		!f.Enhanced || f.Revision != 2 {
		return true
	}
	e, _, err := f.SplitPrivateData()
	return err != nil || e.IRD != depth || e.ORD != depth || e.A || e.B || e.C || e.D
}

// cutInCRC: a write ends inside of a CRC or of the pad before it.
func cutInCRC(s *stream) bool {
	return s.any(func(seg *segment) bool {
		return slices.ContainsFunc(s.cuts, func(at int) bool {
			return at > seg.end-mpa.CRCLen-seg.pad && at < seg.end
		})
	})
}

func wrongCRC(seg *segment) bool { return seg.crcWrong }

// wrongFormat: a header that is cut, T that does not fit the opcode, or a Read Request or Terminate
// with a field that siw does not look at.
func wrongFormat(seg *segment) bool {
	h := &seg.h
	switch {
	case seg.short || seg.op.Defined() && seg.op.Tagged() != h.Tagged:
		return true
	case seg.op == rdmap.OpReadRequest:
		return h.QN != rdmap.QNReadRequest || h.MO != 0 || !h.Last || seg.read == nil
	case seg.op == rdmap.OpTerminate:
		return h.QN != rdmap.QNTerminate || h.MSN != 1 || h.MO != 0 || !h.Last ||
			len(seg.payload) < rdmap.TerminateControlLen
	}
	return false
}

// opcodeChanges: a message has segments of two opcodes.
func opcodeChanges(s *stream) bool {
	var open [2]*segment
	for _, seg := range s.segments {
		class := &open[0]
		if seg.h.Tagged {
			class = &open[1]
		}
		if *class != nil && (*class).op != seg.op {
			return true
		}
		if *class = seg; seg.h.Last {
			*class = nil
		}
	}
	return false
}

// writeOutOfOrder: a segment of a Write is not where the one before it ended, names another STag,
// or follows an empty one.
func writeOutOfOrder(s *stream) bool {
	var open *segment
	for _, seg := range s.segments {
		if seg.op != rdmap.OpWrite || !seg.h.Tagged {
			continue
		}
		if open != nil && (open.h.STag != seg.h.STag || len(open.payload) == 0 ||
			open.h.TO+uint64(len(open.payload)) != seg.h.TO) {
			return true
		}
		if open = seg; seg.h.Last {
			open = nil
		}
	}
	return false
}

func wraps(seg *segment) bool {
	if seg.read != nil {
		return seg.read.SourceTO+uint64(seg.read.Size) < seg.read.SourceTO || seg.read.Size >= 1<<31
	}
	return seg.h.Tagged && seg.h.TO+uint64(len(seg.payload)) < seg.h.TO
}

// oddInvalidate: a Send with Invalidate of another region than the gift, or of the gift once more.
func oddInvalidate(s *stream) bool {
	times := 0
	for _, seg := range s.segments {
		if !seg.op.Invalidates() || seg.h.Tagged {
			continue
		}
		if seg.h.Last {
			times++
		}
		if seg.h.ULP32 != Gift.stag() || times > 1 {
			return true
		}
	}
	return false
}

// wrongAtOnce: no FPDU before a wrong one.
func wrongAtOnce(s *stream) bool {
	return s.reads == 0 && len(s.segments) > 0 && s.segments[0].crcWrong
}

// refusedRead: the source of a Read is not in a region of the connection's PD.
func refusedRead(seg *segment) bool {
	if seg.read == nil || seg.read.Size == 0 {
		return false
	}
	r, ok := regionOf(seg.read.SourceSTag)
	off := seg.read.SourceTO - r.to()
	return !ok || r == Foreign || off > RegionSize || uint64(seg.read.Size) > RegionSize-off
}

// readsPrivate: a Read of a region that the peer may not read.
func readsPrivate(seg *segment) bool {
	if seg.read == nil {
		return false
	}
	r, ok := regionOf(seg.read.SourceSTag)
	return ok && r != Source && r != Foreign
}

func readsNothing(seg *segment) bool { return seg.read != nil && seg.read.Size == 0 }

// reads: siw sends no Terminate while it answers it.
func reads(seg *segment) bool { return seg.read != nil }

// crossesPage: a short Read whose source is in two pages.
func crossesPage(seg *segment) bool {
	const page = 4096
	r := seg.read
	return r != nil && r.Size <= 32 && r.SourceTO%page+uint64(r.Size) > page
}

// oddResponse: a Read Response that does not answer the program's Reads in order.
func oddResponse(s *stream) bool {
	next := 0
	for _, seg := range s.segments {
		if seg.op != rdmap.OpReadResponse || !seg.h.Tagged {
			continue
		}
		if seg.h.STag != Sink.stag() || seg.h.TO != Sink.to()+uint64(next) {
			return true
		}
		next += len(seg.payload)
		if seg.h.Last != (next%readSize == 0) || next > s.reads*readSize {
			return true
		}
	}
	return false
}
