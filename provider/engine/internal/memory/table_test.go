package memory

import (
	"encoding/binary"
	"math/rand/v2"
	"sync"
	"testing"
)

// TestSTagTableModel plays random registrations and deregistrations against a
// map, at sizes that make the table grow, fill with tombstones and shrink.
func TestSTagTableModel(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	table := NewTable(Config{})
	model := map[uint32]*Region{}
	var stags []uint32
	for step := range 40000 {
		grow := (step/5000)%2 == 0
		if len(stags) == 0 || rnd.IntN(10) < 7 == grow {
			m := new(Region)
			table.insert(m)
			if model[m.stag] != nil || m.stag == 0 {
				t.Fatalf("step %d: STag %#x given twice, or zero", step, m.stag)
			}
			model[m.stag] = m
			stags = append(stags, m.stag)
		} else {
			i := rnd.IntN(len(stags))
			stag := stags[i]
			stags[i] = stags[len(stags)-1]
			stags = stags[:len(stags)-1]
			table.remove(model[stag])
			delete(model, stag)
			if table.lookup(stag) != nil {
				t.Fatalf("step %d: removed STag %#x is found", step, stag)
			}
		}
		if step%500 == 0 {
			for stag, m := range model {
				if table.lookup(stag) != m {
					t.Fatalf("step %d: lookup(%#x) is another region", step, stag)
				}
			}
		}
		if n := len(*table.slots.Load()); n > slotsLeast && n > 16*(len(model)+table.dead+1) {
			t.Fatalf("step %d: %d slots for %d regions", step, n, len(model))
		}
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
		m := new(Region)
		table.insert(m)
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
	first := new(Region)
	table.insert(first)
	second := new(Region)
	table.insert(second)
	table.remove(first)
	third := new(Region)
	table.insert(third)
	table.remove(third)
	fourth := new(Region)
	table.insert(fourth)
	got := [4]uint32{first.stag, second.stag, third.stag, fourth.stag}
	if want := [4]uint32{0x107, 0x108, 0x109, 0x10a}; got != want {
		t.Errorf("STags %v, want %v", got, want)
	}
}

// TestSTagRestEnds: the number of remembered old STags is bounded, and they come back afterwards.
func TestSTagRestEnds(t *testing.T) {
	table := NewTable(Config{})
	first := new(Region)
	table.insert(first)
	stag := first.stag
	table.remove(first)
	for range retiredSTags {
		if _, retired := table.retired.set[stag]; !retired {
			t.Fatal("the rest of an STag ended early")
		}
		m := new(Region)
		table.insert(m)
		table.remove(m)
	}
	if _, retired := table.retired.set[stag]; retired {
		t.Error("the STag rests for ever")
	}
	if len(table.retired.set) != retiredSTags || len(table.retired.order) != retiredSTags {
		t.Errorf("%d and %d STags remembered, want %d", len(table.retired.set),
			len(table.retired.order), retiredSTags)
	}
}

// TestSTagLookupWhileChanging looks up regions that stay, while others come
// and go and make the table move.
func TestSTagLookupWhileChanging(t *testing.T) {
	table := NewTable(Config{})
	var stay [64]*Region
	for i := range stay {
		stay[i] = new(Region)
		table.insert(stay[i])
	}
	done := make(chan struct{})
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			for {
				for _, m := range stay {
					if table.lookup(m.stag) != m {
						t.Errorf("lookup(%#x) failed", m.stag)
						return
					}
				}
				select {
				case <-done:
					return
				default:
				}
			}
		})
	}
	for range 20 {
		var come [500]*Region
		for i := range come {
			come[i] = new(Region)
			table.insert(come[i])
		}
		for _, m := range come {
			table.remove(m)
		}
	}
	close(done)
	wg.Wait()
}

// TestSTagIndexes: an index is either one region's for all its keys, or of STags of
// regions that have one each.
func TestSTagIndexes(t *testing.T) {
	table := NewTable(Config{})
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	// Few indexes, so that all of them meet.
	table.Random = func(b []byte) { binary.LittleEndian.PutUint32(b, rnd.Uint32N(64<<8)) }
	var fixed, moving []*Region
	for range 20000 {
		switch m := new(Region); rnd.IntN(4) {
		case 0:
			if len(fixed) < 10 {
				table.insert(m)
				fixed = append(fixed, m)
			}
		case 1:
			if len(moving) < 10 {
				m.owner = (*Window)(nil)
				table.insertByIndex(m)
				moving = append(moving, m)
			}
		case 2:
			if len(fixed) > 0 {
				table.remove(fixed[0])
				fixed = fixed[1:]
			}
		default:
			if len(moving) > 0 {
				table.remove(moving[0])
				moving = moving[1:]
			}
		}
		if len(table.retired.set) > 20 {
			table.retired = retiredKeys{}
		}
		if len(table.retiredIndexes.set) > 10 {
			table.retiredIndexes = retiredKeys{}
		}
		for _, m := range moving {
			for _, f := range fixed {
				if stagIndex(f.stag) == m.key || table.lookup(f.stag) != f {
					t.Fatalf("STag %#x has the index of %#x, or is not found", f.stag, m.stag)
				}
			}
			if table.lookup(m.stag) != m || table.lookup(m.stag^0xff) != m {
				t.Fatalf("STag %#x is not found by all of its keys", m.stag)
			}
		}
	}
}
