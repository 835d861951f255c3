package mpa

import (
	"encoding/binary"

	"github.com/govs-rdma/govs/provider/iwarp/mpa/crc32c"
)

// Span is one whole FPDU found by Receiver.Next.
type Span struct {
	// ULPDU is a part of Next's buf, or with Markers of its scratch. It is valid until the caller
	// reuses that memory.
	ULPDU []byte
	// Len is the number of octets of buf that the FPDU occupies: Markers, pad
	// and CRC included. The next FPDU begins there.
	Len int
}

// Receiver finds the FPDUs of one inbound half connection in contiguous octets. It returns only
// whole ULPDUs, after their CRC and Markers were verified.
//
// For a stream that arrives in pieces, Deframer avoids joining them.
type Receiver struct {
	d Deframer
}

// NewReceiver returns a Receiver at the start of the Full Operation Phase; its arguments are
// Params.MarkersRx and Params.CRC.
func NewReceiver(markers, crc bool) Receiver { return Receiver{d: NewDeframer(markers, crc)} }

// Pos returns the number of octets of the stream consumed so far.
func (r *Receiver) Pos() uint64 { return r.d.pos }

// Next verifies the FPDU at the start of buf, which may hold more or less than the FPDU.
//
//   - If the FPDU is complete, need is 0, the Span describes it, and the Receiver has advanced past
//     it. The caller drops Span.Len octets from buf.
//   - If it is incomplete, need is the number of octets that buf must hold before another call is
//     useful, more than it holds now. Nothing was consumed.
//   - If it is wrong, err is ErrCRC or ErrMarker, and all later calls return the same error. A
//     wrong CRC hides a wrong Marker (RFC 5044 section 8, code 3).
//
// scratch is used only with Markers: the ULPDU is copied to scratch[:0], which grows by allocation
// if its capacity is below ULPDU length plus 9 (header, pad and CRC pass through it as well).
// Without Markers it may be nil. scratch must not overlap buf.
//
//rfc:5044 MPA-3-06 ULPDU handed up only after validation, with its length
//rfc:5044 MPA-6-01 FPDU verified (start located, CRC ok) before passing up
//rfc:5044 MPA-6-02 Whole FPDU present before forwarding
//rfc:5044 MPA-6-03 Boundary known only from a valid FPDU's length or a marker
func (r *Receiver) Next(buf, scratch []byte) (s Span, need int, err error) {
	if r.d.err != nil {
		return Span{}, 0, r.d.err
	}
	lead := 0
	if r.d.markers && r.d.pos%MarkerInterval == 0 {
		lead = MarkerLen
	}
	if len(buf) < lead+HeaderLen {
		return Span{}, lead + HeaderLen, nil
	}
	ulpduLen, total, _ := ParseHeader(buf[lead:])
	if !r.d.markers {
		if len(buf) < total {
			return Span{}, total, nil
		}
		return r.plain(buf[:total:total], ulpduLen)
	}
	total = StreamLen(r.d.pos, ulpduLen)
	if len(buf) < total {
		return Span{}, total, nil
	}
	fpdu, _, _, err := r.d.Feed(scratch[:0], buf[:total])
	if err != nil {
		return Span{}, 0, err
	}
	return Span{ULPDU: fpdu[HeaderLen : HeaderLen+ulpduLen], Len: total}, 0, nil
}

// The limits of Run: longer FPDUs gain nothing, and for fewer FPDUs the search costs more than it
// saves.
const (
	runLongest  = 1 << 10
	runShortest = 4
)

