package engine

import (
	"github.com/govs-rdma/govs/provider/engine/internal/freelist"
	"github.com/govs-rdma/govs/provider/engine/internal/memory"
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// fpduOverhead is what an FPDU needs in the arena of a batch beside copied payload.
const fpduOverhead = mpa.HeaderLen + ddp.MaxHeaderLen + rdmap.ReadRequestLen + mpa.MaxTrailerLen

// txBatch is what one vectored write sends: FPDUs as a vector of slices, which lie in the arena,
// in chunks, and on streams without CRC in registered regions. It is lent to a stream while octets
// are in flight.
//
// Regions are in use from when they are put into the vector until release, which
// is before anybody waits for the socket: what the socket did not take is copied
// first (see copyPending). So a region can be deregistered at any time without tearing
// an FPDU in two.
type txBatch struct {
	pool *freelist.List[chunk]

	iov         [policy.BatchFPDUs][]byte
	first, last int    // iov[first:last] is still to be written
	inArena     bool   // iov[last-1] ends where the free part of the arena begins
	inChunk     bool   // iov[last-1] ends where the free part of the last chunk begins
	built       uint64 // octets put in
	limit       uint64 // what built may reach before the batch is sent
	turn        int    // and what cost may reach
	written     uint64 // octets taken by the socket

	message messageStart

	fpdus  [policy.BatchFPDUs]fpduEnd
	fpdu0  int // oldest that is not out
	nfpdus int

	// recs[rec0:nrecs] are the octets of the records still to be written: runs of
	// FPDUs that TCP can cut into segments without harm (see addFPDU).
	recs   [policy.BatchFPDUs]int
	rec0   int
	nrecs  int
	extend int // up to which length any FPDU without pad extends a record

	uses  [policy.BatchFPDUs / 2]regionUse
	nuses int

	inPlace bool // something of what is built lies in a region

	spans  [maxSGE]memory.Span // of the message being built
	nspans int
	pieces [maxSGE][]byte // scratch

	chunks    []*chunk // copies of payload
	chunkUsed int      // octets of the last one

	// The FPDU being built.
	open  int    // length of its ULPDU
	crc   uint32 // of what is in the vector already
	from  int    // arena[from:used] belongs to it and is not in the vector yet
	parts [2 + maxSGE][]byte
	npart int // with markers: the pieces of the ULPDU

	used  int                          // of arena
	arena [96 * policy.BatchFPDUs]byte // enough for FPDUs of 64 octets
}

// fpduEnd is where an FPDU of a batch ends, and whether it finishes a WQE.
type fpduEnd struct {
	at       uint64
	wqe      uint32
	finishes bool
}

// regionUse is a use of a region to be ended.
type regionUse struct {
	m      *memory.Region
	remote bool // the peer's Read names it
}

// empty reports whether everything is out.
func (b *txBatch) empty() bool { return b.first == b.last }

// idle reports whether the batch is empty and uses no region, as it must be while it is
// not lent.
func (b *txBatch) idle() bool {
	return b.nuses == 0 && b.nspans == 0 && b.last == 0 && b.built == 0 && b.used == 0 &&
		b.nfpdus == 0 && b.nrecs == 0 && len(b.chunks) == 0
}

// pending is what remains to be written.
func (b *txBatch) pending() [][]byte { return b.iov[b.first:b.last] }

// records are the lengths of the records of pending.
func (b *txBatch) records() []int { return b.recs[b.rec0:b.nrecs] }

// room reports whether another FPDU of any kind fits, which may begin another chunk. Chunks count,
// too, because FPDUs may leave half of each empty.
func (b *txBatch) room() bool {
	return b.built < b.limit && b.cost() < b.turn &&
		len(b.chunks) <= policy.BatchOctets/policy.Chunk &&
		b.used+fpduOverhead+policy.CopyMost <= len(b.arena) &&
		b.last+maxSGE+2 <= len(b.iov) &&
		b.nfpdus < len(b.fpdus) &&
		b.nuses+maxSGE <= len(b.uses)
}

// reset prepares an empty batch for being filled anew.
func (b *txBatch) reset() {
	b.release()
	clear(b.iov[:b.last])
	for _, c := range b.chunks {
		b.pool.Put(c)
	}
	clear(b.chunks)
	b.chunks = b.chunks[:0]
	b.chunkUsed = 0
	b.first, b.last, b.inArena, b.inChunk = 0, 0, false, false
	b.built, b.written = 0, 0
	b.fpdu0, b.nfpdus = 0, 0
	b.rec0, b.nrecs = 0, 0
	b.used, b.from = 0, 0
	b.inPlace = false
}

// use notes that m is in use until release: remote for a Read of the peer's.
func (b *txBatch) use(m *memory.Region, remote bool) {
	b.uses[b.nuses] = regionUse{m, remote}
	b.nuses++
}

// release ends the use of all regions, and forgets the message's spans, which
// have to be resolved anew.
func (b *txBatch) release() {
	for i := range b.uses[:b.nuses] {
		u := &b.uses[i]
		if u.remote {
			u.m.ReleaseRemote()
		} else {
			u.m.Release()
		}
		*u = regionUse{}
	}
	b.nuses = 0
	clear(b.spans[:b.nspans])
	b.nspans = 0
}

// advance notes that the socket took n octets. If the last octet of a message was
// among them, it returns the WQE after the last such and true.
func (b *txBatch) advance(n int) (out uint32, finished bool) {
	b.written += uint64(n)
	b.advanceRecords(n)
	for n > 0 {
		p := b.iov[b.first]
		if n < len(p) {
			b.iov[b.first] = p[n:]
			break
		}
		n -= len(p)
		b.iov[b.first] = nil
		b.first++
	}
	from := b.fpdu0
	if b.written == b.built {
		b.fpdu0 = b.nfpdus // most often all of it goes at once
	}
	for b.fpdu0 < b.nfpdus && b.fpdus[b.fpdu0].at <= b.written {
		b.fpdu0++
	}
	for i := b.fpdu0 - 1; i >= from; i-- {
		if f := &b.fpdus[i]; f.finishes {
			return f.wqe + 1, true
		}
	}
	return 0, false
}

// copyPending copies what remains to be written into chunks and ends the use of all
// regions: the stream has to wait for the socket.
func (b *txBatch) copyPending() {
	if b.nuses == 0 || !b.inPlace {
		b.release() // it lies in the arena and in chunks already
		return
	}
	var chunks [2 + 2*policy.BatchMost/policy.Chunk][]byte
	n := 0
	old := len(b.chunks)
	b.chunkUsed = policy.Chunk // leave the chunks in use alone
	for _, p := range b.pending() {
		for len(p) > 0 {
			if b.chunkUsed == policy.Chunk {
				b.chunks = append(b.chunks, b.pool.Get())
				b.chunkUsed = 0
				chunks[n] = b.chunks[len(b.chunks)-1][:0]
				n++
			}
			c := &chunks[n-1]
			took := min(len(p), policy.Chunk-len(*c))
			*c = append(*c, p[:took]...)
			b.chunkUsed += took
			p = p[took:]
		}
	}
	clear(b.iov[:b.last])
	b.first, b.last, b.inArena, b.inChunk = 0, copy(b.iov[:], chunks[:n]), false, false
	for _, c := range b.chunks[:old] {
		b.pool.Put(c)
	}
	b.chunks = b.chunks[:copy(b.chunks, b.chunks[old:])]
	b.inPlace = false
	b.release()
}

// remainder returns a copy of what must still be sent of the FPDU that is partly
// out, nil if none is.
//
//rfc:5040 RDMAP-6.1-01 Only RDMA messages on the stream in RDMA mode
func (b *txBatch) remainder() []byte {
	start := uint64(0)
	if b.fpdu0 > 0 {
		start = b.fpdus[b.fpdu0-1].at
	}
	if b.empty() || b.written == start {
		return nil
	}
	left := int(b.fpdus[b.fpdu0].at - b.written)
	out := make([]byte, 0, left)
	for _, p := range b.pending() {
		out = append(out, p[:min(len(p), left-len(out))]...)
	}
	return out
}

// cost is what the batch's FPDUs take of a turn.
func (b *txBatch) cost() int {
	return int(b.built) + b.nfpdus*policy.FPDUCost + b.nrecs*policy.RecordCost
}

// setTurn bounds what is put into the empty batch by what is left of the turn.
func (b *txBatch) setTurn(left int) { b.turn = policy.TurnOfBatch(left) }

// letGo reports whether the batch uses no region, so that one can be waited for. What it
// uses is let go when it is written.
func (b *txBatch) letGo() bool {
	if b.nuses > 0 && b.empty() {
		b.release()
	}
	return b.nuses == 0
}
