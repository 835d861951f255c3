package tshark

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/gopacket/gopacket/layers"

	"github.com/govs-rdma/govs/provider/conformance"
	"github.com/govs-rdma/govs/provider/conformance/wire"
	"github.com/govs-rdma/govs/provider/conformance/wire/wiretest"
	"github.com/govs-rdma/govs/provider/iwarp"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// version is Version, once for all tests: to start tshark takes most of a second of processor time.
var version = sync.OnceValues(Version)

// need ends a test where tshark can't be asked, which is a failure where
// GOVS_REQUIRE_TSHARK is set.
func need(t *testing.T) {
	t.Helper()
	_, err := version()
	switch {
	case err == nil:
	case os.Getenv("GOVS_REQUIRE_TSHARK") != "":
		t.Fatal(err)
	default:
		t.Skip(err)
	}
}

// about asks tshark about one file.
func about(file string, port uint16, ours *wire.Trace) conformance.Witness {
	return Witness(context.Background(), []conformance.Exhibit{{File: file, Port: port, Ours: ours}})[0]
}

func show(t *testing.T, c *wiretest.Capture, port uint16) (*wire.Trace, string, conformance.Witness) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "capture.pcap")
	if err := os.WriteFile(file, c.Pcap(), 0o644); err != nil {
		t.Fatal(err)
	}
	trace, err := wire.ReadFile(file, port)
	if err != nil {
		t.Fatal(err)
	}
	return trace, file, about(file, port, trace)
}

// agree has tshark read a capture and wants it to see all frames as we do.
func agree(t *testing.T, c *wiretest.Capture) *wire.Trace {
	t.Helper()
	trace, _, w := show(t, c, 0)
	if !w.Asked || !w.Agrees {
		t.Errorf("tshark does not agree: %s", w.Why)
	}
	if w.Frames != trace.Count() {
		t.Errorf("tshark sees %d frames, we %d", w.Frames, trace.Count())
	}
	return trace
}

func TestVersion(t *testing.T) {
	need(t)
	v, err := Version()
	if err != nil || !strings.HasPrefix(v, "TShark") || strings.Contains(v, "\n") {
		t.Errorf("version %q, error %v", v, err)
	}
	if !Available() {
		t.Error("tshark is there and not available")
	}
}

func TestWithoutTshark(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	if _, err := Version(); err == nil || !strings.Contains(err.Error(), "apt-get install tshark") {
		t.Errorf("the error is %v, which does not say what to install", err)
	}
	w := about("any.pcap", 0, &wire.Trace{})
	if !w.Asked || w.Agrees || w.Why == "" {
		t.Errorf("a witness that can't be asked is %+v", w)
	}
}

func TestSIWCapture(t *testing.T) {
	need(t)
	const file = "../wire/testdata/siw-6.1.192-rping-and-send-bw.pcap"
	for port, frames := range map[uint16]int{0: 167, 7174: 37, 18515: 130} {
		trace, err := wire.ReadFile(file, port)
		if err != nil {
			t.Fatal(err)
		}
		w := about(file, port, trace)
		if !w.Agrees || w.Frames != frames {
			t.Errorf("port %d: %+v, want agreement about %d frames", port, w, frames)
		}
	}
}

// octets are what neither zero-filled nor text would show.
func octets(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*31 + i>>8)
	}
	return b
}

// all sends every kind of message in both directions.
func all(s *wiretest.Session, n int) {
	for k, dir := range []wire.Direction{wire.ToResponder, wire.ToInitiator} {
		s.SendMessage(dir, 1, octets(n))
		s.FPDU(dir, rdmap.SendHeader(rdmap.OpSendSE, 0, 2, 0, true), []byte("solicited"))
		s.SendInvalidate(dir, 3, 0xdeadbe00, octets(n/2))
		s.FPDU(dir, rdmap.SendHeader(rdmap.OpSendSEInvalidate, 0x12345678, 4, 0, true), nil)
		s.Write(dir, 0xfedcba98, 0xfedcba9876543210, octets(n))
		s.Write(dir, 1, 0, nil)
		s.Read(dir, 1, rdmap.ReadRequest{SinkSTag: 0x11223344, SinkTO: 1 << 63, Size: uint32(n), SourceSTag: 0x55667788, SourceTO: uint64(k)}, octets(n))
	}
}

func TestFramings(t *testing.T) {
	need(t)
	c := &wiretest.Capture{}
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
		conn := c.Open(wiretest.Client, netip.AddrPortFrom(wiretest.Server.Addr(), uint16(20001+i)))
		s := conn.Start(wiretest.Enhanced(mpa.KindRequest, tc.crc, 4, 4), wiretest.Enhanced(mpa.KindReply, tc.crc, 4, 4))
		s.MULPDU, c.MSS = min(tc.mulpdu, mpa.MaxULPDU), tc.mss
		if tc.hold {
			s.Hold()
		}
		all(s, tc.octets)
		if tc.hold {
			s.Release()
		}
		s.Close()
		c.MSS = 0
	}
	agree(t, c)
}

