// Package iwarp holds what the three iWARP layers share: the names of layers, error types and error
// codes, and the error value that carries them.
//
// Its subpackages are the layers: mpa (RFC 5044, RFC 6581), ddp (RFC 5041) and rdmap (RFC 5040).
// None of them uses sockets, clocks or goroutines.
package iwarp

import "fmt"

// Layer is the layer that found an error: the four Layer bits of a Terminate
// message's control field (RFC 5040 section 4.8, figure 9).
type Layer uint8

// The layers of RFC 5040 figure 9.
const (
	LayerRDMAP Layer = 0
	LayerDDP   Layer = 1
	LayerLLP   Layer = 2 // in this project always MPA over TCP
)

// String returns the name that RFC 5040 figure 9 gives the layer.
func (l Layer) String() string {
	switch l {
	case LayerRDMAP:
		return "RDMAP"
	case LayerDDP:
		return "DDP"
	case LayerLLP:
		return "LLP"
	}
	return fmt.Sprintf("layer %d", uint8(l))
}

// EType is an error type: the four EType bits of a Terminate message's control
// field. Its meaning depends on the layer.
type EType uint8

// Error types of the RDMAP layer (RFC 5040 figure 9).
const (
	RDMAPLocalCatastrophic EType = 0
	RDMAPRemoteProtection  EType = 1
	RDMAPRemoteOperation   EType = 2
)

// Error types of the DDP layer (RFC 5041 section 7).
const (
	DDPLocalCatastrophic EType = 0
	DDPTaggedBuffer      EType = 1
	DDPUntaggedBuffer    EType = 2
	DDPLLP               EType = 3 // reserved for use by the LLP
)

// MPAErrors is the one error type of the MPA layer (RFC 5044 section 8).
const MPAErrors EType = 0

// Code is an error code: eight bits whose meaning depends on layer and type.
type Code uint8

// Codes of RDMAP remote protection errors (RFC 5040 figure 9).
const (
	RDMAPInvalidSTag       Code = 0x00
	RDMAPBaseBounds        Code = 0x01
	RDMAPAccessRights      Code = 0x02
	RDMAPSTagNotAssociated Code = 0x03
	RDMAPTOWrap            Code = 0x04
)

// Codes of RDMAP remote operation errors (RFC 5040 figure 9).
const (
	RDMAPInvalidVersion     Code = 0x05
	RDMAPUnexpectedOpcode   Code = 0x06
	RDMAPCatastrophicStream Code = 0x07
	RDMAPCatastrophicGlobal Code = 0x08
)

// Codes that RDMAP uses with more than one error type (RFC 5040 figure 9).
const (
	RDMAPCannotInvalidate Code = 0x09
	RDMAPUnspecified      Code = 0xff
)

// Codes of DDP tagged buffer errors (RFC 5041 section 7.2).
const (
	DDPTaggedInvalidSTag       Code = 0x00
	DDPTaggedBaseBounds        Code = 0x01
	DDPTaggedSTagNotAssociated Code = 0x02
	DDPTaggedTOWrap            Code = 0x03
	DDPTaggedInvalidVersion    Code = 0x04
)

// Codes of DDP untagged buffer errors (RFC 5041 section 7.2).
const (
	DDPUntaggedInvalidQN      Code = 0x01
	DDPUntaggedNoBuffer       Code = 0x02 // invalid MSN: no buffer available
	DDPUntaggedMSNRange       Code = 0x03 // invalid MSN: range is not valid
	DDPUntaggedInvalidMO      Code = 0x04
	DDPUntaggedMessageTooLong Code = 0x05
	DDPUntaggedInvalidVersion Code = 0x06
)

// Codes of MPA errors (RFC 5044 section 8, RFC 6581 section 8).
const (
	MPAClosed            Code = 0x01 // TCP connection closed, terminated, or lost
	MPACRC               Code = 0x02 // received MPA CRC does not match the calculated value
	MPAMarker            Code = 0x03 // MPA marker and ULPDU length mismatch on FPDU start
	MPAInvalidRequest    Code = 0x04 // invalid MPA request or reply frame
	MPALocalCatastrophic Code = 0x05
	MPAInsufficientIRD   Code = 0x06
	MPANoMatchingRTR     Code = 0x07
)

// Error is a protocol error found in what a peer sent. Layer, EType and Code are the values for a
// Terminate message (RFC 5040 section 4.8).
//
// Errors that the hot path returns are preallocated package variables, so returning one does not
// allocate. Treat an Error as read-only.
type Error struct {
	Layer  Layer
	EType  EType
	Code   Code
	Reason string // what was wrong, in English, without the peer's bytes
}

// Error implements error: "DDP error 1/1/0x01 (base or bounds violation): ...".
func (e *Error) Error() string {
	s := fmt.Sprintf("%s error %d/%d/0x%02x (%s)", e.Layer, uint8(e.Layer), uint8(e.EType), uint8(e.Code), CodeName(e.Layer, e.EType, e.Code))
	if e.Reason != "" {
		s += ": " + e.Reason
	}
	return s
}

// Is reports whether target is an *Error with the same layer, type and code, whatever its reason.
// errors.Is uses it.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Layer == e.Layer && t.EType == e.EType && t.Code == e.Code
}

