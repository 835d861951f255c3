package intervals

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// TestSet inserts and removes intervals at random, many of the same octets, and compares which
// overlap with another one with what a list of them says.
func TestSet(t *testing.T) {
	const size, rounds = 64, 5000
	memory := make([]byte, size)
	rng := rand.New(rand.NewPCG(1, 2))
	random := func() *Interval[int] {
		lo := rng.IntN(size)
		return New(memory[lo:min(size, lo+1+rng.IntN(8))], rng.Int())
	}
	var set Set[int]
	var all []*Interval[int]
	for range rounds {
		if len(all) == 0 || len(all) < 100 && rng.IntN(2) == 0 {
			v := random()
			set.Insert(v)
			all = append(all, v)
		} else {
			i := rng.IntN(len(all))
			if v := all[i]; set.Find(v) == v && rng.IntN(2) == 0 {
				w := New(memory, 0)
				w.lo, w.hi = v.lo, v.hi
				set.Replace(v, w)
				all[i] = w
			} else {
				set.Remove(v)
				all = slices.Delete(all, i, i+1)
			}
		}
		at, found, same := random(), map[*Interval[int]]bool{}, false
		set.Overlapping(at, func(v *Interval[int]) { found[v] = true })
		for _, v := range all {
			if want := v.lo < at.hi && at.lo < v.hi; found[v] != want {
				t.Fatalf("%d to %d found beside %d to %d: %v", v.lo, v.hi, at.lo, at.hi, !want)
			}
			delete(found, v)
			same = same || v.lo == at.lo && v.hi == at.hi
		}
		if len(found) > 0 || (set.Find(at) != nil) != same {
			t.Fatalf("%d intervals that are not in the set, or one of the same octets: %v", len(found),
				same)
		}
	}
}

// TestRing: an interval that leaves its ring returns another one of it, as long as there is one.
func TestRing(t *testing.T) {
	b := make([]byte, 1)
	first, second, third := New(b, 1), New(b, 2), New(b, 3)
	first.Join(second)
	first.Join(third)
	if v := first.Leave(); v != second && v != third {
		t.Fatalf("left %v", v)
	}
	if v := second.Leave(); v != third {
		t.Errorf("left %v, want the third", v)
	}
	for _, v := range []*Interval[int]{first, second, third} {
		if v.Leave() != nil {
			t.Errorf("interval %d thinks that it is not alone", v.Value)
		}
	}
}

// TestDepth: the tree is not much deeper than a balanced one, also if intervals are
// inserted in order, or are all of the same octets.
func TestDepth(t *testing.T) {
	const n = 1 << 14
	memory := make([]byte, n)
	var depth func(v *Interval[int]) int
	depth = func(v *Interval[int]) int {
		if v == nil {
			return 0
		}
		return 1 + max(depth(v.left), depth(v.right))
	}
	for what, x := range map[string]struct {
		of    func(i int) []byte
		found int // of ten octets
	}{
		"in order": {func(i int) []byte { return memory[i : i+1] }, 10},
		"the same": {func(int) []byte { return memory[100:101] }, n},
	} {
		var set Set[int]
		for i := range n {
			set.Insert(New(x.of(i), i))
		}
		if d := depth(set.root); d > 5*14 {
			t.Errorf("%s: the tree of %d intervals has a depth of %d", what, n, d)
		}
		found := 0
		set.Overlapping(New(memory[100:110], 0), func(*Interval[int]) { found++ })
		if found != x.found {
			t.Errorf("%s: %d of %d found", what, found, x.found)
		}
	}
}
