package iwarp

import "fmt"

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
