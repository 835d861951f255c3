package frames

import "github.com/govs-rdma/govs/provider/engine/internal/policy"

// sackRoom is by how many bytes TCP's segments are shorter than TCP_MAXSEG says while they carry
// selective acknowledgements: four, and eight for each of at most three blocks beside a timestamp.
const sackRoom = 28

// wireSegment is longer than a segment on Ethernet, which RNICs for iWARP use: its largest frames
// have 16 KiB.
const wireSegment = 16 << 10

// addFPDU adds an FPDU of n bytes, which has just been built and ends as e says, to the FPDUs and
// the records of the batch. The FPDU joins the present record if it can be sent in that, and begins
// a new one otherwise.
//
// A record begins a segment, and TCP cuts it after every emss bytes. So FPDUs share a record as
// long as such a cut falls between two of them: some short ones in one segment, or any number that
// fill a segment each, as in the bulk of a long message.
//
// TCP may also cut elsewhere: where the peer's window ends, though never in the first segment, and
// where selective acknowledgements take room. All those places are multiples of four bytes from the
// start. siw (kernel-notes/siw-crc-split.md) fails at a cut inside pad and CRC. So a cut at a
// multiple of four does no harm to an FPDU without pad, and an FPDU with pad must lie where none of
// these cuts is.
//
// Where segments are longer than on such a wire, as over loopback, no RNIC gains from FPDUs that
// begin one, and two segments are one packet. If emss is a multiple of four there, no cut harms
// FPDUs without pad. Then the FPDUs that follow extend short records (see extendRecords), because
// packets that are not full cost as much as others. Long records still end before an FPDU that
// would begin within a segment: a receiver has to move the beginning of an FPDU of which a packet
// brought only a part.
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

// extendRecords returns the length to which any FPDU without pad extends a record.
func extendRecords(emss int) int {
	if emss > wireSegment && emss%4 == 0 {
		return policy.BatchOctets
	}
	return 0
}

// advanceRecords notes that n bytes of records are sent.
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
