package rdmap

import (
	"encoding/binary"
	"fmt"

	"github.com/govs-rdma/govs/provider/iwarp"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
)

// The extensions of RFC 7306: Immediate Data and atomic operations. A stream has them if both
// programs enable them, because the start-up frames do not negotiate them (section 1.1).

// Lengths in octets of the extensions' headers, each of which is the whole payload
// of its message (RFC 7306 figures 4, 6 and 7).
const (
	ImmediateLen      = 8
	AtomicRequestLen  = 52
	AtomicResponseLen = 12 // section 4 says 32, but figure 6 and appendix A.2 have 12
)

// AtomicLen is the length in octets of the word that an atomic operation changes.
const AtomicLen = 8

// Errors of the extensions. The errors for the target of an atomic operation are those for the
// source of an RDMA Read, because RFC 7306 relies on these rules. Section 8.2 gives the code for
// the alignment.
var (
	ErrImmediateLength     = operation(iwarp.RDMAPUnspecified, "Immediate Data is one segment of 8 octets")
	ErrShortAtomicRequest  = operation(iwarp.RDMAPUnspecified, "the Atomic Request is shorter than its 52-octet header")
	ErrShortAtomicResponse = operation(iwarp.RDMAPUnspecified, "the Atomic Response is shorter than its 12-octet header")
	ErrAtomicResponseID    = operation(iwarp.RDMAPUnspecified, "the identifier of an Atomic Response is not that of the oldest Atomic Request")
	ErrUnsolicitedAtomic   = operation(iwarp.RDMAPUnexpectedOpcode, "an Atomic Response where no Atomic Request is the oldest outstanding one")
	ErrAtomicOp            = operation(iwarp.RDMAPUnexpectedOpcode, "the Atomic Operation Code is neither FetchAdd nor CmpSwap")
	ErrAtomicAlignment     = operation(iwarp.RDMAPCatastrophicStream, "the target of an atomic operation is not on a 64-bit boundary of memory")

	ErrAtomicInvalidSTag   = protection(iwarp.RDMAPInvalidSTag, "the STag of an Atomic Request names no buffer")
	ErrAtomicNotAssociated = protection(iwarp.RDMAPSTagNotAssociated, "the STag of an Atomic Request belongs to another protection domain or stream")
	ErrAtomicAccess        = protection(iwarp.RDMAPAccessRights, "the buffer of an Atomic Request's STag is not for the peer's atomic operations")
	ErrAtomicTOWrap        = protection(iwarp.RDMAPTOWrap, "the TO of an Atomic Request plus 8 passes 2^64")
	ErrAtomicBaseBounds    = protection(iwarp.RDMAPBaseBounds, "the 8 octets of an Atomic Request are not within the buffer of its STag")

	ErrLongAtomicRequest  = untagged(iwarp.DDPUntaggedMessageTooLong, "an Atomic Request is one segment of 52 octets")
	ErrLongAtomicResponse = untagged(iwarp.DDPUntaggedMessageTooLong, "an Atomic Response is one segment of 12 octets")
)

// ImmediateHeader returns the DDP header of an Immediate Data message, with or without a solicited
// event. Its MSN belongs to the queue of Sends.
//
//rfc:7306 EXT-4.1-01 RV=1 for extension messages
//rfc:7306 EXT-4.1-02 Opcodes 8 Imm, 9 ImmSE, 10 AtomicReq, 11 AtomicResp
//rfc:7306 EXT-4.1-04 All four untagged: QN 0 (Imm), 1 (AtomicReq), 3 (AtomicResp)
//rfc:7306 EXT-6.3-01 Immediate uses untagged QN 0
func ImmediateHeader(solicited bool, msn uint32) ddp.Header {
	op := OpImmediate
	if solicited {
		op = OpImmediateSE
	}
	return untaggedHeader(op, QNSend, msn, 0, true)
}

// AppendImmediate appends the eight octets of an Immediate Data message to b.
//
//rfc:7306 EXT-6.3-04 Exactly 8 octets of immediate data sent
func AppendImmediate(b []byte, data uint64) []byte { return binary.BigEndian.AppendUint64(b, data) }

// ParseImmediate reads the payload of an Immediate Data message. The only error is
// [ErrImmediateLength].
//
//rfc:7306 EXT-6.3-05 Receiver checks for exactly 8 octets of immediate data
func ParseImmediate(payload []byte) (uint64, error) {
	if len(payload) != ImmediateLen {
		return 0, ErrImmediateLength
	}
	return binary.BigEndian.Uint64(payload), nil
}

// AtomicOp is an Atomic Operation Code, AOpCode: four bits (RFC 7306 figure 5).
type AtomicOp uint8

// The operations of RFC 7306 figure 5. The text also mentions a Swap, but gives it no code: 1 is
// reserved (section 10.1). A CmpSwap with a compare mask of zero does the same.
const (
	AtomicFetchAdd AtomicOp = 0
	AtomicCmpSwap  AtomicOp = 2
)

