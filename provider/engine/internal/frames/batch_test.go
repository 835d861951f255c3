package frames

import (
	"bytes"
	"slices"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/freelist"
	"github.com/govs-rdma/govs/provider/engine/internal/memory"
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// newBatch returns an idle batch with chunks of its own.
func newBatch() *Batch {
	return New(&freelist.List[Chunk]{
		New:  func() *Chunk { return new(Chunk) },
		Idle: func(*Chunk) bool { return true },
	})
}

// prepared returns a batch that can be filled with FPDUs for segments of emss bytes.
func prepared(f *Format, emss int) *Batch {
	f.SetEMSS(emss)
	b := newBatch()
	b.Prepare(f, policy.BatchOctets, policy.BudgetMost)
	b.BeginMessage(ddp.Segmenter{})
	return b
}

// TestCopiesShortenBatches: a batch in which payload is copied before it is sent is no longer
// than what a cache keeps, whatever it was permitted.
func TestCopiesShortenBatches(t *testing.T) {
	for _, limit := range []uint64{policy.BatchMost, policy.BatchSlow} {
		b := newBatch()
		f := NewFormat(true, false, false)
		b.Prepare(&f, limit, policy.BudgetMost)
		h := rdmap.WriteHeader(0, 0, true)
		b.Add(&h, make([]byte, 2*policy.CopyMost), 0, true)
		if want := min(limit, policy.BatchOctets); b.limit != want {
			t.Errorf("a batch of at most %d bytes may have %d after a copy, want %d",
				limit, b.limit, want)
		}
	}
}

// TestIdle: a batch with something of a stream is not idle, and is after Reset.
func TestIdle(t *testing.T) {
	d := &memory.Domain{Table: memory.NewTable(memory.Config{MaxMR: 1})}
	m := testkit.Must(d.RegMR(make([]byte, 10), provider.AccessLocalWrite))(t)
	t.Cleanup(func() { testkit.OK(t, m.Close()) })
	region := m.(*memory.Region)
	for what, dirty := range map[string]func(b *Batch){
		"a format": func(b *Batch) { b.Prepare(&Format{}, 1, 1) },
		"a use": func(b *Batch) {
			if b.Region(d, region.STag()) == nil {
				t.Error("the region is not found")
			}
		},
		"spans":    func(b *Batch) { b.nspans = 1 },
		"bytes":    func(b *Batch) { b.append([]byte{1}) },
		"a chunk":  func(b *Batch) { b.chunkRoom(1) },
		"an FPDU":  func(b *Batch) { b.nfpdus = 1 },
		"a record": func(b *Batch) { b.nrecs = 1 },
		"a run":    func(b *Batch) { b.run.size = 24 },
	} {
		b := newBatch()
		if dirty(b); b.Idle() {
			t.Errorf("a batch with %s is idle", what)
		}
		if b.Reset(); !b.Idle() {
			t.Errorf("a batch with %s is not idle after Reset", what)
		}
	}
	if n, _ := region.Uses(); n != 0 {
		t.Errorf("the region is in use %d times", n)
	}
}

// TestIdleRefersToNothing: no span of a message stays in an idle batch, also if a message of fewer
// SGEs came after it.
func TestIdleRefersToNothing(t *testing.T) {
	d := &memory.Domain{Table: memory.NewTable(memory.Config{MaxMR: 1})}
	m := testkit.Must(d.RegMR(make([]byte, 10), provider.AccessLocalWrite))(t)
	t.Cleanup(func() { testkit.OK(t, m.Close()) })
	region := m.(*memory.Region)
	f := NewFormat(true, false, false)
	b := prepared(&f, 100)
	sge := provider.SGE{Addr: region.Addr(), Length: 5, LKey: region.STag()}
	for sges := 2; sges > 0; sges-- {
		b.BeginMessage(ddp.Segmenter{})
		if !b.Resolve(d, []provider.SGE{sge, sge}[:sges]) {
			t.Fatal("the memory is not found")
		}
		h := rdmap.WriteHeader(0, 0, true)
		b.AddResolved(&h, 0, uint64(sges*5), 0, true)
	}
	b.Reset()
	for i, s := range b.spans {
		if s.Region != nil || s.Bytes != nil {
			t.Errorf("span %d of an idle batch is of %v", i, s.Region)
		}
	}
}

// TestHeldGoesOn: wherever a socket is full, what Hold returns leaves the same bytes in the same
// records from another batch, and the same WQEs are over.
func TestHeldGoesOn(t *testing.T) {
	f := NewFormat(true, false, false)
	fill := func() *Batch {
		b := prepared(&f, 100)
		for wqe := range uint32(4) {
			h := rdmap.WriteHeader(wqe, 0, true)
			b.Add(&h, bytes.Repeat([]byte{byte(wqe)}, 30), wqe, wqe != 1)
		}
		return b
	}
	for n := 1; n < int(fill().Built()); n++ {
		want, got := fill(), newBatch()
		want.Advance(n)
		held := want.Hold()
		got.Restore(held, &f)
		if uint64(cap(held.b)) != want.Left() || uint64(held.Len()) != want.Left() || got.Left() != want.Left() {
			t.Fatalf("%d bytes are out, %d left, but %d held and %d restored",
				n, want.Left(), held.Len(), got.Left())
		}
		if !slices.Equal(got.Records(), want.Records()) {
			t.Fatalf("%d bytes are out: records %d, want %d", n, got.Records(), want.Records())
		}
		if a, b := got.Remainder(), want.Remainder(); !bytes.Equal(a, b) {
			t.Fatalf("%d bytes are out: remainder % x, want % x", n, a, b)
		}
		for !want.Empty() {
			a, b := slices.Concat(got.Pending()...), slices.Concat(want.Pending()...)
			if !bytes.Equal(a, b) {
				t.Fatalf("%d bytes are out: pending % x, want % x", n, a, b)
			}
			some := (len(b) + 1) / 2
			gotOut, gotAny := got.Advance(some)
			wantOut, wantAny := want.Advance(some)
			if gotOut != wantOut || gotAny != wantAny {
				t.Fatalf("%d bytes are out, and %d more: WQE %d is over (%v), want %d (%v)",
					n, some, gotOut, gotAny, wantOut, wantAny)
			}
		}
	}
}
