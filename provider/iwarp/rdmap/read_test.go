package rdmap

import (
	"bytes"
	"errors"
	"math"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"pgregory.net/rapid"
)

// The Read Request header of an rping over siw, field by field as in RFC 5040
// figure 6.
const siwReadRequest = "47e2d000 000055c5d907d170 00000040 57ad4500 00005594d15cc470"

//rfc:5040 RDMAP-4.2-01 RDMA header for ReadReq and Terminate only
//rfc:5040 RDMAP-4.4-01 ReadReq header of 28 octets
//rfc:5040 RDMAP-5.2.1-06 One source Tagged Buffer per ReadReq
func TestReadRequestVector(t *testing.T) {
	octets := testkit.Unhex(t, siwReadRequest)
	want := ReadRequest{
		SinkSTag: 0x47e2d000, SinkTO: 0x55c5d907d170, Size: 64,
		SourceSTag: 0x57ad4500, SourceTO: 0x5594d15cc470,
	}
	got, err := ParseReadRequest(octets)
	if err != nil || got != want {
		t.Errorf("ParseReadRequest = %+v, %v; want %+v", got, err, want)
	}
	buf := bytes.Repeat([]byte{0xa5}, 64)
	if n := len(want.AppendTo(buf[:1])); n != 1+ReadRequestLen || !bytes.Equal(buf[1:n], octets) ||
		buf[0] != 0xa5 || !bytes.Equal(buf[n:], bytes.Repeat([]byte{0xa5}, 64-n)) {
		t.Errorf("AppendTo wrote %x", buf)
	}
}

// A Read Request header has exactly 28 octets: every prefix is refused, and so are additional
// octets.
//
//rfc:5040 RDMAP-4.2-02 No ULP payload after ReadReq/Terminate headers
func TestReadRequestLength(t *testing.T) {
	octets := append(testkit.Unhex(t, siwReadRequest), 0, 0, 0, 0)
	for n := range len(octets) + 1 {
		want := "ok"
		switch {
		case n < ReadRequestLen:
			want = "0/2/ff"
		case n > ReadRequestLen:
			want = "1/2/05"
		}
		if _, err := ParseReadRequest(octets[:n]); wire(err) != want {
			t.Errorf("%d octets: %s, want %s", n, wire(err), want)
		}
	}
}

func anyReadRequest(t *rapid.T) ReadRequest {
	return ReadRequest{
		SinkSTag:   rapid.Uint32().Draw(t, "sink STag"),
		SinkTO:     rapid.Uint64().Draw(t, "sink TO"),
		Size:       rapid.Uint32().Draw(t, "size"),
		SourceSTag: rapid.Uint32().Draw(t, "source STag"),
		SourceTO:   rapid.Uint64().Draw(t, "source TO"),
	}
}

func TestReadRequestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := anyReadRequest(t)
		if got, err := ParseReadRequest(r.AppendTo(nil)); err != nil || got != r {
			t.Fatalf("%+v came back as %+v, %v", r, got, err)
		}
	})
}

// The example of RFC 5040 section 4.8: terminated after 2048 octets were sent.
//
//rfc:5040 RDMAP-4.8-11 Partly processed ReadReq: header updated to progress
func TestReadRequestAdvance(t *testing.T) {
	r := ReadRequest{SinkSTag: 1, SinkTO: 1000, Size: 5000, SourceSTag: 2, SourceTO: 70000}
	want := ReadRequest{SinkSTag: 1, SinkTO: 3048, Size: 2952, SourceSTag: 2, SourceTO: 72048}
	if got := r.Advance(2048); got != want {
		t.Errorf("Advance(2048) = %+v, want %+v", got, want)
	}
	if got := r.Advance(0); got != r {
		t.Errorf("Advance(0) = %+v, want %+v", got, r)
	}
}

