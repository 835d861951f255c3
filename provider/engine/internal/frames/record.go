package frames

import "github.com/govs-rdma/govs/provider/engine/internal/policy"

// sackRoom is by how much TCP's segments are shorter than TCP_MAXSEG says while
// they carry selective acknowledgements: four bytes, and eight for each of at
// most three blocks beside a timestamp.
const sackRoom = 28

// wireSegment is more than a segment has on Ethernet, which RNICs that speak iWARP are on: its
// largest frames have 16 KiB.
const wireSegment = 16 << 10

// addFPDU adds an FPDU of n bytes, which has just been built and ends as e says, to the FPDUs
// and the records of the batch: to the record under way if it can be sent in the same, and to a
// new one otherwise.
//
// A record begins a segment, and TCP cuts it after every emss bytes. So FPDUs
// share a record as long as such a cut falls between two of them: some short
// ones in one segment, or any number that fill a segment each, which is what the
// bulk of a long message consists of.
//
// TCP may cut elsewhere too: where the peer's window ends, though never in the
// first segment, and where selective acknowledgements take room. All those places
// are multiples of four bytes from the start. siw (kernel-notes/siw-crc-split.md)
// fails at a cut inside pad and CRC, so a cut at a multiple of four does no harm to
// an FPDU without pad. An FPDU with pad has to lie where none of these cuts is.
//
// Where segments are longer than on such a wire, as over loopback, no RNIC gains from FPDUs that
// begin one, and two segments are one packet. If emss is a multiple of four there, every cut is
// harmless to FPDUs without pad. Then short records are extended by those
// that follow (see extendRecords), because packets that are not full cost as much as others.
// Long ones still end before an FPDU that would begin within a segment: a receiver has to move
// the beginnings of FPDUs of which a packet has brought a part.
//
//rfc:5044 MPA-5.1-01 Start TCP segments at FPDU boundaries when possible
func (b *Batch) addFPDU(e fpduEnd, n int, padded bool, emss int) {
	b.fpdus[b.nfpdus] = e
	b.nfpdus++
	if b.nrecs > 0 {
		last := &b.recs[b.nrecs-1]
		// The division comes last: short FPDUs should not pay for it.
		if *last+n <= emss-sackRoom || !padded && (*last < b.extend || *last%emss+n <= emss) {
			*last += n
			return
		}
	}
	b.recs[b.nrecs] = n
	b.nrecs++
}

// extendRecords is up to which length records are extended by any FPDU without pad.
func extendRecords(emss int) int {
	if emss > wireSegment && emss%4 == 0 {
		return policy.BatchOctets
	}
	return 0
}

// advanceRecords notes that n bytes of records are out.
func (b *Batch) advanceRecords(n int) {
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
