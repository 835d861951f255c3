package engine

import (
	"github.com/govs-rdma/govs/provider/engine/transport"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
)

// sackRoom is by how much TCP's segments are shorter than TCP_MAXSEG says while
// they carry selective acknowledgements: four octets, and eight for each of at
// most three blocks beside a timestamp.
const sackRoom = 28

// loose reports whether TCP may cut anywhere, so that what is sent needs no limits
// of records: without CRC no receiver is hurt, and where a segment holds the longest
// FPDU and more there is no wire, so that no RNIC is glad of FPDUs that begin a
// segment. Each would be a record of its own there, with buffers that TCP does not
// fill and a way of its own through it.
//
//rfc:5044 MPA-5.1-01
func loose(crc bool, emss int) bool {
	return !crc && emss > mpa.FPDULen(mpa.MaxULPDU)
}

// unsentRecords is how many records a socket may hold that TCP can't send yet, where each
// holds one FPDU. unsentMost is the limit in octets above which there is none: a socket's
// buffer has room for a few hundred records as long as that.
//
// The kernel sends what a socket holds when acknowledgements make room for it. Those that
// come while a system call has the socket wait for the end of that call, which then sends
// all that they make room for. A peer with tiny segments that acknowledges fast kept one
// sendmmsg for 12 ms: each such record is a packet of its own, which costs 2 to 3 us, and a
// socket's buffer of 4 MiB has room for 3,000 of them. With 64 it is a turn of the engine
// that sends most of them, and a turn is bounded.
const (
	unsentRecords = 64
	unsentMost    = 256 << 10
)

// unsentLimit returns how many octets a socket may hold that TCP can't send yet, 0 for what
// the system allows. Records of FPDUs that fill a segment need no limit: many of them share
// a record, and TCP hands many of their segments to the network at once.
func unsentLimit(crc bool, emss, mulpdu int) int {
	fpdu := mpa.FPDULen(mulpdu)
	if limit := unsentRecords * fpdu; fpdu != emss && limit <= unsentMost && !loose(crc, emss) {
		return limit
	}
	return 0
}

// askMSS asks the socket for TCP's maximum segment size, on which FPDUs depend, and limits
// accordingly what the socket holds.
func (s *stream) askMSS() {
	t := &s.tx
	t.emss = s.conn.MSS()
	t.mulpdu = mpa.MULPDU(t.emss, t.markers)
	limit := unsentLimit(t.crc, t.emss, t.mulpdu)
	if limit == int(t.unsent) {
		return
	}
	if l, ok := s.conn.(transport.UnsentLimiter); ok {
		_ = l.LimitUnsent(limit) // fails on a socket that is closed, which the next write reports
	}
	t.unsent = int32(limit)
}

// addRecord adds an FPDU of n octets, which has just been built, to the record
// under way if it can be sent in the same, and begins one with it otherwise.
//
// A record begins a segment, and TCP cuts it after every emss octets. So FPDUs
// share a record as long as such a cut falls between two of them: some short
// ones in one segment, or any number that fill a segment each, which is what the
// bulk of a long message consists of.
//
// TCP may cut elsewhere too: where the peer's window ends, though never in the
// first segment, and where selective acknowledgements take room. All those places
// are multiples of four octets from the start. siw (kernel-notes/siw-crc-split.md)
// is hurt by a cut inside pad and CRC, so that one at a multiple of four can't
// hurt an FPDU without pad. One with pad has to lie where none of these cuts is.
//
//rfc:5044 MPA-5.1-01
func (b *txBatch) addRecord(n int, padded bool, emss int) {
	if b.nrecs > 0 {
		last := &b.recs[b.nrecs-1]
		used := *last
		if used >= emss {
			used %= emss // a division: short FPDUs should not pay for it
		}
		fits := used+n <= emss
		if padded {
			fits = *last+n <= emss-sackRoom
		}
		if fits {
			*last += n
			return
		}
	}
	b.recs[b.nrecs] = n
	b.nrecs++
}

// advanceRecords notes that n octets of records are out.
func (b *txBatch) advanceRecords(n int) {
	for n > 0 {
		r := &b.recs[b.rec0]
		if n < *r {
			*r -= n
			return
		}
		n -= *r
		b.rec0++
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
	if loose(t.crc, t.emss) {
		return s.conn.Writev(t.b.pending())
	}
	return s.writeRecords(t.b.pending(), t.b.records())
}
