package engine

import (
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// Bounds of one vectored write.
const (
	batchOctets = 256 << 10 // about what stays in a core's L2 between CRC and send
	batchLong   = 1 << 20   // where nothing but the kernel looks at the payload (see batchLimit)
	batchSlow   = 8 << 10   // for a socket that takes next to nothing
	batchIov    = 512
	batchFPDUs  = 512
	batchUses   = 256
	arenaOctets = 48 << 10 // headers, trailers and small payload: about 500 FPDUs of 64 octets

	// copyOctets is up to which length payload is copied next to its header. It
	// saves an entry of the vector on either side of it.
	copyOctets = 1024

	// fpduOverhead is what an FPDU needs in the arena beside copied payload.
	fpduOverhead = mpa.HeaderLen + ddp.MaxHeaderLen + rdmap.ReadRequestLen + mpa.MaxTrailerLen
)

// txBatch is what one vectored write sends: FPDUs as a vector of slices, which lie
// partly in the arena and partly in registered regions. It is lent to a stream
// while octets are in flight.
//
// Regions are in use from when they are put into the vector until release, which
// is before anybody waits for the socket: what the socket did not take is copied
// first (see stash). So a region can be deregistered at any time without tearing
// an FPDU in two.
type txBatch struct {
	pool *bufPool // of chunks

	iov         [batchIov][]byte
	first, last int    // iov[first:last] is still to be written
	inArena     bool   // iov[last-1] ends where the free part of the arena begins
	built       uint64 // octets put in
	limit       uint64 // what built may reach before the batch is sent
	turn        int    // and what cost may reach
	written     uint64 // octets taken by the socket

	message messageStart

	fpdus  [batchFPDUs]fpduEnd
	fpdu0  int // oldest that is not out
	nfpdus int

	// recs[rec0:nrecs] are the octets of the records still to be written: runs of
	// FPDUs that TCP can cut into segments without harm (see addRecord).
	recs  [batchFPDUs]int
	rec0  int
	nrecs int

	uses  [batchUses]regionUse
	nuses int

	inPlace bool // something of what is built lies in a region

	spans  [maxSGE]span // of the message being built
	nspans int
	moving bool           // a peer can write what the spans name
	pieces [maxSGE][]byte // scratch

	chunks    []*buf // copies of payload
	chunkUsed int    // octets of the last one

	// The FPDU being built.
	open  int    // length of its ULPDU
	crc   uint32 // of what is in the vector already
	from  int    // arena[from:used] belongs to it and is not in the vector yet
	parts [2 + maxSGE][]byte
	npart int // with markers: the pieces of the ULPDU

	used  int // of arena
	arena [arenaOctets]byte
}

// fpduEnd is where an FPDU of a batch ends, and whether it finishes a WQE.
type fpduEnd struct {
	at       uint64
	wqe      uint32
	finishes bool
}

// regionUse is a use of a region to be ended.
type regionUse struct {
	m  *mr
	by useKind
}

// useKind says which gate a use of a region has entered.
type useKind uint8

const (
	useLocal  useKind = iota // mr.local
	useStill                 // mr.still: no peer can write the region
	useRemote                // mr.remote: the peer's Read names the region
)

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

// room reports whether another FPDU of any kind fits.
func (b *txBatch) room() bool {
	return b.built < b.limit && b.cost() < b.turn &&
		b.used+fpduOverhead+copyOctets <= len(b.arena) &&
		b.last+maxSGE+2 <= len(b.iov) &&
		b.nfpdus < len(b.fpdus) &&
		b.nuses+maxSGE <= len(b.uses)
}

// reset prepares an empty batch for being filled anew.
func (b *txBatch) reset() {
	b.release()
	clear(b.iov[:b.last])
	for _, c := range b.chunks {
		b.pool.put(c)
	}
	clear(b.chunks)
	b.chunks = b.chunks[:0]
	b.chunkUsed = 0
	b.first, b.last, b.inArena = 0, 0, false
	b.built, b.written = 0, 0
	b.fpdu0, b.nfpdus = 0, 0
	b.rec0, b.nrecs = 0, 0
	b.used, b.from = 0, 0
	b.inPlace = false
}

// use notes that m is in use until release.
func (b *txBatch) use(m *mr, by useKind) {
	b.uses[b.nuses] = regionUse{m, by}
	b.nuses++
}

// release ends the use of all regions, and forgets the message's spans, which
// have to be resolved anew.
func (b *txBatch) release() {
	for i := range b.uses[:b.nuses] {
		u := &b.uses[i]
		switch u.by {
		case useStill:
			u.m.still.leave()
		case useLocal:
			u.m.release()
		case useRemote:
			u.m.releaseRemote()
		}
		*u = regionUse{}
	}
	b.nuses = 0
	clear(b.spans[:b.nspans])
	b.nspans = 0
}

// begin opens an FPDU with DDP header h and payloadLen octets to follow.
func (b *txBatch) begin(h *ddp.Header, payloadLen int, t *txState) {
	b.open = h.Len() + payloadLen
	at := b.used
	if t.markers {
		if t.rdmac { // there are Markers on every such stream, so that the short paths know nothing of it
			rdmap.SetRDMAC(h)
		}
		b.npart = 0
		b.addPart(h.AppendTo(b.arena[at:at]))
		b.used += h.Len()
		return
	}
	b.crc = 0
	b.used += len(h.AppendTo(mpa.AppendHeader(b.arena[at:at], uint16(b.open))))
}

// takeArena puts what is in the arena of the FPDU into the vector. Pieces that lie
// next to each other are taken together: the CRC of a short FPDU is one call.
func (b *txBatch) takeArena(t *txState) {
	if t.crc {
		b.crc = mpa.CRC(b.crc, b.arena[b.from:b.used])
	}
	b.appendArena()
}

// appendArena is takeArena for what the CRC does not cover.
func (b *txBatch) appendArena() {
	n := b.used - b.from
	if n == 0 {
		return // the room for iov that is left is counted without empty entries
	}
	b.built += uint64(n)
	if b.inArena {
		last := &b.iov[b.last-1]
		*last = (*last)[:len(*last)+n]
	} else {
		b.iov[b.last] = b.arena[b.from:b.used]
		b.last++
		b.inArena = true
	}
	b.from = b.used
}

func (b *txBatch) addPart(p []byte) {
	b.parts[b.npart] = p
	b.npart++
}

// copyIn adds payload of at most copyOctets, which may change as soon as copyIn
// has returned.
func (b *txBatch) copyIn(p []byte, t *txState) {
	at := b.used
	b.used += copy(b.arena[at:], p)
	if t.markers {
		b.addPart(b.arena[at:b.used])
	}
}

// refer adds payload where it lies: in a region in use, or in a chunk.
func (b *txBatch) refer(p []byte, t *txState) {
	if t.markers {
		b.addPart(p)
		return
	}
	b.takeArena(t)
	if t.crc {
		b.crc = mpa.CRC(b.crc, p)
	}
	b.inPlace = true
	b.append(p)
}

// append adds what lies outside of the arena to the vector.
func (b *txBatch) append(p []byte) {
	b.iov[b.last] = p
	b.last++
	b.inArena = false
	b.built += uint64(len(p))
}

// snapshot adds a copy of payload that may be changed while it is being sent: the
// source of an RDMA Read belongs to an application that has no means of knowing when
// it is read, and what a peer can write is changed at any time. A change between CRC
// and send would end the connection. The CRC is of what was copied, in the same pass.
// It is for streams with CRC and without markers: an FPDU with markers is laid out in a
// copy anyway, and its CRC is that of the copy.
func (b *txBatch) snapshot(p []byte, t *txState) {
	b.takeArena(t)
	room := b.chunkRoom(len(p))
	b.crc = mpa.CopyCRC(b.crc, room, p)
	b.append(room)
}

// chunkRoom returns n octets of chunk, at most the size of one.
func (b *txBatch) chunkRoom(n int) []byte {
	if len(b.chunks) == 0 || b.chunkUsed+n > b.pool.octets {
		b.chunks = append(b.chunks, b.pool.get())
		b.chunkUsed = 0
	}
	c := b.chunks[len(b.chunks)-1].b
	p := c[b.chunkUsed : b.chunkUsed+n : b.chunkUsed+n]
	b.chunkUsed += n
	return p
}

// end closes the FPDU. If finishes is true, the operation of WQE wqe is over when
// the FPDU's last octet is out.
func (b *txBatch) end(t *txState, wqe uint32, finishes bool) {
	if t.markers {
		b.endMarked(t)
	} else {
		if b.from < b.used {
			b.takeArena(t)
		}
		at := b.used
		b.used += len(mpa.AppendTrailer(b.arena[at:at], b.open, b.crc, t.crc))
		b.appendArena()
	}
	start := uint64(0)
	if b.nfpdus > 0 {
		start = b.fpdus[b.nfpdus-1].at
	}
	b.fpdus[b.nfpdus] = fpduEnd{at: b.built, wqe: wqe, finishes: finishes}
	b.nfpdus++
	b.addRecord(int(b.built-start), mpa.PadLen(b.open) > 0, int(t.emss))
}

// endMarked lays the FPDU out with markers, in a chunk. That it is not too long
// has been seen to by the MULPDU.
func (b *txBatch) endMarked(t *txState) {
	room := b.chunkRoom(t.framer.Len(b.open))
	fpdu, err := t.framer.AppendFPDU(room[:0], b.parts[:b.npart]...)
	if err != nil {
		panic("engine: " + err.Error())
	}
	clear(b.parts[:b.npart])
	b.append(fpdu)
	b.from = b.used
}

// advance notes that the socket took n octets. If the last octet of a message was
// among them, it returns the WQE behind the last such and true.
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

// stash copies what remains to be written into chunks and ends the use of all
// regions: the stream has to wait for the socket.
func (b *txBatch) stash() {
	if b.nuses == 0 || !b.inPlace {
		b.release() // it lies in the arena and in chunks already
		return
	}
	var chunks [2 + 2*batchLong/chunkOctets][]byte
	n := 0
	old := len(b.chunks)
	b.chunkUsed = b.pool.octets // leave the chunks in use alone
	for _, p := range b.pending() {
		for len(p) > 0 {
			if b.chunkUsed == b.pool.octets {
				b.chunks = append(b.chunks, b.pool.get())
				b.chunkUsed = 0
				chunks[n] = b.chunks[len(b.chunks)-1].b[:0]
				n++
			}
			c := &chunks[n-1]
			took := min(len(p), b.pool.octets-len(*c))
			*c = append(*c, p[:took]...)
			b.chunkUsed += took
			p = p[took:]
		}
	}
	clear(b.iov[:b.last])
	b.first, b.last, b.inArena = 0, copy(b.iov[:], chunks[:n]), false
	for _, c := range b.chunks[:old] {
		b.pool.put(c)
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

// resolve makes the spans of a work request of ours ready for use in this batch.
// It reports false if they can't be used; some of their regions may be in use all
// the same, until release.
func (b *txBatch) resolve(pd *pd, sges []provider.SGE) bool {
	b.nspans, b.moving = 0, false
	for i := range sges {
		s := &sges[i]
		if s.Length == 0 {
			continue
		}
		m := b.region(pd, s.LKey)
		if m == nil {
			return false
		}
		p, ok := m.slice(s.Addr, uint64(s.Length))
		if !ok {
			return false
		}
		b.spans[b.nspans] = span{m, p}
		b.nspans++
		if b.uses[b.nuses-1].by != useStill { // the last is of m
			b.moving = true
		}
	}
	return true
}

// region returns the region of pd that lkey names, in use until release, or nil.
// Work requests that follow each other often name the same.
func (b *txBatch) region(pd *pd, lkey uint32) *mr {
	if b.nuses > 0 {
		if u := &b.uses[b.nuses-1]; u.by != useRemote && u.m.stag == lkey && u.m.pd == pd {
			return u.m
		}
	}
	m, still := pd.dev.stags.source(lkey)
	if m == nil {
		return nil
	}
	by := useLocal
	if still {
		by = useStill
	}
	b.use(m, by) // until release, also if its protection domain is wrong
	if m.pd != pd {
		return nil
	}
	return m
}

// addSpans adds the n octets of payload at offset off of the message that the
// spans make up.
func (b *txBatch) addSpans(off, n uint64, t *txState) {
	if b.nspans == 1 {
		b.add(b.spans[0].b[off:off+n], n, t)
		return
	}
	pieces := appendSpans(b.pieces[:0], b.spans[:b.nspans], off, n)
	for _, p := range pieces {
		b.add(p, n, t)
	}
	clear(pieces)
}

// add adds a piece of the n octets of payload of an FPDU.
func (b *txBatch) add(p []byte, n uint64, t *txState) {
	switch {
	case n <= copyOctets:
		b.copyIn(p, t)
	case b.moving && t.crc && !t.markers:
		b.snapshot(p, t)
	default:
		b.refer(p, t)
	}
}