// Defined reports whether RFC 7306 defines the operation.
func (o AtomicOp) Defined() bool { return o == AtomicFetchAdd || o == AtomicCmpSwap }

// String returns the name that RFC 7306 figure 5 gives the operation.
func (o AtomicOp) String() string {
	switch o {
	case AtomicFetchAdd:
		return "FetchAdd"
	case AtomicCmpSwap:
		return "CmpSwap"
	}
	return fmt.Sprintf("reserved atomic operation %d", uint8(o))
}

// AtomicRequest is the Atomic Operation Request header (RFC 7306 figure 4) with every bit of the
// wire. Fields are numbers: the codec converts them to the wire's big-endian order, and the code
// that accesses the target's memory to the CPU's order.
type AtomicRequest struct {
	Reserved uint32 // 28 bits: zero on transmit, ignored on receive
	Op       AtomicOp
	ID       uint32 // Request Identifier, repeated by the response
	STag     uint32
	TO       uint64

	Data uint64 // Add Data or Swap Data
	Mask uint64 // Add Mask or Swap Mask

	Compare     uint64 // CmpSwap only
	CompareMask uint64 // CmpSwap only
}

// FetchAdd returns the request to add a number. Each set bit of mask is the highest bit of a field,
// and fields are added separately. With mask zero there is one field of 64 bits.
//
//rfc:7306 EXT-5.2.1-05 Unused compare fields: data zero, masks ones; ignored
func FetchAdd(id, stag uint32, to, add, mask uint64) AtomicRequest {
	return AtomicRequest{Op: AtomicFetchAdd, ID: id, STag: stag, TO: to, Data: add, Mask: mask, CompareMask: ^uint64(0)}
}

// CmpSwap returns the request to replace the bits in swapMask by those of swap, if the bits in
// compareMask equal those of compare. For whole numbers use masks of ^0.
func CmpSwap(id, stag uint32, to, compare, swap, compareMask, swapMask uint64) AtomicRequest {
	return AtomicRequest{
		Op: AtomicCmpSwap, ID: id, STag: stag, TO: to,
		Data: swap, Mask: swapMask, Compare: compare, CompareMask: compareMask,
	}
}

// AtomicRequestHeader returns the DDP header of an Atomic Request, whose payload is an
// [AtomicRequest]. Its MSN belongs to the queue of Read Requests.
//
//rfc:7306 EXT-4.1-02 Opcodes 8 Imm, 9 ImmSE, 10 AtomicReq, 11 AtomicResp
//rfc:7306 EXT-4.1-04 All four untagged: QN 0 (Imm), 1 (AtomicReq), 3 (AtomicResp)
//rfc:7306 EXT-5.2-01 Atomic requests share QN1 MSN space and IRD/ORD with reads
func AtomicRequestHeader(msn uint32) ddp.Header {
	return untaggedHeader(OpAtomicRequest, QNReadRequest, msn, 0, true)
}

const (
	atomicOpMask  = 0x0f
	atomicOpShift = 4 // of the reserved bits above it
)

// AppendTo appends the header's 52 octets to b. It allocates only when b lacks the
// capacity.
//
//rfc:7306 EXT-5.2.1-01 Atomic request header of 52 octets, AOpcode layout
//rfc:7306 EXT-5.2.1-02 Atomic request: reserved bits zero, ignored on receive
func (r *AtomicRequest) AppendTo(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, r.Reserved<<atomicOpShift|uint32(r.Op)&atomicOpMask)
	b = binary.BigEndian.AppendUint32(b, r.ID)
	b = binary.BigEndian.AppendUint32(b, r.STag)
	b = binary.BigEndian.AppendUint64(b, r.TO)
	b = binary.BigEndian.AppendUint64(b, r.Data)
	b = binary.BigEndian.AppendUint64(b, r.Mask)
	b = binary.BigEndian.AppendUint64(b, r.Compare)
	return binary.BigEndian.AppendUint64(b, r.CompareMask)
}

// ParseAtomicRequest reads the header from the payload of an Atomic Request message. It does not
// check whether the operation is defined. Errors: [ErrShortAtomicRequest] for fewer than 52 octets,
// [ErrLongAtomicRequest] for more.
//
//rfc:7306 EXT-5.2.1-01 Atomic request header of 52 octets, AOpcode layout
//rfc:7306 EXT-5.2.1-02 Atomic request: reserved bits zero, ignored on receive
func ParseAtomicRequest(payload []byte) (AtomicRequest, error) {
	switch {
	case len(payload) < AtomicRequestLen:
		return AtomicRequest{}, ErrShortAtomicRequest
	case len(payload) > AtomicRequestLen:
		return AtomicRequest{}, ErrLongAtomicRequest
	}
	word := binary.BigEndian.Uint32(payload)
	return AtomicRequest{
		Reserved:    word >> atomicOpShift,
		Op:          AtomicOp(word & atomicOpMask),
		ID:          binary.BigEndian.Uint32(payload[4:]),
		STag:        binary.BigEndian.Uint32(payload[8:]),
		TO:          binary.BigEndian.Uint64(payload[12:]),
		Data:        binary.BigEndian.Uint64(payload[20:]),
		Mask:        binary.BigEndian.Uint64(payload[28:]),
		Compare:     binary.BigEndian.Uint64(payload[36:]),
		CompareMask: binary.BigEndian.Uint64(payload[44:]),
	}, nil
}

