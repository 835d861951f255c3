package rawpeer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// An FPDU says what to send. The fields after Payload override values that follow from
// the others, so that wrong FPDUs can be sent.
type FPDU struct {
	Header  ddp.Header
	Payload []byte

	ULPDULength *uint16 // instead of the true length
	Pad         byte    // value of the pad octets
	CRC         *uint32 // instead of the right CRC, or of zero when CRCs are off
	NoDDP       bool    // Payload is the whole ULPDU
}

// Octets returns the FPDU as it goes on the wire.
func (f *FPDU) Octets(crc bool) []byte {
	ulpdu := f.Payload
	if !f.NoDDP {
		ulpdu = append(f.Header.AppendTo(nil), f.Payload...)
	}
	n := uint16(len(ulpdu))
	if f.ULPDULength != nil {
		n = *f.ULPDULength
	}
	b := append(mpa.AppendHeader(nil, n), ulpdu...)
	for range mpa.PadLen(len(ulpdu)) {
		b = append(b, f.Pad)
	}
	var sum uint32
	if crc {
		sum = mpa.CRC(0, b)
	}
	if f.CRC != nil {
		sum = *f.CRC
	}
	return binary.LittleEndian.AppendUint32(b, sum)
}

// SendFPDU sends an FPDU.
func (p *Peer) SendFPDU(f FPDU) error { return p.Send(f.Octets(p.CRC)) }

// SendMessage returns the one segment of a Send.
func SendMessage(msn uint32, payload []byte) FPDU {
	return FPDU{Header: rdmap.SendHeader(rdmap.OpSend, 0, msn, 0, true), Payload: payload}
}

// WriteMessage returns the one segment of an RDMA Write.
func WriteMessage(stag uint32, to uint64, payload []byte) FPDU {
	return FPDU{Header: rdmap.WriteHeader(stag, to, true), Payload: payload}
}

// ReadRequest returns an RDMA Read Request.
func ReadRequest(msn uint32, r rdmap.ReadRequest) FPDU {
	return FPDU{Header: rdmap.ReadRequestHeader(msn), Payload: r.AppendTo(nil)}
}

// ReadResponse returns the one segment of an RDMA Read Response.
func ReadResponse(stag uint32, to uint64, payload []byte) FPDU {
	return FPDU{Header: rdmap.ReadResponseHeader(stag, to, true), Payload: payload}
}

// TerminateMessage returns a Terminate in the RFC's layout.
func TerminateMessage(t rdmap.Terminate) FPDU {
	return FPDU{Header: rdmap.TerminateHeader(), Payload: t.AppendTo(nil)}
}

// Request returns an enhanced MPA Request of revision 2, as siw sends it, with
// CRCs asked for or not. Change a field to make it another.
func Request(crc bool, ird, ord uint16, private []byte) mpa.Frame {
	return startup(mpa.KindRequest, crc, mpa.Enhanced{IRD: ird, ORD: ord}, private)
}

// Reply returns an enhanced MPA Reply of revision 2.
func Reply(crc bool, ird, ord uint16, private []byte) mpa.Frame {
	return startup(mpa.KindReply, crc, mpa.Enhanced{IRD: ird, ORD: ord}, private)
}

func startup(kind mpa.Kind, crc bool, e mpa.Enhanced, private []byte) mpa.Frame {
	return mpa.Frame{
		Kind: kind, CRC: crc, Enhanced: true, Revision: 2,
		PrivateData: append(e.AppendTo(nil), private...),
	}
}

// marking is the framing of a stream with Markers in both directions. It has to know its
// position in the stream, so it sends only well-formed FPDUs.
type marking struct {
	framer   mpa.Framer
	deframer mpa.Deframer

	plain  []byte // of the FPDU that is coming, without Markers
	octets []byte // the same, with them
}

// Mark turns Markers on in both directions. Call it after the start-up, when CRC is set,
// and before the first FPDU. From then on only Header and Payload of an FPDU are used.
func (p *Peer) Mark() {
	p.marking = &marking{framer: mpa.NewFramer(true, p.CRC), deframer: mpa.NewDeframer(true, false)}
}

// Frame returns an FPDU as it goes on the wire next, with Markers if Mark was called.
func (p *Peer) Frame(f FPDU) ([]byte, error) {
	if p.marking == nil {
		return f.Octets(p.CRC), nil
	}
	return p.marking.framer.AppendFPDU(nil, f.Header.AppendTo(nil), f.Payload)
}

// readMarked reads one FPDU from a stream with Markers.
func (p *Peer) readMarked(wait time.Duration) (*Segment, error) {
	m := p.marking
	for {
		if len(p.in) > 0 {
			out, n, done, err := m.deframer.Feed(m.plain, p.in)
			if err != nil {
				return nil, err
			}
			m.plain, m.octets, p.in = out, append(m.octets, p.in[:n]...), p.in[n:]
			if done {
				return m.take()
			}
		}
		if err := p.fill(&wait); err != nil {
			if len(m.octets) > 0 && !errors.Is(err, ErrSilence) {
				return nil, fmt.Errorf("%d octets of an unfinished FPDU, then: %w", len(m.octets), err)
			}
			return nil, err
		}
	}
}

// take returns the FPDU that has come.
func (m *marking) take() (*Segment, error) {
	plain, octets := m.plain, m.octets
	m.plain, m.octets = nil, nil
	n, _, _ := mpa.ParseHeader(plain)
	h, payload, err := ddp.Parse(plain[mpa.HeaderLen : mpa.HeaderLen+n])
	if err != nil {
		return nil, err
	}
	return &Segment{h, payload, octets, binary.LittleEndian.Uint32(octets[len(octets)-mpa.CRCLen:])}, nil
}
