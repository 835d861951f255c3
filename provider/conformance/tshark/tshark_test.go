package tshark

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gopacket/gopacket/layers"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider/conformance"
	"github.com/govs-rdma/govs/provider/conformance/wire"
	"github.com/govs-rdma/govs/provider/conformance/wire/wiretest"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// need ends a test if tshark can't be run, which is a failure if GOVS_REQUIRE_TSHARK is
// set.
func need(t *testing.T) {
	t.Helper()
	switch {
	case Available():
	case os.Getenv("GOVS_REQUIRE_TSHARK") != "":
		_, err := Version()
		t.Fatal(err)
	default:
		t.Skip("tshark can't be asked")
	}
}

// about asks tshark about one file.
func about(file string, port uint16, ours *wire.Trace) conformance.Witness {
	return Witness(context.Background(), []conformance.Exhibit{{File: file, Port: port, Ours: ours}})[0]
}

// save writes a capture, and returns what we see in it.
func save(t *testing.T, c *wiretest.Capture) (*wire.Trace, string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "capture.pcap")
	testkit.OK(t, os.WriteFile(file, c.Pcap(), 0o644))
	return testkit.Must(wire.ReadFile(file, 0))(t), file
}

// show asks tshark about a capture.
func show(t *testing.T, c *wiretest.Capture) (*wire.Trace, conformance.Witness) {
	t.Helper()
	trace, file := save(t, c)
	return trace, about(file, 0, trace)
}

// decoded returns the connections of a file as tshark sees them. Starting tshark takes a second of
// processor time, so a test that compares them several times asks once.
func decoded(t *testing.T, file string) []*conn {
	t.Helper()
	return testkit.Must(parse(testkit.Must(run(t.Context(), file))(t)))(t)
}

// agree makes tshark read a capture, and wants it to see all frames as we do.
func agree(t *testing.T, c *wiretest.Capture) *wire.Trace {
	t.Helper()
	trace, w := show(t, c)
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
	theirs := decoded(t, file)
	for port, frames := range map[uint16]int{0: 167, 7174: 37, 18515: 130} {
		trace := testkit.Must(wire.ReadFile(file, port))(t)
		conns, seen := connsOf(theirs, port), 0
		for _, c := range conns {
			seen += len(c.frames[0]) + len(c.frames[1])
		}
		if why := compare(trace, conns); why != "" || seen != frames {
			t.Errorf("port %d: %q, and %d frames, want agreement about %d", port, why, seen, frames)
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

// FPDUs of which only a few octets are at the end of a segment: tshark can follow most, and we
// know which it can't.
func TestFPDUsAcrossSegments(t *testing.T) {
	need(t)
	c := &wiretest.Capture{}
	n := 0
	for mss := 40; mss < 1500; mss += 23 { // an odd step: each remainder of 8 comes
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
	_, w := show(t, c)
	if !w.Agrees {
		t.Errorf("tshark does not agree: %s", w.Why)
	}
	if w.Frames < n*15 {
		t.Errorf("tshark sees only %d frames of %d connections", w.Frames, n)
	}
}

// It is no disagreement if tshark sees less by its own rules.
func TestWhatTsharkCannotSee(t *testing.T) {
	need(t)
	request, reply := wiretest.Enhanced(mpa.KindRequest, true, 4, 4), wiretest.Enhanced(mpa.KindReply, true, 4, 4)
	req, rep := request.AppendTo(nil), reply.AppendTo(nil)
	no := reply
	no.Reject = true
	long := uint16(513)
	tooLong := mpa.Frame{Revision: 1, PDLength: &long, PrivateData: octets(513)}
	header := rdmap.SendHeader(rdmap.OpSend, 0, 1, 0, true)
	framer := mpa.NewFramer(false, true)
	send := testkit.Must(framer.AppendFPDU(nil, append(header.AppendTo(nil), octets(8)...)))(t)

	type step func(*wiretest.Conn)
	pieces := func(n int, dir wire.Direction, b []byte) step {
		return func(c *wiretest.Conn) {
			for piece := range slices.Chunk(b, n) {
				c.Send(dir, piece)
			}
		}
	}
	out := func(b []byte) step { return pieces(len(b), wire.ToResponder, b) }
	back := func(b []byte) step { return pieces(len(b), wire.ToInitiator, b) }
	fin := func(c *wiretest.Conn) { c.FIN(wire.ToResponder) }
	rst := func(c *wiretest.Conn) { c.RST(wire.ToInitiator) }
	m := &many{}
	for _, tc := range []struct {
		name  string
		steps []step
	}{
		{"request in pieces of 10 octets", []step{pieces(10, wire.ToResponder, req), back(rep), out(send)}},
		{"request in pieces of 20 octets", []step{pieces(20, wire.ToResponder, req), back(rep), out(send)}},
		{"reply in pieces", []step{out(req), pieces(3, wire.ToInitiator, rep), out(send)}},
		{"FPDU in pieces of 1 octet", []step{out(req), back(rep), pieces(1, wire.ToResponder, send), out(send)}},
		{"FPDU in pieces of 8 octets", []step{out(req), back(rep), pieces(8, wire.ToResponder, send), out(send)}},
		{"FPDU after the request", []step{out(slices.Concat(req, send)), back(rep), out(send)}},
		{"FPDU before the reply", []step{out(req), out(send), back(rep), out(send)}},
		{"FPDU in the reply's segment", []step{out(req), back(slices.Concat(rep, send)), back(send), out(send)}},
		{"no reply", []step{out(req)}},
		{"no reply, and an FPDU", []step{out(req), out(send)}},
		{"request cut short", []step{out(req[:22]), fin}},
		{"request cut shorter", []step{out(req[:17]), fin}},
		{"request with a wrong key", []step{out(append([]byte("MPA id Req Frame"), req[16:]...)), rst}},
		{"a request for a reply", []step{out(req), back(req), fin}},
		{"a reply for a request", []step{out(rep)}},
		{"PD_Length above 512", []step{out(tooLong.AppendTo(nil)), rst}},
		{"octets after a rejection", []step{out(req), back(no.AppendTo(nil)), out(send)}},
		{"FPDU cut short", []step{out(req), back(rep), out(send[:15]), fin}},
		{"a ULPDU_Length beyond what is sent", []step{
			out(req), back(rep), out(append([]byte{0xff, 0xff}, send[2:]...)), out(send), fin}},
		{"not iWARP", []step{out([]byte("GET / HTTP/1.1\r\n\r\n"))}},
		{"nothing", nil},
	} {
		c := m.open(tc.name)
		for _, do := range tc.steps {
			do(c)
		}
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

// For tshark, no port of the suite belongs to another protocol, nor does any of the ports that
// systems give to initiators.
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
	if _, w := show(t, c); !w.Agrees {
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

// tshark knows RFC 7306, and sees in the octets of its figures what we see.
func TestExtensions(t *testing.T) {
	need(t)
	var c wiretest.Capture
	c.Extended()
	trace, file := save(t, &c)
	theirs := decoded(t, file)
	if why := compare(trace, theirs); why != "" {
		t.Errorf("tshark does not agree: %s", why)
	}
	if c := theirs[0]; len(c.frames[0])+len(c.frames[1]) != trace.Count() {
		t.Errorf("tshark sees %d and %d frames, we %d", len(c.frames[0]), len(c.frames[1]), trace.Count())
	}
	for i := range trace.Conns[0].Frames { // and says so where we do not
		if f := &trace.Conns[0].Frames[i]; f.Atomic != nil {
			f.Atomic.Mask++
		}
	}
	if compare(trace, theirs) == "" {
		t.Error("tshark agrees to another mask")
	}
}
