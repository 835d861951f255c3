package mpa_test

import (
	"bytes"
	"errors"
	"testing"

	"pgregory.net/rapid"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider/iwarp"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
)

// RFC 5044 figure 5, typed from the text: the first FPDU of a stream, with the
// Marker in front of it.
const figure5 = `
	00 00 00 00
	00 2a
	41 43
	00 00 00 00
	00 00 00 00
	00 00 00 01
	00 00 00 00
	00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
	52 23 99 83`

// RFC 5044 figure 6, typed from the text: an FPDU that begins at octet 0x1ec of the
// stream, with a Marker inside.
const figure6 = `
	00 2a
	41 43
	00 00 00 00
	00 00 00 00
	00 00 00 02
	00 00 00 00
	00 00 00 14
	00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
	84 92 58 98`

// figureULPDU is the ULPDU of both figures, which differ in the MSN.
func figureULPDU(t testing.TB, msn byte) []byte {
	ulpdu := testkit.Unhex(t, "41 43  00 00 00 00  00 00 00 00  00 00 00 00  00 00 00 00"+
		"00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00")
	ulpdu[13] = msn
	return ulpdu
}

//rfc:5044 MPA-4.4-01 CRC support is implemented
//rfc:5044 MPA-4.4-10 CRC is CRC32c with iSCSI's conventions and octet order
//rfc:5044 MPA-4.4-11 CRC covers length..PAD incl. embedded markers
//rfc:5044 MPA-4.4-12 Leading marker is covered when it precedes ULPDU_Length
func TestCRCFigures(t *testing.T) {
	for _, figure := range []string{figure5, figure6} {
		wire := testkit.Unhex(t, figure)
		end := len(wire) - mpa.CRCLen
		if err := mpa.CheckCRC(mpa.CRC(0, wire[:end]), wire[end:]); err != nil {
			t.Errorf("CRC over all that precedes it: %v", err)
		}
		var crc uint32
		for i := range end {
			crc = mpa.CRC(crc, wire[i:i+1])
		}
		if err := mpa.CheckCRC(crc, wire[end:]); err != nil {
			t.Errorf("CRC octet by octet: %v", err)
		}
		sealed := append(bytes.Clone(wire[:end]), fill, fill, fill, fill)
		mpa.SealFPDU(sealed)
		if !bytes.Equal(sealed, wire) {
			t.Errorf("SealFPDU % x, want % x", sealed[end:], wire[end:])
		}
	}
	// Without the leading Marker, figure 5 has another CRC.
	wire := testkit.Unhex(t, figure5)
	wantError(t, mpa.CheckCRC(mpa.CRC(0, wire[4:48]), wire[48:]), mpa.ErrCRC)
}

//rfc:5044 MPA-4.4-10 CRC is CRC32c with iSCSI's conventions and octet order
func TestCRCCheckValue(t *testing.T) {
	// The check value of CRC-32C from the catalogue of CRC parameters.
	if got := mpa.CRC(0, []byte("123456789")); got != 0xe3069283 {
		t.Errorf("CRC32c of 123456789 is %#x", got)
	}
	rapid.Check(t, func(t *rapid.T) {
		p := rapid.SliceOfN(rapid.Byte(), 0, 700).Draw(t, "octets")
		cut := rapid.IntRange(0, len(p)).Draw(t, "cut")
		if got, want := mpa.CRC(mpa.CRC(0, p[:cut]), p[cut:]), slowCRC(p); got != want {
			t.Fatalf("CRC %#x, by the bit %#x", got, want)
		}
	})
}

