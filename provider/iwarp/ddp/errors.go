package ddp

import "github.com/govs-rdma/govs/provider/iwarp"

// ErrShortSegment reports a ULPDU that ends inside its DDP header. See the
// package comment for why it carries an LLP code.
var ErrShortSegment = &iwarp.Error{Layer: iwarp.LayerLLP, EType: iwarp.MPAErrors, Code: iwarp.MPAMarker,
	Reason: "the ULPDU is shorter than its DDP header"}

// Errors of tagged segments (RFC 5041 section 7.2, error type 1).
//
//rfc:5041 DDP-7.2-01 Error numbers as in the table
var (
	ErrTaggedVersion = tagged(iwarp.DDPTaggedInvalidVersion, "DV of a tagged segment is not the stream's")

	ErrInvalidSTag       = tagged(iwarp.DDPTaggedInvalidSTag, "the STag names no buffer")
	ErrTaggedAccess      = tagged(iwarp.DDPTaggedInvalidSTag, "the buffer of the STag does not allow placement by the peer")
	ErrSTagChanged       = tagged(iwarp.DDPTaggedInvalidSTag, "the STag differs from that of the message's first segment")
	ErrSTagNotAssociated = tagged(iwarp.DDPTaggedSTagNotAssociated, "the STag belongs to another protection domain or stream")
	ErrTOWrap            = tagged(iwarp.DDPTaggedTOWrap, "TO plus payload length passes 2^64")
	ErrBaseBounds        = tagged(iwarp.DDPTaggedBaseBounds, "TO and payload length are not within the buffer of the STag")
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
