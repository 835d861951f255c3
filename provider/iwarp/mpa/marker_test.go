package mpa_test

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"pgregory.net/rapid"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
)

// The Framer produces figure 5 as the first FPDU of a stream and, after a first FPDU of 492 octets,
// figure 6 as the second.
//
//rfc:5044 MPA-4.2-01 Marker = 16-bit reserved + 16-bit FPDUPTR
//rfc:5044 MPA-4.2-02 Marker reserved field zero on send
//rfc:5044 MPA-4.2-04 Low two FPDUPTR bits sent as zero
//rfc:5044 MPA-4.3-04 FPDUPTR = distance from the ULPDU_Length field to the marker
//rfc:5044 MPA-4.3-08 First marker precedes the first FPDU, FPDUPTR 0
//rfc:5044 MPA-7.1.2-7-01 First FPDU: zero marker first if markers are on
func TestFramerFigures(t *testing.T) {
	f := mpa.NewFramer(true, true)
	got := guarded(t, 52, func(b []byte) []byte {
		f = mpa.NewFramer(true, true)
		b, err := f.AppendFPDU(b, figureULPDU(t, 1))
		if err != nil {
			t.Fatal(err)
		}
		return b
	})
	if want := testkit.Unhex(t, figure5); !bytes.Equal(got, want) {
		t.Errorf("figure 5\n% x, want\n% x", got, want)
	}

	f = mpa.NewFramer(true, true)
	first, err := f.AppendFPDU(nil, octets(482))
	if err != nil || len(first) != 492 || f.Pos() != 0x1ec {
		t.Fatalf("first FPDU of %d octets, error %v, next at %#x", len(first), err, f.Pos())
	}
	got, err = f.AppendFPDU(nil, figureULPDU(t, 2))
	if want := testkit.Unhex(t, figure6); err != nil || !bytes.Equal(got, want) {
		t.Errorf("figure 6, error %v\n% x, want\n% x", err, got, want)
	}
}

// RFC 5044 figure 4: a ULPDU of 16 octets with a Marker after its tenth.
//
//rfc:5044 MPA-4.1-03 Pad 0-3 octets so the FPDU is a multiple of 4
//rfc:5044 MPA-4.1-04 Pad octets are zero on send
func TestFramerFigure4(t *testing.T) {
	f := mpa.NewFramer(true, false)
	// The FPDU begins 12 octets before the second Marker: at 500.
	if _, err := f.AppendFPDU(nil, octets(490)); err != nil || f.Pos() != 500 {
		t.Fatalf("position %d, error %v", f.Pos(), err)
	}
	got, err := f.AppendFPDU(nil, testkit.Unhex(t, "00 01 02 03 04 05 06 07 08 09 0a 0b 0c 0d 0e 0f"))
	want := testkit.Unhex(t, `00 10 00 01 02 03 04 05 06 07 08 09
		00 00 00 0c
		0a 0b 0c 0d 0e 0f 00 00
		00 00 00 00`)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("error %v\n% x, want\n% x", err, got, want)
	}
}

// If an FPDU ends at the position of a Marker, the Marker belongs to the next FPDU.
//
//rfc:5044 MPA-4.3-05 FPDUPTR zero when the marker falls between FPDUs
//rfc:5044 MPA-4.3-06 Between-FPDU marker belongs to the following FPDU for CRC
func TestMarkerBetweenFPDUs(t *testing.T) {
	f := mpa.NewFramer(true, true)
	first, _ := f.AppendFPDU(nil, octets(502))
	if len(first) != 512 {
		t.Fatalf("first FPDU of %d octets", len(first))
	}
	second, _ := f.AppendFPDU(nil, octets(2))
	want := testkit.Unhex(t, "00 00 00 00  00 02 01 02")
	crc := slowCRC(want)
	want = append(want, byte(crc), byte(crc>>8), byte(crc>>16), byte(crc>>24))
	if !bytes.Equal(second, want) {
		t.Errorf("second FPDU % x, want % x", second, want)
	}
}

// A Marker between pad and CRC is covered by that CRC.
//
//rfc:5044 MPA-4.3-11 Marker between PAD and CRC is covered by that CRC
func TestMarkerBetweenPadAndCRC(t *testing.T) {
	f := mpa.NewFramer(true, true)
	got, _ := f.AppendFPDU(nil, octets(505)) // 4 + 2 + 505 + 1 = 512
	if len(got) != 520 || f.Pos() != 520 {
		t.Fatalf("FPDU of %d octets", len(got))
	}
	if want := testkit.Unhex(t, "00  00 00 01 fc"); !bytes.Equal(got[511:516], want) {
		t.Errorf("pad and Marker % x, want % x", got[511:516], want)
	}
	crc := slowCRC(got[:516])
	if want := []byte{byte(crc), byte(crc >> 8), byte(crc >> 16), byte(crc >> 24)}; !bytes.Equal(got[516:], want) {
		t.Errorf("CRC % x, want % x", got[516:], want)
	}
	if all := ulpdus(t, got, true, true); len(all) != 1 || !bytes.Equal(all[0], octets(505)) {
		t.Error("the Receiver found another ULPDU")
	}
}

