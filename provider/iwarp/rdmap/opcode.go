package rdmap

import "fmt"

// Opcode is an RDMA message's opcode: four bits of the RDMAP control field
// (RFC 5040 figure 4).
type Opcode uint8

// The opcodes of RFC 5040 figure 4, where 8 to 15 are reserved, and of RFC 7306
// figure 2.
//
//rfc:5040 RDMAP-4.1-04 Opcode values per table (Write 0 .. Terminate 7)
//rfc:7306 EXT-4.1-02 Opcodes 8 Imm, 9 ImmSE, 10 AtomicReq, 11 AtomicResp
const (
	OpWrite            Opcode = 0
	OpReadRequest      Opcode = 1
	OpReadResponse     Opcode = 2
	OpSend             Opcode = 3
	OpSendInvalidate   Opcode = 4
	OpSendSE           Opcode = 5
	OpSendSEInvalidate Opcode = 6
	OpTerminate        Opcode = 7

	OpImmediate      Opcode = 8
	OpImmediateSE    Opcode = 9
	OpAtomicRequest  Opcode = 10
	OpAtomicResponse Opcode = 11
)

// Untagged queues of an RDMAP stream (RFC 5040 figure 4, RFC 7306 figure 2). Atomic Requests share
// the queue of Read Requests, and Immediate Data the queue of Sends.
//
//rfc:5040 RDMAP-4.1-11 Send-class messages use QN 0, ReadReq QN 1, Terminate QN 2
//rfc:7306 EXT-4.1-04 All four untagged: QN 0 (Imm), 1 (AtomicReq), 3 (AtomicResp)
const (
	QNSend           = 0
	QNReadRequest    = 1
	QNTerminate      = 2
	QNAtomicResponse = 3
)

var opcodeNames = [...]string{
	OpWrite:            "RDMA Write",
	OpReadRequest:      "RDMA Read Request",
	OpReadResponse:     "RDMA Read Response",
	OpSend:             "Send",
	OpSendInvalidate:   "Send with Invalidate",
	OpSendSE:           "Send with SE",
	OpSendSEInvalidate: "Send with SE and Invalidate",
	OpTerminate:        "Terminate",
	OpImmediate:        "Immediate Data",
	OpImmediateSE:      "Immediate Data with SE",
	OpAtomicRequest:    "Atomic Request",
	OpAtomicResponse:   "Atomic Response",
}

// String returns the name that RFC 5040 figure 4 or RFC 7306 figure 2 gives the
// opcode.
func (o Opcode) String() string {
	if o.Defined() || o.Extension() {
		return opcodeNames[o]
	}
	return fmt.Sprintf("reserved opcode %d", uint8(o))
}

// Defined reports whether RFC 5040 defines the opcode.
func (o Opcode) Defined() bool { return o <= OpTerminate }

// Extension reports whether RFC 7306 defines the opcode.
func (o Opcode) Extension() bool { return o >= OpImmediate && o <= OpAtomicResponse }

// Tagged reports whether messages of the opcode use the tagged buffer model.
//
//rfc:5040 RDMAP-4.1-03 T flag per message type table
func (o Opcode) Tagged() bool { return o == OpWrite || o == OpReadResponse }

// IsSend reports whether the opcode is one of the four Send message types.
func (o Opcode) IsSend() bool { return o >= OpSend && o <= OpSendSEInvalidate }

// Invalidates reports whether messages of the opcode carry an STag to invalidate.
func (o Opcode) Invalidates() bool { return o == OpSendInvalidate || o == OpSendSEInvalidate }

// Solicited reports whether delivery of a message of the opcode is a solicited
// event.
func (o Opcode) Solicited() bool {
	return o == OpSendSE || o == OpSendSEInvalidate || o == OpImmediateSE
}

// QN returns the untagged queue for messages of the opcode. ok is false if the opcode is tagged or
// reserved.
func (o Opcode) QN() (qn uint32, ok bool) {
	switch {
	case o.IsSend(), o == OpImmediate, o == OpImmediateSE:
		return QNSend, true
	case o == OpReadRequest, o == OpAtomicRequest:
		return QNReadRequest, true
	case o == OpTerminate:
		return QNTerminate, true
	case o == OpAtomicResponse:
		return QNAtomicResponse, true
	}
	return 0, false
}

// Version is the RV value of RFC 5040, and RDMACVersion the RV value of the RDMA Consortium's RDMAP
// 1.0. A stream has the RV that matches its DV: ddp.Version or ddp.RDMACVersion.
//
//rfc:5044 RDMAC-C.1-02 No mixing of versions between MPA, DDP and RDMAP
const (
	Version      = 1
	RDMACVersion = 0
)

// Bits of the RDMAP control octet (RFC 5040 figure 3).
const (
	ctlVersionShift  = 6
	ctlReservedMask  = 0x30
	ctlReservedShift = 4
	ctlOpcodeMask    = 0x0f
)

// Control is the RDMAP control field, which travels in the ULPCtl octet of the
// DDP header.
type Control struct {
	Version  uint8  // RV, 2 bits
	Reserved uint8  // Rsv, 2 bits: zero on transmit, ignored on receive
	Opcode   Opcode // 4 bits
}

// ParseControl parses the control octet. Every octet is a control field; ParseControl does not
// check whether it is legal.
//
//rfc:5040 RDMAP-4.1-01 First RsvdULP octet is the control field RV/Rsv/Opcode
func ParseControl(b byte) Control {
	return Control{
		Version:  b >> ctlVersionShift,
		Reserved: b & ctlReservedMask >> ctlReservedShift,
		Opcode:   Opcode(b & ctlOpcodeMask),
	}
}

// Octet returns the control field in wire format. Bits beyond a field's width
// are dropped.
func (c Control) Octet() byte {
	return c.Version<<ctlVersionShift | c.Reserved<<ctlReservedShift&ctlReservedMask | byte(c.Opcode)&ctlOpcodeMask
}
