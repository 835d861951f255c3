package wiretest

import (
	"github.com/govs-rdma/govs/provider/conformance/wire"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// A Session is a connection past its MPA start-up. What it sends goes out in
// FPDUs of at most MULPDU octets, one message at a time.
type Session struct {
	*Conn
	MULPDU  int // longest ULPDU; default 1420
	framers [2]mpa.Framer
	held    [2][]byte
	hold    bool
}

// Enhanced returns a start-up frame of revision 2 without private data.
func Enhanced(kind mpa.Kind, crc bool, ird, ord uint16) mpa.Frame {
	e := mpa.Enhanced{IRD: ird, ORD: ord}
	return mpa.Frame{Kind: kind, Revision: 2, Enhanced: true, CRC: crc, PrivateData: e.AppendTo(nil)}
}

// Start exchanges start-up frames.
func (c *Conn) Start(request, reply mpa.Frame) *Session {
	return c.StartAs(request, request, reply)
}

// StartAs exchanges start-up frames, of which sent is the Request on the wire. The framing that
// follows is that of request, which may differ from it.
func (c *Conn) StartAs(sent, request, reply mpa.Frame) *Session {
	c.Send(wire.ToResponder, sent.AppendTo(nil))
	c.Send(wire.ToInitiator, reply.AppendTo(nil))
	crc := request.CRC || reply.CRC
	return &Session{Conn: c, framers: [2]mpa.Framer{
		wire.ToResponder: mpa.NewFramer(reply.Markers, crc),
		wire.ToInitiator: mpa.NewFramer(request.Markers, crc),
	}}
}

// Begin opens a connection and starts it up with frames of revision 2.
func (c *Capture) Begin(crc bool) *Session {
	return c.Open(Client, Server).Start(Enhanced(mpa.KindRequest, crc, 4, 4), Enhanced(mpa.KindReply, crc, 4, 4))
}

// Hold keeps what is sent back until Release, so that FPDUs share packets.
func (s *Session) Hold() { s.hold = true }

// Release sends what was held back.
func (s *Session) Release() {
	s.hold = false
	for dir := range s.held {
		s.Conn.Send(wire.Direction(dir), s.held[dir])
		s.held[dir] = nil
	}
}

// FPDU sends one segment.
func (s *Session) FPDU(dir wire.Direction, h ddp.Header, payload []byte) {
	s.ULPDU(dir, append(h.AppendTo(nil), payload...))
}

// ULPDU sends an FPDU of any content.
func (s *Session) ULPDU(dir wire.Direction, ulpdu []byte) {
	octets, err := s.framers[dir].AppendFPDU(nil, ulpdu)
	if err != nil {
		panic("wiretest: " + err.Error())
	}
	s.Octets(dir, octets)
}

// Octets sends octets of the stream as they are.
func (s *Session) Octets(dir wire.Direction, octets []byte) {
	if s.hold {
		s.held[dir] = append(s.held[dir], octets...)
		return
	}
	s.Conn.Send(dir, octets)
}

// segments cuts a message; header makes the header of each segment.
func (s *Session) segments(dir wire.Direction, payload []byte, tagged bool, header func(at int, last bool) ddp.Header) {
	mulpdu := s.MULPDU
	if mulpdu == 0 {
		mulpdu = 1420
	}
	room := ddp.MaxPayload(mulpdu, tagged)
	at := 0
	for len(payload)-at > room {
		s.FPDU(dir, header(at, false), payload[at:at+room])
		at += room
	}
	s.FPDU(dir, header(at, true), payload[at:])
}

// SendMessage sends a Send.
func (s *Session) SendMessage(dir wire.Direction, msn uint32, payload []byte) {
	s.segments(dir, payload, false, func(at int, last bool) ddp.Header {
		return rdmap.SendHeader(rdmap.OpSend, 0, msn, uint32(at), last)
	})
}

// SendInvalidate sends a Send with Invalidate.
func (s *Session) SendInvalidate(dir wire.Direction, msn, stag uint32, payload []byte) {
	s.segments(dir, payload, false, func(at int, last bool) ddp.Header {
		return rdmap.SendHeader(rdmap.OpSendInvalidate, stag, msn, uint32(at), last)
	})
}

// Write sends an RDMA Write.
func (s *Session) Write(dir wire.Direction, stag uint32, to uint64, payload []byte) {
	s.segments(dir, payload, true, func(at int, last bool) ddp.Header { return rdmap.WriteHeader(stag, to+uint64(at), last) })
}

// Read sends an RDMA Read Request, and in the other direction its response.
func (s *Session) Read(dir wire.Direction, msn uint32, r rdmap.ReadRequest, payload []byte) {
	s.FPDU(dir, rdmap.ReadRequestHeader(msn), r.AppendTo(nil))
	s.Respond(1-dir, r.SinkSTag, r.SinkTO, payload)
}

// Respond sends an RDMA Read Response.
func (s *Session) Respond(dir wire.Direction, stag uint32, to uint64, payload []byte) {
	s.segments(dir, payload, true, func(at int, last bool) ddp.Header {
		return rdmap.ReadResponseHeader(stag, to+uint64(at), last)
	})
}

// Terminate sends a Terminate in the RFC's layout or in siw's.
func (s *Session) Terminate(dir wire.Direction, t rdmap.Terminate, siw bool) {
	payload := t.AppendTo(nil)
	if siw {
		payload = t.AppendSIW(nil)
	}
	s.FPDU(dir, rdmap.TerminateHeader(), payload)
}

// Close sends a FIN each way, the initiator's first.
func (s *Session) Close() {
	s.FIN(wire.ToResponder)
	s.FIN(wire.ToInitiator)
}