// slideSizes are ULPDU lengths for the FPDU that is put at every position: with every pad length,
// and with none to many Markers.
var slideSizes = []int{0, 1, 3, 16, 42, 480, 498, 499, 500, 501, 502, 503, 504, 505, 506, 507, 1000, 1442, 4095, mpa.MaxULPDU}

// An FPDU is put at every possible position relative to a Marker. Positions are multiples of four,
// so there are 128. A Marker takes position 0, and an FPDU cannot begin at 4, because a Marker in
// front belongs to it. So an FPDU begins in 127 slots, and its ULPDU_Length is in the 127 slots
// other than the Marker's own.
//
//rfc:5044 MPA-4.3-02 Markers every 512 octets of TCP sequence space
//rfc:5044 MPA-4.3-03 Marker positions count the octets of markers too
//rfc:5044 MPA-4.3-09 All markers inside one FPDU point to its ULPDU_Length field
//rfc:5044 MPA-4.3-14 Markers may split at any 4-octet boundary
func TestMarkerSlide(t *testing.T) {
	begins, headers := map[int]bool{}, map[int]bool{}
	for lead := 0; lead < 2*mpa.MarkerInterval; lead += 4 {
		for _, size := range slideSizes {
			want := model{markers: true, crc: true}
			want.add(octets(lead + 2))
			want.add(octets(size))
			want.add([]byte("what follows is found"))
			begin := want.starts[1] % mpa.MarkerInterval
			begins[begin] = true
			if begin == 0 {
				begin = mpa.MarkerLen
			}
			headers[begin] = true
			checkLayout(t, &want, octets(lead+2), octets(size), []byte("what follows is found"))
		}
	}
	if len(begins) != 127 || begins[4] || len(headers) != 127 || headers[0] {
		t.Errorf("FPDUs began in %d slots, headers lay in %d: want 127 each", len(begins), len(headers))
	}
}

// checkLayout compares a Framer with the model, and decodes the result with a Receiver.
func checkLayout(t *testing.T, want *model, ulpdu ...[]byte) {
	t.Helper()
	f := mpa.NewFramer(want.markers, want.crc)
	var stream []byte
	for i, u := range ulpdu {
		length := f.Len(len(u))
		before := len(stream)
		var err error
		if stream, err = f.AppendFPDU(stream, u[:len(u)/3], nil, u[len(u)/3:]); err != nil {
			t.Fatal(err)
		}
		if got := len(stream) - before; got != length || f.Pos() != uint64(len(stream)) {
			t.Fatalf("FPDU %d: %d octets, Len said %d, Pos %d of %d", i, got, length, f.Pos(), len(stream))
		}
	}
	if !bytes.Equal(stream, want.stream) {
		t.Fatalf("ULPDUs of %d and %d: the Framer's stream differs from the model's", len(ulpdu[0]), len(ulpdu[1]))
	}
	got := ulpdus(t, stream, want.markers, want.crc)
	if len(got) != len(ulpdu) {
		t.Fatalf("%d ULPDUs, want %d", len(got), len(ulpdu))
	}
	for i := range got {
		if !bytes.Equal(got[i], ulpdu[i]) {
			t.Fatalf("ULPDU %d of %d octets differs", i, len(ulpdu[i]))
		}
	}
}

//rfc:5044 MPA-3-01 Exactly one ULPDU per FPDU
//rfc:5044 MPA-4.3-01 Every sender can generate markers when the receiver asks
//rfc:5044 MPA-4.3-10 Marker points to the FPDU that contains it
//rfc:5044 MPA-4.3-13 Receiver preserves ULPDU boundaries
//rfc:5044 MPA-7.1.1-05 M=0 received: no markers added
func TestFramerMatchesModel(t *testing.T) {
	size := rapid.OneOf(rapid.IntRange(0, 40), rapid.IntRange(0, 1500), rapid.SampledFrom(slideSizes))
	rapid.Check(t, func(rt *rapid.T) {
		want := model{markers: rapid.Bool().Draw(rt, "markers"), crc: rapid.Bool().Draw(rt, "CRC")}
		sizes := rapid.SliceOfN(size, 2, 30).Draw(rt, "ULPDU lengths")
		var all [][]byte
		for _, n := range sizes {
			all = append(all, octets(n))
			want.add(octets(n))
		}
		checkLayout(t, &want, all...)
	})
}

