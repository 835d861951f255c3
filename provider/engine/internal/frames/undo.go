package frames

import (
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
)

// The bytes that a full socket leaves of a batch must be kept, in general: the bytes of a partly
// sent FPDU must not change any more, and the effects of building a short message can't be undone.
// But FPDUs in the middle of a long message can be built again, so a peer that asks for gigabytes
// and takes none makes us hold only the rest of one FPDU. That is also less work, because otherwise
// they would have to be copied: closing their regions must not wait for the peer. The rest of a
// message's end, or of many short messages, is at most a batch.

// messageStart is where in a batch the message being sent begins, or goes on.
type messageStart struct {
	fpdu int
	seg  ddp.Segmenter // as it was before that FPDU was built
}

// BeginMessage notes that the following FPDUs belong to the message that seg divides, whose SGEs
// are not resolved.
func (b *Batch) BeginMessage(seg ddp.Segmenter) {
	b.message = messageStart{fpdu: b.nfpdus, seg: seg}
	clear(b.spans[:b.nspans]) // an idle batch refers to no region
	b.nspans = 0
}

// Undo removes the FPDUs of the message under way of which the socket has taken nothing. It sets
// seg back, so that its Next returns the segment of the first of them. With Markers, whose
// positions are settled, it does nothing.
func (b *Batch) Undo(seg *ddp.Segmenter) {
	first := b.fpdu0
	if b.written > b.startOf(first) {
		first++
	}
	first = max(first, b.message.fpdu)
	if b.format.Markers || first >= b.nfpdus {
		return
	}
	*seg = b.message.seg
	for range first - b.message.fpdu {
		seg.Next(b.format.MULPDU)
	}
	b.truncate(first)
}

// startOf returns where FPDU i begins among the bytes of the batch.
func (b *Batch) startOf(i int) uint64 {
	if i == 0 {
		return 0
	}
	return b.fpdus[i-1].at
}

// truncate drops FPDU i and all later ones, of which nothing is sent.
func (b *Batch) truncate(i int) {
	left := int(b.startOf(i) - b.written)
	if left == 0 {
		b.Reset()
		return
	}
	b.nfpdus, b.built = i, b.startOf(i)
	last, rec := b.first, b.rec0
	for n := left; n > 0; last++ {
		b.iov[last] = b.iov[last][:min(n, len(b.iov[last]))]
		n -= len(b.iov[last])
	}
	clear(b.iov[last:b.last])
	b.last, b.inArena, b.inChunk = last, false, false
	for n := left; n > 0; rec++ {
		b.recs[rec] = min(n, b.recs[rec])
		n -= b.recs[rec]
	}
	b.nrecs = rec
}

// Held is the rest of a batch for a socket that has been full for long: its bytes, and their
// division into records. It is as large as they are.
type Held struct {
	b       []byte
	records []int
	fpdus   []fpduEnd
	written uint64 // of the first FPDU
}

// Len returns how many bytes are left.
func (h *Held) Len() int { return len(h.b) }

// Hold returns a copy of the rest of the batch, which Restore puts into any batch when the socket
// has room. It returns nil if nothing is left, or if the batch uses regions.
func (b *Batch) Hold() *Held {
	if b.Empty() || b.nuses > 0 {
		return nil
	}
	start := b.startOf(b.fpdu0)
	h := &Held{b: make([]byte, 0, b.Left()), written: b.written - start}
	for _, p := range b.Pending() {
		h.b = append(h.b, p...)
	}
	h.records = append(h.records, b.Records()...)
	for _, f := range b.fpdus[b.fpdu0:b.nfpdus] {
		f.at -= start
		h.fpdus = append(h.fpdus, f)
	}
	return h
}

// Restore fills the idle batch with the result of Hold. The batch refers to the bytes of h. Undo
// removes none of its FPDUs, because their message may be over.
func (b *Batch) Restore(h *Held, f *Format) {
	b.format = f
	b.iov[0], b.first, b.last = h.b, 0, 1
	b.written, b.built = h.written, h.written+uint64(len(h.b))
	b.nrecs = copy(b.recs[:], h.records)
	b.nfpdus = copy(b.fpdus[:], h.fpdus)
	b.message.fpdu = b.nfpdus
}
