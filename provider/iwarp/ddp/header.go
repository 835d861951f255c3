package ddp

import "encoding/binary"

// Version is the DV value of RFC 5041, and RDMACVersion the DV value of the RDMA Consortium's DDP
// 1.0. A stream uses one of the two for all its segments in both directions; MPA's start-up decides
// which (RFC 5044 appendix C.1). Apart from DV the two protocols have the same headers, checks and
// errors.
//
//rfc:5044 RDMAC-C.1-02 No mixing of versions between MPA, DDP and RDMAP
//rfc:5044 RDMAC-C.1-03 Version identical in both directions
const (
	Version      = 1
	RDMACVersion = 0
)

// Lengths of DDP headers in octets, without the two octets of ULPDU_Length that
// precede them in an FPDU (RFC 5041 figures 4 and 5).
const (
	TaggedHeaderLen   = 14
	UntaggedHeaderLen = 18
	MaxHeaderLen      = UntaggedHeaderLen
)

// Bits of the DDP control octet (RFC 5041 figure 3).
const (
	ctlTagged        = 0x80
	ctlLast          = 0x40
	ctlReservedMask  = 0x3c
	ctlReservedShift = 2
	ctlVersionMask   = 0x03
)

// Header is a DDP header of either format with every bit of the wire, so that an illegal header can
// be written and read back (RFC 5041 section 4).
//
// Tagged selects the format. The fields of the other format are not encoded and are zero after a
// parse.
type Header struct {
	Tagged   bool  // T
	Last     bool  // L
	Reserved uint8 // Rsvd, 4 bits: zero on transmit, not checked on receive
	Version  uint8 // DV, 2 bits

	// ULPCtl is the octet of RsvdULP that both formats have. RDMAP uses it for its control field.
	ULPCtl uint8

	STag uint32 // tagged: steering tag of the data sink's buffer
	TO   uint64 // tagged: offset in octets of the payload in that buffer

	ULP32 uint32 // untagged: the other 32 bits of RsvdULP; RDMAP's Invalidate STag
	QN    uint32 // untagged: queue number
	MSN   uint32 // untagged: message sequence number
	MO    uint32 // untagged: offset in octets of the payload in the message
}

// Len returns the length of the header in octets: [TaggedHeaderLen] or [UntaggedHeaderLen].
func (h *Header) Len() int {
	if h.Tagged {
		return TaggedHeaderLen
	}
	return UntaggedHeaderLen
}

// HeaderLen returns the length in octets of the header whose first octet, the
// DDP control field, is ctl.
func HeaderLen(ctl byte) int {
	if ctl&ctlTagged != 0 {
		return TaggedHeaderLen
	}
	return UntaggedHeaderLen
}

// Control returns the DDP control octet. Bits of Reserved and Version beyond
// their 4 and 2 are dropped.
func (h *Header) Control() byte {
	c := h.Reserved<<ctlReservedShift&ctlReservedMask | h.Version&ctlVersionMask
	if h.Tagged {
		c |= ctlTagged
	}
	if h.Last {
		c |= ctlLast
	}
	return c
}

// AppendTo appends the header in wire format to b and returns the longer slice.
// It allocates only when b lacks the capacity for [Header.Len] more octets.
//
//rfc:5041 DDP-4.2-01 Tagged header layout of 14 octets
//rfc:5041 DDP-4.3-01 Untagged header layout of 18 octets
func (h *Header) AppendTo(b []byte) []byte {
	if h.Tagged {
		b = append(b, make([]byte, TaggedHeaderLen)...)
		putTagged(b[len(b)-TaggedHeaderLen:], h.Control(), h.ULPCtl, h.STag, h.TO)
		return b
	}
	b = append(b, make([]byte, UntaggedHeaderLen)...)
	putUntagged(b[len(b)-UntaggedHeaderLen:], h.Control(), h.ULPCtl, h.ULP32, h.QN, h.MSN, h.MO)
	return b
}

func putTagged(p []byte, ctl, ulpCtl byte, stag uint32, to uint64) {
	_ = p[TaggedHeaderLen-1]
	p[0], p[1] = ctl, ulpCtl
	binary.BigEndian.PutUint32(p[2:], stag)
	binary.BigEndian.PutUint64(p[6:], to)
}

