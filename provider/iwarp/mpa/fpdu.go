package mpa

import (
	"encoding/binary"
	"errors"

	"github.com/govs-rdma/govs/provider/iwarp"
	"github.com/govs-rdma/govs/provider/iwarp/mpa/crc32c"
)

// Sizes of FPDUs, in octets (RFC 5044 section 4.1). An FPDU without Markers is
// ULPDU_Length, ULPDU, pad and CRC.
const (
	HeaderLen     = 2 // ULPDU_Length
	MaxPadLen     = 3
	CRCLen        = 4 // present even when CRCs are off
	MaxTrailerLen = MaxPadLen + CRCLen
	MaxULPDU      = 64768                                   // longest ULPDU a sender may use (RFC 5044 section 3)
	MinMULPDU     = 128                                     // lower bound of MULPDU (RFC 5044 section 4.5)
	MaxFPDULen    = HeaderLen + 0xffff + MaxPadLen + CRCLen // without Markers
)

// ErrULPDUTooLong reports that a caller wanted to send a ULPDU longer than MaxULPDU.
var ErrULPDUTooLong = errors.New("mpa: ULPDU is longer than 64768 octets")

// Errors of received FPDUs. After any of them nothing more of this half connection may be
// delivered, but closing it is left to the ULP, so that it can still send a Terminate message (RFC
// 5044 section 8).
var (
	ErrCRC    = mpaError(iwarp.MPACRC, "FPDU has a wrong CRC")                                    // 2/0/0x02
	ErrMarker = mpaError(iwarp.MPAMarker, "FPDUPTR of a Marker does not point to the FPDU start") // 2/0/0x03

	// ErrULPDULength is also 2/0/0x03, because siw reports a ULPDU that is too short for its header
	// this way, and the RFCs have no better code.
	ErrULPDULength = mpaError(iwarp.MPAMarker, "ULPDU_Length is too small for the headers it has to contain")
)

// PadLen returns the number of pad octets, 0 to 3, after a ULPDU of ulpduLen octets. They make the
// FPDU's length a multiple of four.
//
//rfc:5044 MPA-4.1-03 Pad 0-3 octets so the FPDU is a multiple of 4
func PadLen(ulpduLen int) int { return -(HeaderLen + ulpduLen) & 3 }

// FPDULen returns the length in octets, without Markers, of the FPDU of a ULPDU
// of ulpduLen octets.
func FPDULen(ulpduLen int) int { return (HeaderLen+ulpduLen+3)&^3 + CRCLen }

// CheckULPDULen returns ErrULPDUTooLong if a sender may not use a ULPDU of
// ulpduLen octets.
//
//rfc:5044 MPA-3-05 No ULPDU larger than 64768 octets is posted
func CheckULPDULen(ulpduLen int) error {
	if ulpduLen > MaxULPDU {
		return ErrULPDUTooLong
	}
	return nil
}

// AppendHeader appends ULPDU_Length to b, big-endian. It does not check the length (see
// CheckULPDULen), so it can write 65535 too.
func AppendHeader(b []byte, ulpduLen uint16) []byte {
	return binary.BigEndian.AppendUint16(b, ulpduLen)
}

// ParseHeader decodes the first two octets of an FPDU. It returns the length of its ULPDU and of
// the whole FPDU, without Markers, in octets. ok is false when b is shorter than two octets.
//
//rfc:5044 MPA-4.1-02 ULPDU_Length counts the ULPDU only
//rfc:5044 MPA-5.2-01 Boundaries found from ULPDU_Length on a stream
func ParseHeader(b []byte) (ulpduLen, fpduLen int, ok bool) {
	if len(b) < HeaderLen {
		return 0, 0, false
	}
	ulpduLen = int(binary.BigEndian.Uint16(b))
	return ulpduLen, FPDULen(ulpduLen), true
}

// CRC extends a running CRC32c by p. An FPDU's CRC begins with 0 and covers, in order,
// ULPDU_Length, ULPDU and pad, and every Marker at its place in the stream.
//
//rfc:5044 MPA-4.4-01 CRC support is implemented
//rfc:5044 MPA-4.4-10 CRC is CRC32c with iSCSI's conventions and octet order
//rfc:5044 MPA-4.4-11 CRC covers length..PAD incl. embedded markers
func CRC(crc uint32, p []byte) uint32 { return crc32c.Update(crc, p) }

