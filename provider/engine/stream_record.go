package engine

import (
	"github.com/govs-rdma/govs/provider/engine/transport"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
)

// cutsAnywhere reports whether TCP may cut anywhere, so that what is sent needs no limits
// of records. Without CRC no receiver fails at such a cut. And where a segment holds the
// longest FPDU and more, there is no wire, and so no RNIC that is faster if FPDUs begin a
// segment. Each FPDU would be a record there, hence a packet of its own in TCP, which does
// not fill its buffers.
//
//rfc:5044 MPA-5.1-01 Start TCP segments at FPDU boundaries when possible
func cutsAnywhere(crc bool, emss int) bool {
	return !crc && emss > mpa.FPDULen(mpa.MaxULPDU)
}

// limitUnsent counts the batch, which has just been filled, and limits what the socket holds.
func (s *stream) limitUnsent() {
	t := &s.tx
	if !t.unsent.Count(t.b.nrecs, int(t.b.built)) {
		return
	}
	if l, ok := s.conn.(transport.UnsentLimiter); ok {
		_ = l.LimitUnsent(t.unsent.Limit()) // fails on a closed socket, which the next write reports
	}
}

// writeRecords writes to conn, with the limits of records if it knows how to.
func writeRecords(conn transport.Conn, bufs [][]byte, records []int) (int, error) {
	if w, ok := conn.(transport.RecordWriter); ok {
		return w.WriteRecords(bufs, records)
	}
	return conn.Writev(bufs)
}

// writeRecords is the same for the stream's Conn, which has been asked what it
// knows.
func (s *stream) writeRecords(bufs [][]byte, records []int) (int, error) {
	if s.records != nil {
		return s.records.WriteRecords(bufs, records)
	}
	return s.conn.Writev(bufs)
}

// writeBatch hands the socket what the batch has.
func (s *stream) writeBatch() (int, error) {
	t := &s.tx
	if cutsAnywhere(t.crc, int(t.emss)) {
		return s.conn.Writev(t.b.pending())
	}
	return s.writeRecords(t.b.pending(), t.b.records())
}
