package engine

import (
	"github.com/govs-rdma/govs/provider/internal/cpuvendor"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

const (
	// directOctets is how much payload must still be outside to be worth a read
	// of its own.
	directOctets = 8 << 10

	// directAhead is how much is read after the payload of a direct FPDU: its
	// trailer and the header of the next one, and a small message or two. What
	// is more of the next payload would have to be copied.
	directAhead = 512

	// directLeast is how long the ULPDU of a direct FPDU is at least on a stream that is alone,
	// whose reads may bring many shorter ones, and a copy of each: a read for each FPDU took
	// 1.4 times as long with 12 KiB, as long with 32 KiB, and less time with more. Streams of
	// the same CQ have shorter reads, and gain nothing (docs/benchmarks). One that follows a
	// longer direct one is direct all the same: it may be the last of a long message, and the
	// next message is long, too.
	directLeast = 28 << 10

	// directNever is directLeast on AMD CPUs. On one of them Writes without CRC of 32 KiB, 64 KiB
	// and 1 MiB had 1.47, 1.00 and 1.20 of the bandwidth without direct FPDUs, probably because
	// fewer of the sender's packets are freed on the receiver's CPU if its reads are long
	// (docs/benchmarks).
	directNever = mpa.MaxFPDULen
)

// directLeastHere is directLeast on this machine.
func directLeastHere() int {
	if cpuvendor.AMD {
		return directNever
	}
	return directLeast
}

// directFPDU is an FPDU whose payload goes from the socket into the region, so
// that the kernel's copy is the only one. Its CRC is verified after that. It is
// used without markers only, where an FPDU lies in one piece in the stream.
type directFPDU struct {
	active bool
	recent bool // the FPDU before was direct: expect another
	long   bool // the last direct FPDU was not short: the end of its message may be
	crc    uint32
	*directSegment
}

// directSegment is the segment in a direct FPDU. A stream has one from the first
// time on that it needs it.
type directSegment struct {
	a      rdmap.Action
	h      ddp.Header
	length int // of the ULPDU
	done   int // octets of payload placed
}

// placed reports whether all payload is in place, so that the trailer comes next.
func (d *directFPDU) placed() bool { return d.done == d.a.Len }

// mayDirect reports whether payload may be placed before its CRC is known, and lies in one piece.
func (s *stream) mayDirect() bool {
	p := &s.params
	return !p.MarkersRx && (!p.CRC || s.dev.opts.Placement == PlaceStreaming)
}

// tryDirect makes the FPDU that begins in buf and is not all there a direct one,
// if that pays.
func (s *stream) tryDirect(buf []byte) {
	r := &s.rx
	length, _, ok := mpa.ParseHeader(buf)
	if !ok {
		return
	}
	ulpdu := buf[mpa.HeaderLen:]
	h, n, err := ddp.ParseHeader(ulpdu, length)
	if err != nil || n == 0 {
		return // segment finds it when all is there
	}
	payload := ulpdu[n:]
	short := r.alone && length < s.dev.directLeast
	ends := r.direct.long && s.dev.directLeast != directNever // it may end a long message
	if length-n-len(payload) < directOctets || short && !ends {
		r.direct.recent = false
		return
	}
	a, err := r.recv.Begin(&h, length-n)
	if err != nil {
		return
	}
	switch a.Kind {
	case rdmap.PlaceSend, rdmap.PlaceWrite, rdmap.PlaceReadResponse:
	default:
		return
	}
	// All of the segment is checked before its first octet is placed.
	if err := s.target(&a, 0, a.Len); err != nil {
		s.refuse(err, &h, a.Len, nil)
		return
	}
	if len(r.c.pieces) > 0 { // an object takes octets that were verified, and all at once
		r.c.dropObjects()
		r.direct.recent = false
		return
	}
	r.c.copyIn(payload)
	r.c.release()
	d := &r.direct
	if d.directSegment == nil {
		d.directSegment = new(directSegment)
	}
	*d.directSegment = directSegment{a: a, h: h, length: length, done: len(payload)}
	d.active, d.recent, d.long = true, true, !short
	if s.params.CRC {
		d.crc = mpa.CRC(0, buf)
	}
	r.r, r.need = r.w, 0
}

// readDirect reads payload to its place, and a little of what follows into the
// context. It returns what readMore does.
func (s *stream) readDirect() (int, bool) {
	s.rxEnsure()
	r := &s.rx
	d := &r.direct
	c := r.c
	left := d.a.Len - d.done
	if err := s.target(&d.a, d.done, left); err != nil {
		s.refuse(err, &d.h, d.a.Len, nil)
		return 0, false
	}
	iov := append(c.iov[:0], c.place[:c.nplace]...)
	iov = append(iov, c.b[r.w:r.w+directAhead])
	n, err := s.conn.Readv(iov)
	if n > 0 {
		got := min(n, left)
		d.done += got
		if s.params.CRC {
			d.crc = crcOf(d.crc, c.place[:c.nplace], got)
		}
		r.w += n - got
	}
	clear(iov)
	c.release()
	c.leave()
	if n == 0 {
		s.readFailed(err)
		return 0, false
	}
	s.parse()
	return n, n >= left // a short read has emptied the socket
}

func crcOf(crc uint32, pieces [][]byte, n int) uint32 {
	for _, p := range pieces {
		p = p[:min(len(p), n)]
		crc = mpa.CRC(crc, p)
		n -= len(p)
	}
	return crc
}

// endDirect verifies the trailer of a direct FPDU and delivers the segment. It
// reports false if the trailer is not all there.
//
//rfc:5044 MPA-4.4-14 CRC mismatch makes the FPDU invalid
func (s *stream) endDirect() bool {
	r := &s.rx
	d := &r.direct
	pad := mpa.PadLen(d.length)
	trailer := r.c.b[r.r:r.w]
	if len(trailer) < pad+mpa.CRCLen {
		return false
	}
	d.active = false
	r.taken++
	r.r += pad + mpa.CRCLen
	if s.params.CRC {
		if err := mpa.CheckCRC(mpa.CRC(d.crc, trailer[:pad]), trailer[pad:pad+mpa.CRCLen]); err != nil {
			s.framingError(err)
			return true
		}
	}
	if r.first {
		s.firstFPDU()
	}
	s.deliver(&d.a, &d.h)
	return true
}
