package mpa

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/govs-rdma/govs/provider/iwarp"
)

// Sizes of the start-up frames, in octets (RFC 5044 section 7.1.1).
const (
	KeyLen         = 16
	FrameHeaderLen = 20  // key, flags, Rev, PD_Length
	MaxPrivateData = 512 // PD_Length, the four octets of Enhanced included
	MaxFrameLen    = FrameHeaderLen + MaxPrivateData
)

// The keys of RFC 5044 section 7.1.1. They differ in one octet, the tenth.
//
//rfc:5044 MPA-7.1.1-01 Req key is the 16 octets 'MPA ID Req Frame'
//rfc:5044 MPA-7.1.1-02 Rep key is the 16 octets 'MPA ID Rep Frame'
const (
	requestKey = "MPA ID Req Frame"
	replyKey   = "MPA ID Rep Frame"
	kindOctet  = 9
)

// Kind is the type of a start-up frame.
type Kind uint8

// The kinds.
const (
	KindRequest Kind = iota // MPA Request Frame, sent by the initiator
	KindReply               // MPA Reply Frame, sent by the responder
	KindAny                 // for ParseFrame: the kind of the key
)

// String returns the RFC's name of the frame.
func (k Kind) String() string {
	switch k {
	case KindRequest:
		return "MPA Request Frame"
	case KindReply:
		return "MPA Reply Frame"
	case KindAny:
		return "MPA Request or Reply Frame"
	}
	return fmt.Sprintf("MPA frame kind %d", uint8(k))
}

func (k Kind) key() string {
	if k == KindReply {
		return replyKey
	}
	return requestKey
}

// ErrShort reports that a start-up frame is correct so far and that more octets are needed.
var ErrShort = errors.New("mpa: start-up frame is not complete")

// Errors of start-up frames, all 2/0/0x04: the TCP connection has to be closed at once
// (RFC 5044 section 8). errors.Is can't distinguish them, because it compares the code;
// compare the pointers instead.
var (
	ErrKey          = invalidFrame("key of a start-up frame is wrong")
	ErrTwoInitiator = invalidFrame("MPA Request Frame where an MPA Reply Frame belongs: both ends started as initiator")
	ErrTwoResponder = invalidFrame("MPA Reply Frame where an MPA Request Frame belongs")
	ErrPDLength     = invalidFrame("PD_Length exceeds 512")
	ErrEnhanced     = invalidFrame("S is set but PD_Length has no room for the enhanced connection data")
)

func invalidFrame(reason string) *iwarp.Error {
	return mpaError(iwarp.MPAInvalidRequest, reason)
}

func mpaError(code iwarp.Code, reason string) *iwarp.Error {
	return &iwarp.Error{Layer: iwarp.LayerLLP, EType: iwarp.MPAErrors, Code: code, Reason: reason}
}

// Frame is an MPA Request or Reply Frame (RFC 5044 section 7.1.1, with the S bit of RFC 6581
// section 6). It carries every bit of the wire, so it can express illegal frames too; only the key
// follows from Kind. For a frame with a wrong key, change the octets that AppendTo wrote.
type Frame struct {
	Kind     Kind
	Markers  bool  // M: the sender of this frame requires Markers in what it receives
	CRC      bool  // C
	Reject   bool  // R: meaningful in a Reply only
	Enhanced bool  // S: meaningful from revision 2 on; reserved in earlier ones
	Reserved uint8 // Res: the four bits below S, as 0 to 15
	Revision uint8 // Rev

	// PrivateData is the whole Private Data field, including the enhanced connection data if there
	// is any. After ParseFrame it is a part of the input.
	PrivateData []byte

	// PDLength replaces the length of PrivateData in the PD_Length field, for frames with a wrong
	// length. ParseFrame leaves it nil.
	PDLength *uint16
}

