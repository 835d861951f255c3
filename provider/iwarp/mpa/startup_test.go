package mpa_test

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider/iwarp"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
)

// The keys as RFC 5044 section 7.1.1 prints them in hexadecimal.
const (
	requestKey = "4D 50 41 20 49 44 20 52 65 71 20 46 72 61 6D 65 "
	replyKey   = "4D 50 41 20 49 44 20 52 65 70 20 46 72 61 6D 65 "
)

var startupVectors = []struct {
	name  string
	hex   string
	frame mpa.Frame
}{
	{"request without anything", requestKey + "00 01 0000",
		mpa.Frame{Kind: mpa.KindRequest, Revision: 1}},
	{"reply without anything", replyKey + "00 01 0000",
		mpa.Frame{Kind: mpa.KindReply, Revision: 1}},
	{"M", requestKey + "80 01 0000",
		mpa.Frame{Kind: mpa.KindRequest, Markers: true, Revision: 1}},
	{"C", requestKey + "40 01 0000",
		mpa.Frame{Kind: mpa.KindRequest, CRC: true, Revision: 1}},
	{"R", replyKey + "20 01 0000",
		mpa.Frame{Kind: mpa.KindReply, Reject: true, Revision: 1}},
	{"S with its four octets", replyKey + "10 02 0004 00010001",
		mpa.Frame{Kind: mpa.KindReply, Enhanced: true, Revision: 2, PrivateData: []byte{0, 1, 0, 1}}},
	{"reserved bits", requestKey + "0f 01 0000",
		mpa.Frame{Kind: mpa.KindRequest, Reserved: 15, Revision: 1}},
	{"all bits and revision 255", replyKey + "ff ff 0001 a5",
		mpa.Frame{Kind: mpa.KindReply, Markers: true, CRC: true, Reject: true, Enhanced: true, Reserved: 15, Revision: 255, PrivateData: []byte{0xa5}}},
	{"private data of three octets", requestKey + "40 01 0003 616263",
		mpa.Frame{Kind: mpa.KindRequest, CRC: true, Revision: 1, PrivateData: []byte("abc")}},
}

//rfc:5044 MPA-7.1.1-01 Req key is the 16 octets 'MPA ID Req Frame'
//rfc:5044 MPA-7.1.1-02 Rep key is the 16 octets 'MPA ID Rep Frame'
//rfc:5044 MPA-7.1.1-17 PD_Length equals private data length
func TestFrameVectors(t *testing.T) {
	for _, v := range startupVectors {
		t.Run(v.name, func(t *testing.T) {
			wire := testkit.Unhex(t, v.hex)
			got := guarded(t, len(wire), v.frame.AppendTo)
			if !bytes.Equal(got, wire) {
				t.Errorf("AppendTo\n% x, want\n% x", got, wire)
			}
			for _, kind := range []mpa.Kind{v.frame.Kind, mpa.KindAny} {
				f, n, err := mpa.ParseFrame(append(wire, fill, fill), kind)
				if err != nil || n != len(wire) {
					t.Fatalf("ParseFrame as %v: n %d, error %v", kind, n, err)
				}
				if diff := cmp.Diff(v.frame, f); diff != "" {
					t.Errorf("ParseFrame as %v (-want +got)\n%s", kind, diff)
				}
			}
		})
	}
}

// The start-up frames of `ib_send_bw -R -d siw0 -s 4096 -n 100`, captured as those in testdata.
const (
	sendBWRequest = requestKey + "10 02 0004 0000 0000"
	sendBWReply   = replyKey + "10 02 0004 0000 0000"
)

// siw's start-up frames from the wire.
func TestFrameSIW(t *testing.T) {
	for name, v := range map[string]struct {
		wire     []byte
		kind     mpa.Kind
		enhanced mpa.Enhanced
	}{
		"request of rping": {testdata(t, "siw-rping-initiator.bin"), mpa.KindRequest,
			mpa.Enhanced{IRD: 1, ORD: 1}},
		"reply of rping": {testdata(t, "siw-rping-responder.bin"), mpa.KindReply,
			mpa.Enhanced{IRD: 1, ORD: 1}},
		"request of ib_send_bw": {testkit.Unhex(t, sendBWRequest), mpa.KindRequest, mpa.Enhanced{}},
		"reply of ib_send_bw":   {testkit.Unhex(t, sendBWReply), mpa.KindReply, mpa.Enhanced{}},
	} {
		t.Run(name, func(t *testing.T) {
			f, n, err := mpa.ParseFrame(v.wire, v.kind)
			if err != nil || n != 24 {
				t.Fatalf("n %d, error %v", n, err)
			}
			want := mpa.Frame{Kind: v.kind, Enhanced: true, Revision: 2, PrivateData: f.PrivateData}
			if diff := cmp.Diff(want, f); diff != "" {
				t.Errorf("frame (-want +got)\n%s", diff)
			}
			e, ulp, err := f.SplitPrivateData()
			if err != nil || len(ulp) != 0 || e != v.enhanced {
				t.Errorf("enhanced data %+v, ULP's % x, error %v", e, ulp, err)
			}
			if again := f.AppendTo(nil); !bytes.Equal(again, v.wire[:n]) {
				t.Errorf("AppendTo\n% x, want\n% x", again, v.wire[:n])
			}
		})
	}
}

