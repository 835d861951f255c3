package replay

import (
	"fmt"
	"slices"

	"github.com/govs-rdma/govs/provider/conformance/wire"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// flow is a sequence of segments that has at most one unfinished message at a time.
type flow struct {
	opcode rdmap.Opcode
	qn     uint32
}

func flowOf(f *wire.Frame) flow {
	if f.Header.Tagged {
		return flow{opcode: f.Opcode()}
	}
	return flow{f.Opcode(), f.Header.QN}
}

// stepper makes the events, and follows what the program's memory has to hold.
type stepper struct {
	*plan
	refused map[*wire.Frame]rdmap.Terminate
	begun   map[flow]*message // of the provider, not all there
	sends   map[flow]*receive // of the peer, not all there

	answers [][]byte // payload of the provider's Read Responses, in order
	asked   int      // Read Requests of the peer so far that were answered
}

// steps makes the events of the capture's frames, in their order. A message of the provider stands
// where its last segment is, because the peer can't have depended on less of it.
func (p *plan) steps(refused map[*wire.Frame]rdmap.Terminate) error {
	s := &stepper{plan: p, refused: refused, begun: make(map[flow]*message),
		sends: make(map[flow]*receive)}
	s.findAnswers()
	for _, r := range p.regions {
		r.last = slices.Clone(r.first)
	}
	for i := range p.conn.Frames {
		f := &p.conn.Frames[i]
		switch {
		case f.Kind == wire.KindStartup:
		case f.Dir == p.peers:
			s.played(f)
		case f.Kind == wire.KindFPDU:
			s.wanted(f)
		case !p.endsAlready():
			p.events = append(p.events, event{end: true})
		}
	}
	for _, m := range s.begun {
		return fmt.Errorf("a %v of the provider has no last segment: the capture ends in the "+
			"middle of it", m.opcode())
	}
	return nil
}

// endsAlready reports whether the provider's end is planned: a reset may follow its FIN.
func (p *plan) endsAlready() bool {
	return slices.ContainsFunc(p.events, func(e event) bool { return e.end })
}

// findAnswers collects what the provider answered to Reads.
func (s *stepper) findAnswers() {
	var open []byte
	for _, f := range s.conn.FPDUs(1 - s.peers) {
		if f.Opcode() != rdmap.OpReadResponse {
			continue
		}
		open = append(open, f.Payload...)
		if f.Header.Last {
			s.answers, open = append(s.answers, open), nil
		}
	}
}

// played adds a frame of the peer.
func (s *stepper) played(f *wire.Frame) {
	if _, bad := s.refused[f]; f.Kind == wire.KindFPDU && !bad && !f.HeaderCut && !f.CRCWrong {
		s.takes(f)
	}
	s.events = append(s.events, event{play: f})
}

// takes follows what a frame of the peer does to the program.
func (s *stepper) takes(f *wire.Frame) {
	switch op := f.Opcode(); {
	case f.Read != nil && s.asked < len(s.answers):
		answer := s.answers[s.asked]
		s.asked++
		// A Read of no octets may name a place outside of all regions.
		if r := s.find(f.Read.SourceSTag); r != nil && len(answer) <= int(f.Read.Size) &&
			r.has(f.Read.SourceTO, len(answer)) {
			s.mustHold(r, int(f.Read.SourceTO-r.from), answer)
		}
	case f.Header.Tagged:
		if r := s.find(f.Header.STag); r != nil && r.has(f.Header.TO, len(f.Payload)) {
			at := int(f.Header.TO - r.from)
			copy(r.last[at:], f.Payload)
			for i := range f.Payload {
				r.known[at+i] = true
			}
		}
	case op.IsSend():
		k := flowOf(f)
		m := s.sends[k]
		if m == nil {
			m = &receive{}
			s.sends[k] = m
		}
		m.octets = append(m.octets, f.Payload...)
		m.frames++
		if f.Header.Last {
			s.receives = append(s.receives, *m)
			delete(s.sends, k)
		}
	}
}

// has reports whether octets are all in the region.
func (r *region) has(to uint64, n int) bool {
	return to >= r.from && to <= r.to && uint64(n) <= r.to-to
}

// mustHold makes the program's memory have octets now. They are there from the beginning where
// nothing else is known of the memory; elsewhere the program changes it.
func (s *stepper) mustHold(r *region, at int, octets []byte) {
	for i, o := range octets {
		if !r.known[at+i] {
			r.known[at+i] = true
			r.first[at+i], r.last[at+i] = o, o
		}
	}
	if now := r.last[at : at+len(octets)]; !slices.Equal(now, octets) {
		copy(now, octets)
		s.events = append(s.events, event{set: &change{r, at, octets}})
	}
}

// wanted adds a segment of the provider to its message.
func (s *stepper) wanted(f *wire.Frame) {
	k := flowOf(f)
	m := s.begun[k]
	if m == nil {
		m = &message{first: f}
		s.begun[k] = m
	}
	m.octets = append(m.octets, f.Payload...)
	if !f.Header.Last {
		return
	}
	delete(s.begun, k)
	s.events = append(s.events, event{want: m})
	switch op := m.opcode(); {
	case op.IsSend(), op == rdmap.OpWrite:
		s.posts++
		s.payload += len(m.octets)
	case op == rdmap.OpReadRequest:
		s.posts++
	}
}
