package frames

import (
	"slices"

	"github.com/govs-rdma/govs/provider/engine/internal/freelist"
	"github.com/govs-rdma/govs/provider/engine/internal/memory"
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// fpduOverhead is what an FPDU needs in a batch's arena in addition to copied payload, in bytes.
const fpduOverhead = mpa.HeaderLen + ddp.MaxHeaderLen + rdmap.ReadRequestLen + mpa.MaxTrailerLen

// Chunk is a pooled buffer of a batch, for copies of payload, and for FPDUs with Markers.
type Chunk [policy.Chunk]byte

// Batch is what one vectored write sends: FPDUs as a vector of slices, which lie in the arena,
// in chunks, and on streams without CRC in registered regions. While bytes are in flight it is lent
// to a stream, and the stream's tx.mu guards it. New returns an idle one.
//
// Regions are in use from Region, Resolve or AddResponse until Release, which is before anybody
// waits for the socket: what the socket did not take is copied first (see CopyPending). So a region
// can be deregistered at any time without tearing an FPDU in two.
type Batch struct {
	pool   *freelist.List[Chunk]
	format *Format // of the stream to which the batch is lent, nil while it is idle

	iov         [policy.BatchFPDUs][]byte
	first, last int    // iov[first:last] is still to be written
	inArena     bool   // iov[last-1] ends where the free part of the arena begins
	inChunk     bool   // iov[last-1] ends where the free part of the last chunk begins
	built       uint64 // bytes added
	limit       uint64 // the value of built at which the batch is sent
	costLimit   int    // the value of Cost at which the batch is sent
	written     uint64 // bytes taken by the socket

	message messageStart

	fpdus  [policy.BatchFPDUs]fpduEnd
	fpdu0  int // the oldest that is not sent
	nfpdus int

	// recs[rec0:nrecs] are the lengths of the records that are still to be written: runs of FPDUs
	// that TCP can cut into segments without harm (see addFPDU).
	recs   [policy.BatchFPDUs]int
	rec0   int
	nrecs  int
	extend int // the length to which any FPDU without pad extends a record

	uses  [policy.BatchFPDUs / 2]regionUse
	nuses int

	inPlace bool // some built bytes lie in a region

	spans  [memory.MaxSGE]memory.Span // of the message being built
	nspans int
	pieces [memory.MaxSGE][]byte // scratch

	chunks    []*Chunk // copies of payload
	chunkUsed int      // bytes used of the last one

	// The FPDU being built.
	open  int    // length of its ULPDU
	crc   uint32 // of the bytes in the vector
	from  int    // arena[from:used] belongs to it and is not in the vector yet
	parts [2 + memory.MaxSGE][]byte
	npart int // with Markers: the pieces of the ULPDU
	run   shortRun

	used  int                          // of arena
	arena [96 * policy.BatchFPDUs]byte // enough for FPDUs of 64 bytes
}

// fpduEnd is where an FPDU of a batch ends, and whether the operation of a WQE is over then.
type fpduEnd struct {
	at        uint64
	wqe       uint32
	completes bool
}

// regionUse is a use of a region that Release ends.
type regionUse struct {
	m      *memory.Region
	remote bool // the peer's Read names it
}

// New returns an idle batch, which takes its chunks from pool.
func New(pool *freelist.List[Chunk]) *Batch { return &Batch{pool: pool} }

// Prepare begins to fill the idle batch with FPDUs as f lays them out. Room reports true until they
// have about limit bytes, or cost what is left of the stream's budget; a batch may cost
// policy.BatchLeast in any case. The batch refers to f until Reset.
func (b *Batch) Prepare(f *Format, limit uint64, budget int) {
	b.format = f
	b.limit = limit
	b.extend = extendRecords(f.EMSS)
	b.costLimit = policy.BudgetOfBatch(budget)
}

// Empty reports whether all bytes are written.
func (b *Batch) Empty() bool { return b.first == b.last }

// Idle reports whether the batch is as Reset leaves it. It must be idle while it is not lent.
func (b *Batch) Idle() bool {
	return b.format == nil && b.nuses == 0 && b.nspans == 0 && b.last == 0 && b.built == 0 &&
		b.used == 0 && b.nfpdus == 0 && b.nrecs == 0 && len(b.chunks) == 0 && b.run == shortRun{}
}

// Built returns how many bytes the FPDUs of the batch have.
func (b *Batch) Built() uint64 { return b.built }

// Left returns how many of them remain to be written.
func (b *Batch) Left() uint64 { return b.built - b.written }

// Pending returns what remains to be written, until the next call that changes the batch.
func (b *Batch) Pending() [][]byte { return b.iov[b.first:b.last] }

// Records returns the lengths of the records of Pending: a record begins a TCP segment.
func (b *Batch) Records() []int { return b.recs[b.rec0:b.nrecs] }

// Room reports whether one more FPDU of any kind fits, which may begin another chunk. Chunks also
// count, because FPDUs may leave half of each empty.
func (b *Batch) Room() bool {
	return b.built < b.limit && b.Cost() < b.costLimit &&
		len(b.chunks) <= policy.BatchOctets/policy.Chunk &&
		b.used+fpduOverhead+policy.CopyMost <= len(b.arena) &&
		b.last+memory.MaxSGE+2 <= len(b.iov) &&
		b.nfpdus < len(b.fpdus) &&
		b.nuses+memory.MaxSGE <= len(b.uses)
}

// Reset makes the batch idle, whatever is in it.
func (b *Batch) Reset() {
	b.Release()
	b.format = nil
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
	b.run = shortRun{}
}

// use notes that m is in use until Release. remote says that the peer's Read uses it.
func (b *Batch) use(m *memory.Region, remote bool) {
	b.uses[b.nuses] = regionUse{m, remote}
	b.nuses++
}

// Release ends the use of all regions, and forgets the result of Resolve. The bytes that are still
// to be written must not lie in a region.
func (b *Batch) Release() {
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

// Advance notes that the socket took n bytes of Pending. If these bytes end operations of WQEs, it
// returns the WQE after the last of these operations, and true.
func (b *Batch) Advance(n int) (out uint32, finished bool) {
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
		if f := &b.fpdus[i]; f.completes {
			return f.wqe + 1, true
		}
	}
	return 0, false
}

// CopyPending copies the unwritten bytes into chunks and ends the use of all regions, because the
// stream has to wait for the socket.
func (b *Batch) CopyPending() {
	if b.nuses == 0 || !b.inPlace {
		b.Release() // all bytes lie in the arena and in chunks already
		return
	}
	var chunks [2 + 2*policy.BatchMost/policy.Chunk][]byte
	n := 0
	old := len(b.chunks)
	b.chunkUsed = policy.Chunk // do not add to the chunks in use
	for _, p := range b.Pending() {
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
	b.Release()
}

// Remainder returns a copy of what must still be sent before the stream can end: the rest of the
// FPDU that is partly sent, nil if none is. With Markers it is all of Pending. The positions of
// Markers were fixed when the FPDUs were laid out, so none of them can be left out.
//
//rfc:5040 RDMAP-6.1-01 Only RDMA messages on the stream in RDMA mode
func (b *Batch) Remainder() []byte {
	if b.Empty() {
		return nil
	}
	if b.format.Markers {
		return slices.Concat(b.Pending()...)
	}
	if b.written == b.startOf(b.fpdu0) {
		return nil
	}
	left := int(b.fpdus[b.fpdu0].at - b.written)
	out := make([]byte, 0, left)
	for _, p := range b.Pending() {
		out = append(out, p[:min(len(p), left-len(out))]...)
	}
	return out
}

// Cost returns how much of a turn the FPDUs of the batch take.
func (b *Batch) Cost() int {
	return int(b.built) + b.nfpdus*policy.FPDUCost + b.nrecs*policy.RecordCost
}

// Released reports whether the batch uses no region, so that the end of a region can be waited for.
// If everything is sent, it first ends all uses.
func (b *Batch) Released() bool {
	if b.nuses > 0 && b.Empty() {
		b.Release()
	}
	return b.nuses == 0
}