// AppendTo appends the frame's octets to b. It does not judge the frame: it writes a PrivateData
// longer than 512 octets unchanged, and PD_Length is the low 16 bits of its length.
//
//rfc:5044 MPA-7.1.1-17 PD_Length equals private data length
func (f Frame) AppendTo(b []byte) []byte {
	flags := f.Reserved & 0x0f
	flags |= bit(f.Markers, 0x80) | bit(f.CRC, 0x40) | bit(f.Reject, 0x20) | bit(f.Enhanced, 0x10)
	pdLength := uint16(len(f.PrivateData))
	if f.PDLength != nil {
		pdLength = *f.PDLength
	}
	b = append(b, f.Kind.key()...)
	b = append(b, flags, f.Revision)
	b = binary.BigEndian.AppendUint16(b, pdLength)
	return append(b, f.PrivateData...)
}

func bit(set bool, mask uint8) uint8 {
	if set {
		return mask
	}
	return 0
}

// ParseFrame parses the start-up frame at the start of b, which may hold more or less than the
// frame.
//
// With a nil error n is the frame's length in octets and Frame.PrivateData is a part of b. With
// ErrShort n is the length that b must have before another call is useful: first the header's, then
// the whole frame's. Any other error is a *iwarp.Error 2/0/0x04. It is returned at the first octet
// that decides it: the first wrong octet of the key, or PD_Length.
//
// ParseFrame does not judge Rev, R, S and Res; see Initiator and Responder.
func ParseFrame(b []byte, kind Kind) (f Frame, n int, err error) {
	kind, err = checkKey(b, kind)
	if err != nil {
		return Frame{}, 0, err
	}
	if len(b) < FrameHeaderLen {
		return Frame{}, FrameHeaderLen, ErrShort
	}
	pdLength := int(binary.BigEndian.Uint16(b[18:]))
	//rfc:5044 MPA-7.1.1-19 PD_Length mismatch or >512: close and report
	//rfc:5044 MPA-7.1.2-9-01 PD_Length validated against buffer; excess is malformed
	if pdLength > MaxPrivateData {
		return Frame{}, 0, ErrPDLength
	}
	n = FrameHeaderLen + pdLength
	if len(b) < n {
		return Frame{}, n, ErrShort
	}
	f = Frame{
		Kind:     kind,
		Markers:  b[16]&0x80 != 0,
		CRC:      b[16]&0x40 != 0,
		Reject:   b[16]&0x20 != 0,
		Enhanced: b[16]&0x10 != 0,
		Reserved: b[16] & 0x0f,
		Revision: b[17],
	}
	if pdLength > 0 {
		f.PrivateData = b[FrameHeaderLen:n:n]
	}
	return f, n, nil
}

// checkKey compares the part of the key that has arrived, so that a peer that speaks another
// protocol is found at its first octet instead of its sixteenth.
//
//rfc:5044 MPA-7.1.1-03 Responder closes and reports on wrong Req key
//rfc:5044 MPA-7.1.1-04 Initiator closes and reports on wrong Rep key
//rfc:5044 MPA-7.1.2-5-01 Wrong key closes TCP and reports to ULP
//rfc:5044 MPA-7.1.2-8-01 Initiator/Initiator crossing detected by key
func checkKey(b []byte, kind Kind) (Kind, error) {
	if kind == KindAny {
		kind = KindRequest
		if len(b) > kindOctet && b[kindOctet] == replyKey[kindOctet] {
			kind = KindReply
		}
	}
	key := kind.key()
	for i := range min(len(b), KeyLen) {
		switch {
		case b[i] == key[i]:
		case i == kindOctet && kind == KindReply && b[i] == requestKey[i]:
			return kind, ErrTwoInitiator
		case i == kindOctet && kind == KindRequest && b[i] == replyKey[i]:
			return kind, ErrTwoResponder
		default:
			return kind, ErrKey
		}
	}
	return kind, nil
}

// UsesEnhanced reports whether the frame begins its Private Data with enhanced
// connection data: S is set, and the revision is one that defines S.
//
//rfc:6581 MPA2-6-09 S=1 with Rev 1: S is a reserved bit and not checked
func (f Frame) UsesEnhanced() bool { return f.Enhanced && f.Revision >= 2 }

