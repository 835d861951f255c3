package ddp

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"testing"

	"github.com/govs-rdma/govs/provider/iwarp"
	"pgregory.net/rapid"
)

// wire formats an error as the layer/type/code of its Terminate.
func wire(err error) string {
	if err == nil {
		return "ok"
	}
	var e *iwarp.Error
	if !errors.As(err, &e) {
		return err.Error()
	}
	return fmt.Sprintf("%d/%d/%02x", e.Layer, e.EType, e.Code)
}

//rfc:5041 DDP-4.1-11 DV=1 on send
//rfc:5041 DDP-4.1-13 Unknown DV, tagged: error 1/1/0x04
//rfc:5041 DDP-4.1-14 Unknown DV, untagged: error 1/2/0x06
//rfc:5044 RDMAC-C.1-02 No mixing of versions between MPA, DDP and RDMAP
func TestCheckVersion(t *testing.T) {
	for dv, want := range map[uint8][2]string{
		0: {"1/1/04", "1/2/06"}, 1: {"ok", "ok"}, 2: {"1/1/04", "1/2/06"}, 3: {"1/1/04", "1/2/06"},
	} {
		if got := wire(CheckVersion(&Header{Tagged: true, Version: dv}, Version)); got != want[0] {
			t.Errorf("tagged DV %d: %s, want %s", dv, got, want[0])
		}
		if got := wire(CheckVersion(&Header{Version: dv}, Version)); got != want[1] {
			t.Errorf("untagged DV %d: %s, want %s", dv, got, want[1])
		}
	}
	// On a stream of the RDMA Consortium's version only DV 0 is valid.
	for dv, want := range map[uint8]string{0: "ok", 1: "1/2/06", 2: "1/2/06", 3: "1/2/06"} {
		if got := wire(CheckVersion(&Header{Version: dv}, RDMACVersion)); got != want {
			t.Errorf("DV %d where it is 0: %s, want %s", dv, got, want)
		}
	}
}

