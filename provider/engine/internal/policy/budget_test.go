package policy

import "testing"

// TestReadLimit: whatever is left of a turn, a read takes the rest of an FPDU and the next header,
// and beyond the rest no more than a read may, nor more FPDUs than the turn pays for.
func TestReadLimit(t *testing.T) {
	for d := range Dense(11) {
		for turn := -TurnMost; turn <= TurnMost; turn += 4093 {
			for rest := 0; rest <= 64<<10; rest += 1021 {
				n := d.ReadLimit(rest, turn)
				most := max(ReadLeast, min(ReadMost, turn>>d))
				if n < max(rest+ReadAhead, min(ReadLeast, rest+most)) || n > rest+most {
					t.Fatalf("dense %d, turn %d, rest %d: a read of %d", d, turn, rest, n)
				}
				if n > max(rest+ReadAhead, turn-turn/4, ReadLeast) {
					t.Fatalf("dense %d, turn %d, rest %d: a read of %d is over the turn", d, turn, rest, n)
				}
			}
		}
	}
}

// TestSpent: a read costs its octets and its FPDUs. Dense increases at once, but not for the end of
// a turn, and decreases by one, after full reads only.
func TestSpent(t *testing.T) {
	for before := range Dense(11) {
		for n := 1; n <= ReadMost; n += 1 + n/7 {
			for fpdus := 0; fpdus <= n/20+1; fpdus += 1 + fpdus/5 {
				for _, full := range []bool{false, true} {
					d := before
					if cost := d.Spent(n, fpdus, full); cost != n+fpdus*FPDUCost {
						t.Fatalf("%d octets and %d FPDUs cost %d", n, fpdus, cost)
					}
					rest := n < TurnEnd && fpdus <= 2
					if d > before && rest || d < before && (!full || d != before-1) {
						t.Fatalf("%d octets and %d FPDUs, full %t: dense %d after %d", n, fpdus, full, d, before)
					}
				}
			}
		}
	}
}

// TestDenseFirst: the first reads of a stream are as if it had received FPDUs without payload.
func TestDenseFirst(t *testing.T) {
	var d Dense
	if d.Spent(20*100, 100, true); d != DenseFirst {
		t.Errorf("FPDUs without payload are %d dense, want %d", d, DenseFirst)
	}
}

func TestTurnOfLook(t *testing.T) {
	for n, want := range map[int]int{0: TurnOne, 1: TurnSole, 2: TurnOne, 8: TurnOne} {
		if got := TurnOfLook(n); got != want {
			t.Errorf("the turn of one of %d streams is %d, want %d", n, got, want)
		}
	}
}