// SplitPrivateData separates the enhanced connection data from the Private Data of the ULP. Without
// enhanced data (see UsesEnhanced) the first result is zero and the second is all of PrivateData.
// ulp is a part of PrivateData. The error is ErrEnhanced.
//
//rfc:6581 MPA2-6-08 S=1 with PD_Length <4 is malformed
func (f Frame) SplitPrivateData() (e Enhanced, ulp []byte, err error) {
	if !f.UsesEnhanced() {
		return Enhanced{}, f.PrivateData, nil
	}
	if len(f.PrivateData) < EnhancedLen {
		return Enhanced{}, nil, ErrEnhanced
	}
	return parseEnhanced(f.PrivateData), f.PrivateData[EnhancedLen:], nil
}

// EnhancedLen is the size of the enhanced connection data in octets.
const EnhancedLen = 4

// NotNegotiated as an IRD or ORD means that the ULP sets the value itself (RFC 6581 section 9.1).
// It is also the largest value of the 14-bit fields.
const NotNegotiated = 0x3fff

// Enhanced is the enhanced RDMA connection establishment data of RFC 6581
// section 9, the first four octets of the Private Data of a frame with S set.
type Enhanced struct {
	IRD, ORD uint16 // 14 bits each
	A        bool   // peer-to-peer
	B, C, D  bool   // RTR as zero-length Send, RDMA Write, RDMA Read
}

// AppendTo appends the four octets to b. IRD and ORD are cut to 14 bits.
//
//rfc:6581 MPA2-9-01 Enhanced block: network order, A, B, IRD, C, D, ORD
func (e Enhanced) AppendTo(b []byte) []byte {
	ird, ord := e.IRD&0x3fff, e.ORD&0x3fff
	return append(b,
		byte(ird>>8)|bit(e.A, 0x80)|bit(e.B, 0x40), byte(ird),
		byte(ord>>8)|bit(e.C, 0x80)|bit(e.D, 0x40), byte(ord))
}

// ParseEnhanced parses the four octets at the start of b. The error is ErrEnhanced if there are
// fewer.
func ParseEnhanced(b []byte) (Enhanced, error) {
	if len(b) < EnhancedLen {
		return Enhanced{}, ErrEnhanced
	}
	return parseEnhanced(b), nil
}

func parseEnhanced(b []byte) Enhanced {
	ird, ord := binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:])
	return Enhanced{
		IRD: ird & 0x3fff,
		ORD: ord & 0x3fff,
		A:   ird&0x8000 != 0,
		B:   ird&0x4000 != 0,
		C:   ord&0x8000 != 0,
		D:   ord&0x4000 != 0,
	}
}

// RTR returns the RTR indications in the frame. Without A there are none, because B, C and D are
// then ignored.
//
//rfc:6581 MPA2-9.2-13 A=0: B,C,D ignored on receive
func (e Enhanced) RTR() RTR {
	if !e.A {
		return 0
	}
	return RTR(bit(e.B, uint8(RTRSend)) | bit(e.C, uint8(RTRWrite)) | bit(e.D, uint8(RTRRead)))
}

// RTR is a set of Ready to Receive indications: the zero-length messages with
// which the initiator of a peer-to-peer connection may begin (RFC 6581 section
// 9.2).
type RTR uint8

// The indications.
const (
	RTRSend  RTR = 1 << iota // B: zero-length Send
	RTRWrite                 // C: zero-length RDMA Write
	RTRRead                  // D: zero-length RDMA Read Request
)

// RTRAll is the set of all RTR indications.
const RTRAll = RTRSend | RTRWrite | RTRRead

// String returns the names joined with "|": "Send|Write", or "none".
func (r RTR) String() string {
	if r == 0 {
		return "none"
	}
	s := ""
	for i, name := range [...]string{"Send", "Write", "Read"} {
		if r&(1<<i) != 0 {
			s += "|" + name
		}
	}
	if rest := r &^ RTRAll; rest != 0 {
		s += fmt.Sprintf("|0x%x", uint8(rest))
	}
	return s[1:]
}
