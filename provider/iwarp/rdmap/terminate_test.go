package rdmap

import (
	"bytes"
	"strings"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider/iwarp"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"pgregory.net/rapid"
)

// The attachments of each error: RFC 5040 figure 10, row by row, for an untagged segment of 18 +
// 100 octets and a Read Request of 18 + 28.
//
//rfc:5040 RDMAP-4.8-03 M,D,R bits per mapping table
//rfc:5040 RDMAP-4.8-06 DDP Segment Length valid when M=1
//rfc:5040 RDMAP-4.8-09 No DDP header for Local Catastrophic
//rfc:5040 RDMAP-4.8-10 RDMA header present when R=1, only for ReadReq errors
//rfc:5040 RDMAP-4.8-13 LLP errors carry neither DDP nor RDMA header
//rfc:5040 RDMAP-7.1-2-01 Inbound error on tagged or Send: DDP header, length
//rfc:5040 RDMAP-7.1-3-01 Inbound error on ReadReq: the RDMA header, too
func TestNewTerminateFollowsFigure10(t *testing.T) {
	send := SendHeader(OpSend, 0, 1, 0, true)
	sendInv := SendHeader(OpSendInvalidate, 9, 1, 0, true)
	write := WriteHeader(1, 2, true)
	readReq := ReadRequestHeader(1)
	req := ReadRequest{SinkSTag: 1, SinkTO: 2, Size: 3, SourceSTag: 4, SourceTO: 5}
	local := &iwarp.Error{Layer: iwarp.LayerRDMAP, EType: iwarp.RDMAPLocalCatastrophic}
	crc := &iwarp.Error{Layer: iwarp.LayerLLP, EType: iwarp.MPAErrors, Code: iwarp.MPACRC}
	for _, tt := range []struct {
		name string
		err  *iwarp.Error
		seg  *ddp.Header
		len  int
		req  *ReadRequest
		mdr  string
		want string // the control field, the segment length and the whole length
		size int
	}{
		{"RDMAP local catastrophic", local, &send, 118, nil, "", "00 00 00 00", 4},
		{"RDMAP remote protection, Read Request", ErrReadBaseBounds, &readReq, 46, &req, "MDR", "01 01 e0 00 002e", 52},
		{"RDMAP remote protection, Send with Invalidate", ErrMayNotInvalidate, &sendInv, 118, nil, "MD", "01 09 c0 00 0076", 24},
		{"RDMAP remote operation", ErrReservedOpcode, &send, 118, nil, "MD", "02 06 c0 00 0076", 24},
		{"RDMAP remote operation, Read Request", ErrVersion, &readReq, 46, &req, "MD", "02 05 c0 00 002e", 24},
		{"RDMAP remote operation without a segment", ErrStreamCatastrophe, nil, 0, nil, "", "02 07 00 00", 4},
		{"DDP local catastrophic", ddp.ErrCatastrophic, &write, 114, nil, "", "10 00 00 00", 4},
		{"DDP tagged", ddp.ErrBaseBounds, &write, 114, nil, "MD", "11 01 c0 00 0072", 20},
		{"DDP untagged", ddp.ErrMSNRange, &send, 118, nil, "MD", "12 03 c0 00 0076", 24},
		{"DDP untagged, Read Request", ErrReadDepth, &readReq, 46, &req, "MD", "12 02 c0 00 002e", 24},
		{"LLP", crc, &send, 118, nil, "", "20 02 00 00", 4},
		{"LLP, short ULPDU", ddp.ErrShortSegment, nil, 9, nil, "", "20 03 00 00", 4},
		{"the longest segment", ddp.ErrTooLong, &send, 65535, nil, "MD", "12 05 c0 00 ffff", 24},
		{"a length that does not fit", ddp.ErrTooLong, &send, 65536, nil, "MD", "12 05 c0 00 ffff", 24},
	} {
		term := NewTerminate(tt.err, tt.seg, tt.len, tt.req)
		mdr := ""
		for _, bit := range []struct {
			set  bool
			name string
		}{{term.M, "M"}, {term.D, "D"}, {term.R, "R"}} {
			if bit.set {
				mdr += bit.name
			}
		}
		octets := term.AppendTo(nil)
		if want := testkit.Unhex(t, tt.want); mdr != tt.mdr || !bytes.HasPrefix(octets, want) || len(octets) != tt.size {
			t.Errorf("%s: bits %q, %x (%d octets); want %q, %x..., %d octets", tt.name, mdr, octets, len(octets), tt.mdr, want, tt.size)
		}
		if tt.seg != nil && term.D && !bytes.Equal(octets[6:6+tt.seg.Len()], tt.seg.AppendTo(nil)) {
			t.Errorf("%s: the DDP header is not that of the segment: %x", tt.name, octets)
		}
		if term.R && !bytes.Equal(octets[24:], tt.req.AppendTo(nil)) {
			t.Errorf("%s: the RDMA header is not that of the request: %x", tt.name, octets)
		}
		if got := term.Cause(); !got.Is(tt.err) {
			t.Errorf("%s: Cause = %v", tt.name, got)
		}
	}
}

