package crc32c

import (
	"fmt"
	"testing"
)

// For any number of blocks, any length and any gap between them, each block has the same CRC as
// alone, and octets of a gap have no influence.
func TestEachIsUpdateOfEach(t *testing.T) {
	r := source(t)
	for _, gap := range []int{0, 1, 4, 61} {
		for n := range 700 {
			count := 1 + int(r.Uint64()%19)
			p := octets(r, count*(n+gap))
			p = p[:len(p)-gap] // there is no gap after the last block
			got := make([]uint32, count)
			Each(got, p, n, n+gap)
			for i := range got {
				if want := reference(0, p[i*(n+gap):][:n]); got[i] != want {
					t.Fatalf("block %d of %d, %d octets, gap %d: %#08x, want %#08x", i, count, n, gap, got[i], want)
				}
			}
		}
	}
	Each(nil, nil, 80, 84)
}

// A wrong argument of the caller must not cause a read beyond p.
func TestEachOutsideOfItsOctets(t *testing.T) {
	for _, c := range []struct{ count, octets, n, stride int }{
		{4, 4*84 - 5, 80, 84}, {8, 7*84 + 79, 80, 84}, {5, 4*84 + 79, 80, 84}, {1, 3, 4, 4},
		{4, 400, 80, 79}, {4, 400, -1, 84}, {4, 0, 80, 84},
	} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("no panic")
				}
			}()
			Each(make([]uint32, c.count), make([]byte, c.octets, 2*c.octets+1000), c.n, c.stride)
		})
	}
}

// Consecutive FPDUs of short messages: together, and one at a time.
func BenchmarkEach(b *testing.B) {
	for _, n := range []int{16, 80, 144, 272} {
		crcs := make([]uint32, 8)
		p := make([]byte, len(crcs)*(n+4))
		b.Run(fmt.Sprintf("%d/each", n), func(b *testing.B) {
			for range b.N {
				Each(crcs, p, n, n+4)
			}
		})
		b.Run(fmt.Sprintf("%d/alone", n), func(b *testing.B) {
			for range b.N {
				eachAlone(crcs, p, n, n+4)
			}
		})
	}
}
