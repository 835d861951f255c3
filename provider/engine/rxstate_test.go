package engine

import (
	"github.com/govs-rdma/govs/provider/internal/cpuvendor"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/turns"
	"github.com/govs-rdma/govs/provider/engine/memnet"
	"github.com/govs-rdma/govs/provider/engine/transport"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// TestReadLimit: a read takes what is left of the turn, with the rest of an FPDU that has come in
// part before the others; a turn that is nearly over ends with that FPDU.
func TestReadLimit(t *testing.T) {
	const have = 1000
	for _, tc := range []struct {
		name       string
		need, turn int
		dense      uint8
		whole      int
		want       int
	}{
		{"nothing is known to come", 0, turnLook, 0, turnLook, readLook},
		{"the rest of a long FPDU, and more", have + 30000, turnLook, 0, turnLook, 30000 + readLook},
		{"one that is as long as FPDUs are", have + 65000, turnLook, 0, turnLook, turnLook},
		{"an eighth, as FPDUs are short", have + 1000, turnLook, 3, turnLook, 1000 + (turnLook-1000)/8},
		{"some of it is over", 0, turnLook - 1, 0, turnLook, readMost},
		{"all of a short turn", have + 30000, turnWhole, 0, turnWhole, turnWhole},
		{"however long FPDUs are", have + 64000, turnWhole, 0, turnWhole, turnWhole},
		{"a part of it is over", have + 30000, turnWhole - 1, 0, turnWhole, (turnWhole - 1) - (turnWhole-1)/4},
		{"no long reads", have + 30000, turnLook, 0, math.MaxInt, 30000 + readMost},
		{"as much as a read takes", have + 10000, 200000, 0, turnLook, 10000 + readMost},
		{"three quarters of the turn", have + 30000, 200000, 0, turnLook, 150000},
		{"a quarter, as FPDUs are short", have + 30000, 200000, 2, turnLook, 80000},
		{"hardly more is left than the FPDU", have + 30000, 30100, 0, turnLook, 30000 + readAhead},
		{"the turn is over, within an FPDU", have + 30000, -5000, 0, turnLook, 30000 + readAhead},
		{"the turn is over", 0, 0, 0, turnLook, readLeast},
		{"very short FPDUs", 0, turnLeast, 7, turnLook, readLeast},
	} {
		r := rxState{longs: longsMost, need: uint32(tc.need), r: 10, w: 10 + have, dense: tc.dense}
		if got := r.readLimit(tc.turn, tc.whole); got != tc.want {
			t.Errorf("%s: %d octets, want %d", tc.name, got, tc.want)
		}
	}
}

// sizedReads is a nowhere that keeps how many reads there are, and how long the longest is.
type sizedReads struct {
	*nowhere
	reads, most int
}

func (c *sizedReads) Readv(bufs [][]byte) (int, error) {
	n := 0
	for _, b := range bufs {
		n += len(b)
	}
	c.reads++
	c.most = max(c.most, n)
	return c.nowhere.Readv(bufs)
}

// newSizedReads returns a side whose stream reads from the second result, and a function that makes
// Writes to it of n octets each, so many octets in all.
func newSizedReads(t *testing.T, crc bool) (*side, *sizedReads, func(octets, n int) []byte) {
	_, y := tcpPair(t, Options{}, crc, sideOptions{})
	in := &sizedReads{nowhere: y.replaceConn()}
	dst := y.reg(60000, provider.AccessLocalWrite|provider.AccessRemoteWrite)
	framer := mpa.NewFramer(false, crc)
	s := y.qp.stream.Load()
	set := func(c transport.Conn) {
		s.rxMu.Lock()
		defer s.rxMu.Unlock()
		s.conn = c
	}
	set(in)
	t.Cleanup(func() { set(in.nowhere) })
	return y, in, func(octets, n int) (b []byte) {
		h := rdmap.WriteHeader(dst.m.stag, dst.to(0), true)
		for len(b) < octets {
			b = testkit.Must(framer.AppendFPDU(b, h.AppendTo(nil), dst.b[:n]))(t)
		}
		return b
	}
}

// TestLongReads: the only stream of a poller gets long reads after several that have brought long
// FPDUs, and not after short ones, or where the device has objects that store.
func TestLongReads(t *testing.T) {
	const long = 60000
	y, in, writes := newSizedReads(t, true)
	s := y.qp.stream.Load()
	look := func(what string, octets, n int, looked bool) {
		t.Helper()
		in.in, in.most = writes(octets, n), 0
		for len(in.in) > 0 {
			s.pollRx(y.dev.turnOfLook(1))
		}
		if looked != (in.most > 300<<10) || !looked && in.most > readMost+64<<10 {
			t.Errorf("%s: the longest read was for %d octets", what, in.most)
		}
		if err := y.qp.Cause(); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	look("the first", 512<<10, long, false)
	look("long ones", 4<<20, long, true)
	look("short ones, of which nothing is known at first", 1<<20, 4, true)
	look("short ones", 1<<20, 4, false)
	look("few long ones", 512<<10, long, false)
	look("short ones after few long ones", 1<<20, 4, false)
	look("long ones again", 4<<20, long, true)
	y.dev.stores.Store(true)
	look("a device with objects", 4<<20, long, false)
	in.in, in.most = writes(4<<20, long), 0
	for len(in.in) > 0 {
		s.pollRx(turnMost) // as after a store
	}
	if in.most > readMost+64<<10 {
		t.Errorf("after a store: the longest read was for %d octets", in.most)
	}
}

// TestReadsOfATurn: a stream that is one of a few reads about as much as its turn has, with few
// reads, although its messages end with a short FPDU. On AMD CPUs it is one read, and perhaps one
// for the rest of an FPDU.
func TestReadsOfATurn(t *testing.T) {
	for _, tc := range []struct{ whole, of, reads int }{
		{turnLook, 2, 3}, {turnLook, 4, 2}, {turnWhole, 2, 2}, {turnWhole, 4, 2},
	} {
		y, in, writes := newSizedReads(t, true)
		y.dev.turnWhole = tc.whole
		s := y.qp.stream.Load()
		turn := y.dev.turnOfLook(tc.of)
		for len(in.in) < 20*turn { // messages of 64 KiB
			in.in = append(in.in, writes(2*32000, 32000)...)
			in.in = append(in.in, writes(1, 464)...)
		}
		for range 8 { // until it is known that FPDUs are long
			s.pollRx(turn)
		}
		before := len(in.in)
		in.reads, in.most = 0, 0
		for range 8 {
			s.pollRx(turn)
		}
		taken := (before - len(in.in)) / 8
		if in.reads > 8*tc.reads || taken < turn*3/4 || taken > turn*5/4 {
			t.Errorf("one of %d: %d reads in 8 turns of %d, want %d; a turn has taken %d octets",
				tc.of, in.reads, turn, 8*tc.reads, taken)
		}
		if whole := in.most >= turn; whole != (tc.whole == turnWhole) {
			t.Errorf("one of %d: the longest read of turns of %d was for %d octets", tc.of, turn, in.most)
		}
		testkit.OK(t, y.qp.Cause())
	}
}

// TestTurnsBoundWholeReads: a turn that one read may take as a whole takes at most a quarter more,
// or an FPDU that is longer. If short ones follow, one turn is full of them (docs/bounds.md).
func TestTurnsBoundWholeReads(t *testing.T) {
	const empty = 20 // octets of an FPDU without payload
	for _, n := range []int{1400, 9000, 32000, 60000} {
		for _, turn := range []int{turnWhole, turnLook / 2} {
			y, in, writes := newSizedReads(t, true)
			y.dev.turnWhole = turnWhole
			s := y.qp.stream.Load()
			take := func() int {
				before := len(in.in)
				s.pollRx(turn)
				return before - len(in.in)
			}
			in.in = writes(12*turn, n)
			for i := 0; len(in.in) > turn+n; i++ {
				if taken := take(); taken > turn+max(turn/4, n+100) {
					t.Errorf("FPDUs of %d octets: turn %d of %d took %d", n, i, turn, taken)
				}
			}
			for len(in.in) > 0 {
				take()
			}
			in.in = writes(2*turn, 0)
			taken := take()
			if whole := n > 9000; taken > turn+empty || whole && taken < turn-empty {
				t.Errorf("after FPDUs of %d octets a turn of %d took %d of empty ones", n, turn, taken)
			}
			if in.most = 0; take() > turn/16 || in.most > turn/16 {
				t.Errorf("after them the next turn of %d had a read for %d", turn, in.most)
			}
			testkit.OK(t, y.qp.Cause())
		}
	}
}

// TestDenseReads: short FPDUs make the next reads shorter, but the last short read of a turn, which
// has the end of a long one in it, does not.
func TestDenseReads(t *testing.T) {
	for _, tc := range []struct {
		name     string
		n, fpdus int
		before   uint8
		dense    uint8
		longs    uint8
	}{
		{"long FPDUs", 96 << 10, 3, 0, 0, 4},
		{"the rest of an FPDU, and a short one", 1656, 2, 0, 0, 3},
		{"the same, when FPDUs were short", 1656, 2, 5, 4, 3},
		{"short ones", 1656, 3, 0, 1, 0},
		{"one that is as short, in a longer read", 4 << 10, 9, 0, 1, 0},
		{"very short ones", 2800, 100, 0, 5, 0},
	} {
		r := rxState{longs: 3, dense: tc.before}
		if cost := r.spent(tc.n, tc.fpdus, true); cost != tc.n+tc.fpdus*fpduCost {
			t.Errorf("%s: a read costs %d", tc.name, cost)
		}
		if r.dense != tc.dense || r.longs != tc.longs {
			t.Errorf("%s: dense is %d, longs is %d; want %d and %d", tc.name, r.dense, r.longs, tc.dense, tc.longs)
		}
	}
}

// TestReadsGrow: reads become as long as the turn permits, however short it is, where all FPDUs are
// as long as an Ethernet permits.
func TestReadsGrow(t *testing.T) {
	y, in, writes := newSizedReads(t, true)
	s := y.qp.stream.Load()
	for _, turn := range []int{turnLeast, turnLeast / 2} {
		in.in = append(in.in, writes(30*turn, 1420)...)
		for range 10 {
			s.pollRx(turn)
		}
		in.reads = 0
		for range 10 {
			s.pollRx(turn)
		}
		if in.reads > 60 || len(in.in) == 0 {
			t.Errorf("%d reads in 10 turns of %d, want at most 60; dense is %d", in.reads, turn, s.rx.dense)
		}
		s.rx.dense = denseFirst
	}
	testkit.OK(t, y.qp.Cause())
}

// TestReadsHere: devices follow the CPU.
func TestReadsHere(t *testing.T) {
	whole := turnLook
	if cpuvendor.AMD {
		whole = turnWhole
	}
	s := newSide(t, Options{Network: memnet.New(nil)}, sideOptions{})
	if got := s.dev.turnWhole; got != whole {
		t.Errorf("whole turns from %d octets on, want %d", got, whole)
	}
}

// TestTurnOfLook: a poller reads more from the only stream of its CQ, unless the device has many or
// stores to objects, than from each of several.
func TestTurnOfLook(t *testing.T) {
	s := newSide(t, Options{Network: memnet.New(nil)}, sideOptions{})
	want := func(what string, n, turn int) {
		t.Helper()
		if got := s.dev.turnOfLook(n); got != turn {
			t.Errorf("%s: %d octets, want %d", what, got, turn)
		}
	}
	want("the only one", 1, turnLook)
	want("one of two", 2, turnLook/2)
	want("one of four", 4, turnLook/4)
	want("one of five", fewStreams+1, turnLeast)
	want("one of many", 100, turnLeast)
	more := func(n int) {
		for range n {
			q := s.newQP(sideOptions{cap: s.qp.initAttr().Cap})
			t.Cleanup(func() { testkit.OK(t, q.Close()) })
		}
	}
	more(loneQPs)
	want("the only one of its CQ, of several", 1, turns.Long)
	want("one of two, of several", 2, turnLook/2)
	more(fewQPs - loneQPs)
	want("one of two, of many", 2, turns.Long/2)
}

// TestStoresEndLongReads: only a region of an object that can be written to has the device read
// less at a time.
func TestStoresEndLongReads(t *testing.T) {
	s := newSide(t, Options{Network: memnet.New(nil)}, sideOptions{})
	f := testkit.Must(os.Create(filepath.Join(t.TempDir(), "object")))(t)
	defer f.Close()
	for _, write := range []bool{false, true} {
		access := provider.AccessRemoteRead
		if write {
			access = provider.AccessLocalWrite | provider.AccessRemoteWrite
		}
		m := testkit.Must(s.pd.RegObject(f, 4096, access))(t)
		defer func() { testkit.OK(t, m.Close()) }()
		want := turnLook
		if write {
			want = turns.Long
		}
		for n := range 2 {
			if got := s.dev.turnOfLook(n + 1); got != want/(n+1) {
				t.Errorf("writable %t: a look at one of %d has %d octets, want %d", write, n+1, got, want/(n+1))
			}
		}
	}
}