//rfc:5044 MPA-4.1-01 FPDU layout: 16-bit length, ULPDU, pad, 32-bit CRC
//rfc:5044 MPA-4.1-02 ULPDU_Length counts the ULPDU only
//rfc:5044 MPA-4.1-03 Pad 0-3 octets so the FPDU is a multiple of 4
func TestFPDULen(t *testing.T) {
	for _, v := range []struct{ ulpdu, pad, fpdu int }{
		{0, 2, 8}, {1, 1, 8}, {2, 0, 8}, {3, 3, 12}, {4, 2, 12}, {16, 2, 24}, {18, 0, 24}, {42, 0, 48},
		{1454, 0, 1460}, {64768, 2, 64776}, {65535, 3, mpa.MaxFPDULen},
	} {
		if got := mpa.PadLen(v.ulpdu); got != v.pad {
			t.Errorf("PadLen(%d) %d, want %d", v.ulpdu, got, v.pad)
		}
		if got := mpa.FPDULen(v.ulpdu); got != v.fpdu {
			t.Errorf("FPDULen(%d) %d, want %d", v.ulpdu, got, v.fpdu)
		}
	}
	for n := range 0x10000 {
		pad, fpdu := mpa.PadLen(n), mpa.FPDULen(n)
		if pad < 0 || pad > mpa.MaxPadLen || fpdu%4 != 0 || fpdu != mpa.HeaderLen+n+pad+mpa.CRCLen {
			t.Fatalf("ULPDU of %d: pad %d, FPDU %d", n, pad, fpdu)
		}
		got, total, ok := mpa.ParseHeader(mpa.AppendHeader(nil, uint16(n)))
		if got != n || total != fpdu || !ok {
			t.Fatalf("ULPDU of %d: ParseHeader %d, %d, %v", n, got, total, ok)
		}
	}
	for n := range mpa.HeaderLen {
		if _, _, ok := mpa.ParseHeader(make([]byte, n)); ok {
			t.Errorf("ParseHeader of %d octets says ok", n)
		}
	}
}

// The parts of an FPDU combined as in a transmitter without Markers.
//
//rfc:5044 MPA-4.1-01 FPDU layout: 16-bit length, ULPDU, pad, 32-bit CRC
//rfc:5044 MPA-4.1-04 Pad octets are zero on send
//rfc:5044 MPA-4.1-06 CRC field present even when CRC is off
func TestFPDUParts(t *testing.T) {
	for _, withCRC := range []bool{true, false} {
		for n := range 70 {
			ulpdu := octets(n)
			m := model{crc: withCRC}
			m.add(ulpdu)
			header := guarded(t, mpa.HeaderLen, func(b []byte) []byte { return mpa.AppendHeader(b, uint16(n)) })
			crc := mpa.CRC(mpa.CRC(0, header), ulpdu)
			trailer := guarded(t, mpa.PadLen(n)+mpa.CRCLen, func(b []byte) []byte { return mpa.AppendTrailer(b, n, crc, withCRC) })
			if got := bytes.Join([][]byte{header, ulpdu, trailer}, nil); !bytes.Equal(got, m.stream) {
				t.Errorf("ULPDU of %d, CRC %v:\n% x, want\n% x", n, withCRC, got, m.stream)
			}
		}
	}
}

//rfc:5044 MPA-4.4-14 CRC mismatch makes the FPDU invalid
func TestCheckCRC(t *testing.T) {
	field := []byte{0x83, 0x92, 0x06, 0xe3}
	if err := mpa.CheckCRC(0xe3069283, field); err != nil {
		t.Errorf("right CRC: %v", err)
	}
	for i := range 32 {
		wantError(t, mpa.CheckCRC(0xe3069283^1<<i, field), mpa.ErrCRC)
	}
	for n := range field {
		wantError(t, mpa.CheckCRC(0xe3069283, field[:n]), mpa.ErrCRC)
	}
	if !errors.Is(mpa.ErrCRC, &iwarp.Error{Layer: 2, EType: 0, Code: 2}) { //nolint:staticcheck // the sentinel is what is looked into
		t.Errorf("%v is not 2/0/0x02", mpa.ErrCRC)
	}
}

//rfc:5044 MPA-3-05 No ULPDU larger than 64768 octets is posted
//rfc:5044 MPA-4.1-08 Any ULPDU_Length from the minimum header up is accepted
func TestULPDULenChecks(t *testing.T) {
	for n, want := range map[int]error{0: nil, 64768: nil, 64769: mpa.ErrULPDUTooLong, 1 << 20: mpa.ErrULPDUTooLong} {
		if err := mpa.CheckULPDULen(n); err != want {
			t.Errorf("CheckULPDULen(%d) %v, want %v", n, err, want)
		}
	}
	if err := mpa.CheckMinULPDU(14, 14); err != nil {
		t.Errorf("14 octets where 14 are needed: %v", err)
	}
	for _, n := range []int{0, 1, 13} {
		wantError(t, mpa.CheckMinULPDU(n, 14), mpa.ErrULPDULength)
	}
}

