package engine

// sackRoom is by how much TCP's segments are shorter than TCP_MAXSEG says while
// they carry selective acknowledgements: four octets, and eight for each of at
// most three blocks beside a timestamp.
const sackRoom = 28

// addFPDU adds an FPDU of n octets, which has just been built and ends as e says, to the FPDUs
// and the records of the batch: to the record under way if it can be sent in the same, and to a
// new one otherwise.
//
// A record begins a segment, and TCP cuts it after every emss octets. So FPDUs
// share a record as long as such a cut falls between two of them: some short
// ones in one segment, or any number that fill a segment each, which is what the
// bulk of a long message consists of.
//
// TCP may cut elsewhere too: where the peer's window ends, though never in the
// first segment, and where selective acknowledgements take room. All those places
// are multiples of four octets from the start. siw (kernel-notes/siw-crc-split.md)
// fails at a cut inside pad and CRC, so a cut at a multiple of four does no harm to
// an FPDU without pad. An FPDU with pad has to lie where none of these cuts is.
//
//rfc:5044 MPA-5.1-01 Start TCP segments at FPDU boundaries when possible
func (b *txBatch) addFPDU(e fpduEnd, n int, padded bool, emss int) {
	b.fpdus[b.nfpdus] = e
	b.nfpdus++
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
