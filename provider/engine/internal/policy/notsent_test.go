package policy

import "testing"

// TestNotSent: whatever the length of records, and however many come at a time, the limit permits
// NotSentRecords to twice as many, or there is none.
func TestNotSent(t *testing.T) {
	for length := 1; length <= NotSentMost; length += 1 + length/50 {
		for at := 1; at <= BatchFPDUs; at *= 2 {
			var u NotSent
			records, changed := 0, false
			for records < notSentSample && records*length < notSentSample/NotSentRecords*NotSentMost {
				if changed {
					t.Fatalf("%d records of %d decide", records, length)
				}
				changed = u.Count(at, at*length)
				records += at
			}
			least, got := NotSentRecords*length, u.Limit()
			if least > NotSentMost {
				least = 0
			}
			if changed != (got != 0) || got < least || got != 0 && got >= 2*least {
				t.Fatalf("records of %d, %d at a time: a limit of %d", length, at, got)
			}
			if u.Count(records, records*length) || u.Limit() != got {
				t.Fatalf("records of %d, %d at a time: another limit, %d, than %d", length, at, u.Limit(), got)
			}
		}
	}
}

// TestNotSentLimit: the limit is about 64 records of the length that the latest had on average.
// Long records have none, however few they are.
func TestNotSentLimit(t *testing.T) {
	var u NotSent
	for _, tc := range []struct {
		what                   string
		batches, records, each int
		limit                  int
		changes                int
	}{
		{"too few to know", 127, 1, 136, 0, 0},
		{"tiny segments", 3, 60, 136, 16 << 10, 1},
		{"more of them", 100, 30, 136, 16 << 10, 0},
		{"the shortest FPDUs, one at a time", 500, 1, 20, 2 << 10, 1},
		{"bulk: 512 KiB are enough to know", 6, 1, 96 << 10, 0, 1},
		{"bulk goes on", 100, 1, 1 << 20, 0, 0},
		{"an MSS of 1449, which no FPDU fills", 10, 66, 1448, 128 << 10, 1},
		{"jumbo frames that no FPDU fills", 100, 10, 8948, 0, 1},
		{"FPDUs of 4 KiB", 100, 24, 4096, 256 << 10, 1},
		{"and of more", 100, 24, 4200, 0, 1},
	} {
		changes := 0
		u.records, u.octets = 0, 0
		for range tc.batches {
			if u.Count(tc.records, tc.records*tc.each) {
				changes++
			}
		}
		if u.Limit() != tc.limit || changes != tc.changes {
			t.Errorf("%s: the limit is %d after %d changes, want %d after %d", tc.what, u.Limit(),
				changes, tc.limit, tc.changes)
		}
	}
}
