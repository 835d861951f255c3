package mpa

import "encoding/binary"

// Sizes of Markers, in octets (RFC 5044 sections 4.2 and 4.3).
const (
	MarkerLen      = 4
	MarkerInterval = 512 // from the first octet of a Marker to the first octet of the next
)

// Marker is a Marker (RFC 5044 section 4.2). FPDUPTR is the number of octets in the stream from the
// ULPDU_Length of its FPDU to the Marker, or zero if the Marker is in front of ULPDU_Length.
type Marker struct {
	Reserved uint16
	FPDUPTR  uint16
}

// AppendTo appends the four octets of the Marker to b, as they are.
func (m Marker) AppendTo(b []byte) []byte {
	b = binary.BigEndian.AppendUint16(b, m.Reserved)
	return binary.BigEndian.AppendUint16(b, m.FPDUPTR)
}

// ParseMarker parses the Marker in the four octets of b. ok is false when there
// are fewer.
func ParseMarker(b []byte) (m Marker, ok bool) {
	if len(b) < MarkerLen {
		return Marker{}, false
	}
	return Marker{binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:])}, true
}

// StreamLen returns the number of octets that the FPDU of a ULPDU of ulpduLen octets occupies in a
// stream with Markers. pos is its position, counted from the start of the Full Operation Phase. A
// Marker in front of ULPDU_Length counts, one after the CRC does not.
func StreamLen(pos uint64, ulpduLen int) int {
	length := FPDULen(ulpduLen)
	// Room for octets of the FPDU up to the next Marker: a whole interval after a Marker in front
	// of ULPDU_Length.
	room := MarkerInterval - int(pos%MarkerInterval)
	markers := 0
	if room == MarkerInterval {
		room -= MarkerLen
		markers = 1
	}
	if length > room {
		const perInterval = MarkerInterval - MarkerLen
		markers += (length - room + perInterval - 1) / perInterval
	}
	return length + markers*MarkerLen
}

// Framer builds the FPDUs of one outbound half connection, with or without Markers and CRCs. It
// copies the ULPDU. The zero Framer uses neither.
type Framer struct {
	markers, crc bool
	pos          uint64
}

// NewFramer returns a Framer at the start of the Full Operation Phase; its arguments are
// Params.MarkersTx and Params.CRC.
func NewFramer(markers, crc bool) Framer { return Framer{markers: markers, crc: crc} }

// Pos returns the number of octets built so far. Only its remainder modulo MarkerInterval matters
// for Markers.
func (f *Framer) Pos() uint64 { return f.pos }

// Len returns the number of octets that AppendFPDU would append for a ULPDU of
// ulpduLen octets.
func (f *Framer) Len(ulpduLen int) int {
	if f.markers {
		return StreamLen(f.pos, ulpduLen)
	}
	return FPDULen(ulpduLen)
}

// AppendFPDU appends one FPDU to dst: the ULPDU is the concatenation of the given slices. If it is
// too long, AppendFPDU returns ErrULPDUTooLong and dst unchanged.
//
// If dst has room for Len octets, nothing is allocated. The ULPDU is not retained. dst and the
// ULPDU must not overlap.
//
//rfc:5044 MPA-3-01 Exactly one ULPDU per FPDU
//rfc:5044 MPA-4.1-01 FPDU layout: 16-bit length, ULPDU, pad, 32-bit CRC
//rfc:5044 MPA-4.3-01 Every sender can generate markers when the receiver asks
func (f *Framer) AppendFPDU(dst []byte, ulpdu ...[]byte) ([]byte, error) {
	ulpduLen := 0
	for _, p := range ulpdu {
		ulpduLen += len(p)
	}
	if err := CheckULPDULen(ulpduLen); err != nil {
		return dst, err
	}
	//rfc:5044 MPA-4.3-06 Between-FPDU marker belongs to the following FPDU for CRC
	//rfc:5044 MPA-4.4-12 Leading marker is covered when it precedes ULPDU_Length
	begin := len(dst) // the CRC covers the stream from here, a leading Marker included
	start := f.pos    // of ULPDU_Length
	//rfc:5044 MPA-4.3-05 FPDUPTR zero when the marker falls between FPDUs
	//rfc:5044 MPA-4.3-08 First marker precedes the first FPDU, FPDUPTR 0
	//rfc:5044 MPA-7.1.2-7-01 First FPDU: zero marker first if markers are on
	if f.markers && f.pos%MarkerInterval == 0 {
		dst = Marker{}.AppendTo(dst)
		f.pos += MarkerLen
		start = f.pos
	}
	header := [HeaderLen]byte{byte(ulpduLen >> 8), byte(ulpduLen)}
	dst = f.appendOctets(dst, header[:], start)
	for _, p := range ulpdu {
		dst = f.appendOctets(dst, p, start)
	}
	dst = f.appendOctets(dst, zeroPad[:PadLen(ulpduLen)], start)
	//rfc:5044 MPA-4.3-11 Marker between PAD and CRC is covered by that CRC
	dst = f.appendMarker(dst, start) // between pad and CRC, where it is covered
	var crc uint32
	if f.crc {
		crc = CRC(0, dst[begin:])
	}
	f.pos += CRCLen
	return binary.LittleEndian.AppendUint32(dst, crc), nil
}

// appendOctets appends p, and inserts a Marker wherever the position in the stream requires one.
func (f *Framer) appendOctets(dst, p []byte, start uint64) []byte {
	for len(p) > 0 {
		dst = f.appendMarker(dst, start)
		n := len(p)
		if f.markers {
			n = min(n, MarkerInterval-int(f.pos%MarkerInterval))
		}
		dst = append(dst, p[:n]...)
		p = p[n:]
		f.pos += uint64(n)
	}
	return dst
}

// appendMarker appends a Marker if the position requires one. FPDUPTR is a multiple of four because
// ULPDU_Length and Markers both begin at multiples of four.
//
//rfc:5044 MPA-4.2-01 Marker = 16-bit reserved + 16-bit FPDUPTR
//rfc:5044 MPA-4.2-02 Marker reserved field zero on send
//rfc:5044 MPA-4.2-04 Low two FPDUPTR bits sent as zero
func (f *Framer) appendMarker(dst []byte, start uint64) []byte {
	//rfc:5044 MPA-4.3-02 Markers every 512 octets of TCP sequence space
	//rfc:5044 MPA-4.3-03 Marker positions count the octets of markers too
	if !f.markers || f.pos%MarkerInterval != 0 {
		return dst
	}
	//rfc:5044 MPA-4.3-04 FPDUPTR = distance from the ULPDU_Length field to the marker
	//rfc:5044 MPA-4.3-09 All markers inside one FPDU point to its ULPDU_Length field
	dst = Marker{FPDUPTR: uint16(f.pos - start)}.AppendTo(dst)
	f.pos += MarkerLen
	return dst
}
