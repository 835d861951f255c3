package rdmap

import (
	"encoding/binary"

	"github.com/govs-rdma/govs/provider/iwarp/ddp"
)

// Headers of RDMA messages as this side sends them: DV and RV 1, reserved bits zero, T and QN as
// RFC 5040 figure 4 demands. To send an illegal header, change a field of the returned one; for a
// stream of version 0 use [SetRDMAC].
//
//rfc:5041 DDP-4.1-09 Reserved bits zero on send
//rfc:5041 DDP-4.1-11 DV=1 on send
//rfc:5040 RDMAP-4.1-05 STag/TO or QN present per table

// SetRDMAC changes a header of this package to the RDMA Consortium's version, for a stream whose
// MPA start-up agreed on it: DV and RV become 0. Nothing else differs.
//
//rfc:5044 RDMAC-C.1-02 No mixing of versions between MPA, DDP and RDMAP
func SetRDMAC(h *ddp.Header) {
	c := ParseControl(h.ULPCtl)
	c.Version = RDMACVersion
	h.Version, h.ULPCtl = ddp.RDMACVersion, c.Octet()
}

//rfc:5040 RDMAP-4.1-06 RV=1 for IETF
//rfc:5040 RDMAP-4.1-07 Rsv bits zero on send
func taggedHeader(op Opcode, stag uint32, to uint64, last bool) ddp.Header {
	return ddp.Header{
		Tagged: true, Last: last, Version: ddp.Version,
		ULPCtl: Control{Version: Version, Opcode: op}.Octet(),
		STag:   stag, TO: to,
	}
}

func untaggedHeader(op Opcode, qn, msn, mo uint32, last bool) ddp.Header {
	return ddp.Header{
		Last: last, Version: ddp.Version,
		ULPCtl: Control{Version: Version, Opcode: op}.Octet(),
		QN:     qn, MSN: msn, MO: mo,
	}
}

// WriteHeader returns the header of an RDMA Write segment whose payload goes to
// offset to of the peer's buffer stag.
//
//rfc:5040 RDMAP-5.1-01 Write uses Tagged model
func WriteHeader(stag uint32, to uint64, last bool) ddp.Header {
	return taggedHeader(OpWrite, stag, to, last)
}

// ReadResponseHeader returns the header of an RDMA Read Response segment. stag is the sink STag of
// the request, unchanged; to is the request's sink TO plus the number of octets in earlier
// segments.
//
//rfc:5040 RDMAP-4.4-02 Sink STag copied uninterpreted into the Read Response
//rfc:5040 RDMAP-4.4-03 Sink TO copied into the first Response segment
//rfc:5040 RDMAP-5.2.2-01 Response uses Tagged model
func ReadResponseHeader(stag uint32, to uint64, last bool) ddp.Header {
	return taggedHeader(OpReadResponse, stag, to, last)
}

// SendHeader returns the header of a segment of one of the four Send message types. invalidate is
// the STag that the peer invalidates. It is sent only if [Opcode.Invalidates] holds for op;
// otherwise the field is zero.
//
//rfc:5040 RDMAP-5.3-01 Send untagged
//rfc:5040 RDMAP-5.3-06 Send on QN 0
func SendHeader(op Opcode, invalidate, msn, mo uint32, last bool) ddp.Header {
	h := untaggedHeader(op, QNSend, msn, mo, last)
	//rfc:5040 RDMAP-4.1-02 RsvdULP octets 2-5 are the Invalidate STag
	//rfc:5040 RDMAP-4.1-09 Invalidate STag zero where the opcode has none
	//rfc:5040 RDMAP-5.3-09 SendInv carries an STag
	if op.Invalidates() {
		h.ULP32 = invalidate
	}
	return h
}

// ReadRequestHeader returns the DDP header of an RDMA Read Request, whose payload
// is a [ReadRequest]. The message is always one segment.
//
//rfc:5040 RDMAP-5.2.1-01 ReadReq untagged on QN 1
func ReadRequestHeader(msn uint32) ddp.Header {
	return untaggedHeader(OpReadRequest, QNReadRequest, msn, 0, true)
}

