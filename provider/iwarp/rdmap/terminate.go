package rdmap

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/govs-rdma/govs/provider/iwarp"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
)

// Lengths of the parts of a Terminate header in octets (RFC 5040 figure 7).
const (
	TerminateControlLen = 4
	terminateLengthLen  = 2

	// MaxTerminateLen is the length of a Terminate with everything attached, and so the size of the
	// buffer for the terminate queue.
	MaxTerminateLen = TerminateControlLen + terminateLengthLen + ddp.UntaggedHeaderLen + ReadRequestLen
)

// Terminate is the Terminate header (RFC 5040 figure 7), the whole payload of a Terminate message.
//
// M, D and R are the header control bits: they say which of SegmentLength, DDP and Read are
// included. Parts that are not included are neither encoded nor decoded.
type Terminate struct {
	Layer iwarp.Layer // 4 bits
	EType iwarp.EType // 4 bits
	Code  iwarp.Code

	M bool // SegmentLength is valid
	D bool // DDP is included
	R bool // Read is included

	Reserved uint16 // 13 bits: zero on transmit, ignored on receive

	// SegmentLength is the length in octets of the DDP segment at fault, including its header. siw
	// sends the length of the payload instead.
	SegmentLength uint16
	DDP           ddp.Header  // header of the segment at fault
	Read          ReadRequest // header of the Read Request at fault
}

// NewTerminate describes a fault in an incoming message in the form that RFC 5040 section 4.8
// prescribes. seg is the DDP header of the segment at fault and segmentLen its length in octets
// with that header; seg is nil if there is none or it could not be read. read is the Read Request
// at fault, advanced if part of its response was sent ([ReadRequest.Advance]), and nil for other
// messages.
//
// The attachments follow figure 10. LLP errors and local catastrophic errors of either layer have
// none. Other errors have the DDP header and the segment length, and remote protection errors also
// have the Read Request header. R also requires a read, because a Send with Invalidate can cause a
// remote protection error but has no RDMA header.
//
//rfc:5040 RDMAP-4.8-03 M,D,R bits per mapping table
func NewTerminate(e *iwarp.Error, seg *ddp.Header, segmentLen int, read *ReadRequest) Terminate {
	t := Terminate{Layer: e.Layer, EType: e.EType, Code: e.Code}
	//rfc:5040 RDMAP-4.8-09 No DDP header for Local Catastrophic
	//rfc:5040 RDMAP-4.8-13 LLP errors carry neither DDP nor RDMA header
	//rfc:5040 RDMAP-7.1-1-01 Local error: Terminate without headers
	if seg == nil || !attachesDDP(e.Layer, e.EType) {
		return t
	}
	//rfc:5040 RDMAP-4.8-06 DDP Segment Length valid when M=1
	//rfc:5040 RDMAP-7.1-2-01 Inbound error on tagged or Send: DDP header, length
	t.M, t.D = true, true
	t.SegmentLength = uint16(min(max(segmentLen, 0), math.MaxUint16))
	t.DDP = *seg
	//rfc:5040 RDMAP-4.8-10 RDMA header present when R=1, only for ReadReq errors
	//rfc:5040 RDMAP-7.1-3-01 Inbound error on ReadReq: the RDMA header, too
	if read != nil && e.Layer == iwarp.LayerRDMAP && e.EType == iwarp.RDMAPRemoteProtection {
		t.R = true
		t.Read = *read
	}
	return t
}

// attachesDDP returns the third column of RFC 5040 figure 10.
func attachesDDP(l iwarp.Layer, t iwarp.EType) bool {
	switch l {
	case iwarp.LayerRDMAP:
		return t != iwarp.RDMAPLocalCatastrophic
	case iwarp.LayerDDP:
		return t != iwarp.DDPLocalCatastrophic
	}
	return false
}

// Bits of the Terminate control field's third octet (RFC 5040 figure 8).
const (
	hdrctM      = 0x80
	hdrctD      = 0x40
	hdrctR      = 0x20
	hdrctMask   = hdrctM | hdrctD | hdrctR
	rsvdHiMask  = 0x1f
	rsvdAllMask = 0x1fff
)

// AppendTo appends the header in the RFC's layout to b, at most
// [MaxTerminateLen] octets. It allocates only when b lacks the capacity.
//
//rfc:5040 RDMAP-4.8-01 Terminate header layout
//rfc:5040 RDMAP-4.8-04 Terminate reserved 13 bits zero on send
//rfc:5040 RDMAP-4.8-07 DDP Segment Length present when D=1
//rfc:5040 RDMAP-4.8-08 DDP header present when D=1 (14 or 18 octets by T)
func (t *Terminate) AppendTo(b []byte) []byte {
	rsvd := t.Reserved & rsvdAllMask
	hdrct := byte(rsvd >> 8)
	if t.M {
		hdrct |= hdrctM
	}
	if t.D {
		hdrct |= hdrctD
	}
	if t.R {
		hdrct |= hdrctR
	}
	b = append(b, byte(t.Layer)<<4|byte(t.EType)&0x0f, byte(t.Code), hdrct, byte(rsvd))
	return t.appendHeaders(b)
}

