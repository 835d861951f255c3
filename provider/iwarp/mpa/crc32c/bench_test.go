package crc32c

import (
	"fmt"
	"testing"
)

var benchSizes = []int{16, 64, 80, 256, 1460, 4096, 64 << 10, 1 << 20}

// keep holds the results, so that the compiler does not remove calls.
var keep uint32

// Every implementation that the CPU supports, besides the exported function. Messages are
// independent, like FPDUs, and begin 16 octets after a 64-octet boundary, like payload after a
// header.
func BenchmarkUpdate(b *testing.B) {
	benchmark(b, func(f implementation, _, src []byte) { keep = f.update(0, src) })
}

// The same with a copy to another buffer; stdlib copies and then calls hash/crc32, piece by piece.
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

// The cost of one FPDU of a small RDMA Write whose header and payload are separate: 16 octets, and
// then the payload.
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
