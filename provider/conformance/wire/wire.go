// Package wire reads captures and decodes the iWARP in them: MPA start-up frames, FPDUs,
// DDP segments and RDMAP messages of every TCP connection, with what is wrong with each.
// It prints them as ladders, and compares two captures without what may differ between
// runs.
//
// It uses the same codecs as the engine, so it proves nothing alone: package tshark makes an
// independent decoder read the same file.
//
// # Limitations
//
//   - A connection is decoded from its MPA Request on. One whose start-up is not
//     in the capture is listed, but not decoded: nothing in the stream says
//     whether CRCs and Markers are in use.
//   - Decoding of a direction ends where octets are missing from the capture,
//     because FPDU boundaries can't be found again with certainty.
//   - Fragments of IP packets are not put together; a note counts them. TCP inside
//     tunnels (GRE, VXLAN) is not looked for.
package wire

import (
	"net/netip"
	"time"

	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// Direction says which way octets went.
type Direction uint8

// The directions. The initiator is the end that opened the TCP connection.
const (
	ToResponder Direction = iota
	ToInitiator
)

// String returns "to-responder" or "to-initiator".
func (d Direction) String() string {
	if d == ToInitiator {
		return "to-initiator"
	}
	return "to-responder"
}

// A Trace is what a capture holds, connection by connection in the order in
// which they were opened.
type Trace struct {
	Conns []*Conn
	Notes []string // what was wrong with the file, in words
}

// A Conn is one TCP connection.
type Conn struct {
	Initiator, Responder netip.AddrPort
	Start                time.Time
	Frames               []Frame // both directions, in order of time
	Notes                []string

	// Request and Reply are the start-up frames, nil where none was seen.
	Request, Reply *mpa.Frame
}

// CRC reports whether the start-up turned CRCs on.
func (c *Conn) CRC() bool {
	return c.Request != nil && c.Reply != nil && (c.Request.CRC || c.Reply.CRC)
}

// RDMAC reports whether the start-up agreed on the RDMA Consortium's version of DDP and
// RDMAP: a Reply of revision 0, which asks for Markers. (siw answers a Request of
// revision 0 in revision 0, too, but does not use that version.) There are Markers in
// both directions then, whatever the Request says.
//
//rfc:5044 RDMAC-C.2.5-01 Permissive initiator on Rev0 Reply: V=0, markers, CRC
func (c *Conn) RDMAC() bool {
	return c.Request != nil && c.Reply != nil && !c.Reply.Reject && c.Reply.Revision == 0 && c.Reply.Markers
}

// version is the DV and RV of the connection.
func (c *Conn) version() uint8 {
	if c.RDMAC() {
		return ddp.RDMACVersion
	}
	return ddp.Version
}

// Kind is what a Frame is.
type Kind uint8

// The kinds of frames.
const (
	KindStartup   Kind = iota // an MPA Request or Reply
	KindFPDU                  // one FPDU
	KindFIN                   // the end of the direction's stream
	KindRST                   // a reset
	KindUndecoded             // octets that are not iWARP, cut short or missing; Err says why
)

// A Frame is one thing that one side sent.
type Frame struct {
	Kind   Kind
	Dir    Direction
	Time   time.Time // of the packet that completed it
	Offset uint64    // of its first octet in the direction's stream
	Octets []byte    // as in the stream, Markers included
	Packet Packet    // that it begins in

	Startup *mpa.Frame // KindStartup

	// For KindFPDU:
	Header    ddp.Header
	HeaderCut bool   // the ULPDU is too short for its DDP header, and is all in Payload
	Payload   []byte // of the DDP segment
	CRC       uint32 // the field, as in the stream
	CRCWrong  bool   // CRCs are on and this one is wrong
	Read      *rdmap.ReadRequest
	Terminate *rdmap.ReceivedTerminate
	Immediate *uint64               // of Immediate Data, in the wire's order
	Atomic    *rdmap.AtomicRequest  // of an Atomic Request
	Original  *rdmap.AtomicResponse // of an Atomic Response

	Err error // what is wrong with it, nil if nothing
}

// Packet says where in its packet a frame begins. Octets that an earlier packet
// had brought already do not count.
type Packet struct {
	Time   time.Time
	Offset int // of the frame's first octet in the payload
	Len    int // octets of payload
	Span   int // packets until the frame ends, this one included
}

// Opcode returns the RDMAP opcode of an FPDU.
func (f *Frame) Opcode() rdmap.Opcode { return rdmap.ParseControl(f.Header.ULPCtl).Opcode }

// Count returns how many start-up frames and FPDUs the trace has.
func (t *Trace) Count() int {
	n := 0
	for _, c := range t.Conns {
		for i := range c.Frames {
			if k := c.Frames[i].Kind; k == KindStartup || k == KindFPDU {
				n++
			}
		}
	}
	return n
}

// FPDUs returns the FPDUs of a connection in one direction, in order.
func (c *Conn) FPDUs(dir Direction) []*Frame {
	var out []*Frame
	for i := range c.Frames {
		if f := &c.Frames[i]; f.Kind == KindFPDU && f.Dir == dir {
			out = append(out, f)
		}
	}
	return out
}

// IWARP returns a trace of only the connections that begin with an MPA start-up
// frame. It shares them with t.
func (t *Trace) IWARP() *Trace {
	out := &Trace{Notes: t.Notes}
	for _, c := range t.Conns {
		if c.Request != nil || c.Reply != nil {
			out.Conns = append(out.Conns, c)
		}
	}
	return out
}