// One fault at a time, around a buffer of 4096 octets at TO 0x10000.
//
//rfc:5041 DDP-5.2-09 STag/TO not checked for zero-length tagged message
//rfc:5041 DDP-7.1t1-01 Tagged: STag valid for this stream
//rfc:5041 DDP-7.1t2-01 Tagged: STag has a buffer allowing placement (rights)
//rfc:5041 DDP-7.1t3-01 Tagged: TO within registered range
//rfc:5041 DDP-7.1t4-01 Tagged: TO+len within range
//rfc:5041 DDP-7.1t5-01 Tagged: 64-bit TO+len does not wrap
//rfc:5041 DDP-8.2-01 PD mismatch: not placed, local error surfaced
//rfc:5041 DDP-8.3.1-3-01 No access outside the registered range
func TestCheckTagged(t *testing.T) {
	const base, size = 0x10000, 4096
	good := Region{Valid: true, Associated: true, Allowed: true, Base: base, Len: size}
	invalid, foreign, readOnly := good, good, good
	invalid.Valid = false
	foreign.Associated = false
	readOnly.Allowed = false
	atTop := Region{Valid: true, Associated: true, Allowed: true, Base: math.MaxUint64 - 15, Len: 15}
	for _, tt := range []struct {
		name string
		r    Region
		to   uint64
		n    int
		want string
	}{
		{"the whole buffer", good, base, size, "ok"},
		{"its first octet", good, base, 1, "ok"},
		{"its last octet", good, base + size - 1, 1, "ok"},
		{"one octet before it", good, base - 1, 1, "1/1/01"},
		{"from before into it", good, base - 1, 2, "1/1/01"},
		{"the octet beyond it", good, base + size, 1, "1/1/01"},
		{"one octet too many at the end", good, base + size - 1, 2, "1/1/01"},
		{"one octet too many from the start", good, base, size + 1, "1/1/01"},
		{"TO 0", good, 0, 1, "1/1/01"},
		{"far beyond it", good, 1 << 63, 1, "1/1/01"},
		{"no STag", invalid, base, 1, "1/1/00"},
		{"an STag of another protection domain", foreign, base, 1, "1/1/02"},
		{"a buffer without the right", readOnly, base, 1, "1/1/00"},
		{"the sum is 2^64", good, math.MaxUint64, 1, "1/1/03"},
		{"the sum is beyond 2^64", good, math.MaxUint64, size, "1/1/03"},
		{"the sum is 2^64 - 1", good, math.MaxUint64 - 1, 1, "1/1/01"},
		{"the last octets that have a TO", atTop, math.MaxUint64 - 15, 15, "ok"},
		{"one more wraps", atTop, math.MaxUint64 - 15, 16, "1/1/03"},
		{"no payload, no STag", invalid, 0, 0, "ok"},
		{"no payload, any TO", good, math.MaxUint64, 0, "ok"},
		{"no payload, foreign", foreign, base + size, 0, "ok"},
		{"the STag is looked at before a wrapping TO", invalid, math.MaxUint64, 2, "1/1/00"},
	} {
		if got := wire(CheckTagged(&tt.r, tt.to, tt.n)); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}

// The bounds check agrees with arithmetic on big integers.
func TestContainsAgreesWithBigIntegers(t *testing.T) {
	edge := rapid.OneOf(
		rapid.Uint64(), rapid.Uint64Range(0, 20),
		rapid.Uint64Range(math.MaxUint64-20, math.MaxUint64),
		rapid.Uint64Range(1<<32-20, 1<<32+20),
	)
	sum := func(a, b uint64) *big.Int {
		return new(big.Int).Add(new(big.Int).SetUint64(a), new(big.Int).SetUint64(b))
	}
	rapid.Check(t, func(t *rapid.T) {
		r := Region{Base: edge.Draw(t, "base"), Len: edge.Draw(t, "len")}
		to, n := edge.Draw(t, "TO"), edge.Draw(t, "n")
		want := to >= r.Base && sum(to, n).Cmp(sum(r.Base, r.Len)) <= 0
		if got := r.Contains(to, n); got != want {
			t.Fatalf("%+v.Contains(%d, %d) = %v", r, to, n, got)
		}
		if got, want := Wraps(to, n), !sum(to, n).IsUint64(); got != want {
			t.Fatalf("Wraps(%d, %d) = %v", to, n, got)
		}
	})
}

// TestContainsEdges: regions at either end of the address space, where a sum or a difference wraps.
func TestContainsEdges(t *testing.T) {
	const top = math.MaxUint64
	for _, tt := range []struct {
		base, len, to, n uint64
		want             bool
	}{
		{5, 10, 4, 0, false}, {5, 10, 4, 1, false}, {5, 10, 5, 0, true}, {5, 10, 5, 10, true}, {5, 10,
			15, 0, true}, {5, 10, 16, 0, false},
		{5, top, 4, 0, false}, {5, top, 4, 1, false}, {5, top - 5, 4, 0, false}, {5, top - 5, 5,
			top - 5, true}, {5, top - 5, top, 0, true},
		{0, top, 0, top, true}, {0, top, top, 0, true}, {0, top, top, 1, false}, {top, 0, top, 0, true},
		{top, 0, top - 1, 0, false},
	} {
		r := Region{Base: tt.base, Len: tt.len}
		if got := r.Contains(tt.to, tt.n); got != tt.want {
			t.Errorf("%d octets from %#x on in %+v: %v, want %v", tt.n, tt.to, r, got, tt.want)
		}
	}
}

//rfc:5041 DDP-7.1u2-01 Untagged: a buffer exists for QN/MSN
//rfc:5041 DDP-7.1u4-01 Untagged: MO+len within buffer
func TestCheckUntagged(t *testing.T) {
	for _, tt := range []struct {
		name      string
		mo        uint32
		n         int
		available bool
		len       uint64
		want      string
	}{
		{"fits exactly", 0, 100, true, 100, "ok"},
		{"shorter than the buffer", 0, 1, true, 100, "ok"},
		{"one octet too long", 0, 101, true, 100, "1/2/05"},
		{"too long in a later segment", 60, 41, true, 100, "1/2/05"},
		{"fits in a later segment", 60, 40, true, 100, "ok"},
		{"an empty message in an empty buffer", 0, 0, true, 0, "ok"},
		{"an empty message needs a buffer too", 0, 0, false, 0, "1/2/02"},
		{"no buffer", 0, 1, false, 100, "1/2/02"},
		{"MO plus length beyond 2^32", math.MaxUint32, 65535, true, math.MaxUint32, "1/2/05"},
	} {
		if got := wire(CheckUntagged(tt.mo, tt.n, tt.available, tt.len)); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
	}
}

// Every error of the package carries a layer, type and code that a specification
// defines, and a reason.
//
//rfc:5041 DDP-7.2-01 Error numbers as in the table
//rfc:5041 DDP-7.2-02 Type 0 code 0 for local catastrophic
//rfc:6580 IANA-3.2-01 DDP error registry closed set; 1/3/* reserved for LLP
func TestErrorCodes(t *testing.T) {
	for want, errs := range map[string][]*iwarp.Error{
		"1/0/00": {ErrCatastrophic},
		"1/1/00": {ErrInvalidSTag, ErrTaggedAccess, ErrSTagChanged},
		"1/1/01": {ErrBaseBounds},
		"1/1/02": {ErrSTagNotAssociated},
		"1/1/03": {ErrTOWrap},
		"1/1/04": {ErrTaggedVersion},
		"1/2/01": {ErrInvalidQN},
		"1/2/02": {ErrNoBuffer},
		"1/2/03": {ErrMSNRange},
		"1/2/04": {ErrInvalidMO},
		"1/2/05": {ErrTooLong, ErrMessageLength},
		"1/2/06": {ErrUntaggedVersion},
		"2/0/03": {ErrShortSegment},
	} {
		for _, e := range errs {
			if got := wire(e); got != want || e.Reason == "" {
				t.Errorf("%v has %s, want %s and a reason", e, got, want)
			}
		}
	}
}
