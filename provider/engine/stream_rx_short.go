package engine

import (
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
)

// takeRun takes n verified FPDUs of the same length from the receive context.
func (s *stream) takeRun(n, ulpduLen int) {
	r := &s.rx
	size := mpa.FPDULen(ulpduLen)
	for ; n > 0 && !s.over(); n-- {
		ulpdu := r.c.b[r.r+mpa.HeaderLen:][:ulpduLen]
		r.r += size
		s.take(ulpdu)
		if r.storing() {
			r.store.run, r.store.runULPDU = n-1, ulpduLen
			return
		}
	}
}

// take takes a ULPDU whose FPDU was verified.
func (s *stream) take(ulpdu []byte) {
	if !s.placeWrite(ulpdu) && !s.placeSend(ulpdu) {
		s.segment(ulpdu)
	}
}

// placeWrite handles a segment of a Write to the region that is already in use for the peer, as
// segment would. It leaves anything else, or a faulty segment, to segment.
//
// A region is in use for the peer only after the first FPDU of a stream. leave ends that use after
// each read.
func (s *stream) placeWrite(ulpdu []byte) bool {
	m := s.rx.c.m
	if m == nil || s.rx.c.mFor != s.q {
		return false
	}
	g, payload, ok := s.rx.recv.BeginWrite(ulpdu)
	if !ok || g.STag != m.STag() {
		return false
	}
	p, ok := m.Slice(g.TO, uint64(len(payload)))
	if !ok {
		return false
	}
	copy(p, payload)
	s.rx.recv.CommitWrite(g, len(payload))
	countSegment(&s.q.counters().received.Write, len(payload), g.Last)
	return true
}

// placeSend handles a Send that is one segment and goes to a receive of one SGE, as most do, as
// segment would. It leaves anything else, or a faulty segment, to segment.
func (s *stream) placeSend(ulpdu []byte) bool {
	r := &s.rx
	payload, op, ok := r.recv.WholeSend(ulpdu)
	if !ok || r.first || len(payload) == 0 {
		return false
	}
	w, sges, pd := s.q.frontRecv()
	if w == nil || w.nsge != 1 || uint64(len(payload)) > uint64(w.length) {
		return false
	}
	m := pd.Table.Local(sges[0].LKey)
	if m == nil {
		return false
	}
	p, ok := m.Octets(&pd.Domain, &sges[0], provider.AccessLocalWrite)
	if !ok {
		m.Release()
		return false
	}
	copy(p, payload)
	m.Release()
	r.recv.CommitSend(op)
	countOne(&s.q.counters().received.Send, uint32(len(payload)))
	s.finishRecv(provider.WC{ByteLen: uint32(len(payload))}, op.Solicited())
	return true
}