// Run looks at the start of buf for whole FPDUs of the same length, as produced by short messages
// that were posted together. It verifies several of them at less cost than as many calls of Next.
// It returns the number of good FPDUs, and the length of the ULPDU of each; the Receiver has
// advanced past them. FPDU i begins at i*FPDULen(ulpduLen) of buf.
//
// If n is 0, Run has done nothing, and the caller continues with Next. That happens if an FPDU is
// wrong or incomplete, with Markers, and if Run would not be faster.
//
//rfc:5044 MPA-4.4-14 CRC mismatch makes the FPDU invalid
func (r *Receiver) Run(buf []byte) (n, ulpduLen int) {
	if r.d.err != nil || r.d.markers || len(buf) < HeaderLen {
		return 0, 0
	}
	ulpduLen, size, _ := ParseHeader(buf)
	if size > runLongest || len(buf) < runShortest*size {
		return 0, 0
	}
	most := min(len(buf)/size, sealRun)
	for n = 1; n < most && buf[n*size] == buf[0] && buf[n*size+1] == buf[1]; n++ {
	}
	if n < runShortest {
		return 0, 0
	}
	if r.d.crc {
		var crcs [sealRun]uint32
		crc32c.Each(crcs[:n], buf, size-CRCLen, size)
		for i, crc := range crcs[:n] {
			if CheckCRC(crc, buf[i*size+size-CRCLen:]) != nil {
				n = i // Next reports the error
				break
			}
		}
	}
	r.d.pos += uint64(n * size)
	return n, ulpduLen
}

// plain verifies an FPDU without Markers.
func (r *Receiver) plain(fpdu []byte, ulpduLen int) (Span, int, error) {
	end := len(fpdu) - CRCLen
	if r.d.crc {
		if err := CheckCRC(CRC(0, fpdu[:end]), fpdu[end:]); err != nil {
			r.d.err = err
			return Span{}, 0, err
		}
	}
	r.d.pos += uint64(len(fpdu))
	return Span{ULPDU: fpdu[HeaderLen : HeaderLen+ulpduLen], Len: len(fpdu)}, 0, nil
}

// Deframer reads one inbound half connection in pieces of any size, removes its Markers and
// verifies its FPDUs.
type Deframer struct {
	markers, crc bool
	pos          uint64 // octets of the stream consumed
	err          error

	// The current FPDU.
	running   uint32 // CRC so far
	start     uint64 // position of ULPDU_Length
	got       int    // octets so far, without Markers
	length    int    // of the FPDU without Markers; known once got >= HeaderLen
	misplaced bool   // a Marker's FPDUPTR was wrong
	header    [HeaderLen]byte
	marker    [MarkerLen]byte
	trailer   [CRCLen]byte
}

// NewDeframer returns a Deframer at the start of the Full Operation Phase.
func NewDeframer(markers, crc bool) Deframer { return Deframer{markers: markers, crc: crc} }

// Pos returns the number of octets of the stream consumed so far.
func (d *Deframer) Pos() uint64 { return d.pos }

// MidFPDU reports whether the octets consumed so far end inside an FPDU, so that an end of the
// stream here would cut it off. A Marker in front of ULPDU_Length is part of the FPDU.
func (d *Deframer) MidFPDU() bool {
	slot := d.pos % MarkerInterval
	return d.got > 0 || d.markers && 0 < slot && slot <= MarkerLen
}

// Feed consumes octets of the stream up to the end of the current FPDU, and appends them to dst
// without the Markers: ULPDU_Length, ULPDU, pad, CRC.
//
// It returns dst, the number of octets of src consumed, and whether the FPDU ended. If it ended, it
// was verified, and the octets appended since the previous end are an FPDU with this ULPDU_Length.
// They must not be used earlier. The rest of src is for the next call. If the FPDU did not end, all
// of src was consumed.
//
// The error is ErrCRC or ErrMarker, at the end of the FPDU concerned, and all later calls return it
// too. Feed retains nothing of dst or src.
//
//rfc:5044 MPA-4.3-12 Receiver strips markers, length and CRC before DDP
//rfc:5044 MPA-4.3-13 Receiver preserves ULPDU boundaries
//rfc:5044 MPA-5.1-03 Receiver works when alignment is lost
func (d *Deframer) Feed(dst, src []byte) (out []byte, n int, done bool, err error) {
	//rfc:5044 MPA-8-02 After an MPA error no further FPDU of that half is passed up
	if d.err != nil {
		return dst, 0, false, d.err
	}
	for n < len(src) {
		if slot := d.pos % MarkerInterval; d.markers && slot < MarkerLen {
			//rfc:5044 MPA-4.3-14 Markers may split at any 4-octet boundary
			n += d.takeMarker(src[n:], int(slot))
			continue
		}
		chunk := d.chunk(src[n:])
		d.takeOctets(chunk)
		dst = append(dst, chunk...)
		n += len(chunk)
		if d.got >= HeaderLen && d.got == d.length {
			if d.err = d.finish(); d.err != nil {
				return dst, n, false, d.err
			}
			return dst, n, true, nil
		}
	}
	return dst, n, false, nil
}

