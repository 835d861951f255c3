package ddp

import (
	"math"

	"github.com/govs-rdma/govs/provider/iwarp"
)

// CheckVersion verifies that the header's DV is version: [Version], or [RDMACVersion] for an RDMAC
// peer. It is the first check of a segment, because the rest of a header has no meaning if its
// version is another one. The error is [ErrTaggedVersion] or [ErrUntaggedVersion].
//
//rfc:5041 DDP-4.1-12 DV constant over the stream
//rfc:5041 DDP-4.1-13 Unknown DV, tagged: error 1/1/0x04
//rfc:5041 DDP-4.1-14 Unknown DV, untagged: error 1/2/0x06
func CheckVersion(h *Header, version uint8) error {
	switch {
	case h.Version == version:
		return nil
	case h.Tagged:
		return ErrTaggedVersion
	default:
		return ErrUntaggedVersion
	}
}

// Region is the STag table's entry for an STag, as seen by one stream for one kind of access. Base
// and Len have no meaning unless Valid.
type Region struct {
	Valid      bool   // the STag, its key octet included, names a registered buffer
	Associated bool   // in the protection domain of the stream, and not bound to another stream
	Allowed    bool   // it grants the right for the access
	Base       uint64 // TO of the buffer's first octet
	Len        uint64 // length of the buffer in octets
}

// Contains reports whether the n octets from offset to on lie within the region. None of its sums
// can wrap, whatever a peer asks for.
func (r *Region) Contains(to, n uint64) bool {
	return to >= r.Base && n <= r.Len && to-r.Base <= r.Len-n
}

// Wraps reports whether to+n does not fit 64 bits (RFC 5041 section 7.1, tagged
// check 5).
func Wraps(to, n uint64) bool { return n > math.MaxUint64-to }

// CheckTagged makes the checks of RFC 5041 section 7.1 for a tagged segment with payloadLen octets
// of payload at TO to. A segment without payload is valid whatever its STag and TO, so the caller
// need not look up r for it.
//
// Errors, in the order of the checks: [ErrInvalidSTag], [ErrSTagNotAssociated],
// [ErrTaggedAccess], [ErrTOWrap], [ErrBaseBounds].
func CheckTagged(r *Region, to uint64, payloadLen int) error {
	n := uint64(payloadLen)
	switch {
	//rfc:5041 DDP-5.2-09 STag/TO not checked for zero-length tagged message
	case n == 0:
		return nil
	//rfc:5041 DDP-7.1t1-01 Tagged: STag valid for this stream
	case !r.Valid:
		return ErrInvalidSTag
	//rfc:5041 DDP-8.2-01 PD mismatch: not placed, local error surfaced
	case !r.Associated:
		return ErrSTagNotAssociated
	//rfc:5041 DDP-7.1t2-01 Tagged: STag has a buffer allowing placement (rights)
	case !r.Allowed:
		return ErrTaggedAccess
	//rfc:5041 DDP-7.1t5-01 Tagged: 64-bit TO+len does not wrap
	case Wraps(to, n):
		return ErrTOWrap
	//rfc:5041 DDP-7.1t3-01 Tagged: TO within registered range
	//rfc:5041 DDP-7.1t4-01 Tagged: TO+len within range
	case !r.Contains(to, n):
		return ErrBaseBounds
	}
	return nil
}

// CheckUntagged checks a segment that [UntaggedQueue.Check] accepted against the buffer that the
// message consumes. available reports whether there is a buffer; bufferLen is its length in octets.
// A message without payload needs a buffer too, which may have length zero.
//
// Errors: [ErrNoBuffer], [ErrTooLong].
//
//rfc:5041 DDP-7.1u2-01 Untagged: a buffer exists for QN/MSN
//rfc:5041 DDP-7.1u4-01 Untagged: MO+len within buffer
func CheckUntagged(mo uint32, payloadLen int, available bool, bufferLen uint64) error {
	switch {
	case !available:
		return ErrNoBuffer
	case uint64(mo)+uint64(payloadLen) > bufferLen:
		return ErrTooLong
	}
	return nil
}

// ErrShortSegment reports a ULPDU that ends inside its DDP header. See the
// package comment for why it carries an LLP code.
var ErrShortSegment = &iwarp.Error{Layer: iwarp.LayerLLP, EType: iwarp.MPAErrors, Code: iwarp.MPAMarker,
	Reason: "the ULPDU is shorter than its DDP header"}

// Errors of tagged segments (RFC 5041 section 7.2, error type 1).
//
//rfc:5041 DDP-7.2-01 Error numbers as in the table
var (
	ErrTaggedVersion = tagged(iwarp.DDPTaggedInvalidVersion, "DV of a tagged segment is not the stream's")

	ErrInvalidSTag  = tagged(iwarp.DDPTaggedInvalidSTag, "the STag names no buffer")
	ErrTaggedAccess = tagged(iwarp.DDPTaggedInvalidSTag,
		"the buffer of the STag does not allow placement by the peer")
	ErrSTagChanged       = tagged(iwarp.DDPTaggedInvalidSTag, "the STag differs from that of the message's first segment")
	ErrSTagNotAssociated = tagged(iwarp.DDPTaggedSTagNotAssociated,
		"the STag belongs to another protection domain or stream")
	ErrTOWrap     = tagged(iwarp.DDPTaggedTOWrap, "TO plus payload length passes 2^64")
	ErrBaseBounds = tagged(iwarp.DDPTaggedBaseBounds, "TO and payload length are not within the buffer of the STag")
)

// Errors of untagged segments (RFC 5041 section 7.2, error type 2).
//
//rfc:5041 DDP-7.2-01 Error numbers as in the table
var (
	ErrUntaggedVersion = untagged(iwarp.DDPUntaggedInvalidVersion, "DV of an untagged segment is not the stream's")

	ErrInvalidQN     = untagged(iwarp.DDPUntaggedInvalidQN, "there is no such untagged queue")
	ErrNoBuffer      = untagged(iwarp.DDPUntaggedNoBuffer, "no buffer is available for the message")
	ErrMSNRange      = untagged(iwarp.DDPUntaggedMSNRange, "MSN is not that of the queue's current message")
	ErrInvalidMO     = untagged(iwarp.DDPUntaggedInvalidMO, "MO is not where the message's previous segment ended")
	ErrTooLong       = untagged(iwarp.DDPUntaggedMessageTooLong, "the message is longer than its buffer")
	ErrMessageLength = untagged(iwarp.DDPUntaggedMessageTooLong, "MO plus payload length passes 2^32 - 1")
)

// ErrCatastrophic is DDP's local catastrophic error: the fault is on this side.
//
//rfc:5041 DDP-7.2-02 Type 0 code 0 for local catastrophic
var ErrCatastrophic = &iwarp.Error{Layer: iwarp.LayerDDP, EType: iwarp.DDPLocalCatastrophic,
	Reason: "a local fault prevents placement"}

func tagged(c iwarp.Code, reason string) *iwarp.Error {
	return &iwarp.Error{Layer: iwarp.LayerDDP, EType: iwarp.DDPTaggedBuffer, Code: c, Reason: reason}
}

func untagged(c iwarp.Code, reason string) *iwarp.Error {
	return &iwarp.Error{Layer: iwarp.LayerDDP, EType: iwarp.DDPUntaggedBuffer, Code: c, Reason: reason}
}
