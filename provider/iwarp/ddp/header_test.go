package ddp

import (
	"bytes"
	"errors"
	"testing"

	"pgregory.net/rapid"

	"github.com/govs-rdma/govs/ci/testkit"
)

// vectors are DDP headers in hex and their meanings. Those of siw 6.1.192 are from a capture of
// rping.
var vectors = []struct {
	name string
	hex  string
	want Header
}{
	{
		"siw: RDMA Read Response",
		"c142" + "47e2d000" + "000055c5d907d170",
		Header{Tagged: true, Last: true, Version: 1, ULPCtl: 0x42, STag: 0x47e2d000, TO: 0x55c5d907d170},
	},
	{
		"siw: RDMA Write",
		"c140" + "87d9a600" + "00005594d15c9170",
		Header{Tagged: true, Last: true, Version: 1, ULPCtl: 0x40, STag: 0x87d9a600, TO: 0x5594d15c9170},
	},
	{
		"siw: Send",
		"4143" + "00000000" + "00000000" + "0000000a" + "00000000",
		Header{Last: true, Version: 1, ULPCtl: 0x43, MSN: 10},
	},
	{
		"siw: RDMA Read Request",
		"4141" + "00000000" + "00000001" + "00000005" + "00000000",
		Header{Last: true, Version: 1, ULPCtl: 0x41, QN: 1, MSN: 5},
	},
	{
		"figure 4 with every field different",
		"9d" + "a1" + "01020304" + "05060708090a0b0c",
		Header{Tagged: true, Reserved: 7, Version: 1, ULPCtl: 0xa1, STag: 0x01020304, TO: 0x05060708090a0b0c},
	},
	{
		"figure 5 with every field different",
		"6a" + "b2" + "11121314" + "21222324" + "31323334" + "41424344",
		Header{Last: true, Reserved: 10, Version: 2, ULPCtl: 0xb2, ULP32: 0x11121314, QN: 0x21222324, MSN: 0x31323334, MO: 0x41424344},
	},
}

//rfc:5041 DDP-4.2-01 Tagged header layout of 14 octets
//rfc:5041 DDP-4.3-01 Untagged header layout of 18 octets
func TestHeaderVectors(t *testing.T) {
	for _, v := range vectors {
		t.Run(v.name, func(t *testing.T) {
			octets := testkit.Unhex(t, v.hex)
			if got := v.want.AppendTo(nil); !bytes.Equal(got, octets) {
				t.Errorf("AppendTo = %x, want %x", got, octets)
			}
			if got := v.want.Len(); got != len(octets) {
				t.Errorf("Len = %d, want %d", got, len(octets))
			}
			if got := HeaderLen(octets[0]); got != len(octets) {
				t.Errorf("HeaderLen(%#x) = %d, want %d", octets[0], got, len(octets))
			}
			ulpdu := append(octets, "payload"...)
			h, payload, err := Parse(ulpdu)
			if err != nil || h != v.want || string(payload) != "payload" {
				t.Errorf("Parse = %+v, %q, %v; want %+v and the payload", h, payload, err, v.want)
			}
		})
	}
}

// A segment may end after its header, but not within it.
//
//rfc:5041 DDP-4.4-01 Every segment has a DDP header
//rfc:5041 DDP-4.4-02 Segment without payload is legal
func TestParseEveryPrefix(t *testing.T) {
	for _, v := range vectors {
		octets := testkit.Unhex(t, v.hex)
		for n := range octets {
			if _, _, err := Parse(octets[:n]); !errors.Is(err, ErrShortSegment) {
				t.Errorf("%s: Parse of the first %d of %d octets: %v, want ErrShortSegment", v.name, n, len(octets), err)
			}
		}
		h, payload, err := Parse(octets)
		if err != nil || h != v.want || len(payload) != 0 {
			t.Errorf("%s: Parse of a segment without payload = %+v, %x, %v", v.name, h, payload, err)
		}
	}
}

