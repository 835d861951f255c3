package mpa_test

import (
	"fmt"
	"testing"

	"github.com/govs-rdma/govs/provider/iwarp/mpa"
)

var benchSizes = []int{18, 1442, 4096, mpa.MaxULPDU}

func BenchmarkCRC(b *testing.B) {
	for _, n := range benchSizes {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			p := octets(n)
			b.SetBytes(int64(n))
			b.ReportAllocs()
			var crc uint32
			for b.Loop() {
				crc = mpa.CRC(crc, p)
			}
		})
	}
}

// The cost for a transmitter that sends the ULPDU in place.
func BenchmarkHeaderTrailer(b *testing.B) {
	for _, crc := range []bool{false, true} {
		for _, n := range benchSizes {
			b.Run(fmt.Sprintf("crc=%v/%d", crc, n), func(b *testing.B) {
				ulpdu := octets(n)
				buf := make([]byte, 0, mpa.HeaderLen+mpa.MaxTrailerLen)
				b.SetBytes(int64(n))
				b.ReportAllocs()
				for b.Loop() {
					buf = mpa.AppendHeader(buf[:0], uint16(n))
					var sum uint32
					if crc {
						sum = mpa.CRC(mpa.CRC(0, buf), ulpdu)
					}
					buf = mpa.AppendTrailer(buf, n, sum, crc)
				}
			})
		}
	}
}

func BenchmarkFramer(b *testing.B) {
	for _, markers := range []bool{false, true} {
		for _, n := range benchSizes {
			b.Run(fmt.Sprintf("markers=%v/%d", markers, n), func(b *testing.B) {
				f := mpa.NewFramer(markers, true)
				ulpdu := octets(n)
				buf := make([]byte, 0, 2*mpa.MaxFPDULen)
				b.SetBytes(int64(n))
				b.ReportAllocs()
				for b.Loop() {
					var err error
					if buf, err = f.AppendFPDU(buf[:0], ulpdu); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// FPDUs of one Marker interval in a loop, so that with Markers every position occurs and the stream
// repeats.
func BenchmarkReceiver(b *testing.B) {
	for _, markers := range []bool{false, true} {
		for _, n := range benchSizes {
			b.Run(fmt.Sprintf("markers=%v/%d", markers, n), func(b *testing.B) {
				f := mpa.NewFramer(markers, true)
				var stream []byte
				for range 508 / 4 {
					var err error
					if stream, err = f.AppendFPDU(stream, octets(n)); err != nil {
						b.Fatal(err)
					}
				}
				r := mpa.NewReceiver(markers, true)
				scratch := make([]byte, 0, mpa.MaxFPDULen)
				rest := stream
				b.SetBytes(int64(n))
				b.ReportAllocs()
				b.ResetTimer()
				for b.Loop() {
					if len(rest) == 0 {
						rest, r = stream, mpa.NewReceiver(markers, true)
					}
					s, need, err := r.Next(rest, scratch)
					if err != nil || need != 0 {
						b.Fatal(need, err)
					}
					rest = rest[s.Len:]
				}
			})
		}
	}
}

// The cost of a start-up frame of revision 2 for a connection: one end writes it, the other reads
// it.
func BenchmarkStartup(b *testing.B) {
	for _, n := range []int{0, 508} {
		b.Run(fmt.Sprintf("private-data=%d", n), func(b *testing.B) {
			depths := mpa.Enhanced{IRD: 16, ORD: 16}
			private := make([]byte, 0, mpa.MaxPrivateData)
			buf := make([]byte, 0, mpa.FrameHeaderLen+mpa.MaxPrivateData)
			data := octets(n)
			b.ReportAllocs()
			for b.Loop() {
				private = append(depths.AppendTo(private[:0]), data...)
				f := mpa.Frame{Kind: mpa.KindRequest, CRC: true, Enhanced: true, Revision: 2, PrivateData: private}
				buf = f.AppendTo(buf[:0])
				got, k, err := mpa.ParseFrame(buf, mpa.KindRequest)
				if err != nil || k != len(buf) {
					b.Fatal(k, err)
				}
				if e, rest, err := got.SplitPrivateData(); err != nil || e.IRD != depths.IRD || len(rest) != n {
					b.Fatal(e, len(rest), err)
				}
			}
		})
	}
}
