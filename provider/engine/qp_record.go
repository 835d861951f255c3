package engine

import (
	"math/bits"

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
//rfc:5044 MPA-5.1-01 Start TCP segments at FPDU boundaries when possible
func loose(crc bool, emss int) bool {
	return !crc && emss > mpa.FPDULen(mpa.MaxULPDU)
}

// unsentRecords is how many records a socket may hold that TCP can't send yet, about.
// unsentMost is the limit in octets above which there is none: a socket's buffer has room for
// few records as long as that. The average length of unsentSample records decides, or that of
// fewer if they are long.
//
// The kernel sends what a socket holds when acknowledgements make room for it. Those that
// come while a system call has the socket wait for the end of that call, which then sends
// all that they make room for. A record is a packet of its own, which costs 2 to 3 us, and a
// socket's buffer of 4 MiB has room for 3,000 short ones. So a peer that acknowledges fast can
// make one call long: 12 ms were seen. It gets short records with an MSS that no FPDU fills, or
// with short Reads whose responses have pad. With a limit it is a turn of the engine that sends
// most records, and a turn is bounded.
const (
	unsentRecords = 64
	unsentMost    = 256 << 10
	unsentSample  = 128
)

// unsent is what bounds the octets that a socket holds and TCP can't send yet. It is small,
// because each stream has one.
type unsent struct {
	octets  int32 // since the average was last taken
	records uint16
	power   uint8 // the limit is 2 to this power; 0: what the system allows
}

// limit is the limit in octets, 0 for what the system allows.
func (u *unsent) limit() int {
	if u.power == 0 {
		return 0
	}
	return 1 << u.power
}

// count counts what was put into a batch. It reports true if the limit has changed.
func (u *unsent) count(records, octets int) bool {
	u.records += uint16(records)
	u.octets += int32(octets)
	if u.records < unsentSample && u.octets < unsentSample/unsentRecords*unsentMost {
		return false
	}
	was := u.power
	u.power = uint8(bits.Len32(uint32(unsentRecords*(u.octets/int32(u.records)) - 1)))
	if u.limit() > unsentMost {
		u.power = 0
	}
	u.records, u.octets = 0, 0
	return u.power != was
}

// limitUnsent counts the batch, which has just been filled, and limits what the socket holds.
func (s *stream) limitUnsent() {
	t := &s.tx
	if !t.unsent.count(t.b.nrecs, int(t.b.built)) {
		return
	}
	if l, ok := s.conn.(transport.UnsentLimiter); ok {
		_ = l.LimitUnsent(t.unsent.limit()) // fails on a closed socket, which the next write reports
	}
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
//rfc:5044 MPA-5.1-01 Start TCP segments at FPDU boundaries when possible
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
	if loose(t.crc, int(t.emss)) {
		return s.conn.Writev(t.b.pending())
	}
	return s.writeRecords(t.b.pending(), t.b.records())
}
