package engine

import "github.com/govs-rdma/govs/provider/iwarp/ddp"

// What a full socket leaves of a batch has to be kept: of an FPDU that is partly out each
// octet is settled, and what a short message did when it was built can't be undone. But
// FPDUs in the middle of a long message can be built again, so that a peer who asks for
// gigabytes and takes none makes us hold the rest of one FPDU. That is less work, too:
// they would have to be copied, out of regions that nobody may wait for. What is left of
// the end of a message, or of many short ones, is a batch at most.

// messageStart is where in a batch the message begins, or goes on, that is being sent.
type messageStart struct {
	fpdu int
	seg  ddp.Segmenter // then
}

// begun notes that what is built from here on is of the message in t.
func (b *txBatch) begun(t *txState) { b.message = messageStart{fpdu: b.nfpdus, seg: t.seg} }

// undo takes those FPDUs of the message being sent back of which the socket has taken
// nothing. Where markers lie is settled, and what an object gave is not given twice.
func (t *txState) undo() {
	b := t.b
	if t.markers || t.fetches != nil || t.msg != msgWork && t.msg != msgResponse {
		return
	}
	first := b.fpdu0
	if b.written > b.startOf(first) {
		first++
	}
	first = max(first, b.message.fpdu)
	if first >= b.nfpdus {
		return
	}
	t.seg = b.message.seg
	for range first - b.message.fpdu {
		t.seg.Next(t.mulpdu)
	}
	b.truncate(first)
}

// startOf is where FPDU i begins among the octets of the batch.
func (b *txBatch) startOf(i int) uint64 {
	if i == 0 {
		return 0
	}
	return b.fpdus[i-1].at
}

// truncate drops the FPDUs from i on, of which nothing is out.
func (b *txBatch) truncate(i int) {
	left := int(b.startOf(i) - b.written)
	if left == 0 {
		b.reset()
		return
	}
	b.nfpdus, b.built = i, b.startOf(i)
	last, rec := b.first, b.rec0
	for n := left; n > 0; last++ {
		b.iov[last] = b.iov[last][:min(n, len(b.iov[last]))]
		n -= len(b.iov[last])
	}
	clear(b.iov[last:b.last])
	b.last, b.inArena = last, false
	for n := left; n > 0; rec++ {
		b.recs[rec] = min(n, b.recs[rec])
		n -= b.recs[rec]
	}
	b.nrecs = rec
}