// While the octets of a ULPDU arrive one by one, the header is returned as soon as it is complete
// and not before.
func TestParseHeaderTrickle(t *testing.T) {
	for _, v := range vectors {
		header := testkit.Unhex(t, v.hex)
		ulpdu := append(header, 0xde, 0xad, 0xbe, 0xef)
		for n := 0; n <= len(ulpdu); n++ {
			h, used, err := ParseHeader(ulpdu[:n], len(ulpdu))
			switch {
			case err != nil:
				t.Fatalf("%s: %d octets: %v", v.name, n, err)
			case n < v.want.Len() && used != 0:
				t.Errorf("%s: a header from %d octets", v.name, n)
			case n >= v.want.Len() && (used != v.want.Len() || h != v.want):
				t.Errorf("%s: %d octets: %+v of %d octets, want %+v", v.name, n, h, used, v.want)
			}
		}
	}
}

// Octets after the ULPDU in a receive buffer are not a part of it.
func TestParseHeaderIgnoresNextFrame(t *testing.T) {
	octets := append(testkit.Unhex(t, vectors[2].hex), bytes.Repeat([]byte{0xa5}, 64)...)
	for _, n := range []int{-1, 0, 1, 13, 14, 17} {
		if _, used, err := ParseHeader(octets, n); used != 0 || !errors.Is(err, ErrShortSegment) {
			t.Errorf("ULPDU of %d octets: header of %d, %v; want ErrShortSegment", n, used, err)
		}
	}
	// A length that fits only a tagged header is known to be wrong once the T bit has arrived.
	if _, used, err := ParseHeader(nil, 14); used != 0 || err != nil {
		t.Errorf("no octets yet: %d, %v", used, err)
	}
	if _, _, err := ParseHeader(octets[:1], 14); !errors.Is(err, ErrShortSegment) {
		t.Errorf("untagged in 14 octets: %v, want ErrShortSegment", err)
	}
}

// AppendTo overwrites every octet of its part of a buffer with arbitrary contents, and no other
// octet.
func TestAppendToOverwritesRubbish(t *testing.T) {
	for _, v := range vectors {
		buf := bytes.Repeat([]byte{0xa5}, 64)
		n := len(v.want.AppendTo(buf[:3])) - 3
		if !bytes.Equal(buf[3:3+n], testkit.Unhex(t, v.hex)) {
			t.Errorf("%s: wrote %x", v.name, buf[3:3+n])
		}
		if !bytes.Equal(buf[:3], bytes.Repeat([]byte{0xa5}, 3)) ||
			!bytes.Equal(buf[3+n:], bytes.Repeat([]byte{0xa5}, 64-3-n)) {
			t.Errorf("%s: wrote outside its part: %x", v.name, buf)
		}
	}
}

func TestAppendToDropsExcessBits(t *testing.T) {
	h := Header{Reserved: 0xff, Version: 0xff}
	if got := h.Control(); got != 0x3f {
		t.Errorf("Control = %#02x, want 0x3f: T and L must not be touched by their neighbours", got)
	}
}

// anyHeader draws headers with every encodable bit.
func anyHeader(t *rapid.T) Header {
	h := Header{
		Tagged:   rapid.Bool().Draw(t, "T"),
		Last:     rapid.Bool().Draw(t, "L"),
		Reserved: rapid.Uint8Range(0, 15).Draw(t, "Rsvd"),
		Version:  rapid.Uint8Range(0, 3).Draw(t, "DV"),
		ULPCtl:   rapid.Uint8().Draw(t, "RsvdULP"),
	}
	if h.Tagged {
		h.STag = rapid.Uint32().Draw(t, "STag")
		h.TO = rapid.Uint64().Draw(t, "TO")
		return h
	}
	h.ULP32 = rapid.Uint32().Draw(t, "RsvdULP32")
	h.QN = rapid.Uint32().Draw(t, "QN")
	h.MSN = rapid.Uint32().Draw(t, "MSN")
	h.MO = rapid.Uint32().Draw(t, "MO")
	return h
}

func TestHeaderRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := anyHeader(t)
		payload := rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(t, "payload")
		got, rest, err := Parse(append(h.AppendTo(nil), payload...))
		if err != nil || got != h || !bytes.Equal(rest, payload) {
			t.Fatalf("%+v came back as %+v, %x, %v", h, got, rest, err)
		}
	})
}

