package engine

import "github.com/govs-rdma/govs/provider/engine/transport"

// limitUnsent counts the batch, which has just been filled, and limits what the socket holds.
func (s *stream) limitUnsent() {
	t := &s.tx
	if !t.unsent.Count(len(t.b.Records()), int(t.b.Built())) {
		return
	}
	if l, ok := s.conn.(transport.UnsentLimiter); ok {
		_ = l.LimitUnsent(t.unsent.Limit()) // fails on a closed socket, which the next write reports
	}
}

// writeRecords writes to conn, with the limits of records if conn can keep them.
func writeRecords(conn transport.Conn, bufs [][]byte, records []int) (int, error) {
	if w, ok := conn.(transport.RecordWriter); ok {
		return w.WriteRecords(bufs, records)
	}
	return conn.Writev(bufs)
}

// writeRecords writes to the stream's Conn. Whether that can keep the limits of records is known.
func (s *stream) writeRecords(bufs [][]byte, records []int) (int, error) {
	if s.records != nil {
		return s.records.WriteRecords(bufs, records)
	}
	return s.conn.Writev(bufs)
}

// writeBatch hands the batch's bytes to the socket.
func (s *stream) writeBatch() (int, error) {
	t := &s.tx
	if t.format.CutsAnywhere() {
		return s.conn.Writev(t.b.Pending())
	}
	return s.writeRecords(t.b.Pending(), t.b.Records())
}
