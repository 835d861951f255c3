package tshark

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/govs-rdma/govs/provider/conformance/wire"
	"github.com/govs-rdma/govs/provider/conformance/wire/wiretest"
	"github.com/govs-rdma/govs/provider/iwarp"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// many is a capture of many cases, each a connection to a port of its own, because starting
// tshark takes longer than decoding all of them.
type many struct {
	wiretest.Capture
	names []string
}

const firstPort = 20001

func (m *many) open(name string) *wiretest.Conn {
	m.names = append(m.names, name)
	return m.Open(wiretest.Client, netip.AddrPortFrom(wiretest.Server.Addr(), uint16(firstPort+len(m.names)-1)))
}

func (m *many) begin(name string, crc bool) *wiretest.Session {
	return m.open(name).Start(wiretest.Enhanced(mpa.KindRequest, crc, 4, 4), wiretest.Enhanced(mpa.KindReply, crc, 4, 4))
}

// agree asks tshark, and if all is said to be visible, wants it to see all. It returns what we see.
func (m *many) agree(t *testing.T, all bool) *wire.Trace {
	t.Helper()
	trace, w := show(t, &m.Capture)
	if !w.Agrees {
		for i, name := range m.names {
			if strings.Contains(w.Why, fmt.Sprintf(":%d: ", firstPort+i)) {
				t.Errorf("%s: tshark does not agree: %s", name, w.Why)
			}
		}
		t.Fatal(w.Why)
	}
	if n := trace.Count(); all && w.Frames != n {
		t.Errorf("tshark sees %d frames, we %d", w.Frames, n)
	}
	if len(trace.Conns) != len(m.names) {
		t.Fatalf("%d connections, want %d", len(trace.Conns), len(m.names))
	}
	return trace
}

// check checks what we see of the connections that a part has added to a capture.
type check func(t *testing.T, conns []*wire.Conn)

// TestAgrees: tshark sees each frame of these connections as we do. One capture has all of them,
// because starting tshark takes longer than decoding them.
func TestAgrees(t *testing.T) {
	need(t)
	m := &many{}
	var checks []func(*wire.Trace)
	for _, part := range []func(*many) check{
		framings, startups, wrongCRC, terminates, illegal, retransmissions, versionZero,
	} {
		from := len(m.names)
		if check := part(m); check != nil {
			to := len(m.names)
			checks = append(checks, func(tr *wire.Trace) { check(t, tr.Conns[from:to]) })
		}
	}
	trace := m.agree(t, true)
	for _, check := range checks {
		check(trace)
	}
}

func framings(m *many) check {
	for i, tc := range []struct {
		mss, mulpdu int
		crc, hold   bool // hold: several FPDUs a segment
		octets      int
	}{
		{octets: 500},
		{crc: true, octets: 500},
		{crc: true, hold: true, octets: 100},
		{mss: 500, crc: true, octets: 5000}, // FPDUs across segments
		{mulpdu: 128, crc: true, octets: 3000},
		{mss: 65000, mulpdu: mpa.MaxULPDU, crc: true, octets: 200_000},
		{mss: 65483, mulpdu: 65470, octets: 1 << 18}, // as siw does on lo
		{crc: true, octets: 1 << 18},
		{mss: 9000, mulpdu: 1400, crc: true, hold: true, octets: 1 << 18},
	} {
		s := m.begin(fmt.Sprintf("framing %d, MSS %d, CRC %v", i, tc.mss, tc.crc), tc.crc)
		s.MULPDU, m.MSS = min(tc.mulpdu, mpa.MaxULPDU), tc.mss
		if tc.hold {
			s.Hold()
		}
		all(s, tc.octets)
		if tc.hold {
			s.Release()
		}
		s.Close()
		m.MSS = 0
	}
	return nil
}

func startups(m *many) check {
	cases := []struct {
		name   string
		change func(request, reply *mpa.Frame)
		frames int
	}{
		{"revision 1", func(q, r *mpa.Frame) {
			*q, *r = mpa.Frame{Revision: 1}, mpa.Frame{Kind: mpa.KindReply, Revision: 1}
		}, 3},
		{"private data", func(q, r *mpa.Frame) {
			q.PrivateData, r.PrivateData = append(q.PrivateData, octets(508)...), append(r.PrivateData, octets(7)...)
		}, 3},
		{"reserved bits", func(q, r *mpa.Frame) { q.Reserved, r.Reserved = 0xf, 0xa }, 3},
		{"CRC of the reply alone", func(_, r *mpa.Frame) { r.CRC = true }, 3},
		{"a rejection", func(_, r *mpa.Frame) { r.Reject = true }, 2},
		{"Markers", func(_, r *mpa.Frame) { r.Markers = true }, 3},
	}
	for _, tc := range cases {
		q, r := wiretest.Enhanced(mpa.KindRequest, false, 3, 0x3fff), wiretest.Enhanced(mpa.KindReply, false, 128, 0)
		tc.change(&q, &r)
		s := m.open(tc.name).Start(q, r)
		if !r.Reject {
			s.SendMessage(wire.ToResponder, 1, octets(10))
		}
		s.Close()
	}
	return func(t *testing.T, conns []*wire.Conn) {
		for i, conn := range conns {
			if got := (&wire.Trace{Conns: []*wire.Conn{conn}}).Count(); got != cases[i].frames {
				t.Errorf("%s: %d frames, want %d", cases[i].name, got, cases[i].frames)
			}
		}
	}
}