// TestParseTagged: ParseTagged returns what Parse returns for tagged headers.
func TestParseTagged(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := anyHeader(t)
		ulpdu := append(h.AppendTo(nil), octets(t, "payload")...)
		ulpdu = ulpdu[:len(ulpdu)-rapid.IntRange(0, len(ulpdu)).Draw(t, "cut")]
		g, payload, ok := ParseTagged(ulpdu)
		want, rest, err := Parse(ulpdu)
		if tagged := err == nil && want.Tagged && CheckVersion(&want, Version) == nil; ok != tagged {
			t.Fatalf("% x: tagged %v, but Parse: %+v, %v", ulpdu, ok, want, err)
		}
		if ok && (g.Last != want.Last || g.STag != want.STag || g.TO != want.TO || g.ULPCtl != want.ULPCtl || !bytes.Equal(payload, rest)) {
			t.Fatalf("% x: %+v; Parse: %+v, % x", ulpdu, g, want, rest)
		}
	})
}

func octets(t *rapid.T, what string) []byte {
	return rapid.SliceOfN(rapid.Byte(), 0, 20).Draw(t, what)
}

func TestCodecAllocatesNothing(t *testing.T) {
	for _, v := range vectors {
		buf := make([]byte, 0, MaxHeaderLen)
		ulpdu := testkit.Unhex(t, v.hex)
		h := v.want
		n := testing.AllocsPerRun(100, func() {
			buf = h.AppendTo(buf[:0])
			if _, _, err := Parse(ulpdu); err != nil {
				t.Fatal(err)
			}
			if _, _, err := Parse(ulpdu[:9]); err == nil {
				t.Fatal("a short ULPDU parsed")
			}
		})
		if n != 0 {
			t.Errorf("%s: %v allocations", v.name, n)
		}
	}
}

// FuzzParse: a parsed header is written back octet for octet, and ParseHeader agrees with Parse.
func FuzzParse(f *testing.F) {
	for _, v := range vectors {
		octets := testkit.Unhex(f, v.hex)
		f.Add(octets)
		f.Add(append(octets, "payload"...))
		f.Add(octets[:len(octets)-1])
	}
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, ulpdu []byte) {
		ulpdu = ulpdu[:len(ulpdu):len(ulpdu)]
		h, payload, err := Parse(ulpdu)
		g, inShort, short := ParseTagged(ulpdu)
		if short != (err == nil && h.Tagged && h.Version == Version) ||
			short && (g.Last != h.Last || g.ULPCtl != h.ULPCtl || g.STag != h.STag ||
				g.TO != h.TO ||
				!bytes.Equal(inShort, payload)) {
			t.Fatalf("%x: ParseTagged has %+v, %v, and Parse %+v, %v", ulpdu, g, short, h, err)
		}
		for _, q := range []UntaggedQueue{NewUntaggedQueue(h.QN, h.MSN), NewUntaggedQueue(0, FirstMSN)} {
			whole, ctl, is := q.Whole(ulpdu)
			if is != (err == nil && !h.Tagged && h.Last && h.Version == Version && q.Check(&h, len(payload)) == nil) ||
				is && (ctl != h.ULPCtl || !bytes.Equal(whole, payload)) {
				t.Fatalf("%x: Whole has %x, %v, and Parse %+v, %v", ulpdu, whole, is, h, err)
			}
		}
		if err != nil {
			if len(ulpdu) >= MaxHeaderLen {
				t.Fatalf("%d octets are enough for any header: %v", len(ulpdu), err)
			}
			return
		}
		if out := append(h.AppendTo(nil), payload...); !bytes.Equal(out, ulpdu) {
			t.Fatalf("%x was written back as %x", ulpdu, out)
		}
		for n := range ulpdu {
			g, used, err := ParseHeader(ulpdu[:n], len(ulpdu))
			if err != nil || used != 0 && (g != h || used != h.Len()) {
				t.Fatalf("%d octets of %x: %+v, %d, %v", n, ulpdu, g, used, err)
			}
		}
	})
}

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