// appendHeaders appends the fields after the control field. The length field is present if either
// it or the DDP header is announced.
func (t *Terminate) appendHeaders(b []byte) []byte {
	if t.M || t.D {
		b = binary.BigEndian.AppendUint16(b, t.SegmentLength)
	}
	if t.D {
		b = t.DDP.AppendTo(b)
	}
	if t.R {
		b = t.Read.AppendTo(b)
	}
	return b
}

// Cause returns the error that the Terminate reports. It allocates.
func (t *Terminate) Cause() *iwarp.Error {
	return &iwarp.Error{Layer: t.Layer, EType: t.EType, Code: t.Code, Reason: "reported by the peer in a Terminate"}
}

// String returns layer, type and code and what is attached: "DDP error 1/2/0x03 (...) M D".
func (t *Terminate) String() string {
	s := fmt.Sprintf("%s error %d/%d/0x%02x (%s, %s)", t.Layer, uint8(t.Layer), uint8(t.EType), uint8(t.Code),
		iwarp.ETypeName(t.Layer, t.EType), iwarp.CodeName(t.Layer, t.EType, t.Code))
	if t.M {
		s += fmt.Sprintf(" M=%d", t.SegmentLength)
	}
	if t.D {
		s += fmt.Sprintf(" D=%d octets", t.DDP.Len())
	}
	if t.R {
		s += fmt.Sprintf(" R=%d octets", ReadRequestLen)
	}
	return s
}

// ReceivedTerminate is a Terminate as a peer sent it, which may be cut short or use another bit
// order than the RFC's.
type ReceivedTerminate struct {
	// Terminate is the decoded message, in the layout that was recognised. Its M, D and R are the
	// peer's claims; the Have fields say what was received.
	Terminate

	HaveLength bool // SegmentLength was received
	HaveDDP    bool // DDP was received whole
	HaveRead   bool // Read was received whole

	Layout Layout                    // how the control field was read
	Raw    [TerminateControlLen]byte // the octets of the control field, for the log
}

// ParseTerminate reads the payload of a Terminate message. phase helps to distinguish the two
// layouts where their octets coincide; see [Layout].
//
// A Terminate is the last message of a peer, so ParseTerminate reads as much as possible. It keeps
// unknown layers, types and codes as numbers, leaves announced headers zero if they are cut short,
// and ignores excess octets. The only error is [ErrShortTerminate], for fewer than four octets.
//
//rfc:5040 RDMAP-4.8-05 Terminate reserved ignored on receive
//rfc:5040 RDMAP-4.8-14 Receiver tolerates unknown Layer/EType/Code
//rfc:5040 RDMAP-4.8-15 Receiver tolerates a truncated Terminate
func ParseTerminate(payload []byte, phase Phase) (ReceivedTerminate, error) {
	if len(payload) < TerminateControlLen {
		return ReceivedTerminate{}, ErrShortTerminate
	}
	t := ReceivedTerminate{Raw: [TerminateControlLen]byte(payload)}
	t.Layout = recogniseLayout(t.Raw, phase)
	if t.Layout == LayoutSIW {
		t.Terminate = decodeControlSIW(t.Raw)
	} else {
		t.Terminate = decodeControlRFC(t.Raw)
	}
	t.parseHeaders(payload[TerminateControlLen:])
	return t, nil
}

func decodeControlRFC(c [TerminateControlLen]byte) Terminate {
	return Terminate{
		Layer:    iwarp.Layer(c[0] >> 4),
		EType:    iwarp.EType(c[0] & 0x0f),
		Code:     iwarp.Code(c[1]),
		M:        c[2]&hdrctM != 0,
		D:        c[2]&hdrctD != 0,
		R:        c[2]&hdrctR != 0,
		Reserved: uint16(c[2]&rsvdHiMask)<<8 | uint16(c[3]),
	}
}

// parseHeaders reads the headers after the control field, as far as they were received.
func (t *ReceivedTerminate) parseHeaders(b []byte) {
	if t.M || t.D {
		if len(b) < terminateLengthLen {
			return
		}
		t.SegmentLength = binary.BigEndian.Uint16(b)
		t.HaveLength = true
		b = b[terminateLengthLen:]
	}
	if t.D {
		h, rest, err := ddp.Parse(b)
		if err != nil {
			return
		}
		t.DDP = h
		t.HaveDDP = true
		b = rest
	}
	if t.R && len(b) >= ReadRequestLen {
		t.Read = decodeReadRequest(b)
		t.HaveRead = true
	}
}
