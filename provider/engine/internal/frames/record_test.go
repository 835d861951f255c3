package frames

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/govs-rdma/govs/provider/iwarp/mpa"
)

// TestRecordsStandTCP cuts records where TCP may cut them: after so many bytes as
// a segment has left beside its options, and, after the first segment, where the
// peer's window ends. No cut may be in the pad or in the CRC of an FPDU.
func TestRecordsStandTCP(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		emss := 4 * rapid.IntRange(134, 2400).Draw(t, "emss/4")
		if rapid.Bool().Draw(t, "loopback") {
			emss = 4 * rapid.IntRange(wireSegment/4+1, 1<<15/4-1).Draw(t, "emss/4")
		}
		mulpdu := mpa.MULPDU(emss, false)
		b := Batch{extend: extendRecords(emss)}
		type fpdu struct{ length, trailer int }
		var fpdus []fpdu
		for range rapid.IntRange(1, 60).Draw(t, "FPDUs") {
			ulpdu := mulpdu
			if rapid.Bool().Draw(t, "short") {
				ulpdu = rapid.IntRange(14, mulpdu).Draw(t, "ULPDU")
			}
			pad := mpa.PadLen(ulpdu)
			f := fpdu{length: mpa.FPDULen(ulpdu), trailer: pad + mpa.CRCLen}
			fpdus = append(fpdus, f)
			b.addFPDU(fpduEnd{}, f.length, pad > 0, emss)
		}
		sack := rapid.SampledFrom([]int{0, 12, 20, 28}).Draw(t, "SACK")
		for _, record := range b.Records() {
			cuts := map[int]bool{}
			for at := emss - sack; at < record; at += emss - sack {
				cuts[at] = true
			}
			if window := 4 * rapid.IntRange(0, record/4).Draw(t, "window/4"); window > emss {
				cuts[window] = true
			}
			for at := 0; at < record; fpdus = fpdus[1:] {
				f := fpdus[0]
				at += f.length
				for back := 1; back < f.trailer; back++ {
					if cuts[at-back] && f.length <= emss-sack {
						t.Fatalf("cut %d bytes before the end of an FPDU of %d with %d of pad, "+
							"%d bytes into a record of %d",
							back, f.length, f.trailer-mpa.CRCLen, at-f.length, record)
					}
					if cuts[at-back] && f.trailer == mpa.CRCLen && back < mpa.CRCLen {
						t.Fatalf("cut inside the CRC of an FPDU of %d bytes", f.length)
					}
				}
			}
		}
		if len(fpdus) > 0 {
			t.Fatalf("%d FPDUs are in no record", len(fpdus))
		}
	})
}

// TestRecordsOverLoopback: FPDUs without pad extend a record to policy.BatchOctets wherever they
// begin. After that it goes on as long as they begin segments or end in one.
func TestRecordsOverLoopback(t *testing.T) {
	const emss, short = 32_564, 1000
	var b Batch
	b.extend = extendRecords(emss)
	add := func(n, count int) {
		for range count {
			b.addFPDU(fpduEnd{}, n, false, emss)
		}
	}
	add(short, 1)
	add(emss, 9) // none begins a segment; the last goes beyond policy.BatchOctets
	add(emss, 9) // each fills one
	want := []int{short + 9*emss, 9 * emss}
	if got := b.Records(); !slices.Equal(got, want) {
		t.Errorf("records %d, want %d", got, want)
	}
	if got := extendRecords(emss + 1); got != 0 {
		t.Errorf("records of segments that are no multiple of four are extended to %d", got)
	}
}
