package rdmap

import "github.com/govs-rdma/govs/provider/iwarp"

// Errors of the RDMAP layer that any message can cause (RFC 5040 figure 9,
// remote operation errors).
var (
	ErrVersion           = operation(iwarp.RDMAPInvalidVersion, "RV is not that of the stream")
	ErrReservedOpcode    = operation(iwarp.RDMAPUnexpectedOpcode, "the opcode is reserved")
	ErrBufferModel       = operation(iwarp.RDMAPUnexpectedOpcode, "the T bit does not fit the opcode")
	ErrOpcodeChanged     = operation(iwarp.RDMAPUnexpectedOpcode, "the opcode differs from that of the unfinished message")
	ErrUnsolicited       = operation(iwarp.RDMAPUnexpectedOpcode, "a Read Response without an outstanding Read Request")
	ErrShortReadRequest  = operation(iwarp.RDMAPUnspecified, "the Read Request is shorter than its 28-octet header")
	ErrShortTerminate    = operation(iwarp.RDMAPUnspecified, "the Terminate is shorter than its 4-octet control field")
	ErrCannotInvalidate  = operation(iwarp.RDMAPCannotInvalidate, "the STag to invalidate names no buffer")
	ErrMayNotInvalidate  = protection(iwarp.RDMAPCannotInvalidate, "the STag to invalidate is not the peer's to invalidate")
	ErrStreamCatastrophe = operation(iwarp.RDMAPCatastrophicStream, "a fault of this stream")
)

// Errors of the data source of an RDMA Read (RFC 5040 figure 9, remote
// protection errors).
var (
	ErrReadInvalidSTag   = protection(iwarp.RDMAPInvalidSTag, "the source STag names no buffer")
	ErrReadNotAssociated = protection(iwarp.RDMAPSTagNotAssociated, "the source STag belongs to another protection domain or stream")
	ErrReadAccess        = protection(iwarp.RDMAPAccessRights, "the buffer of the source STag may not be read by the peer")
	ErrReadTOWrap        = protection(iwarp.RDMAPTOWrap, "source TO plus read size passes 2^64")
	ErrReadBaseBounds    = protection(iwarp.RDMAPBaseBounds, "source TO and read size are not within the buffer of the STag")
)

// Errors of a Read Response that does not answer the oldest outstanding Read Request. RFC 5040
// section 5.2.2 lets the data sink verify this; the codes are DDP's, because the fault is in a
// tagged segment.
var (
	ErrResponseSTag = sink(iwarp.DDPTaggedInvalidSTag, "the STag of a Read Response is not the sink STag of the oldest Read Request")
	ErrResponseTO   = sink(iwarp.DDPTaggedBaseBounds, "the TO of a Read Response is not where the sink continues")
	ErrResponseLong = sink(iwarp.DDPTaggedBaseBounds, "a Read Response has more octets than were asked for")
	ErrResponseEnd  = sink(iwarp.DDPTaggedBaseBounds, "a Read Response ends before it has all octets that were asked for")
)

// Errors of the untagged queues that RDMAP itself consumes. They are DDP's
// codes: the queue has no buffer, or one that is too small.
var (
	ErrReadDepth     = untagged(iwarp.DDPUntaggedNoBuffer, "more Read and Atomic Requests than the negotiated IRD")
	ErrLongReadReq   = untagged(iwarp.DDPUntaggedMessageTooLong, "a Read Request is one segment of 28 octets")
	ErrLongTerminate = untagged(iwarp.DDPUntaggedMessageTooLong, "a Terminate is one segment of at most 52 octets")
)

func operation(c iwarp.Code, reason string) *iwarp.Error {
	return &iwarp.Error{Layer: iwarp.LayerRDMAP, EType: iwarp.RDMAPRemoteOperation, Code: c, Reason: reason}
}

func protection(c iwarp.Code, reason string) *iwarp.Error {
	return &iwarp.Error{Layer: iwarp.LayerRDMAP, EType: iwarp.RDMAPRemoteProtection, Code: c, Reason: reason}
}

func sink(c iwarp.Code, reason string) *iwarp.Error {
	return &iwarp.Error{Layer: iwarp.LayerDDP, EType: iwarp.DDPTaggedBuffer, Code: c, Reason: reason}
}

func untagged(c iwarp.Code, reason string) *iwarp.Error {
	return &iwarp.Error{Layer: iwarp.LayerDDP, EType: iwarp.DDPUntaggedBuffer, Code: c, Reason: reason}
}

// LocalCatastrophe returns an error for a fault of this side that the peer gets a Terminate for
// (RFC 5040 section 7.1, case 1). The code is the one that siw sends; any other would do.
func LocalCatastrophe(reason string) *iwarp.Error {
	return &iwarp.Error{Layer: iwarp.LayerRDMAP, EType: iwarp.RDMAPLocalCatastrophic,
		Code: iwarp.RDMAPUnspecified, Reason: reason}
}
