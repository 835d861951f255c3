package memory

import (
	"encoding/binary"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
)

// added inserts a region.
func added(table *Table) *Region {
	m := new(Region)
	table.insert(m)
	return m
}

// TestSTagTableModel plays random registrations and deregistrations of regions that have an STag or
// an index, at sizes that make the table grow, fill with tombstones and shrink, and with so few
// indexes that all of them meet. Regions that stay are found all the time.
func TestSTagTableModel(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	for _, few := range []bool{false, true} {
		table := NewTable(Config{})
		most, steps, every := 1<<20, 40000, 500
		if few {
			table.Random = func(b []byte) { binary.LittleEndian.PutUint32(b, rnd.Uint32N(64<<8)) }
			most, steps, every = 10, 20000, 2
		} else {
			defer lookUp(t, table)()
		}
		var fixed, moving []*Region
		for step := range steps {
			grow := (step/5000)%2 == 0
			list := &fixed
			if rnd.IntN(4) == 0 {
				list = &moving
			}
			if n := len(*list); n == 0 || rnd.IntN(10) < 7 == grow && n < most {
				m := new(Region)
				if list == &moving {
					m.owner = (*Window)(nil)
					table.insertByIndex(m)
				} else {
					table.insert(m)
				}
				*list = append(*list, m)
			} else {
				i := rnd.IntN(n)
				m := (*list)[i]
				*list = slices.Delete(*list, i, i+1)
				table.remove(m)
				if table.lookup(m.stag) != nil {
					t.Fatalf("step %d: removed STag %#x is found", step, m.stag)
				}
			}
			if step%every == 0 {
				checkTable(t, table, fixed, moving)
			}
			if len(table.retired.set) > 20 && few {
				table.retired = retiredKeys{}
			}
			if len(table.retiredIndexes.set) > 10 && few {
				table.retiredIndexes = retiredKeys{}
			}
			if n := len(*table.slots.Load()); n > slotsLeast && n > 16*(len(fixed)+staying+table.dead+1) {
				t.Fatalf("step %d: %d slots for %d regions", step, n, len(fixed))
			}
		}
	}
}

// checkTable checks that all regions are found, and that an index is either one region's for all
// its keys, or of STags of regions that have one each.
func checkTable(t *testing.T, table *Table, fixed, moving []*Region) {
	t.Helper()
	indexes := map[uint32]bool{}
	for _, m := range moving {
		indexes[m.key] = true
		if table.lookup(m.stag) != m || table.lookup(m.stag^0xff) != m {
			t.Fatalf("STag %#x is not found by all of its keys", m.stag)
		}
	}
	for _, m := range fixed {
		if stagIndex(m.stag) == 0 || table.lookup(m.stag) != m || indexes[stagIndex(m.stag)] {
			t.Fatalf("STag %#x has index 0, is not found, or has the index of another region", m.stag)
		}
	}
}

const staying = 16

// lookUp looks up regions that stay in the table, on several goroutines, until stop is called.
func lookUp(t *testing.T, table *Table) (stop func()) {
	var stay [staying]*Region
	for i := range stay {
		stay[i] = added(table)
	}
	var over atomic.Bool
	var all sync.WaitGroup
	for range 3 {
		all.Go(func() {
			for !over.Load() {
				for _, m := range stay {
					if table.lookup(m.stag) != m {
						t.Errorf("lookup(%#x) failed", m.stag)
						return
					}
				}
				runtime.Gosched()
			}
		})
	}
	return func() {
		over.Store(true)
		all.Wait()
	}
}

// TestSTagNeighbours: whoever knows an STag knows nothing that is next to it.
//
//rfc:5040 RDMAP-8.1.1-8-01 STags hard to predict
//rfc:5040 RDMAP-8.1.1-8-02 STags sparse over the range
func TestSTagNeighbours(t *testing.T) {
	table := NewTable(Config{})
	var and, or uint32 = 1<<32 - 1, 0
	live := map[uint32]bool{}
	for range 1000 {
		m := added(table)
		live[m.stag] = true
		and &= m.stag
		or |= m.stag
	}
	if and != 0 || or != 1<<32-1 {
		t.Errorf("bits that never change: always set %#x, always clear %#x", and, ^or)
	}
	hits := 0
	for stag := range live {
		for bit := range 32 {
			if m := table.lookup(stag ^ 1<<bit); m != nil {
				hits++
			}
		}
	}
	if hits > 2 { // 32000 guesses among 1000 of 2^32: about one in 130 runs has a hit
		t.Errorf("%d STags are one bit from another", hits)
	}
	if table.lookup(0) != nil {
		t.Error("STag 0 names a region")
	}
}

// TestSTagNoReuse: the source of random numbers repeats itself, and the table
// gives no STag that is in use, has index 0, or was in use a short time ago.
func TestSTagNoReuse(t *testing.T) {
	table := NewTable(Config{})
	script := []uint32{0x107, 0x107, 0, 7, 0x108, 0x107, 0x108, 0x109, 0x109, 0x107, 0x10a}
	table.Random = func(b []byte) {
		binary.LittleEndian.PutUint32(b, script[0])
		script = script[1:]
	}
	first, second := added(table), added(table)
	table.remove(first)
	third := added(table)
	table.remove(third)
	fourth := added(table)
	got := [4]uint32{first.stag, second.stag, third.stag, fourth.stag}
	if want := [4]uint32{0x107, 0x108, 0x109, 0x10a}; got != want {
		t.Errorf("STags %v, want %v", got, want)
	}
}

// TestSTagRestEnds: the number of remembered old STags is bounded, and they come back afterwards.
func TestSTagRestEnds(t *testing.T) {
	table := NewTable(Config{})
	first := added(table)
	stag := first.stag
	table.remove(first)
	for range retiredSTags {
		if _, retired := table.retired.set[stag]; !retired {
			t.Fatal("the rest of an STag ended early")
		}
		table.remove(added(table))
	}
	if _, retired := table.retired.set[stag]; retired {
		t.Error("the STag rests for ever")
	}
	if len(table.retired.set) != retiredSTags || len(table.retired.order) != retiredSTags {
		t.Errorf("%d and %d STags remembered, want %d", len(table.retired.set),
			len(table.retired.order), retiredSTags)
	}
}
