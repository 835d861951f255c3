package engine

import (
	"encoding/binary"
	"unsafe"
)

// dice gives numbers that follow from a seed (splitmix64).
type dice struct{ x uint64 }

func (d *dice) next() uint64 {
	d.x += 0x9e3779b97f4a7c15
	z := d.x
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// upTo returns a number from 0 to n, or 0 if n is negative.
func (d *dice) upTo(n int) int {
	if n <= 0 {
		return 0
	}
	return int(d.next() % uint64(n+1))
}

func (d *dice) in(lo, hi int) int { return lo + d.upTo(hi-lo) }

func (d *dice) oneIn(n int) bool { return d.upTo(n-1) == 0 }

func (d *dice) fork() *dice { return &dice{d.next()} }

// one picks an element of a list, the zero value if it has none.
func one[T any](d *dice, list []T) (v T) {
	if len(list) > 0 {
		v = list[d.upTo(len(list)-1)]
	}
	return v
}

// weighed picks an index as often as its weight says.
func (d *dice) weighed(weights []int) int {
	sum := 0
	for _, w := range weights {
		sum += w
	}
	n := d.upTo(sum - 1)
	for i, w := range weights {
		if n -= w; n < 0 {
			return i
		}
	}
	return 0
}

// bytes returns the length of a message: mostly it is short, sometimes about that of a
// segment, sometimes long.
func (d *dice) octets(most int) int {
	n := 0
	switch d.upTo(9) {
	case 0:
	case 1, 2, 3:
		n = d.in(1, 64)
	case 4, 5:
		n = d.in(65, 1200)
	case 6:
		n = d.in(1380, 1470)
	case 7, 8:
		n = d.in(1, 6000)
	default:
		n = d.in(1, most)
	}
	return min(n, most)
}

// fillWith fills b with bytes that follow from id.
func fillWith(b []byte, id uint64) {
	d := dice{id * 0x2545f4914f6cdd1d}
	for len(b) >= 8 {
		binary.LittleEndian.PutUint64(b, d.next())
		b = b[8:]
	}
	for i, x := 0, d.next(); i < len(b); i++ {
		b[i] = byte(x >> (8 * i))
	}
}

// wordAligned makes n bytes, a multiple of 8, aligned to a word.
func wordAligned(n int) []byte {
	words := make([]uint64, n/8)
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(words))), n)
}
