package rdmap

import (
	"bytes"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider/iwarp"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
)

// The same errors in both layouts.
//
//rfc:5040 RDMAP-4.8-01 Terminate header layout
func TestBothLayouts(t *testing.T) {
	for _, tt := range []struct {
		name     string
		layer    iwarp.Layer
		etype    iwarp.EType
		code     iwarp.Code
		mdr      [3]bool
		rfc, siw string
	}{
		{"untagged MSN without a buffer", 1, 2, 2, [3]bool{true, true}, "12 02 c0 00", "21 02 03 00"},
		{"tagged bad STag", 1, 1, 0, [3]bool{true, true}, "11 00 c0 00", "11 00 03 00"},
		{"tagged base or bounds", 1, 1, 1, [3]bool{true, true}, "11 01 c0 00", "11 01 03 00"},
		{"RDMAP remote protection", 0, 1, 1, [3]bool{true, true, true}, "01 01 e0 00", "10 01 07 00"},
		{"RDMAP remote operation", 0, 2, 7, [3]bool{true, true}, "02 07 c0 00", "20 07 03 00"},
		{"CRC", 2, 0, 2, [3]bool{}, "20 02 00 00", "02 02 00 00"},
		{"FPDU start", 2, 0, 3, [3]bool{}, "20 03 00 00", "02 03 00 00"},
		{"RDMAP catastrophic", 0, 0, 0xff, [3]bool{}, "00 ff 00 00", "00 ff 00 00"},
	} {
		term := Terminate{Layer: tt.layer, EType: tt.etype, Code: tt.code, M: tt.mdr[0], D: tt.mdr[1], R: tt.mdr[2]}
		if got := term.AppendTo(nil)[:4]; !bytes.Equal(got, testkit.Unhex(t, tt.rfc)) {
			t.Errorf("%s, RFC: %x, want %s", tt.name, got, tt.rfc)
		}
		if got := term.AppendSIW(nil)[:4]; !bytes.Equal(got, testkit.Unhex(t, tt.siw)) {
			t.Errorf("%s, siw: %x, want %s", tt.name, got, tt.siw)
		}
		for layout, octets := range map[string][]byte{"RFC": term.AppendTo(nil), "siw": term.AppendSIW(nil)} {
			got, err := ParseTerminate(octets, PhaseAfterFirstFPDU)
			if err != nil || got.Terminate != term {
				t.Errorf("%s, %s: %x read as %+v, %v", tt.name, layout, octets, got, err)
			}
		}
	}
}

// The answers of a live siw 6.1.192 to one bad frame each. Control field and length are siw's. The
// attached headers are built to match the frame that caused the answer, with siw's peculiarities
// (in a Read Request the MSN has been overwritten with the size).
func TestTerminatesOfLiveSIW(t *testing.T) {
	send := func(qn, msn, mo uint32) string {
		h := SendHeader(OpSend, 0, msn, mo, true)
		h.QN = qn
		return hexOf(h.AppendTo(nil))
	}
	wild := WriteHeader(0xdeadbe00, 0, true)
	for _, tt := range []struct {
		name   string
		hex    string
		want   string
		have   [3]bool
		length uint16
		layout Layout
	}{
		{"opcode 9", "20 06 00 00", "0/2/06", [3]bool{}, 0, LayoutSIW},
		{"DDP version 0, Send", "21 06 00 00", "1/2/06", [3]bool{}, 0, LayoutSIW},
		{"RDMAP version 0", "20 05 00 00", "0/2/05", [3]bool{}, 0, LayoutSIW},
		{"Write to an unknown STag", "11 00 03 00 0010" + hexOf(wild.AppendTo(nil)), "1/1/00", [3]bool{true, true}, 16, LayoutSIW},
		{"Send with MSN 5", "21 03 03 00 0010" + send(0, 5, 0), "1/2/03", [3]bool{true, true}, 16, LayoutSIW},
		{"Send with QN 7", "21 01 03 00 0010" + send(7, 1, 0), "1/2/01", [3]bool{true, true}, 16, LayoutSIW},
		{"Send with MO 8", "21 04 03 00 0010" + send(0, 1, 8), "1/2/04", [3]bool{true, true}, 16, LayoutSIW},
		{"Send larger than the receive", "21 02 03 00 0fa0" + send(0, 1, 0), "1/2/02", [3]bool{true, true}, 4000, LayoutSIW},
		{
			"Read Request of an unknown STag", "10 00 07 00 0000 4141 00000000 00000001 00000010 00000000" + siwReadRequest,
			"0/1/00", [3]bool{true, true, true}, 0, LayoutSIW,
		},
		{"Read Response nobody asked for", "01 00 03 00 0010" + hexOf(wild.AppendTo(nil)), "1/0/00", [3]bool{true, true}, 16, LayoutSIW},
	} {
		got, err := ParseTerminate(testkit.Unhex(t, tt.hex), PhaseAfterFirstFPDU)
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
			continue
		}
		if w := wire(got.Cause()); w != tt.want || got.Layout != tt.layout {
			t.Errorf("%s: %s in layout %v, want %s in %v", tt.name, w, got.Layout, tt.want, tt.layout)
		}
		if have := [3]bool{got.HaveLength, got.HaveDDP, got.HaveRead}; have != tt.have || got.SegmentLength != tt.length {
			t.Errorf("%s: have %v, length %d; want %v, %d", tt.name, have, got.SegmentLength, tt.have, tt.length)
		}
		if out := got.AppendSIW(nil); !bytes.Equal(out, testkit.Unhex(t, tt.hex)) {
			t.Errorf("%s: written back as %x, want %s", tt.name, out, tt.hex)
		}
	}
}