// One fault at a time, around a buffer of 4096 octets at TO 0x10000.
//
//rfc:5040 RDMAP-5.2.1-08 Non-zero size: source STag/TO validated
//rfc:5040 RDMAP-5.2.1-09 Zero size: STag/TO not validated
//rfc:5040 RDMAP-7.2-07 ReadReq source STag valid
//rfc:5040 RDMAP-7.2-08 ReadReq source STag associated with this stream
//rfc:5040 RDMAP-7.2-09 ReadReq source TO in range
//rfc:5040 RDMAP-7.2-10 ReadReq TO+size in range
//rfc:5040 RDMAP-7.2-11 ReadReq TO+size does not wrap
//rfc:5040 RDMAP-7.2-12 ReadReq source has remote-read right
func TestCheckReadSource(t *testing.T) {
	const base, size = 0x10000, 4096
	good := ddp.Region{Valid: true, Associated: true, Allowed: true, Base: base, Len: size}
	invalid, foreign, writeOnly := good, good, good
	invalid.Valid = false
	foreign.Associated = false
	writeOnly.Allowed = false
	huge := ddp.Region{Valid: true, Associated: true, Allowed: true, Base: 0, Len: math.MaxUint64}
	for _, tt := range []struct {
		name string
		r    ddp.Region
		to   uint64
		size uint32
		want string
	}{
		{"the whole buffer", good, base, size, "ok"},
		{"its last octet", good, base + size - 1, 1, "ok"},
		{"one octet before it", good, base - 1, 1, "0/1/01"},
		{"the octet beyond it", good, base + size, 1, "0/1/01"},
		{"one octet too many", good, base, size + 1, "0/1/01"},
		{"the largest Read of a small buffer", good, base, math.MaxUint32, "0/1/01"},
		{"the largest Read of a large buffer", huge, base, math.MaxUint32, "ok"},
		{"no STag", invalid, base, 1, "0/1/00"},
		{"an STag of another protection domain", foreign, base, 1, "0/1/03"},
		{"a buffer without the right", writeOnly, base, 1, "0/1/02"},
		{"the sum is 2^64", good, math.MaxUint64, 1, "0/1/04"},
		{"the sum is 2^64 - 1", huge, math.MaxUint64 - 1, 1, "ok"},
		{"no octets, no STag", invalid, math.MaxUint64, 0, "ok"},
		{"no octets, no right", writeOnly, base, 0, "ok"},
		{"no octets, foreign", foreign, 0, 0, "ok"},
	} {
		if got := wire(CheckReadSource(&tt.r, tt.to, tt.size)); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}

//rfc:5040 RDMAP-7.2-05 Invalidate STag valid
//rfc:5040 RDMAP-7.2-06 Invalidate STag belongs to this stream
//rfc:5040 RDMAP-8.1.1-7-01 Peer cannot invalidate an STag shared by several streams
func TestCheckInvalidate(t *testing.T) {
	for _, tt := range []struct {
		name string
		r    ddp.Region
		want string
	}{
		{"the peer's to invalidate", ddp.Region{Valid: true, Associated: true, Allowed: true}, "ok"},
		{"no STag, or one already invalid", ddp.Region{}, "0/2/09"},
		{"of another protection domain", ddp.Region{Valid: true, Allowed: true}, "0/1/09"},
		{"shared by several streams", ddp.Region{Valid: true, Associated: true}, "0/1/09"},
	} {
		if got := wire(CheckInvalidate(&tt.r)); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}

func TestReadChecksAllocateNothing(t *testing.T) {
	octets := testkit.Unhex(t, siwReadRequest)
	r := ddp.Region{Valid: true, Associated: true, Allowed: true, Len: 10}
	n := testing.AllocsPerRun(100, func() {
		req, err := ParseReadRequest(octets)
		if err != nil {
			t.Fatal(err)
		}
		_ = req.Advance(1)
		_, _ = ParseReadRequest(octets[:1])
		_ = CheckReadSource(&r, req.SourceTO, req.Size)
		_ = CheckInvalidate(&r)
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// FuzzParseReadRequest: a parsed header is written back octet for octet.
func FuzzParseReadRequest(f *testing.F) {
	f.Add(testkit.Unhex(f, siwReadRequest))
	f.Add(make([]byte, ReadRequestLen))
	f.Add(make([]byte, ReadRequestLen-1))
	f.Add(make([]byte, ReadRequestLen+4))
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := ParseReadRequest(b)
		if (err == nil) != (len(b) == ReadRequestLen) {
			t.Fatalf("%d octets: %v", len(b), err)
		}
		if err != nil {
			if !errors.Is(err, ErrShortReadRequest) && !errors.Is(err, ErrLongReadReq) {
				t.Fatal(err)
			}
			return
		}
		if out := r.AppendTo(nil); !bytes.Equal(out, b) {
			t.Fatalf("%x was written back as %x", b, out)
		}
	})
}