func wrongCRC(m *many) check {
	s := m.begin("a wrong CRC", true)
	for i := range 3 {
		s.SendMessage(wire.ToResponder, uint32(i+1), octets(9))
		if i == 1 {
			data := m.Packets[len(m.Packets)-1].Data
			data[len(data)-1] ^= 0x80 // of the CRC field itself
		}
	}
	return func(t *testing.T, conns []*wire.Conn) {
		if f := conns[0].FPDUs(wire.ToResponder); !f[1].CRCWrong || f[2].CRCWrong {
			t.Error("the second CRC is wrong, and only that")
		}
	}
}

func terminates(m *many) check {
	send, write := rdmap.SendHeader(rdmap.OpSend, 0, 5, 0, true), rdmap.WriteHeader(9, 7, true)
	read := rdmap.ReadRequest{SinkSTag: 1, SinkTO: 2, Size: 3, SourceSTag: 4, SourceTO: 5}
	readHeader := rdmap.ReadRequestHeader(1)
	for _, siw := range []bool{false, true} {
		for name, term := range map[string]rdmap.Terminate{
			"untagged":   rdmap.NewTerminate(ddp.ErrMSNRange, &send, 30, nil),
			"tagged":     rdmap.NewTerminate(ddp.ErrBaseBounds, &write, 30, nil),
			"protection": rdmap.NewTerminate(rdmap.ErrReadBaseBounds, &readHeader, 46, &read),
			"operation":  rdmap.NewTerminate(rdmap.ErrReservedOpcode, &send, 30, nil),
			"CRC":        rdmap.NewTerminate(mpa.ErrCRC, nil, 0, nil),
			"unknown":    {Layer: 0xf, EType: 0xe, Code: 0xab},
			"local":      rdmap.NewTerminate(ddp.ErrCatastrophic, nil, 0, nil),
			"stream":     rdmap.NewTerminate(rdmap.ErrStreamCatastrophe, nil, 0, nil),
			"reserved":   {Layer: iwarp.LayerDDP, EType: 1, Code: 1, Reserved: 0x1f00},
		} {
			s := m.begin(fmt.Sprintf("%s, siw %v", name, siw), true)
			s.SendMessage(wire.ToResponder, 1, nil)
			s.Terminate(wire.ToInitiator, term, siw)
			s.Close()
		}
	}
	return nil
}

// illegal adds illegal frames. They are compared as well, except where tshark can't decode them.
func illegal(m *many) check {
	send := rdmap.SendHeader(rdmap.OpSend, 0, 1, 0, true)
	with := func(change func(h *ddp.Header)) []byte {
		h := send
		change(&h)
		return h.AppendTo(nil)
	}
	readRequest, terminate := rdmap.ReadRequestHeader(1), rdmap.TerminateHeader()
	taggedRead := readRequest
	taggedRead.Tagged = true
	for name, ulpdu := range map[string][]byte{
		"nothing":             {},
		"one octet":           {0x41},
		"half a header":       send.AppendTo(nil)[:17],
		"half a tagged one":   {0xc1, 0x40, 1, 2, 3},
		"DDP version":         with(func(h *ddp.Header) { h.Version = 3 }),
		"RDMAP version":       with(func(h *ddp.Header) { h.ULPCtl = 0x83 }),
		"reserved bits":       with(func(h *ddp.Header) { h.Reserved, h.ULPCtl = 0xf, 0x73 }),
		"opcode 9":            with(func(h *ddp.Header) { h.ULPCtl = 0x49 }),
		"opcode 15":           with(func(h *ddp.Header) { h.ULPCtl = 0x4f }),
		"T of a Send":         with(func(h *ddp.Header) { h.Tagged = true }),
		"Write without T":     with(func(h *ddp.Header) { h.ULPCtl = 0x40 }),
		"QN and MO":           with(func(h *ddp.Header) { h.QN, h.MO = 0xffffffff, 0xfffffff0 }),
		"short Read Request":  append(readRequest.AppendTo(nil), octets(20)...),
		"long Read Request":   append(readRequest.AppendTo(nil), octets(40)...),
		"tagged Read Request": append(taggedRead.AppendTo(nil), octets(28)...),
		"short Terminate":     append(terminate.AppendTo(nil), 1, 2),
		"cut Terminate":       append(terminate.AppendTo(nil), 0x11, 0, 0xe0, 0, 1),
	} {
		for _, crc := range []bool{false, true} {
			s := m.begin(fmt.Sprintf("%s, CRC %v", name, crc), crc)
			s.SendMessage(wire.ToInitiator, 1, octets(3))
			s.ULPDU(wire.ToResponder, ulpdu)
			s.SendMessage(wire.ToResponder, 2, octets(3))
			s.Close()
		}
	}
	return nil
}

func retransmissions(m *many) check {
	begin := len(m.Packets)
	s := m.begin("retransmissions", true)
	s.SendMessage(wire.ToResponder, 1, octets(20_000))
	for _, i := range []int{5, 7, 9} {
		m.Packets = append(m.Packets, m.Packets[begin+i])
	}
	s.SendMessage(wire.ToResponder, 2, octets(2000))
	s.Close()
	return nil
}

// versionZero adds a connection of version 0, which tshark recognises as such.
func versionZero(m *many) check {
	s := m.open("version 0").Start(wiretest.RDMACFrame(mpa.KindRequest),
		wiretest.RDMACFrame(mpa.KindReply))
	old := func(h ddp.Header) ddp.Header { rdmap.SetRDMAC(&h); return h }
	s.FPDU(wire.ToResponder, old(rdmap.WriteHeader(0x100, 8, true)), make([]byte, 900))
	s.FPDU(wire.ToInitiator, old(rdmap.SendHeader(rdmap.OpSend, 0, 1, 0, true)), make([]byte, 5))
	return func(t *testing.T, conns []*wire.Conn) {
		if c := conns[0]; !c.RDMAC() || len(c.Frames) != 4 {
			t.Errorf("RDMAC %v: %v", c.RDMAC(), c.Ladder())
		}
	}
}