// Every prefix requests more octets, and returns how many.
//
//rfc:5044 MPA-7.1.2-2-02 Malformed Request: close TCP, leave MPA
func TestFramePrefixes(t *testing.T) {
	for _, v := range startupVectors {
		wire := testkit.Unhex(t, v.hex)
		for n := range wire {
			f, need, err := mpa.ParseFrame(wire[:n:n], v.frame.Kind)
			want := mpa.FrameHeaderLen
			if n >= want {
				want = len(wire)
			}
			if !errors.Is(err, mpa.ErrShort) || need != want {
				t.Errorf("%s, %d of %d octets: need %d, error %v; want need %d, ErrShort", v.name, n, len(wire), need, err, want)
			}
			if !cmp.Equal(f, mpa.Frame{}) {
				t.Errorf("%s, %d of %d octets: frame %+v", v.name, n, len(wire), f)
			}
		}
	}
}

// A wrong octet of the key is found as soon as it arrives.
//
//rfc:5044 MPA-7.1.1-03 Responder closes and reports on wrong Req key
//rfc:5044 MPA-7.1.1-04 Initiator closes and reports on wrong Rep key
//rfc:5044 MPA-7.1.2-5-01 Wrong key closes TCP and reports to ULP
func TestFrameWrongKey(t *testing.T) {
	for _, kind := range []mpa.Kind{mpa.KindRequest, mpa.KindReply, mpa.KindAny} {
		for i := range mpa.KeyLen {
			wire := mpa.Frame{Kind: kind, Revision: 1}.AppendTo(nil)
			wire[i] ^= 0x20
			if _, _, err := mpa.ParseFrame(wire[:i], kind); err != mpa.ErrShort {
				t.Errorf("%v, before octet %d: %v, want ErrShort", kind, i, err)
			}
			_, _, err := mpa.ParseFrame(wire[:i+1], kind)
			wantError(t, err, mpa.ErrKey)
			_, _, err = mpa.ParseFrame(wire, kind)
			wantError(t, err, mpa.ErrKey)
		}
	}
}

//rfc:5044 MPA-7.1.2-8-01 Initiator/Initiator crossing detected by key
func TestFrameCrossedKey(t *testing.T) {
	request := mpa.Frame{Kind: mpa.KindRequest, Revision: 1}.AppendTo(nil)
	reply := mpa.Frame{Kind: mpa.KindReply, Revision: 1}.AppendTo(nil)
	_, _, err := mpa.ParseFrame(request[:10], mpa.KindReply)
	wantError(t, err, mpa.ErrTwoInitiator)
	_, _, err = mpa.ParseFrame(reply[:10], mpa.KindRequest)
	wantError(t, err, mpa.ErrTwoResponder)
	for _, e := range []*iwarp.Error{mpa.ErrTwoInitiator, mpa.ErrTwoResponder, mpa.ErrKey} {
		if !errors.Is(e, &iwarp.Error{Layer: iwarp.LayerLLP, EType: iwarp.MPAErrors, Code: iwarp.MPAInvalidRequest}) {
			t.Errorf("%v is not 2/0/0x04", e)
		}
	}
}