// complete has everything attached.
var complete = Terminate{
	Layer: iwarp.LayerRDMAP, EType: iwarp.RDMAPRemoteProtection, Code: iwarp.RDMAPTOWrap,
	M: true, D: true, R: true, SegmentLength: 46,
	DDP:  ReadRequestHeader(0x01020304),
	Read: ReadRequest{SinkSTag: 1, SinkTO: 2, Size: 3, SourceSTag: 4, SourceTO: 5},
}

// RFC 5040 figures 7 and 8, octet by octet.
//
//rfc:5040 RDMAP-4.8-01 Terminate header layout
//rfc:5040 RDMAP-4.8-04 Terminate reserved 13 bits zero on send
//rfc:5040 RDMAP-4.8-07 DDP Segment Length present when D=1
//rfc:5040 RDMAP-4.8-08 DDP header present when D=1 (14 or 18 octets by T)
func TestTerminateVector(t *testing.T) {
	want := testkit.Unhex(t, `01 04 e0 00  002e
		41 41 00000000 00000001 01020304 00000000
		00000001 0000000000000002 00000003 00000004 0000000000000005`)
	if len(want) != MaxTerminateLen {
		t.Fatalf("%d octets, MaxTerminateLen is %d", len(want), MaxTerminateLen)
	}
	buf := bytes.Repeat([]byte{0xa5}, 64)
	n := len(complete.AppendTo(buf[:2]))
	if !bytes.Equal(buf[2:n], want) || !bytes.Equal(buf[n:], bytes.Repeat([]byte{0xa5}, 64-n)) {
		t.Errorf("AppendTo wrote %x, want %x", buf, want)
	}
	got, err := ParseTerminate(want, PhaseUnknown)
	if err != nil || got.Terminate != complete || !got.HaveLength || !got.HaveDDP || !got.HaveRead || got.Layout != LayoutRFC {
		t.Errorf("ParseTerminate = %+v, %v", got, err)
	}
	if s := complete.String(); s != "RDMAP error 0/1/0x04 (remote protection error, TO wrap) M=46 D=18 octets R=28 octets" {
		t.Errorf("String = %q", s)
	}
}