// CopyCRC copies src to the first octets of dst and extends crc by the copied octets in the same
// pass, so the CRC is correct even if src changes. dst and src must not overlap; a dst that is
// shorter than src panics.
func CopyCRC(crc uint32, dst, src []byte) uint32 { return crc32c.Copy(crc, dst, src) }

var zeroPad [MaxPadLen]byte

// AppendTrailer appends pad and CRC to b. crc is the running CRC over the header and the ULPDU of
// ulpduLen octets; AppendTrailer extends it by the pad. With withCRC false the CRC field is zero
// and crc is ignored. The CRC is stored least significant octet first.
//
//rfc:5044 MPA-4.1-04 Pad octets are zero on send
//rfc:5044 MPA-4.1-06 CRC field present even when CRC is off
//rfc:5044 MPA-4.4-10 CRC is CRC32c with iSCSI's conventions and octet order
func AppendTrailer(b []byte, ulpduLen int, crc uint32, withCRC bool) []byte {
	pad := zeroPad[:PadLen(ulpduLen)]
	b = append(b, pad...)
	if !withCRC {
		return append(b, 0, 0, 0, 0)
	}
	return binary.LittleEndian.AppendUint32(b, CRC(crc, pad))
}

// CheckCRC compares crc, computed over an FPDU up to and including its pad, with the FPDU's CRC
// field of four octets. The error is ErrCRC. Do not call it when CRCs are off, because the field
// may then have any value.
//
//rfc:5044 MPA-4.4-14 CRC mismatch makes the FPDU invalid
//rfc:5044 MPA-8-2-01 Detect CRC mismatch (code 2)
func CheckCRC(crc uint32, field []byte) error {
	if len(field) < CRCLen || binary.LittleEndian.Uint32(field) != crc {
		return ErrCRC
	}
	return nil
}

// CheckMinULPDU returns ErrULPDULength if ulpduLen is below minLen, the length of
// the headers that the layers above need.
//
//rfc:5044 MPA-4.1-08 Any ULPDU_Length from the minimum header up is accepted
func CheckMinULPDU(ulpduLen, minLen int) error {
	if ulpduLen < minLen {
		return ErrULPDULength
	}
	return nil
}

// SealFPDU overwrites the last four octets of fpdu with the CRC of all octets before them. fpdu is
// one FPDU as in the stream, including its Markers, also the one in front of ULPDU_Length. It is
// for peers that change an FPDU on purpose and want its CRC to be right. A slice of fewer than four
// octets is not changed.
func SealFPDU(fpdu []byte) {
	if end := len(fpdu) - CRCLen; end >= 0 {
		binary.LittleEndian.PutUint32(fpdu[end:], CRC(0, fpdu[:end]))
	}
}

// sealRun is the number of FPDUs that are sealed and verified together.
const sealRun = 16

// SealFPDUs seals each of the consecutive FPDUs of size octets in fpdus. It is faster than a call
// of SealFPDU for each.
func SealFPDUs(fpdus []byte, size int) {
	if len(fpdus) == size {
		SealFPDU(fpdus)
		return
	}
	var crcs [sealRun]uint32
	for len(fpdus) >= size {
		run := crcs[:min(len(fpdus)/size, sealRun)]
		crc32c.Each(run, fpdus, size-CRCLen, size)
		for _, crc := range run {
			binary.LittleEndian.PutUint32(fpdus[size-CRCLen:], crc)
			fpdus = fpdus[size:]
		}
	}
}

// MULPDU returns the length of the largest ULPDU whose FPDU fits into a TCP
// segment of emss octets (RFC 5044 section 4.5), at least MinMULPDU and at most
// MaxULPDU. With markers it leaves room for the worst-case number of Markers.
//
//rfc:5044 MPA-3-04 MULPDU never below 128 nor above 64768
//rfc:5044 MPA-4.5-01 MULPDU with markers = EMSS-(6+4*ceil(EMSS/512)+EMSS mod 4)
//rfc:5044 MPA-4.5-02 MULPDU without markers = EMSS-(6+EMSS mod 4)
//rfc:5044 MPA-4.5-05 MULPDU floor of 128 kept when EMSS <128
func MULPDU(emss int, markers bool) int {
	overhead := HeaderLen + CRCLen + emss%4
	if markers {
		overhead += MarkerLen * ((emss + MarkerInterval - 1) / MarkerInterval)
	}
	return min(max(emss-overhead, MinMULPDU), MaxULPDU)
}