//rfc:5044 MPA-3-04 MULPDU never below 128 nor above 64768
//rfc:5044 MPA-4.5-01 MULPDU with markers = EMSS-(6+4*ceil(EMSS/512)+EMSS mod 4)
//rfc:5044 MPA-4.5-02 MULPDU without markers = EMSS-(6+EMSS mod 4)
//rfc:5044 MPA-4.5-05 MULPDU floor of 128 kept when EMSS <128
func TestMULPDU(t *testing.T) {
	for _, v := range []struct{ emss, plain, markers int }{
		{1460, 1454, 1442}, // 3 Markers at worst
		{1448, 1442, 1430}, // with TCP timestamps
		{8960, 8954, 8882}, // 18 Markers
		{536, 530, 522},    // 2 Markers
		{1461, 1454, 1442}, // EMSS mod 4 is lost
		{512, 506, 502},    // exactly one interval
		{513, 506, 498},    // and one octet more
		{144, 138, 134},    // 1 Marker
		{138, 130, 128},    // 138 - (6 + 4 + 2) = 126 with a Marker: the floor
		{134, 128, 128},    // 134 - (6 + 2) = 126 without
		{88, 128, 128},     // TCP's smallest, below the floor
		{0, 128, 128},
		{-1, 128, 128},        // unknown
		{65483, 64768, 64768}, // loopback: the cap
		{65495, 64768, 64768},
		{1 << 20, 64768, 64768},
	} {
		if got := mpa.MULPDU(v.emss, false); got != v.plain {
			t.Errorf("MULPDU(%d) %d, want %d", v.emss, got, v.plain)
		}
		if got := mpa.MULPDU(v.emss, true); got != v.markers {
			t.Errorf("MULPDU(%d) with Markers %d, want %d", v.emss, got, v.markers)
		}
	}
}

// The FPDU of a ULPDU of MULPDU octets fits into a segment of EMSS octets wherever its Markers are,
// and without Markers nothing longer would.
//
//rfc:5044 MPA-4.5-04 ULPDUs as large as possible
func TestMULPDUFits(t *testing.T) {
	for emss := 160; emss <= 9000; emss += 7 {
		plain, marked := mpa.MULPDU(emss, false), mpa.MULPDU(emss, true)
		if mpa.FPDULen(plain) > emss || mpa.FPDULen(plain+1) <= emss {
			t.Fatalf("EMSS %d: MULPDU %d is not the largest that fits", emss, plain)
		}
		for pos := uint64(0); pos < mpa.MarkerInterval; pos += 4 {
			if pos != mpa.MarkerLen && mpa.StreamLen(pos, marked) > emss {
				t.Fatalf("EMSS %d, stream position %d: FPDU of %d octets", emss, pos, mpa.StreamLen(pos, marked))
			}
		}
	}
}

func TestFPDUAllocs(t *testing.T) {
	ulpdu := octets(1442)
	buf := make([]byte, 0, 2048)
	var fail error
	allocs := testing.AllocsPerRun(100, func() {
		buf = mpa.AppendHeader(buf[:0], uint16(len(ulpdu)))
		crc := mpa.CRC(mpa.CRC(0, buf), ulpdu)
		buf = append(buf, ulpdu...)
		buf = mpa.AppendTrailer(buf, len(ulpdu), crc, true)
		_, total, _ := mpa.ParseHeader(buf)
		fail = mpa.CheckCRC(mpa.CRC(0, buf[:total-4]), buf[total-4:])
	})
	if fail != nil {
		t.Fatal(fail)
	}
	if allocs != 0 {
		t.Errorf("%v allocations per FPDU built and checked", allocs)
	}
	var err error
	if allocs := testing.AllocsPerRun(100, func() { err = mpa.CheckCRC(1, buf) }); allocs != 0 || err == nil {
		t.Errorf("%v allocations per wrong CRC, error %v", allocs, err)
	}
}
