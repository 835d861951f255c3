package rdmap

import (
	"encoding/binary"

	"github.com/govs-rdma/govs/provider/iwarp/ddp"
)

// ReadRequestLen is the length in octets of the RDMA Read Request header, which
// is the whole payload of a Read Request message.
const ReadRequestLen = 28

// ReadRequest is the RDMA Read Request header (RFC 5040 figure 6).
type ReadRequest struct {
	SinkSTag   uint32 // copied into the response without interpretation
	SinkTO     uint64 // TO of the response's first octet
	Size       uint32 // octets to read
	SourceSTag uint32
	SourceTO   uint64
}

// AppendTo appends the header's 28 octets to b. It allocates only when b lacks
// the capacity.
//
//rfc:5040 RDMAP-4.2-01 RDMA header for ReadReq and Terminate only
//rfc:5040 RDMAP-4.4-01 ReadReq header of 28 octets
func (r *ReadRequest) AppendTo(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, r.SinkSTag)
	b = binary.BigEndian.AppendUint64(b, r.SinkTO)
	b = binary.BigEndian.AppendUint32(b, r.Size)
	b = binary.BigEndian.AppendUint32(b, r.SourceSTag)
	return binary.BigEndian.AppendUint64(b, r.SourceTO)
}

// ParseReadRequest reads the header from the payload of a Read Request message.
// Errors: [ErrShortReadRequest] for fewer than 28 octets, [ErrLongReadReq] for
// more.
//
//rfc:5040 RDMAP-4.2-02 No ULP payload after ReadReq/Terminate headers
func ParseReadRequest(payload []byte) (ReadRequest, error) {
	switch {
	case len(payload) < ReadRequestLen:
		return ReadRequest{}, ErrShortReadRequest
	case len(payload) > ReadRequestLen:
		return ReadRequest{}, ErrLongReadReq
	}
	return decodeReadRequest(payload), nil
}

// decodeReadRequest reads the header from the first 28 octets of b.
func decodeReadRequest(b []byte) ReadRequest {
	return ReadRequest{
		SinkSTag:   binary.BigEndian.Uint32(b),
		SinkTO:     binary.BigEndian.Uint64(b[4:]),
		Size:       binary.BigEndian.Uint32(b[12:]),
		SourceSTag: binary.BigEndian.Uint32(b[16:]),
		SourceTO:   binary.BigEndian.Uint64(b[20:]),
	}
}

// Advance returns the request without the first done octets of the response, which were sent. A
// Terminate reports a Read that failed midway in this form (RFC 5040 section 4.8). done is at most
// Size.
//
//rfc:5040 RDMAP-4.8-11 Partly processed ReadReq: header updated to progress
func (r *ReadRequest) Advance(done uint32) ReadRequest {
	a := *r
	a.SinkTO += uint64(done)
	a.SourceTO += uint64(done)
	a.Size -= done
	return a
}

// CheckReadSource makes the checks of RFC 5040 section 7.2 for the source of a Read: size octets at
// TO to of the region that the source STag names. A Read of size zero is valid whatever its source
// STag and TO, so the caller need not look up r for it.
//
// Errors, in the order of the checks: [ErrReadInvalidSTag],
// [ErrReadNotAssociated], [ErrReadAccess], [ErrReadTOWrap], [ErrReadBaseBounds].
//
//rfc:5040 RDMAP-5.2.1-08 Non-zero size: source STag/TO validated
func CheckReadSource(r *ddp.Region, to uint64, size uint32) error {
	n := uint64(size)
	switch {
	//rfc:5040 RDMAP-5.2.1-09 Zero size: STag/TO not validated
	case n == 0:
		return nil
	//rfc:5040 RDMAP-7.2-07 ReadReq source STag valid
	case !r.Valid:
		return ErrReadInvalidSTag
	//rfc:5040 RDMAP-7.2-08 ReadReq source STag associated with this stream
	case !r.Associated:
		return ErrReadNotAssociated
	//rfc:5040 RDMAP-7.2-12 ReadReq source has remote-read right
	case !r.Allowed:
		return ErrReadAccess
	//rfc:5040 RDMAP-7.2-11 ReadReq TO+size does not wrap
	case ddp.Wraps(to, n):
		return ErrReadTOWrap
	//rfc:5040 RDMAP-7.2-09 ReadReq source TO in range
	//rfc:5040 RDMAP-7.2-10 ReadReq TO+size in range
	case !r.Contains(to, n):
		return ErrReadBaseBounds
	}
	return nil
}

// CheckInvalidate decides whether the peer may invalidate the STag that a Send with Invalidate
// names. It uses only Valid, Associated and Allowed of r. Allowed is the right to remote
// invalidation, which an STag shared by several streams must not grant (RFC 5040 section 8.1.1).
//
// Errors: [ErrCannotInvalidate] (0/2/0x09) for an STag that names no buffer, for example because it
// is already invalid; [ErrMayNotInvalidate] (0/1/0x09) for one that the peer may not invalidate.
// RFC 5040 lists the code under both error types and does not say when to use which; siw uses them
// in the same way.
//
//rfc:5040 RDMAP-7.2-05 Invalidate STag valid
//rfc:5040 RDMAP-7.2-06 Invalidate STag belongs to this stream
//rfc:5040 RDMAP-8.1.1-7-01 Peer cannot invalidate an STag shared by several streams
func CheckInvalidate(r *ddp.Region) error {
	switch {
	case !r.Valid:
		return ErrCannotInvalidate
	case !r.Associated, !r.Allowed:
		return ErrMayNotInvalidate
	}
	return nil
}
