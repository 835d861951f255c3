package bulk

import (
	"bytes"
	"testing"
)

// TestCopy copies at lengths around where the way changes, at all alignments to 64 octets of
// either side, and into slices that are longer or shorter. Octets around the copy stay.
func TestCopy(t *testing.T) {
	const most = leastLong + 300
	src := make([]byte, most+64)
	for i := range src {
		src[i] = byte(i*7 + i>>8)
	}
	dst := make([]byte, most+128)
	for _, n := range []int{0, 1, 63, leastLong - 1, leastLong, leastLong + 1, most} {
		for at := range 64 {
			for _, shorter := range []int{0, 5} {
				from, to := src[at:at+n], dst[64-at:][:max(n-shorter, 0)]
				clear(dst)
				if got := Copy(to, from); got != len(to) {
					t.Fatalf("Copy of %d octets to %d = %d", n, len(to), got)
				}
				before, after := dst[:64-at], dst[64-at+len(to):]
				if !bytes.Equal(to, from[:len(to)]) || !blank(before) || !blank(after) {
					t.Fatalf("%d octets from %d to %d: not those of src, or others were written",
						n, at, 64-at)
				}
				if got := Copy(to, from[:len(to)/2]); got != len(to)/2 {
					t.Fatalf("Copy of %d octets to %d = %d", len(to)/2, len(to), got)
				}
			}
		}
	}
}

func blank(b []byte) bool { return len(bytes.Trim(b, "\x00")) == 0 }

func TestCopyDoesNotAllocate(t *testing.T) {
	var dst, src [2 * leastLong]byte
	if n := testing.AllocsPerRun(10, func() { Copy(dst[:], src[:]) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