// takeMarker consumes octets of the Marker that began slot octets ago.
//
//rfc:5044 MPA-4.2-03 Marker reserved ignored on receive (except CRC)
func (d *Deframer) takeMarker(src []byte, slot int) int {
	n := copy(d.marker[slot:], src)
	//rfc:5044 MPA-4.3-06 Between-FPDU marker belongs to the following FPDU for CRC
	d.running = CRC(d.running, src[:n])
	d.pos += uint64(n)
	if slot+n < MarkerLen {
		return n
	}
	// The position is a count of octets, so that it does not wrap as a TCP
	// sequence number does. Only FPDUPTR has 16 bits.
	//rfc:5044 MPA-4.3-07 Marker arithmetic survives TCP sequence wrap
	want := uint16(0)
	if d.got > 0 {
		//rfc:5044 MPA-4.3-10 Marker points to the FPDU that contains it
		want = uint16(d.pos - MarkerLen - d.start)
	}
	m, _ := ParseMarker(d.marker[:])
	//rfc:5044 MPA-4.2-05 Low two FPDUPTR bits treated as zero on receive
	if m.FPDUPTR&^3 != want {
		d.misplaced = true
	}
	return n
}

// chunk returns the part of src that belongs to the same class of fields, up to the next Marker:
// the header, the fields that the CRC covers, or the CRC itself.
func (d *Deframer) chunk(src []byte) []byte {
	var left int
	switch {
	case d.got < HeaderLen:
		left = HeaderLen - d.got
	case d.got < d.length-CRCLen:
		left = d.length - CRCLen - d.got
	default:
		left = d.length - d.got
	}
	if d.markers {
		left = min(left, MarkerInterval-int(d.pos%MarkerInterval))
	}
	return src[:min(left, len(src))]
}

// takeOctets accounts for a chunk.
func (d *Deframer) takeOctets(chunk []byte) {
	switch {
	case d.got < HeaderLen:
		if d.got == 0 {
			d.start = d.pos
		}
		copy(d.header[d.got:], chunk)
		d.running = CRC(d.running, chunk)
		if d.got+len(chunk) == HeaderLen {
			d.length = FPDULen(int(binary.BigEndian.Uint16(d.header[:])))
		}
	case d.got < d.length-CRCLen:
		d.running = CRC(d.running, chunk)
	default:
		copy(d.trailer[d.got-(d.length-CRCLen):], chunk)
	}
	d.got += len(chunk)
	d.pos += uint64(len(chunk))
}

// finish verifies the FPDU that just ended and prepares for the next.
//
//rfc:5044 MPA-4.1-07 CRC content not checked when CRC is off
//rfc:5044 MPA-8-3-01 Detect marker/length disagreement (code 3)
func (d *Deframer) finish() error {
	if d.crc {
		if err := CheckCRC(d.running, d.trailer[:]); err != nil {
			return err
		}
	}
	if d.misplaced {
		return ErrMarker
	}
	d.running, d.got, d.length = 0, 0, 0
	return nil
}