// FPDUs of which few octets end a segment: tshark can follow most, and we know
// which it can't.
func TestFPDUsAcrossSegments(t *testing.T) {
	need(t)
	c := &wiretest.Capture{}
	n := 0
	for mss := 40; mss < 1500; mss += 7 {
		conn := c.Open(wiretest.Client, netip.AddrPortFrom(wiretest.Server.Addr(), uint16(20001+n)))
		s := conn.Start(wiretest.Enhanced(mpa.KindRequest, true, 4, 4), wiretest.Enhanced(mpa.KindReply, true, 4, 4))
		c.MSS = mss
		s.Hold()
		for k := range 30 {
			s.SendMessage(wire.ToResponder, uint32(k+1), octets(k*70))
		}
		s.Release()
		s.Close()
		c.MSS = 0
		n++
	}
	_, _, w := show(t, c, 0)
	if !w.Agrees {
		t.Errorf("tshark does not agree: %s", w.Why)
	}
	if w.Frames < n*15 {
		t.Errorf("tshark sees only %d frames of %d connections", w.Frames, n)
	}
}

func TestStartups(t *testing.T) {
	need(t)
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
	m := newMany()
	for _, tc := range cases {
		q, r := wiretest.Enhanced(mpa.KindRequest, false, 3, 0x3fff), wiretest.Enhanced(mpa.KindReply, false, 128, 0)
		tc.change(&q, &r)
		s := m.open(tc.name).Start(q, r)
		if !r.Reject {
			s.SendMessage(wire.ToResponder, 1, octets(10))
		}
		s.Close()
	}
	for i, conn := range m.agree(t, true).Conns {
		if got := (&wire.Trace{Conns: []*wire.Conn{conn}}).Count(); got != cases[i].frames {
			t.Errorf("%s: %d frames, want %d", cases[i].name, got, cases[i].frames)
		}
	}
}

func TestWrongCRC(t *testing.T) {
	need(t)
	c := &wiretest.Capture{}
	s := c.Begin(true)
	for i := range 3 {
		s.SendMessage(wire.ToResponder, uint32(i+1), octets(9))
		if i == 1 {
			data := c.Packets[len(c.Packets)-1].Data
			data[len(data)-1] ^= 0x80 // of the CRC field itself
		}
	}
	trace := agree(t, c)
	if f := trace.Conns[0].FPDUs(wire.ToResponder); !f[1].CRCWrong || f[2].CRCWrong {
		t.Error("the second CRC is wrong, and only that")
	}
}

func TestTerminates(t *testing.T) {
	need(t)
	send, write := rdmap.SendHeader(rdmap.OpSend, 0, 5, 0, true), rdmap.WriteHeader(9, 7, true)
	read := rdmap.ReadRequest{SinkSTag: 1, SinkTO: 2, Size: 3, SourceSTag: 4, SourceTO: 5}
	readHeader := rdmap.ReadRequestHeader(1)
	m := newMany()
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
	m.agree(t, true)
}

// many is a capture of many cases, each a connection to a port of its own:
// asking tshark takes longer than all that it is asked.
type many struct {
	wiretest.Capture
	names []string
}

func newMany() *many { return &many{} }

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
	trace, _, w := show(t, &m.Capture, 0)
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

// What is illegal is compared as well, but for what tshark makes nothing of.
func TestIllegalFrames(t *testing.T) {
	need(t)
	send := rdmap.SendHeader(rdmap.OpSend, 0, 1, 0, true)
	with := func(change func(h *ddp.Header)) []byte {
		h := send
		change(&h)
		return h.AppendTo(nil)
	}
	readRequest, terminate := rdmap.ReadRequestHeader(1), rdmap.TerminateHeader()
	taggedRead := readRequest
	taggedRead.Tagged = true
	m := newMany()
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
	m.agree(t, true)
}