// Control fields with nothing attached, so layer, type, code and phase must decide. The columns are
// the reading in an unknown phase, before this side's first FPDU, and after it.
func TestLayoutWithNothingAttached(t *testing.T) {
	const rfc, siw, amb = LayoutRFC, LayoutSIW, LayoutAmbiguous
	for _, tt := range []struct {
		octets string
		layout [3]Layout
		want   [3]string
	}{
		// With equal nibbles both readings are the same.
		{"00 ff", [3]Layout{amb, amb, amb}, [3]string{"0/0/ff", "0/0/ff", "0/0/ff"}},
		{"11 04", [3]Layout{amb, amb, amb}, [3]string{"1/1/04", "1/1/04", "1/1/04"}},
		{"22 01", [3]Layout{amb, amb, amb}, [3]string{"2/2/01", "2/2/01", "2/2/01"}},
		// DDP untagged, or an LLP type that does not exist.
		{"12 06", [3]Layout{rfc, rfc, rfc}, [3]string{"1/2/06", "1/2/06", "1/2/06"}},
		{"21 06", [3]Layout{siw, siw, siw}, [3]string{"1/2/06", "1/2/06", "1/2/06"}},
		// LLP codes that a remote operation error does not have.
		{"02 02", [3]Layout{siw, siw, siw}, [3]string{"2/0/02", "2/0/02", "2/0/02"}},
		{"02 03", [3]Layout{siw, siw, siw}, [3]string{"2/0/03", "2/0/03", "2/0/03"}},
		{"02 04", [3]Layout{siw, siw, siw}, [3]string{"2/0/04", "2/0/04", "2/0/04"}},
		{"20 02", [3]Layout{rfc, rfc, rfc}, [3]string{"2/0/02", "2/0/02", "2/0/02"}},
		{"20 03", [3]Layout{rfc, rfc, rfc}, [3]string{"2/0/03", "2/0/03", "2/0/03"}},
		{"20 04", [3]Layout{rfc, rfc, rfc}, [3]string{"2/0/04", "2/0/04", "2/0/04"}},
		// Remote operation codes that the LLP does not have.
		{"02 09", [3]Layout{rfc, rfc, rfc}, [3]string{"0/2/09", "0/2/09", "0/2/09"}},
		{"20 ff", [3]Layout{siw, siw, siw}, [3]string{"0/2/ff", "0/2/ff", "0/2/ff"}},
		// Codes of both: the phase decides.
		{"20 05", [3]Layout{amb, rfc, siw}, [3]string{"2/0/05", "2/0/05", "0/2/05"}},
		{"20 06", [3]Layout{amb, rfc, siw}, [3]string{"2/0/06", "2/0/06", "0/2/06"}},
		{"02 05", [3]Layout{amb, siw, rfc}, [3]string{"0/2/05", "2/0/05", "0/2/05"}},
		{"02 06", [3]Layout{amb, siw, rfc}, [3]string{"0/2/06", "2/0/06", "0/2/06"}},
		{"02 07", [3]Layout{amb, siw, rfc}, [3]string{"0/2/07", "2/0/07", "0/2/07"}},
		// siw attaches a header to both of its readings of these.
		{"10 00", [3]Layout{rfc, rfc, rfc}, [3]string{"1/0/00", "1/0/00", "1/0/00"}},
		{"01 00", [3]Layout{rfc, rfc, rfc}, [3]string{"0/1/00", "0/1/00", "0/1/00"}},
		// No specification defines either reading.
		{"3f 77", [3]Layout{amb, amb, amb}, [3]string{"3/15/77", "3/15/77", "3/15/77"}},
	} {
		for i, phase := range []Phase{PhaseUnknown, PhaseBeforeFirstFPDU, PhaseAfterFirstFPDU} {
			octets := testkit.Unhex(t, tt.octets+"0000")
			got, err := ParseTerminate(octets, phase)
			if err != nil || got.Layout != tt.layout[i] || wire(got.Cause()) != tt.want[i] || !bytes.Equal(got.Raw[:], octets) {
				t.Errorf("%s, %v: %s in layout %v (%x), %v; want %s in %v", tt.octets, phase,
					wire(got.Cause()), got.Layout, got.Raw, err, tt.want[i], tt.layout[i])
			}
		}
	}
}

