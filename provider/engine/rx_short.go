package engine

import (
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
)

// takeRun takes n verified FPDUs of the same length from the receive context.
func (rx *receiver) takeRun(n, ulpduLen int) {
	size := mpa.FPDULen(ulpduLen)
	for ; n > 0 && !rx.s.over(); n-- {
		ulpdu := rx.c.b[rx.r+mpa.HeaderLen:][:ulpduLen]
		rx.r += size
		rx.take(ulpdu)
		if rx.storing() {
			rx.store.run, rx.store.runULPDU = n-1, ulpduLen
			return
		}
	}
}

// take takes a ULPDU whose FPDU was verified.
func (rx *receiver) take(ulpdu []byte) {
	if !rx.placeWrite(ulpdu) && !rx.placeSend(ulpdu) {
		rx.segment(ulpdu)
	}
}

// placeWrite handles a segment of a Write to the region that is already in use for the peer, as
// segment would. It leaves anything else, or a faulty segment, to segment.
//
// A region is in use for the peer only after the first FPDU of a stream. leave ends that use after
// each read.
func (rx *receiver) placeWrite(ulpdu []byte) bool {
	m := rx.c.m
	if m == nil || rx.c.mFor != rx.q {
		return false
	}
	g, payload, ok := rx.recv.BeginWrite(ulpdu)
	if !ok || g.STag != m.STag() {
		return false
	}
	p, ok := m.Slice(g.TO, uint64(len(payload)))
	if !ok {
		return false
	}
	copy(p, payload)
	rx.recv.CommitWrite(g, len(payload))
	countSegment(&rx.q.counters().received.Write, len(payload), g.Last)
	return true
}

// placeSend handles a Send that is one segment and goes to a receive of one SGE, as most do, as
// segment would. It leaves anything else, or a faulty segment, to segment.
func (rx *receiver) placeSend(ulpdu []byte) bool {
	payload, op, ok := rx.recv.WholeSend(ulpdu)
	if !ok || rx.first || len(payload) == 0 {
		return false
	}
	w, sges, pd := rx.q.frontRecv()
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
	rx.recv.CommitSend(op)
	countOne(&rx.q.counters().received.Send, uint32(len(payload)))
	rx.finishRecv(provider.WC{ByteLen: uint32(len(payload))}, op.Solicited())
	return true
}
