package rdmap

import (
	"fmt"

	"github.com/govs-rdma/govs/provider/iwarp"
)

// Layout is a bit order of the Terminate control field.
//
// siw declares the field as C bit-fields. On a little-endian machine that puts EType in the high
// nibble of the first octet and Layer in the low one. M, D and R are in the low bits of the third
// octet. Both are the reverse of RFC 5040 figure 8. Nothing in the message names the layout, so it
// is inferred:
//
//   - If any of the RFC's M, D, R bits is set, it is the RFC's layout. Otherwise, if any of siw's
//     is set, it is siw's.
//   - If nothing is attached, it is the layout in which layer, type and code are defined.
//   - If they are defined in both, LLP code 5, 6 or 7 belongs to start-up and RDMAP code 5, 6 or 7
//     to a received message. So it depends on whether this side had sent an FPDU (see [Phase]). The
//     only other such pair, DDP local catastrophic and RDMAP invalid STag, is the RFC's, because
//     siw attaches a header to both.
type Layout uint8

// The layouts that [ParseTerminate] distinguishes.
const (
	// LayoutRFC is the layout of RFC 5040 figure 8.
	LayoutRFC Layout = iota
	// LayoutSIW is the layout of siw on a little-endian machine.
	LayoutSIW
	// LayoutAmbiguous means that both readings are equally plausible, or equally implausible. The
	// Terminate then has the RFC's reading. If the two nibbles are equal, both readings are the
	// same.
	LayoutAmbiguous
)

// String returns "RFC", "siw" or "ambiguous".
func (l Layout) String() string {
	switch l {
	case LayoutRFC:
		return "RFC"
	case LayoutSIW:
		return "siw"
	case LayoutAmbiguous:
		return "ambiguous"
	}
	return fmt.Sprintf("layout %d", uint8(l))
}

// Phase is the phase of a stream in which a Terminate arrived.
type Phase uint8

// The phases, seen from the side that received the Terminate.
const (
	PhaseUnknown         Phase = iota
	PhaseBeforeFirstFPDU       // this side had sent no FPDU yet: the peer can only object to the start-up
	PhaseAfterFirstFPDU        // this side had sent at least one FPDU
)

// String returns the phase in words.
func (p Phase) String() string {
	switch p {
	case PhaseUnknown:
		return "unknown phase"
	case PhaseBeforeFirstFPDU:
		return "before the first FPDU"
	case PhaseAfterFirstFPDU:
		return "after the first FPDU"
	}
	return fmt.Sprintf("phase %d", uint8(p))
}

// Bits of the third octet in siw's layout.
const (
	siwHdrctM    = 0x01
	siwHdrctD    = 0x02
	siwHdrctR    = 0x04
	siwHdrctMask = siwHdrctM | siwHdrctD | siwHdrctR
	siwRsvdShift = 3
)

// AppendSIW appends the header to b with the control field in siw's layout, for a peer that
// imitates siw. The rest is as in [Terminate.AppendTo]; the caller sets siw's SegmentLength.
func (t *Terminate) AppendSIW(b []byte) []byte {
	rsvd := t.Reserved & rsvdAllMask
	hdrct := byte(rsvd << siwRsvdShift)
	if t.M {
		hdrct |= siwHdrctM
	}
	if t.D {
		hdrct |= siwHdrctD
	}
	if t.R {
		hdrct |= siwHdrctR
	}
	b = append(b, byte(t.EType)<<4|byte(t.Layer)&0x0f, byte(t.Code), hdrct, byte(rsvd>>(8-siwRsvdShift)))
	return t.appendHeaders(b)
}

func decodeControlSIW(c [TerminateControlLen]byte) Terminate {
	return Terminate{
		Layer:    iwarp.Layer(c[0] & 0x0f),
		EType:    iwarp.EType(c[0] >> 4),
		Code:     iwarp.Code(c[1]),
		M:        c[2]&siwHdrctM != 0,
		D:        c[2]&siwHdrctD != 0,
		R:        c[2]&siwHdrctR != 0,
		Reserved: uint16(c[2])>>siwRsvdShift | uint16(c[3])<<(8-siwRsvdShift),
	}
}

// recogniseLayout applies the rules of [Layout].
func recogniseLayout(c [TerminateControlLen]byte, phase Phase) Layout {
	switch {
	case c[2]&hdrctMask != 0:
		return LayoutRFC
	case c[2]&siwHdrctMask != 0:
		return LayoutSIW
	case c[0]>>4 == c[0]&0x0f:
		return LayoutAmbiguous
	}
	rfc, siw := decodeControlRFC(c), decodeControlSIW(c)
	rfcDefined, siwDefined := rfc.defined(), siw.defined()
	switch {
	case rfcDefined && !siwDefined:
		return LayoutRFC
	case siwDefined && !rfcDefined:
		return LayoutSIW
	case !rfcDefined:
		return LayoutAmbiguous
	}
	rfcLLP, siwLLP := rfc.Layer == iwarp.LayerLLP, siw.Layer == iwarp.LayerLLP
	switch {
	case !rfcLLP && !siwLLP:
		return LayoutRFC
	case phase == PhaseUnknown:
		return LayoutAmbiguous
	case siwLLP == (phase == PhaseBeforeFirstFPDU):
		return LayoutSIW
	}
	return LayoutRFC
}

// defined reports whether RFC 5040 figure 9, RFC 5041 section 7.2 or RFC 5044
// section 8 with RFC 6581 section 8 defines layer, type and code.
func (t *Terminate) defined() bool {
	switch t.Layer {
	case iwarp.LayerRDMAP:
		switch t.EType {
		case iwarp.RDMAPLocalCatastrophic:
			return true
		case iwarp.RDMAPRemoteProtection:
			return t.Code <= iwarp.RDMAPTOWrap || t.Code == iwarp.RDMAPCannotInvalidate || t.Code == iwarp.RDMAPUnspecified
		case iwarp.RDMAPRemoteOperation:
			return t.Code >= iwarp.RDMAPInvalidVersion && t.Code <= iwarp.RDMAPCannotInvalidate || t.Code == iwarp.RDMAPUnspecified
		}
	case iwarp.LayerDDP:
		switch t.EType {
		case iwarp.DDPLocalCatastrophic:
			return t.Code == 0
		case iwarp.DDPTaggedBuffer:
			return t.Code <= iwarp.DDPTaggedInvalidVersion
		case iwarp.DDPUntaggedBuffer:
			return t.Code >= iwarp.DDPUntaggedInvalidQN && t.Code <= iwarp.DDPUntaggedInvalidVersion
		}
	case iwarp.LayerLLP:
		return t.EType == iwarp.MPAErrors && t.Code >= iwarp.MPAClosed && t.Code <= iwarp.MPANoMatchingRTR
	}
	return false
}