// Every error of the specifications, with and without headers, is recognised in either layout after
// the first FPDU, if it can occur then.
func TestDefinedErrorsSurviveEitherLayout(t *testing.T) {
	h := SendHeader(OpSend, 0, 1, 0, true)
	for _, e := range []*iwarp.Error{
		{Layer: iwarp.LayerRDMAP, EType: iwarp.RDMAPLocalCatastrophic, Code: 0x5a},
		ErrVersion, ErrReservedOpcode, ErrShortReadRequest, ErrCannotInvalidate, ErrMayNotInvalidate, ErrStreamCatastrophe,
		ErrReadInvalidSTag, ErrReadNotAssociated, ErrReadAccess, ErrReadTOWrap, ErrReadBaseBounds,
		ErrResponseSTag, ErrResponseTO, ErrReadDepth, ErrLongReadReq,
		ddp.ErrShortSegment, ddp.ErrTaggedVersion, ddp.ErrUntaggedVersion, ddp.ErrCatastrophic, ddp.ErrMSNRange, ddp.ErrTOWrap,
	} {
		for _, seg := range []*ddp.Header{nil, &h} {
			term := NewTerminate(e, seg, 30, nil)
			if !term.defined() {
				t.Errorf("%v is not taken for an error of the specifications", e)
			}
			got, err := ParseTerminate(term.AppendTo(nil), PhaseAfterFirstFPDU)
			if err != nil || got.Terminate != term {
				t.Errorf("%v in the RFC's layout: %+v, %v", e, got, err)
			}
			if !term.D && e.Layer != iwarp.LayerLLP {
				continue // siw attaches a header to these
			}
			got, err = ParseTerminate(term.AppendSIW(nil), PhaseAfterFirstFPDU)
			if err != nil || got.Terminate != term {
				t.Errorf("%v in siw's layout: %+v, %v", e, got, err)
			}
		}
	}
}

func TestLayoutAndPhaseNames(t *testing.T) {
	for got, want := range map[string]string{
		LayoutRFC.String(): "RFC", LayoutSIW.String(): "siw", LayoutAmbiguous.String(): "ambiguous", Layout(9).String(): "layout 9",
		PhaseUnknown.String(): "unknown phase", PhaseBeforeFirstFPDU.String(): "before the first FPDU",
		PhaseAfterFirstFPDU.String(): "after the first FPDU", Phase(9).String(): "phase 9",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestUndefinedErrors(t *testing.T) {
	for _, u := range []Terminate{
		{Layer: 0, EType: 1, Code: 5}, {Layer: 0, EType: 2, Code: 4}, {Layer: 0, EType: 3},
		{Layer: 1, EType: 0, Code: 1}, {Layer: 1, EType: 1, Code: 5}, {Layer: 1, EType: 2, Code: 0}, {Layer: 1, EType: 2, Code: 7}, {Layer: 1, EType: 3},
		{Layer: 2, EType: 0, Code: 0}, {Layer: 2, EType: 0, Code: 8}, {Layer: 2, EType: 1, Code: 1}, {Layer: 3},
	} {
		if u.defined() {
			t.Errorf("%v is taken for an error of the specifications", &u)
		}
	}
}