// Where tshark sees less by its own rules, that is no disagreement.
func TestWhatTsharkCannotSee(t *testing.T) {
	need(t)
	request, reply := wiretest.Enhanced(mpa.KindRequest, true, 4, 4), wiretest.Enhanced(mpa.KindReply, true, 4, 4)
	req, rep := request.AppendTo(nil), reply.AppendTo(nil)
	m := newMany()
	type sendFunc func(*wiretest.Conn, wire.Direction, []byte)
	whole := func(c *wiretest.Conn, dir wire.Direction, b []byte) { c.Send(dir, b) }
	pieces := func(n int) sendFunc {
		return func(c *wiretest.Conn, dir wire.Direction, b []byte) {
			for len(b) > 0 {
				k := min(n, len(b))
				c.Send(dir, b[:k])
				b = b[k:]
			}
		}
	}
	header := rdmap.SendHeader(rdmap.OpSend, 0, 1, 0, true)
	framer := mpa.NewFramer(false, true)
	send, err := framer.AppendFPDU(nil, append(header.AppendTo(nil), octets(8)...))
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name string
		tell func(c *wiretest.Conn)
	}{
		{"request in pieces of 10 octets", func(c *wiretest.Conn) {
			pieces(10)(c, wire.ToResponder, req)
			whole(c, wire.ToInitiator, rep)
			whole(c, wire.ToResponder, send)
		}},
		{"request in pieces of 20 octets", func(c *wiretest.Conn) {
			pieces(20)(c, wire.ToResponder, req)
			whole(c, wire.ToInitiator, rep)
			whole(c, wire.ToResponder, send)
		}},
		{"reply in pieces", func(c *wiretest.Conn) {
			whole(c, wire.ToResponder, req)
			pieces(3)(c, wire.ToInitiator, rep)
			whole(c, wire.ToResponder, send)
		}},
		{"FPDU in pieces of 1 octet", func(c *wiretest.Conn) {
			whole(c, wire.ToResponder, req)
			whole(c, wire.ToInitiator, rep)
			pieces(1)(c, wire.ToResponder, send)
			whole(c, wire.ToResponder, send)
		}},
		{"FPDU in pieces of 8 octets", func(c *wiretest.Conn) {
			whole(c, wire.ToResponder, req)
			whole(c, wire.ToInitiator, rep)
			pieces(8)(c, wire.ToResponder, send)
			whole(c, wire.ToResponder, send)
		}},
		{"FPDU after the request", func(c *wiretest.Conn) {
			whole(c, wire.ToResponder, append(req[:len(req):len(req)], send...))
			whole(c, wire.ToInitiator, rep)
			whole(c, wire.ToResponder, send)
		}},
		{"FPDU before the reply", func(c *wiretest.Conn) {
			whole(c, wire.ToResponder, req)
			whole(c, wire.ToResponder, send)
			whole(c, wire.ToInitiator, rep)
			whole(c, wire.ToResponder, send)
		}},
		{"FPDU in the reply's segment", func(c *wiretest.Conn) {
			whole(c, wire.ToResponder, req)
			whole(c, wire.ToInitiator, append(rep[:len(rep):len(rep)], send...))
			whole(c, wire.ToInitiator, send)
			whole(c, wire.ToResponder, send)
		}},
		{"no reply", func(c *wiretest.Conn) { whole(c, wire.ToResponder, req) }},
		{"no reply, and an FPDU", func(c *wiretest.Conn) {
			whole(c, wire.ToResponder, req)
			whole(c, wire.ToResponder, send)
		}},
		{"request cut short", func(c *wiretest.Conn) {
			whole(c, wire.ToResponder, req[:22])
			c.FIN(wire.ToResponder)
		}},
		{"request cut shorter", func(c *wiretest.Conn) {
			whole(c, wire.ToResponder, req[:17])
			c.FIN(wire.ToResponder)
		}},
		{"request with a wrong key", func(c *wiretest.Conn) {
			bad := append([]byte("MPA id Req Frame"), req[16:]...)
			whole(c, wire.ToResponder, bad)
			c.RST(wire.ToInitiator)
		}},
		{"a request for a reply", func(c *wiretest.Conn) {
			whole(c, wire.ToResponder, req)
			whole(c, wire.ToInitiator, req)
			c.FIN(wire.ToResponder)
		}},
		{"a reply for a request", func(c *wiretest.Conn) { whole(c, wire.ToResponder, rep) }},
		{"PD_Length above 512", func(c *wiretest.Conn) {
			long := uint16(513)
			whole(c, wire.ToResponder, mpa.Frame{Revision: 1, PDLength: &long, PrivateData: octets(513)}.AppendTo(nil))
			c.RST(wire.ToInitiator)
		}},
		{"octets after a rejection", func(c *wiretest.Conn) {
			whole(c, wire.ToResponder, req)
			no := reply
			no.Reject = true
			whole(c, wire.ToInitiator, no.AppendTo(nil))
			whole(c, wire.ToResponder, send)
		}},
		{"FPDU cut short", func(c *wiretest.Conn) {
			whole(c, wire.ToResponder, req)
			whole(c, wire.ToInitiator, rep)
			whole(c, wire.ToResponder, send[:15])
			c.FIN(wire.ToResponder)
		}},
		{"a ULPDU_Length beyond what is sent", func(c *wiretest.Conn) {
			whole(c, wire.ToResponder, req)
			whole(c, wire.ToInitiator, rep)
			whole(c, wire.ToResponder, append([]byte{0xff, 0xff}, send[2:]...))
			whole(c, wire.ToResponder, send)
			c.FIN(wire.ToResponder)
		}},
		{"not iWARP", func(c *wiretest.Conn) { whole(c, wire.ToResponder, []byte("GET / HTTP/1.1\r\n\r\n")) }},
		{"nothing", func(*wiretest.Conn) {}},
	} {
		tc.tell(m.open(tc.name))
	}
	for bits := 1; bits < 4; bits++ {
		q, r := request, reply
		q.Markers, r.Markers = bits&1 != 0, bits&2 != 0
		s := m.open(fmt.Sprintf("Markers %02b", bits)).Start(q, r)
		s.Hold()
		all(s, 2000)
		s.Release()
		s.Close()
	}
	m.agree(t, false)
}