// Markers stay at their positions when the count of octets passes 2^32, where TCP sequence numbers
// wrap, and when the count itself wraps.
//
//rfc:5044 MPA-4.3-07 Marker arithmetic survives TCP sequence wrap
func TestMarkerPositionWrap(t *testing.T) {
	for _, wrap := range []uint64{1 << 32, 0} {
		f, r := mpa.NewFramer(true, true), mpa.NewReceiver(true, true)
		f.SetPos(wrap - 3*mpa.MarkerInterval)
		r.SetPos(wrap - 3*mpa.MarkerInterval)
		want := model{markers: true, crc: true}
		want.add(octets(2000))
		got, err := f.AppendFPDU(nil, octets(2000))
		if err != nil || !bytes.Equal(got, want.stream) {
			t.Errorf("before %#x: stream differs from the model's, error %v", wrap, err)
		}
		if s, need, err := r.Next(got, nil); err != nil || need != 0 || !bytes.Equal(s.ULPDU, octets(2000)) {
			t.Errorf("before %#x: need %d, error %v", wrap, need, err)
		}
		if r.Pos() != f.Pos() || r.Pos() != wrap-3*mpa.MarkerInterval+uint64(len(got)) {
			t.Errorf("positions %#x and %#x", f.Pos(), r.Pos())
		}
	}
}

//rfc:5044 MPA-3-05 No ULPDU larger than 64768 octets is posted
func TestFramerRefusesLongULPDU(t *testing.T) {
	for _, markers := range []bool{false, true} {
		f := mpa.NewFramer(markers, true)
		got, err := f.AppendFPDU([]byte{fill}, octets(40000), octets(24769))
		if !errors.Is(err, mpa.ErrULPDUTooLong) || !bytes.Equal(got, []byte{fill}) || f.Pos() != 0 {
			t.Errorf("64769 octets: error %v, %d octets appended, position %d", err, len(got)-1, f.Pos())
		}
		if _, err := f.AppendFPDU(nil, octets(40000), octets(24768)); err != nil {
			t.Errorf("64768 octets: %v", err)
		}
	}
}

func TestFramerWritesNothingElse(t *testing.T) {
	for _, markers := range []bool{false, true} {
		for _, n := range []int{0, 1, 2, 3, 42, 505, 1442} {
			f := mpa.NewFramer(markers, true)
			guarded(t, f.Len(n), func(b []byte) []byte {
				f = mpa.NewFramer(markers, true)
				b, err := f.AppendFPDU(b, octets(n))
				if err != nil {
					t.Fatal(err)
				}
				return b
			})
		}
	}
}

//rfc:5044 MPA-4.2-01 Marker = 16-bit reserved + 16-bit FPDUPTR
func TestMarkerCodec(t *testing.T) {
	m := mpa.Marker{Reserved: 0x0102, FPDUPTR: 0xa0b4}
	wire := guarded(t, 4, m.AppendTo)
	if !bytes.Equal(wire, []byte{1, 2, 0xa0, 0xb4}) {
		t.Errorf("AppendTo % x", wire)
	}
	if got, ok := mpa.ParseMarker(wire); !ok || got != m {
		t.Errorf("ParseMarker %+v, %v", got, ok)
	}
	for n := range 4 {
		if _, ok := mpa.ParseMarker(wire[:n]); ok {
			t.Errorf("ParseMarker of %d octets says ok", n)
		}
	}
}

func TestFramerAllocs(t *testing.T) {
	ulpdu := octets(1442)
	for _, markers := range []bool{false, true} {
		t.Run(fmt.Sprintf("markers=%v", markers), func(t *testing.T) {
			f := mpa.NewFramer(markers, true)
			r := mpa.NewReceiver(markers, true)
			buf, scratch := make([]byte, 0, 2048), make([]byte, 0, 2048)
			var fail error
			allocs := testing.AllocsPerRun(600, func() {
				var s mpa.Span
				buf, fail = f.AppendFPDU(buf[:0], ulpdu[:20], ulpdu[20:])
				if fail == nil {
					s, _, fail = r.Next(buf, scratch)
				}
				if fail == nil && len(s.ULPDU) != len(ulpdu) {
					fail = errors.New("ULPDU of another length")
				}
			})
			if fail != nil {
				t.Fatal(fail)
			}
			if allocs != 0 {
				t.Errorf("%v allocations per FPDU sent and received", allocs)
			}
		})
	}
}