// PD_Length is judged when it arrives, not when the private data does.
//
//rfc:5044 MPA-7.1.1-18 Private data at most 512 octets
//rfc:5044 MPA-7.1.1-19 PD_Length mismatch or >512: close and report
//rfc:5044 MPA-7.1.2-9-01 PD_Length validated against buffer; excess is malformed
func TestFramePDLength(t *testing.T) {
	for _, pdLength := range []uint16{0, 1, 4, 508, 512, 513, 1024, 0x8000, 65535} {
		wire := mpa.Frame{Kind: mpa.KindRequest, Revision: 1, PDLength: &pdLength}.AppendTo(nil)
		_, n, err := mpa.ParseFrame(wire, mpa.KindRequest)
		switch {
		case pdLength > 512:
			wantError(t, err, mpa.ErrPDLength)
		case pdLength == 0:
			if err != nil || n != 20 {
				t.Errorf("PD_Length 0: n %d, error %v", n, err)
			}
		case err != mpa.ErrShort || n != 20+int(pdLength):
			t.Errorf("PD_Length %d: n %d, error %v, want %d and ErrShort", pdLength, n, err, 20+int(pdLength))
		}
	}
	for _, size := range []int{512, 513, 70000} {
		f := mpa.Frame{Kind: mpa.KindRequest, Revision: 1, PrivateData: octets(size)}
		wire := f.AppendTo(nil)
		if len(wire) != 20+size || int(wire[18])<<8|int(wire[19]) != size&0xffff {
			t.Errorf("%d octets of private data: frame of %d, PD_Length % x", size, len(wire), wire[18:20])
		}
	}
}

// Appending to the private data from ParseFrame does not overwrite the octets after it.
func TestFrameBorrows(t *testing.T) {
	wire := mpa.Frame{Kind: mpa.KindRequest, Revision: 1, PrivateData: []byte("abc")}.AppendTo(nil)
	wire = append(wire, fill)
	f, _, err := mpa.ParseFrame(wire, mpa.KindRequest)
	if err != nil {
		t.Fatal(err)
	}
	if &f.PrivateData[0] != &wire[20] {
		t.Error("private data was copied")
	}
	_ = append(f.PrivateData, 'x')
	if wire[23] != fill {
		t.Error("append to the private data wrote into the octets after the frame")
	}
}

//rfc:6581 MPA2-6-08 S=1 with PD_Length <4 is malformed
//rfc:6581 MPA2-6-09 S=1 with Rev 1: S is a reserved bit and not checked
func TestSplitPrivateData(t *testing.T) {
	pd := []byte{0xc0, 0x02, 0x80, 0x03, 'u'}
	for _, v := range []struct {
		name     string
		frame    mpa.Frame
		enhanced mpa.Enhanced
		ulp      []byte
		err      error
	}{
		{"revision 2 with S", mpa.Frame{Enhanced: true, Revision: 2, PrivateData: pd}, mpa.Enhanced{A: true, B: true, C: true, IRD: 2, ORD: 3}, pd[4:], nil},
		{"revision 2 without S", mpa.Frame{Revision: 2, PrivateData: pd}, mpa.Enhanced{}, pd, nil},
		{"revision 1, where S is reserved", mpa.Frame{Enhanced: true, Revision: 1, PrivateData: pd}, mpa.Enhanced{}, pd, nil},
		{"nothing but the four octets", mpa.Frame{Enhanced: true, Revision: 2, PrivateData: pd[:4]}, mpa.Enhanced{A: true, B: true, C: true, IRD: 2, ORD: 3}, []byte{}, nil},
		{"three octets", mpa.Frame{Enhanced: true, Revision: 2, PrivateData: pd[:3]}, mpa.Enhanced{}, nil, mpa.ErrEnhanced},
		{"none", mpa.Frame{Enhanced: true, Revision: 2}, mpa.Enhanced{}, nil, mpa.ErrEnhanced},
	} {
		e, ulp, err := v.frame.SplitPrivateData()
		if e != v.enhanced || !bytes.Equal(ulp, v.ulp) || err != v.err {
			t.Errorf("%s: %+v, % x, %v", v.name, e, ulp, err)
		}
	}
}