// However a Terminate is cut short, its announcements are kept and what was received is read.
//
//rfc:5040 RDMAP-4.8-15 Receiver tolerates a truncated Terminate
func TestParseTerminateEveryPrefix(t *testing.T) {
	octets := complete.AppendTo(nil)
	for n := range len(octets) + 8 {
		b := append(octets[:min(n, len(octets)):min(n, len(octets))], make([]byte, max(n-len(octets), 0))...)
		got, err := ParseTerminate(b, PhaseAfterFirstFPDU)
		if n < TerminateControlLen {
			if wire(err) != "0/2/ff" {
				t.Errorf("%d octets: %v", n, err)
			}
			continue
		}
		if err != nil || got.Layer != complete.Layer || got.EType != complete.EType || got.Code != complete.Code || !got.M || !got.D || !got.R {
			t.Errorf("%d octets: %+v, %v", n, got, err)
		}
		if got.HaveLength != (n >= 6) || got.HaveDDP != (n >= 24) || got.HaveRead != (n >= 52) {
			t.Errorf("%d octets: have length %v, DDP %v, Read %v", n, got.HaveLength, got.HaveDDP, got.HaveRead)
		}
		want := Terminate{}
		if got.HaveLength {
			want.SegmentLength = complete.SegmentLength
		}
		if got.HaveDDP {
			want.DDP = complete.DDP
		}
		if got.HaveRead {
			want.Read = complete.Read
		}
		if got.SegmentLength != want.SegmentLength || got.DDP != want.DDP || got.Read != want.Read {
			t.Errorf("%d octets: %+v", n, got)
		}
	}
}

// A Terminate about a tagged segment has a header of 14 octets.
func TestParseTerminateTagged(t *testing.T) {
	h := WriteHeader(7, 8, true)
	term := NewTerminate(ddp.ErrInvalidSTag, &h, 20, nil)
	octets := term.AppendTo(nil)
	got, err := ParseTerminate(octets, PhaseAfterFirstFPDU)
	if err != nil || len(octets) != 20 || !got.HaveDDP || got.Terminate != term {
		t.Errorf("%x = %+v, %v", octets, got, err)
	}
	if got, err = ParseTerminate(octets[:19], PhaseAfterFirstFPDU); err != nil || got.HaveDDP || !got.HaveLength {
		t.Errorf("cut by one octet: %+v, %v", got, err)
	}
}

// Unknown values are not an error, and reserved bits are ignored.
//
//rfc:5040 RDMAP-4.8-05 Terminate reserved ignored on receive
//rfc:5040 RDMAP-4.8-14 Receiver tolerates unknown Layer/EType/Code
func TestParseTerminateKeepsUnknownValues(t *testing.T) {
	got, err := ParseTerminate(testkit.Unhex(t, "7c ee 1f ff"), PhaseAfterFirstFPDU)
	// siw's bits M, D and R are reserved bits of the RFC. If none of the RFC's is set, this is
	// siw's layout.
	if err != nil || got.Layout != LayoutSIW || got.Layer != 0xc || got.EType != 0x7 || got.Code != 0xee {
		t.Errorf("%+v, %v", got, err)
	}
	got, err = ParseTerminate(testkit.Unhex(t, "7c ee 18 ff"), PhaseAfterFirstFPDU)
	if err != nil || got.Layout != LayoutAmbiguous || got.Layer != 0x7 || got.EType != 0xc || got.Code != 0xee || got.Reserved != 0x18ff {
		t.Errorf("%+v, %v", got, err)
	}
	got, err = ParseTerminate(testkit.Unhex(t, "12 03 9f ff 0076"), PhaseAfterFirstFPDU)
	if err != nil || got.Layout != LayoutRFC || !got.M || got.D || got.R || got.SegmentLength != 0x76 || got.Reserved != 0x1fff {
		t.Errorf("%+v, %v", got, err)
	}
	if s := got.String(); !strings.Contains(s, "DDP error 1/2/0x03") {
		t.Errorf("String = %q", s)
	}
}

