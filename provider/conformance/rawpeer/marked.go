package rawpeer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
)

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