type codeKey struct {
	layer Layer
	etype EType
	code  Code
}

// codeNames are the names of RFC 5040 figure 9, RFC 5041 section 7 and
// RFC 5044 section 8, in lower case.
var codeNames = map[codeKey]string{
	{LayerRDMAP, RDMAPRemoteProtection, RDMAPInvalidSTag}:       "invalid STag",
	{LayerRDMAP, RDMAPRemoteProtection, RDMAPBaseBounds}:        "base or bounds violation",
	{LayerRDMAP, RDMAPRemoteProtection, RDMAPAccessRights}:      "access rights violation",
	{LayerRDMAP, RDMAPRemoteProtection, RDMAPSTagNotAssociated}: "STag not associated with RDMAP stream",
	{LayerRDMAP, RDMAPRemoteProtection, RDMAPTOWrap}:            "TO wrap",
	{LayerRDMAP, RDMAPRemoteProtection, RDMAPCannotInvalidate}:  "STag cannot be invalidated",
	{LayerRDMAP, RDMAPRemoteProtection, RDMAPUnspecified}:       "unspecified error",

	{LayerRDMAP, RDMAPRemoteOperation, RDMAPInvalidVersion}:     "invalid RDMAP version",
	{LayerRDMAP, RDMAPRemoteOperation, RDMAPUnexpectedOpcode}:   "unexpected opcode",
	{LayerRDMAP, RDMAPRemoteOperation, RDMAPCatastrophicStream}: "catastrophic error, localized to RDMAP stream",
	{LayerRDMAP, RDMAPRemoteOperation, RDMAPCatastrophicGlobal}: "catastrophic error, global",
	{LayerRDMAP, RDMAPRemoteOperation, RDMAPCannotInvalidate}:   "STag cannot be invalidated",
	{LayerRDMAP, RDMAPRemoteOperation, RDMAPUnspecified}:        "unspecified error",

	{LayerDDP, DDPTaggedBuffer, DDPTaggedInvalidSTag}:       "invalid STag",
	{LayerDDP, DDPTaggedBuffer, DDPTaggedBaseBounds}:        "base or bounds violation",
	{LayerDDP, DDPTaggedBuffer, DDPTaggedSTagNotAssociated}: "STag not associated with DDP stream",
	{LayerDDP, DDPTaggedBuffer, DDPTaggedTOWrap}:            "TO wrap",
	{LayerDDP, DDPTaggedBuffer, DDPTaggedInvalidVersion}:    "invalid DDP version",

	{LayerDDP, DDPUntaggedBuffer, DDPUntaggedInvalidQN}:      "invalid QN",
	{LayerDDP, DDPUntaggedBuffer, DDPUntaggedNoBuffer}:       "invalid MSN - no buffer available",
	{LayerDDP, DDPUntaggedBuffer, DDPUntaggedMSNRange}:       "invalid MSN - MSN range is not valid",
	{LayerDDP, DDPUntaggedBuffer, DDPUntaggedInvalidMO}:      "invalid MO",
	{LayerDDP, DDPUntaggedBuffer, DDPUntaggedMessageTooLong}: "DDP message too long for available buffer",
	{LayerDDP, DDPUntaggedBuffer, DDPUntaggedInvalidVersion}: "invalid DDP version",

	{LayerLLP, MPAErrors, MPAClosed}:            "TCP connection closed, terminated, or lost",
	{LayerLLP, MPAErrors, MPACRC}:               "received MPA CRC does not match the calculated value",
	{LayerLLP, MPAErrors, MPAMarker}:            "MPA marker and ULPDU_Length fields mismatch",
	{LayerLLP, MPAErrors, MPAInvalidRequest}:    "invalid MPA request frame or MPA response frame",
	{LayerLLP, MPAErrors, MPALocalCatastrophic}: "local catastrophic error",
	{LayerLLP, MPAErrors, MPAInsufficientIRD}:   "insufficient IRD resources",
	{LayerLLP, MPAErrors, MPANoMatchingRTR}:     "no matching RTR option",
}

// ETypeName returns the RFC's name of an error type of a layer.
func ETypeName(l Layer, t EType) string {
	switch {
	case l == LayerRDMAP && t == RDMAPLocalCatastrophic, l == LayerDDP && t == DDPLocalCatastrophic:
		return "local catastrophic error"
	case l == LayerRDMAP && t == RDMAPRemoteProtection:
		return "remote protection error"
	case l == LayerRDMAP && t == RDMAPRemoteOperation:
		return "remote operation error"
	case l == LayerDDP && t == DDPTaggedBuffer:
		return "tagged buffer error"
	case l == LayerDDP && t == DDPUntaggedBuffer:
		return "untagged buffer error"
	case l == LayerLLP && t == MPAErrors:
		return "MPA error"
	}
	return fmt.Sprintf("error type %d", uint8(t))
}

// CodeName returns the RFC's name of an error code of a layer and type. A local
// catastrophic error of RDMAP or DDP has no code: any value is acceptable.
func CodeName(l Layer, t EType, c Code) string {
	if name, ok := codeNames[codeKey{l, t, c}]; ok {
		return name
	}
	if t == 0 && l != LayerLLP {
		return "local catastrophic error"
	}
	return fmt.Sprintf("code 0x%02x", uint8(c))
}