// anyTerminate draws Terminates with every encodable bit. Parts that are not announced are zero, as
// after a parse.
func anyTerminate(t *rapid.T) Terminate {
	term := Terminate{
		Layer:    iwarp.Layer(rapid.Uint8Range(0, 15).Draw(t, "layer")),
		EType:    iwarp.EType(rapid.Uint8Range(0, 15).Draw(t, "etype")),
		Code:     iwarp.Code(rapid.Uint8().Draw(t, "code")),
		M:        rapid.Bool().Draw(t, "M"),
		D:        rapid.Bool().Draw(t, "D"),
		R:        rapid.Bool().Draw(t, "R"),
		Reserved: rapid.Uint16Range(0, 0x1fff).Draw(t, "reserved"),
	}
	if term.M || term.D {
		term.SegmentLength = rapid.Uint16().Draw(t, "length")
	}
	if term.D {
		term.DDP = ddp.Header{
			Tagged:  rapid.Bool().Draw(t, "T"),
			Last:    rapid.Bool().Draw(t, "L"),
			Version: rapid.Uint8Range(0, 3).Draw(t, "DV"),
			ULPCtl:  rapid.Uint8().Draw(t, "ctl"),
		}
		if term.DDP.Tagged {
			term.DDP.TO = rapid.Uint64().Draw(t, "TO")
		} else {
			term.DDP.MO = rapid.Uint32().Draw(t, "MO")
		}
	}
	if term.R {
		term.Read = anyReadRequest(t)
	}
	return term
}

func TestTerminateRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		term := anyTerminate(t)
		got, err := ParseTerminate(term.AppendTo(nil), PhaseUnknown)
		if err != nil {
			t.Fatal(err)
		}
		if term.M || term.D || term.R {
			if got.Layout != LayoutRFC || got.Terminate != term {
				t.Fatalf("%+v came back as %+v", term, got)
			}
		}
		got, err = ParseTerminate(term.AppendSIW(nil), PhaseUnknown)
		if err != nil {
			t.Fatal(err)
		}
		if (term.M || term.D || term.R) && got.Layout == LayoutSIW && got.Terminate != term {
			t.Fatalf("%+v came back as %+v", term, got)
		}
		// siw never sets reserved bits, so its layout is then always recognised.
		if term.Reserved == 0 && (term.M || term.D || term.R) && got.Layout != LayoutSIW {
			t.Fatalf("%+v was read as %v", term, got.Layout)
		}
	})
}

func TestTerminateAllocatesNothing(t *testing.T) {
	buf := make([]byte, 0, MaxTerminateLen)
	h := ReadRequestHeader(1)
	n := testing.AllocsPerRun(100, func() {
		term := NewTerminate(ErrReadTOWrap, &h, 46, &complete.Read)
		buf = term.AppendTo(buf[:0])
		if _, err := ParseTerminate(buf, PhaseAfterFirstFPDU); err != nil {
			t.Fatal(err)
		}
		buf = term.AppendSIW(buf[:0])
		_, _ = ParseTerminate(buf[:3], PhaseAfterFirstFPDU)
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// FuzzParseTerminate: what was received whole is written back octet for octet in the recognised
// layout.
func FuzzParseTerminate(f *testing.F) {
	f.Add(complete.AppendTo(nil), byte(0))
	f.Add(complete.AppendSIW(nil), byte(1))
	f.Add(testkit.Unhex(f, "20 02 00 00"), byte(2))
	f.Add(testkit.Unhex(f, "21 03 03 00 0010"), byte(2))
	f.Add(testkit.Unhex(f, "00"), byte(0))
	f.Fuzz(func(t *testing.T, b []byte, phase byte) {
		got, err := ParseTerminate(b, Phase(phase%3))
		if err != nil {
			if len(b) >= TerminateControlLen {
				t.Fatalf("%x: %v", b, err)
			}
			return
		}
		if !bytes.Equal(got.Raw[:], b[:TerminateControlLen]) {
			t.Fatalf("Raw is %x of %x", got.Raw, b)
		}
		out := got.AppendTo(nil)
		if got.Layout == LayoutSIW {
			out = got.AppendSIW(nil)
		}
		whole := (!got.M && !got.D || got.HaveLength) && got.D == got.HaveDDP && got.R == got.HaveRead
		if whole && !bytes.HasPrefix(b, out) {
			t.Fatalf("%x was written back as %x", b, out)
		}
		if !bytes.HasPrefix(out, b[:TerminateControlLen]) {
			t.Fatalf("control of %x was written back as %x", b, out)
		}
	})
}