// TerminateHeader returns the DDP header of the one Terminate message of a
// stream, whose payload is a [Terminate].
//
//rfc:5040 RDMAP-5.4-01 Terminate untagged on QN 2
//rfc:5040 RDMAP-5.4-02 Terminate MSN 1, MO 0, L=1
func TerminateHeader() ddp.Header {
	return untaggedHeader(OpTerminate, QNTerminate, ddp.FirstMSN, 0, true)
}

// Head holds what the headers of all segments of a Write, a Read Response or a Send have in common,
// in wire format. A sender makes one for a message, and need not distinguish them for its segments.
// Putting a Head takes less time than filling in a [ddp.Header].
type Head struct {
	at  uint64 // tagged: the TO of the first octet; Send: QN and MSN
	key uint32 // tagged: the STag; Send: the STag to invalidate
	ctl uint16 // the octets of DDP's and RDMAP's control fields, without L
}

// Both control octets, reserved bits zero.
//
//rfc:5041 DDP-4.1-09 Reserved bits zero on send
//rfc:5041 DDP-4.1-11 DV=1 on send
const (
	headTagged = 1 << 15 // T
	headLast   = 1 << 14 // L
	headTo     = headTagged | ddp.Version<<8 | Version<<ctlVersionShift
	headSend   = ddp.Version<<8 | Version<<ctlVersionShift
)

// WriteHead returns the Head of an RDMA Write to the buffer stag, from offset to on.
//
//rfc:5040 RDMAP-5.1-01 Write uses Tagged model
func WriteHead(stag uint32, to uint64) Head { return Head{to, stag, headTo | uint16(OpWrite)} }

// ReadResponseHead returns the Head of an RDMA Read Response to the sink STag and TO of a request.
//
//rfc:5040 RDMAP-4.4-02 Sink STag copied uninterpreted into the Read Response
//rfc:5040 RDMAP-4.4-03 Sink TO copied into the first Response segment
//rfc:5040 RDMAP-5.2.2-01 Response uses Tagged model
func ReadResponseHead(stag uint32, to uint64) Head {
	return Head{to, stag, headTo | uint16(OpReadResponse)}
}

// SendHead returns the Head of a Send of one of the four types. invalidate is the STag that the
// peer invalidates; it is 0 if [Opcode.Invalidates] does not hold for op.
//
//rfc:5040 RDMAP-5.3-01 Send untagged
//rfc:5040 RDMAP-5.3-06 Send on QN 0
//rfc:5040 RDMAP-5.3-09 SendInv carries an STag
func SendHead(op Opcode, invalidate, msn uint32) Head {
	return Head{QNSend<<32 | uint64(msn), invalidate, headSend | uint16(op)}
}

// Len returns the length of a segment's header in octets.
func (h Head) Len() int { return ddp.UntaggedHeaderLen - 4*int(h.ctl/headTagged) }

// Put writes to p the header of the segment that begins at an offset of the message. It writes
// [ddp.MaxHeaderLen] octets; the header is the first [Head.Len] of them.
func (h Head) Put(p []byte, offset uint32, last bool) {
	ctl, tagged := h.ctl, uint32(h.ctl/headTagged)
	if last {
		ctl |= headLast
	}
	_ = p[ddp.MaxHeaderLen-1]
	binary.BigEndian.PutUint16(p, ctl)
	binary.BigEndian.PutUint32(p[2:], h.key)
	binary.BigEndian.PutUint64(p[6:], h.at+uint64(offset*tagged))
	binary.BigEndian.PutUint32(p[14:], offset*(1-tagged))
}

// Header returns what Put writes, as a Header.
func (h Head) Header(offset uint32, last bool) ddp.Header {
	if h.ctl&headTagged != 0 {
		return taggedHeader(Opcode(h.ctl&ctlOpcodeMask), h.key, h.at+uint64(offset), last)
	}
	return SendHeader(Opcode(h.ctl&ctlOpcodeMask), h.key, uint32(h.at), offset, last)
}
