package frames

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
