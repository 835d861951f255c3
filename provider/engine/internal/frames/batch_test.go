package frames

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/freelist"
	"github.com/govs-rdma/govs/provider/engine/internal/memory"
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
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

// TestIdle: a batch with something of a stream is not idle. After Reset it is, and refers to no
// region, even if a message of fewer SGEs came after another.
func TestIdle(t *testing.T) {
	d := &memory.Domain{Table: memory.NewTable(memory.Config{MaxMR: 1})}
	m := testkit.Must(d.RegMR(make([]byte, 10), provider.AccessLocalWrite))(t)
	t.Cleanup(func() { testkit.OK(t, m.Close()) })
	region := m.(*memory.Region)
	f := NewFormat(true, false, false)
	f.SetEMSS(100)
	h := rdmap.WriteHeader(0, 0, true)
	sge := provider.SGE{Addr: region.Addr(), Length: 5, LKey: region.STag()}
	for what, dirty := range map[string]func(b *Batch){
		"a format": func(b *Batch) { b.Prepare(&Format{}, 1, 1) },
		"a use": func(b *Batch) {
			if b.Region(d, region.STag()) == nil {
				t.Error("the region is not found")
			}
		},
		"spans": func(b *Batch) { b.nspans = 1 },
		"two messages": func(b *Batch) {
			b.Prepare(&f, policy.BatchOctets, policy.BudgetMost)
			for sges := 2; sges > 0; sges-- {
				b.BeginMessage(ddp.Segmenter{})
				if !b.Resolve(d, []provider.SGE{sge, sge}[:sges]) {
					t.Error("the memory is not found")
				}
				b.AddResolved(&h, 0, uint64(sges*5), 0, true)
			}
		},
		"bytes":    func(b *Batch) { b.append([]byte{1}) },
		"a chunk":  func(b *Batch) { b.chunkRoom(1) },
		"an FPDU":  func(b *Batch) { b.nfpdus = 1 },
		"a record": func(b *Batch) { b.nrecs = 1 },
		"a run":    func(b *Batch) { b.run.size = 24 },
	} {
		b := newBatch()
		dirty(b)
		testkit.Equal(t, what+": idle", b.Idle(), false)
		b.Reset()
		testkit.Equal(t, what+": idle after Reset", b.Idle(), true)
		for i, s := range b.spans {
			if s.Region != nil || s.Bytes != nil {
				t.Errorf("a batch with %s: span %d is of %v after Reset", what, i, s.Region)
			}
		}
	}
	if n, _ := region.Uses(); n != 0 {
		t.Errorf("the region is in use %d times", n)
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

// TestBatchesAsFramed: a batch of Read Responses and Writes of any length has the bytes of a plain
// framer, wherever the socket is full, and although memory changes as soon as no region is in use.
func TestBatchesAsFramed(t *testing.T) {
	seeds := uint64(100)
	if testkit.Race { // nothing here is concurrent; ci/test runs all of them without it, too
		seeds = 5
	}
	for seed := range seeds {
		batchesAsFramed(t, seed)
	}
}

func batchesAsFramed(t *testing.T, seed uint64) {
	rnd := rand.New(rand.NewPCG(seed, 1))
	const size = 300 << 10
	d := &memory.Domain{Table: memory.NewTable(memory.Config{MaxMR: 2})}
	peer := &memory.Peer{Domain: d}
	buf := make([]byte, size)
	orig := make([]byte, size)
	for i := range orig {
		orig[i] = byte(i * 7 >> 3)
	}
	m := testkit.Must(d.RegMR(buf, provider.AccessLocalWrite|provider.AccessRemoteRead))(t).(*memory.Region)
	crc := rnd.IntN(2) == 0
	markers := rnd.IntN(4) == 0
	rdmac := markers && rnd.IntN(2) == 0
	f := NewFormat(crc, markers, rdmac)
	emss := []int{88, 536, 1060, 1100, 1448, 8948, 32564, 65483}[rnd.IntN(8)]
	f.SetEMSS(emss)
	framer := mpa.NewFramer(markers, crc)
	b := newBatch()
	var got, want []byte
	type msg struct {
		head rdmap.Head
		at   int
		n    uint32
		resp bool
	}
	var cur *msg
	var seg ddp.Segmenter
	todo := 3 + rnd.IntN(60)
	lens := []uint32{0, 1, policy.CopyMost - 1, policy.CopyMost, policy.CopyMost + 1,
		policy.CopyFPDU, policy.CopyFPDU + 1}
	for todo > 0 || cur != nil {
		copy(buf, orig)
		limit := []uint64{policy.BatchSlow, policy.BatchOctets, policy.BatchMost}[rnd.IntN(3)]
		b.Prepare(&f, limit, policy.BudgetMost)
		b.BeginMessage(seg)
		for b.Room() {
			if cur == nil {
				if todo == 0 {
					break
				}
				todo--
				n := lens[rnd.IntN(len(lens))]
				switch rnd.IntN(8) {
				case 0, 1:
					n = uint32(rnd.IntN(100_000))
				case 2:
					n = uint32(rnd.IntN(280 << 10))
				}
				cur = &msg{at: rnd.IntN(size - int(n)), n: n, resp: rnd.IntN(3) > 0}
				if cur.resp {
					cur.head = rdmap.ReadResponseHead(rnd.Uint32(), rnd.Uint64())
				} else {
					cur.head = rdmap.WriteHead(rnd.Uint32(), rnd.Uint64())
				}
				seg = ddp.NewSegmenter(n, true)
				b.BeginMessage(seg)
				ref := seg
				for {
					s, ok := ref.Next(f.MULPDU)
					if !ok {
						break
					}
					h := cur.head.Header(s.MO(), s.Last)
					f.SetVersion(&h)
					want = testkit.Must(framer.AppendFPDU(want, h.AppendTo(nil),
						orig[cur.at+int(s.Offset):][:s.Len]))(t)
				}
			}
			if cur.resp {
				left := seg.Remaining()
				r, p, err := peer.ReadSource(m.STag(), m.Addr()+uint64(cur.at)+uint64(cur.n-left), left)
				testkit.OK(t, err)
				b.AddResponse(cur.head, &seg, p, r)
			} else {
				sge := []provider.SGE{{Addr: m.Addr() + uint64(cur.at), Length: cur.n, LKey: m.STag()}}
				if cur.n > 0 && !b.Resolve(d, sge) {
					t.Fatal("resolve")
				}
				if !b.AddLong(cur.head, &seg, 0, false) {
					s, _ := seg.Next(f.MULPDU)
					h := cur.head.Header(s.MO(), s.Last)
					b.AddResolved(&h, uint64(s.Offset), uint64(s.Len), 0, false)
				}
			}
			if seg.Done() {
				cur = nil
			}
		}
		scramble := func() {
			if l, r := m.Uses(); l+r == 0 {
				for i := 0; i < size; i += 61 {
					buf[i] ^= 0xff
				}
			}
		}
		if l, r := m.Uses(); r > 0 && (crc || markers) && l == 0 && !b.inPlace {
			t.Fatalf("seed %d: %d remote uses of copies", seed, r)
		}
		scramble()
		for !b.Empty() {
			n := rnd.IntN(int(min(b.Left(), 70_000))) + 1
			if rnd.IntN(2) == 0 {
				n = int(b.Left())
			}
			taken := 0
			for _, p := range b.Pending() {
				k := min(len(p), n-taken)
				got = append(got, p[:k]...)
				taken += k
			}
			b.Advance(n)
			if !b.Empty() && rnd.IntN(2) == 0 { // the socket is full
				if cur != nil {
					b.Undo(&seg)
				}
				b.CopyPending()
				if l, r := m.Uses(); l+r != 0 {
					t.Fatalf("seed %d: in use after CopyPending", seed)
				}
				scramble()
				if b.Built() == 0 {
					break
				}
				if h := b.Hold(); h != nil && rnd.IntN(2) == 0 {
					b.Reset()
					b.Restore(h, &f)
				}
			}
		}
		b.Reset()
		if l, r := m.Uses(); l+r != 0 {
			t.Fatalf("seed %d: %d, %d uses after Reset", seed, l, r)
		}
	}
	if !bytes.Equal(got, want) {
		at := 0
		for at < min(len(got), len(want)) && got[at] == want[at] {
			at++
		}
		t.Fatalf("seed %d, CRC %t, Markers %t, EMSS %d: %d bytes, want %d; they differ at %d",
			seed, crc, markers, emss, len(got), len(want), at)
	}
	testkit.OK(t, m.Close())
}