func putUntagged(p []byte, ctl, ulpCtl byte, ulp32, qn, msn, mo uint32) {
	_ = p[UntaggedHeaderLen-1]
	p[0], p[1] = ctl, ulpCtl
	binary.BigEndian.PutUint32(p[2:], ulp32)
	binary.BigEndian.PutUint32(p[6:], qn)
	binary.BigEndian.PutUint32(p[10:], msn)
	binary.BigEndian.PutUint32(p[14:], mo)
}

// Parse splits a complete ULPDU into its DDP header and its payload. The payload is a part of
// ulpdu.
//
// The only error is [ErrShortSegment]. Parse does not check whether the header is legal.
//
//rfc:5041 DDP-4.4-01 Every segment has a DDP header
//rfc:5041 DDP-4.4-02 Segment without payload is legal
func Parse(ulpdu []byte) (Header, []byte, error) {
	h, n, err := ParseHeader(ulpdu, len(ulpdu))
	if err != nil {
		return Header{}, nil, err
	}
	return h, ulpdu[n:], nil
}

// ParseHeader reads a DDP header from b, the octets of a ULPDU received so far. ulpduLen is the
// ULPDU's whole length in octets as MPA announced it; octets of b beyond it are ignored.
//
// It returns the header and its length in octets, or a length of zero and no error when b does not
// yet hold the whole header. The payload's length is ulpduLen minus the header's. The error is
// [ErrShortSegment] as soon as it is clear that a ULPDU of this length cannot hold its header.
func ParseHeader(b []byte, ulpduLen int) (h Header, n int, err error) {
	if len(b) > ulpduLen {
		b = b[:max(ulpduLen, 0)]
	}
	if ulpduLen < TaggedHeaderLen {
		return Header{}, 0, ErrShortSegment
	}
	if len(b) == 0 {
		return Header{}, 0, nil
	}
	n = HeaderLen(b[0])
	if ulpduLen < n {
		return Header{}, 0, ErrShortSegment
	}
	if len(b) < n {
		return Header{}, 0, nil
	}
	h.decode(b[:n])
	return h, n, nil
}

// A Tagged has the fields of a tagged segment that are needed once its DV has been checked. They
// are so few that the compiler keeps them in registers.
type Tagged struct {
	Last   bool
	ULPCtl uint8
	STag   uint32
	TO     uint64
}

// ParseTagged parses a ULPDU that is a tagged segment: T set, and DV 1. The payload is a part of
// ulpdu. It returns false for any other ULPDU, or one that is too short; [Parse] distinguishes
// these.
func ParseTagged(ulpdu []byte) (g Tagged, payload []byte, ok bool) {
	if len(ulpdu) < TaggedHeaderLen || ulpdu[0]&^(ctlReservedMask|ctlLast) != ctlTagged|Version {
		return Tagged{}, nil, false
	}
	return Tagged{
		Last: ulpdu[0]&ctlLast != 0, ULPCtl: ulpdu[1],
		STag: binary.BigEndian.Uint32(ulpdu[2:]), TO: binary.BigEndian.Uint64(ulpdu[6:]),
	}, ulpdu[TaggedHeaderLen:], true
}

// decode sets a zero header from b, which has exactly the header's octets.
func (h *Header) decode(b []byte) {
	ctl := b[0]
	h.Tagged = ctl&ctlTagged != 0
	h.Last = ctl&ctlLast != 0
	h.Reserved = ctl & ctlReservedMask >> ctlReservedShift
	h.Version = ctl & ctlVersionMask
	h.ULPCtl = b[1]
	if h.Tagged {
		h.STag = binary.BigEndian.Uint32(b[2:])
		h.TO = binary.BigEndian.Uint64(b[6:])
		return
	}
	h.ULP32 = binary.BigEndian.Uint32(b[2:])
	h.QN = binary.BigEndian.Uint32(b[6:])
	h.MSN = binary.BigEndian.Uint32(b[10:])
	h.MO = binary.BigEndian.Uint32(b[14:])
}
