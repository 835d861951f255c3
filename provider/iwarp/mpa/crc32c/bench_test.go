package crc32c

import (
	"fmt"
	"testing"
)

var benchSizes = []int{16, 64, 80, 256, 1460, 4096, 64 << 10, 1 << 20}

// keep has the results, so that no call is left out.
var keep uint32

// Every implementation that the CPU has, besides the exported function.
// Messages do not wait for each other, as FPDUs don't, and lie 16 octets from
// a 64-octet boundary, as payload after a header does.
func BenchmarkUpdate(b *testing.B) {
	benchmark(b, func(f implementation, _, src []byte) { keep = f.update(0, src) })
}

// The same into another buffer; stdlib is copy and then hash/crc32, in pieces.
func BenchmarkCopy(b *testing.B) {
	benchmark(b, func(f implementation, dst, src []byte) { keep = f.copy(0, dst, src) })
}

func benchmark(b *testing.B, one func(f implementation, dst, src []byte)) {
	for _, n := range benchSizes {
		for _, f := range append(implementations(), implementation{"exported", Update, Copy}) {
			b.Run(fmt.Sprintf("%d/%s", n, f.name), func(b *testing.B) {
				buf, dst := make([]byte, n+128), make([]byte, n)
				src := buf[alignedTo64(buf)+16:][:n]
				b.SetBytes(int64(n))
				b.ReportAllocs()
				for b.Loop() {
					one(f, dst, src)
				}
			})
		}
	}
}

// What one FPDU of a small RDMA Write costs, whose header and payload are
// apart: 16 octets, and after them the payload.
func BenchmarkFPDU(b *testing.B) {
	header, payload := make([]byte, 16), make([]byte, 64)
	for _, f := range append(implementations(), implementation{"exported", Update, Copy}) {
		b.Run(f.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				keep = f.update(f.update(0, header), payload)
			}
		})
	}
}
