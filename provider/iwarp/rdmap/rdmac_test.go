package rdmap

import (
	"bytes"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
)

// Headers of version 0 equal those of version 1 except that DV and RV are 0: the figures of the
// RDMA Consortium's DDP 1.0 have the same fields in the same places.
//
//rfc:5044 RDMAC-C.1-01 RDMAC peer: DDP/RDMAP 0, MPA rev 0, markers and CRC on
//rfc:5044 RDMAC-C.1-02 No mixing of versions between MPA, DDP and RDMAP
func TestRDMACHeaders(t *testing.T) {
	const stag, to = 0x11223344, 0x8877665544332211
	for _, tt := range []struct {
		name string
		h    ddp.Header
		hex  string
	}{
		{"Write", WriteHeader(stag, to, true), "c000 11223344 8877665544332211"},
		{"Write, not last", WriteHeader(stag, to, false), "8000 11223344 8877665544332211"},
		{"Read Request", ReadRequestHeader(7), "4001 00000000 00000001 00000007 00000000"},
		{"Read Response", ReadResponseHeader(stag, to, true), "c002 11223344 8877665544332211"},
		{"Send", SendHeader(OpSend, 0, 5, 1482, true), "4003 00000000 00000000 00000005 000005ca"},
		{"Send with SE and Invalidate", SendHeader(OpSendSEInvalidate, stag, 8, 0, false), "0006 11223344 00000000 00000008 00000000"},
		{"Terminate", TerminateHeader(), "4007 00000000 00000002 00000001 00000000"},
	} {
		SetRDMAC(&tt.h)
		if got, want := tt.h.AppendTo(nil), testkit.Unhex(t, tt.hex); !bytes.Equal(got, want) {
			t.Errorf("%s: %x, want %x", tt.name, got, want)
		}
	}
}

// rdmac returns h in version 0.
func rdmac(h ddp.Header) ddp.Header { SetRDMAC(&h); return h }

func newRDMAC(t *testing.T, ird, ord int) *stream {
	s := newStream(t, ird, ord)
	s.r.Init(ReceiverConfig{Inbound: s.in, Outstanding: s.out, RDMAC: true, Extensions: true})
	return s
}

// A stream accepts only segments of its own version, 0 or 1. DV is checked first, and the codes are
// the same for both.
//
//rfc:5044 RDMAC-C.1-02 No mixing of versions between MPA, DDP and RDMAP
//rfc:5044 RDMAC-C.1-03 Version identical in both directions
func TestVersionsAreNotMixed(t *testing.T) {
	old, current := newRDMAC(t, 4, 0), newStream(t, 4, 0)
	onlyDV := func(h ddp.Header) ddp.Header { h.Version = ddp.RDMACVersion; return h }
	onlyRV := func(h ddp.Header) ddp.Header { h.ULPCtl &^= 0xc0; return h }
	for _, m := range []struct {
		h  ddp.Header
		n  int
		dv string
	}{
		{WriteHeader(1, 0, true), 8, "1/1/04"},
		{SendHeader(OpSend, 0, 1, 0, true), 8, "1/2/06"},
		{ReadRequestHeader(1), ReadRequestLen, "1/2/06"},
		{TerminateHeader(), 4, "1/2/06"},
	} {
		name := ParseControl(m.h.ULPCtl).Opcode.String()
		old.refuse(name+" of version 1", m.dv, m.h, m.n)
		old.refuse(name+" with DV 0 and RV 1", "0/2/05", onlyDV(m.h), m.n)
		old.refuse(name+" with DV 1 and RV 0", m.dv, onlyRV(m.h), m.n)
		current.refuse(name+" of version 0", m.dv, rdmac(m.h), m.n)
		current.refuse(name+" with DV 0 and RV 1", m.dv, onlyDV(m.h), m.n)
		current.refuse(name+" with DV 1 and RV 0", "0/2/05", onlyRV(m.h), m.n)
		for _, v := range []uint8{2, 3} {
			old.refuse(name+" of a version that there is not", m.dv, with(m.h, func(h *ddp.Header) { h.Version = v }), m.n)
			old.refuse(name+" of a version that there is not", "0/2/05", with(rdmac(m.h), func(h *ddp.Header) { h.ULPCtl |= v << 6 }), m.n)
		}
	}
}

// A stream of version 0 continues like any other, including zero-length untagged messages, and has
// none of RFC 7306.
func TestRDMACStream(t *testing.T) {
	s := newRDMAC(t, 1, 1)
	s.want("a Write", rdmac(WriteHeader(9, 100, true)), 50, Action{Kind: PlaceWrite, First: true})
	s.want("a Send of nothing takes a buffer", rdmac(SendHeader(OpSend, 0, 1, 0, true)), 0, Action{Kind: PlaceSend, First: true})
	s.want("a Send of two segments", rdmac(SendHeader(OpSendInvalidate, 77, 2, 0, false)), 40, Action{Kind: PlaceSend, First: true, Invalidate: 77})
	s.want("goes on", rdmac(SendHeader(OpSendInvalidate, 77, 2, 40, true)), 1, Action{Kind: PlaceSend, MO: 40, Invalidate: 77})
	s.want("a Read Request", rdmac(ReadRequestHeader(1)), ReadRequestLen, Action{Kind: TakeReadRequest, First: true})
	s.refuse("a wrong MSN has the code of version 1", "1/2/03", rdmac(SendHeader(OpSend, 0, 9, 0, true)), 1)
	for _, h := range []ddp.Header{ImmediateHeader(false, 3), AtomicRequestHeader(2), AtomicResponseHeader(1)} {
		s.refuse("an extension", "0/2/06", rdmac(h), 8)
	}
	s.want("a Terminate", rdmac(TerminateHeader()), 4, Action{Kind: TakeTerminate, First: true})
}

// The fast paths support only version 1, and must not accept it on a stream of version 0.
//
//rfc:5044 RDMAC-C.1-02 No mixing of versions between MPA, DDP and RDMAP
func TestRDMACTakesNoShortWay(t *testing.T) {
	s := newRDMAC(t, 1, 1)
	payload := []byte("sixteen octets..")
	for _, h := range []ddp.Header{WriteHeader(9, 0, true), rdmac(WriteHeader(9, 0, true))} {
		if g, _, ok := s.r.BeginWrite(append(h.AppendTo(nil), payload...)); ok {
			t.Errorf("DV %d: BeginWrite takes %+v", h.Version, g)
		}
	}
	s.out.Push(OutstandingRead{SinkSTag: 9, Size: 100})
	for _, h := range []ddp.Header{ReadResponseHeader(9, 0, false), rdmac(ReadResponseHeader(9, 0, false))} {
		if _, at, _, ok := s.r.MidResponse(append(h.AppendTo(nil), payload...)); ok {
			t.Errorf("DV %d: MidResponse takes octets at %d", h.Version, at)
		}
	}
	for _, h := range []ddp.Header{SendHeader(OpSend, 0, 1, 0, true), rdmac(SendHeader(OpSend, 0, 1, 0, true))} {
		if _, op, ok := s.r.WholeSend(append(h.AppendTo(nil), payload...)); ok {
			t.Errorf("DV %d: WholeSend takes a %s", h.Version, op)
		}
	}
}