//rfc:6581 MPA2-9-01 Enhanced block: network order, A, B, IRD, C, D, ORD
func TestEnhancedVectors(t *testing.T) {
	for _, v := range []struct {
		hex      string
		enhanced mpa.Enhanced
	}{
		{"0000 0000", mpa.Enhanced{}},
		{"0001 0002", mpa.Enhanced{IRD: 1, ORD: 2}},
		{"3fff 3fff", mpa.Enhanced{IRD: mpa.NotNegotiated, ORD: mpa.NotNegotiated}},
		{"8000 0000", mpa.Enhanced{A: true}},
		{"4000 0000", mpa.Enhanced{B: true}},
		{"0000 8000", mpa.Enhanced{C: true}},
		{"0000 4000", mpa.Enhanced{D: true}},
		{"8010 c020", mpa.Enhanced{IRD: 16, ORD: 32, A: true, C: true, D: true}},
	} {
		wire := testkit.Unhex(t, v.hex)
		if got := guarded(t, 4, v.enhanced.AppendTo); !bytes.Equal(got, wire) {
			t.Errorf("%+v: AppendTo % x, want % x", v.enhanced, got, wire)
		}
		if got, err := mpa.ParseEnhanced(wire); err != nil || got != v.enhanced {
			t.Errorf("% x: ParseEnhanced %+v, %v, want %+v", wire, got, err, v.enhanced)
		}
		for n := range wire {
			_, err := mpa.ParseEnhanced(wire[:n])
			wantError(t, err, mpa.ErrEnhanced)
		}
	}
	over := mpa.Enhanced{IRD: 0xffff, ORD: 0xc001}.AppendTo(nil)
	if want := testkit.Unhex(t, "3fff 0001"); !bytes.Equal(over, want) {
		t.Errorf("values above 14 bits: % x, want % x", over, want)
	}
}

//rfc:6581 MPA2-9.2-13 A=0: B,C,D ignored on receive
func TestEnhancedRTR(t *testing.T) {
	all := mpa.Enhanced{A: true, B: true, C: true, D: true}
	if got := all.RTR(); got != mpa.RTRAll {
		t.Errorf("A, B, C and D: %v", got)
	}
	all.A = false
	if got := all.RTR(); got != 0 {
		t.Errorf("B, C and D without A: %v", got)
	}
	for r, want := range map[mpa.RTR]string{
		0: "none", mpa.RTRSend: "Send", mpa.RTRWrite | mpa.RTRRead: "Write|Read", mpa.RTRAll: "Send|Write|Read", mpa.RTRSend | 0x80: "Send|0x80",
	} {
		if got := r.String(); got != want {
			t.Errorf("RTR %#x: %q, want %q", uint8(r), got, want)
		}
	}
}

func drawFrame(t *rapid.T) mpa.Frame {
	f := mpa.Frame{
		Kind:        mpa.Kind(rapid.IntRange(0, 1).Draw(t, "kind")),
		Markers:     rapid.Bool().Draw(t, "M"),
		CRC:         rapid.Bool().Draw(t, "C"),
		Reject:      rapid.Bool().Draw(t, "R"),
		Enhanced:    rapid.Bool().Draw(t, "S"),
		Reserved:    rapid.Uint8Range(0, 15).Draw(t, "Res"),
		Revision:    rapid.Uint8().Draw(t, "Rev"),
		PrivateData: rapid.SliceOfN(rapid.Byte(), 0, 512).Draw(t, "private data"),
	}
	if len(f.PrivateData) == 0 {
		f.PrivateData = nil
	}
	return f
}

func TestFrameRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := drawFrame(t)
		wire := f.AppendTo(nil)
		got, n, err := mpa.ParseFrame(wire, f.Kind)
		if err != nil || n != len(wire) {
			t.Fatalf("n %d of %d, error %v", n, len(wire), err)
		}
		if diff := cmp.Diff(f, got); diff != "" {
			t.Fatalf("(-want +got)\n%s", diff)
		}
		cut := rapid.IntRange(0, len(wire)-1).Draw(t, "cut")
		if _, need, err := mpa.ParseFrame(wire[:cut], mpa.KindAny); err != mpa.ErrShort || need <= cut || need > len(wire) {
			t.Fatalf("%d of %d octets: need %d, error %v", cut, len(wire), need, err)
		}
	})
}

func TestStartupAllocs(t *testing.T) {
	wire := mpa.Frame{Kind: mpa.KindRequest, Enhanced: true, Revision: 2, PrivateData: octets(100)}.AppendTo(nil)
	buf := make([]byte, 0, mpa.MaxFrameLen)
	allocs := testing.AllocsPerRun(100, func() {
		f, _, err := mpa.ParseFrame(wire, mpa.KindRequest)
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := f.SplitPrivateData(); err != nil {
			t.Fatal(err)
		}
		buf = f.AppendTo(buf[:0])
	})
	if allocs != 0 {
		t.Errorf("%v allocations per frame parsed and written", allocs)
	}
}

func TestKindString(t *testing.T) {
	for k, want := range map[mpa.Kind]string{
		mpa.KindRequest: "MPA Request Frame", mpa.KindReply: "MPA Reply Frame", mpa.KindAny: "MPA Request or Reply Frame", 7: "MPA frame kind 7",
	} {
		if got := fmt.Sprint(k); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
