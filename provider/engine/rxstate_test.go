package engine

import "testing"

// TestReadLimit: a read takes what is left of the turn, with the rest of an FPDU that has come in
// part before the others; a turn that is nearly over ends with that FPDU.
func TestReadLimit(t *testing.T) {
	const have = 1000
	for _, tc := range []struct {
		name       string
		need, turn int
		dense      uint8
		alone      bool
		want       int
	}{
		{"nothing is known to come", 0, turnLook, 0, true, readLook},
		{"the rest of a long FPDU, and more", have + 30000, turnLook, 0, true, 30000 + readLook},
		{"one that is as long as FPDUs are", have + 65000, turnLook, 0, true, turnLook},
		{"an eighth, as FPDUs are short", have + 1000, turnLook, 3, true, 1000 + (turnLook-1000)/8},
		{"some of it is over", 0, turnLook - 1, 0, true, readMost},
		{"not alone", have + 30000, turnLook, 0, false, 30000 + readMost},
		{"half of a turn", have + 30000, 200000, 0, false, 130000},
		{"a quarter, as FPDUs are short", have + 30000, 200000, 2, false, 80000},
		{"less is left than the FPDU twice", have + 30000, 50000, 0, false, 30000 + directAhead},
		{"the turn is over, within an FPDU", have + 30000, -5000, 0, false, 30000 + directAhead},
		{"the turn is over", 0, 0, 0, true, readLeast},
		{"very short FPDUs", 0, turnLeast, 7, true, readLeast},
	} {
		r := rxState{need: uint32(tc.need), r: 10, w: 10 + have, dense: tc.dense}
		if got := r.readLimit(tc.turn, tc.alone); got != tc.want {
			t.Errorf("%s: %d octets, want %d", tc.name, got, tc.want)
		}
	}
}
