package ddp

import "testing"

// BenchmarkHeader writes and reads a header of each kind.
func BenchmarkHeader(b *testing.B) {
	for name, h := range map[string]Header{
		"tagged":   {Tagged: true, Last: true, STag: 7, TO: 0x2000},
		"untagged": {Last: true, QN: 0, MSN: FirstMSN},
	} {
		b.Run(name, func(b *testing.B) {
			buf := make([]byte, 0, MaxHeaderLen)
			b.ReportAllocs()
			for b.Loop() {
				buf = h.AppendTo(buf[:0])
				if _, n, err := ParseHeader(buf, MaxHeaderLen+1000); err != nil || n == 0 {
					b.Fatal(n, err)
				}
			}
		})
	}
}

// BenchmarkSegmenter cuts 1 MiB into segments for Ethernet.
func BenchmarkSegmenter(b *testing.B) {
	const length, mulpdu = 1 << 20, 1440
	b.ReportAllocs()
	for b.Loop() {
		s := NewSegmenter(length, true)
		for !s.Done() {
			s.Next(mulpdu)
		}
	}
}