// Apply returns the result of the operation, which must be defined, for the original value. The
// caller may call it again with another original value, in a loop around the CPU's
// compare-and-swap.
func (r *AtomicRequest) Apply(original uint64) uint64 {
	if r.Op == AtomicFetchAdd {
		// The highest bits of the fields are added without their carries, so that
		// no carry leaves a field.
		//rfc:7306 EXT-5.1.1-03 Add mask 0 means plain 64-bit add
		//rfc:7306 EXT-5.1.1-04 Mask bits are field tops: carry out of them dropped
		m := r.Mask
		return (original&^m + r.Data&^m) ^ (original^r.Data)&m
	}
	//rfc:7306 EXT-5.1.2-01 CmpSwap compares under compare mask
	//rfc:7306 EXT-5.1.2-03 On mismatch memory unchanged, original returned
	if (r.Compare^original)&r.CompareMask != 0 {
		return original
	}
	//rfc:7306 EXT-5.1.2-02 On match swaps only bits in swap mask
	return original&^r.Mask | r.Data&r.Mask
}

// CheckAtomic checks the target of an Atomic Request: the eight octets at its TO of the region that
// its STag names. It makes the checks for the source of a Read, and then checks the operation.
// Whether the octets are aligned depends on the region's address in memory, so the caller checks
// it: [ErrAtomicAlignment].
//
// Errors, in the order of the checks: [ErrAtomicInvalidSTag], [ErrAtomicNotAssociated],
// [ErrAtomicAccess], [ErrAtomicTOWrap], [ErrAtomicBaseBounds], [ErrAtomicOp].
//
//rfc:7306 EXT-5.2.1-04 Unsupported AOpcode surfaces an error
//rfc:7306 EXT-8.2-03 Atomic target STag/TO/rights validated as for ReadReq
//rfc:7306 EXT-8.2-04 8-octet range check TO..TO+7, no wrap, for atomics
func CheckAtomic(r *ddp.Region, req *AtomicRequest) error {
	switch {
	case !r.Valid:
		return ErrAtomicInvalidSTag
	case !r.Associated:
		return ErrAtomicNotAssociated
	case !r.Allowed:
		return ErrAtomicAccess
	case ddp.Wraps(req.TO, AtomicLen):
		return ErrAtomicTOWrap
	case !r.Contains(req.TO, AtomicLen):
		return ErrAtomicBaseBounds
	case !req.Op.Defined():
		return ErrAtomicOp
	}
	return nil
}

// AtomicResponse is the Atomic Operation Response header (RFC 7306 figure 6).
type AtomicResponse struct {
	ID       uint32 // of the request
	Original uint64 // the value before the operation
}

// AtomicResponseHeader returns the DDP header of an Atomic Response, whose payload
// is an [AtomicResponse].
//
//rfc:7306 EXT-4.1-02 Opcodes 8 Imm, 9 ImmSE, 10 AtomicReq, 11 AtomicResp
//rfc:7306 EXT-4.1-04 All four untagged: QN 0 (Imm), 1 (AtomicReq), 3 (AtomicResp)
//rfc:7306 EXT-5.2.2-01 Atomic response untagged, QN 3, MSN from 1
func AtomicResponseHeader(msn uint32) ddp.Header {
	return untaggedHeader(OpAtomicResponse, QNAtomicResponse, msn, 0, true)
}

// AppendTo appends the header's 12 octets to b. It allocates only when b lacks the
// capacity.
//
//rfc:7306 EXT-5.2.2-02 Atomic response header of 12 octets, as in the figure
func (r *AtomicResponse) AppendTo(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, r.ID)
	return binary.BigEndian.AppendUint64(b, r.Original)
}

// ParseAtomicResponse reads the header from the payload of an Atomic Response
// message. Errors: [ErrShortAtomicResponse] for fewer than 12 octets,
// [ErrLongAtomicResponse] for more.
//
//rfc:7306 EXT-5.2.2-02 Atomic response header of 12 octets, as in the figure
func ParseAtomicResponse(payload []byte) (AtomicResponse, error) {
	switch {
	case len(payload) < AtomicResponseLen:
		return AtomicResponse{}, ErrShortAtomicResponse
	case len(payload) > AtomicResponseLen:
		return AtomicResponse{}, ErrLongAtomicResponse
	}
	return AtomicResponse{ID: binary.BigEndian.Uint32(payload), Original: binary.BigEndian.Uint64(payload[4:])}, nil
}