func TestRetransmissions(t *testing.T) {
	need(t)
	c := &wiretest.Capture{}
	s := c.Begin(true)
	s.SendMessage(wire.ToResponder, 1, octets(20_000))
	for _, i := range []int{5, 7, 9} {
		c.Packets = append(c.Packets, c.Packets[i])
	}
	s.SendMessage(wire.ToResponder, 2, octets(2000))
	s.Close()
	agree(t, c)
}

// No port of the suite's is another protocol's to tshark, and none of the ports
// that systems give to initiators.
func TestPorts(t *testing.T) {
	need(t)
	c := &wiretest.Capture{}
	n := 0
	for port := uint16(20000); port <= 21100; port++ {
		server := netip.AddrPortFrom(wiretest.Server.Addr(), port)
		client := netip.AddrPortFrom(wiretest.Client.Addr(), 32768+port*7%28000)
		s := c.Open(client, server).Start(wiretest.Enhanced(mpa.KindRequest, true, 1, 1), wiretest.Enhanced(mpa.KindReply, true, 1, 1))
		s.SendMessage(wire.ToResponder, 1, octets(int(port%97)))
		s.SendMessage(wire.ToInitiator, 1, make([]byte, port%89))
		s.Close()
		n += 4
	}
	if got := agree(t, c).Count(); got != n {
		t.Errorf("%d frames, want %d", got, n)
	}
}

func TestPortsUsedAgain(t *testing.T) {
	need(t)
	c := &wiretest.Capture{}
	for i := range 3 {
		conn := c.DialISN(wiretest.Client, wiretest.Server, [2]uint32{uint32(i+1) * 1e6, uint32(i+1) * 3e6})
		conn.Handshake()
		s := conn.Start(wiretest.Enhanced(mpa.KindRequest, i == 1, 1, 1), wiretest.Enhanced(mpa.KindReply, false, 1, 1))
		s.SendMessage(wire.ToResponder, 1, octets(i*10))
		s.Close()
	}
	if _, _, w := show(t, c, 0); !w.Agrees {
		t.Errorf("tshark does not agree: %s", w.Why)
	}
}

func TestLinkTypes(t *testing.T) {
	need(t)
	var exhibits []conformance.Exhibit
	var names []string
	capture := func(name string, c *wiretest.Capture, client, server netip.Addr) {
		port := uint16(firstPort + len(names))
		s := c.Open(netip.AddrPortFrom(client, 40000), netip.AddrPortFrom(server, port)).
			Start(wiretest.Enhanced(mpa.KindRequest, true, 4, 4), wiretest.Enhanced(mpa.KindReply, true, 4, 4))
		all(s, 50)
		s.Close()
		file := filepath.Join(t.TempDir(), "capture.pcapng")
		if err := os.WriteFile(file, c.Pcapng(), 0o644); err != nil {
			t.Fatal(err)
		}
		trace, err := wire.ReadFile(file, port)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		names = append(names, name)
		exhibits = append(exhibits, conformance.Exhibit{File: file, Port: port, Ours: trace})
	}
	for name, c := range map[string]*wiretest.Capture{
		"raw IP":         {Link: layers.LinkTypeRaw},
		"VLAN":           {VLANs: []uint16{5}},
		"Linux cooked":   {Link: layers.LinkTypeLinuxSLL},
		"Linux cooked 2": {Link: layers.LinkTypeLinuxSLL2},
		"BSD loopback":   {Link: wiretest.LinkNull},
	} {
		capture(name, c, wiretest.Client.Addr(), wiretest.Server.Addr())
	}
	capture("IPv6", &wiretest.Capture{}, netip.MustParseAddr("2001:db8::1"), netip.MustParseAddr("2001:db8::2"))
	for i, w := range Witness(t.Context(), exhibits) {
		if ours := exhibits[i].Ours.Count(); !w.Asked || !w.Agrees || w.Frames != ours || ours == 0 {
			t.Errorf("%s: tshark does not agree, or sees %d frames, we %d: %s", names[i], w.Frames, ours, w.Why)
		}
	}
}
