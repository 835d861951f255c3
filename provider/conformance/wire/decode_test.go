package wire_test

import (
	"encoding/binary"
	"errors"
	"hash/crc32"
	"slices"
	"strings"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider/conformance/wire"
	"github.com/govs-rdma/govs/provider/conformance/wire/wiretest"
	"github.com/govs-rdma/govs/provider/iwarp"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// everything sends each kind of message, of several sizes, in both directions.
func everything(s *wiretest.Session) {
	for i, n := range []int{0, 1, 5, 1000, 70000} {
		msn := uint32(i + 1)
		for _, dir := range []wire.Direction{wire.ToResponder, wire.ToInitiator} {
			s.SendMessage(dir, msn, octets(n))
			s.Write(dir, 0x1000+uint32(dir), 0x7f0000001000, octets(n))
			s.Read(dir, msn, rdmap.ReadRequest{SinkSTag: 0x2000 + uint32(dir), SinkTO: 0x5000, Size: uint32(n), SourceSTag: 0x3000, SourceTO: 8}, octets(n))
		}
	}
	s.SendInvalidate(wire.ToResponder, 6, 0x1000, nil)
}

// carried collects the payload that a direction carried by opcode.
func carried(t *testing.T, c *wire.Conn, dir wire.Direction) map[rdmap.Opcode]int {
	t.Helper()
	n := make(map[rdmap.Opcode]int)
	for _, f := range c.FPDUs(dir) {
		if f.Err != nil {
			t.Fatalf("%s: %v", f, f.Err)
		}
		n[f.Opcode()] += len(f.Payload)
	}
	return n
}

func TestFramings(t *testing.T) {
	const total = 0 + 1 + 5 + 1000 + 70000
	for _, crc := range []bool{false, true} {
		for markers := range 4 { // bit 0: to the responder, bit 1: to the initiator
			for _, mulpdu := range []int{128, 1420, mpa.MaxULPDU} {
				c := newCapture()
				request, reply := wiretest.Enhanced(mpa.KindRequest, crc, 4, 4), wiretest.Enhanced(mpa.KindReply, false, 4, 4)
				reply.Markers, request.Markers = markers&1 != 0, markers&2 != 0
				s := c.Open(wiretest.Client, wiretest.Server).Start(request, reply)
				s.MULPDU = mulpdu
				everything(s)
				conn := testkit.Must(c.Trace(0))(t).Conns[0]
				if conn.CRC() != crc {
					t.Errorf("CRCs are %v, want %v", conn.CRC(), crc)
				}
				for _, dir := range []wire.Direction{wire.ToResponder, wire.ToInitiator} {
					got := carried(t, conn, dir)
					for _, op := range []rdmap.Opcode{rdmap.OpSend, rdmap.OpWrite, rdmap.OpReadResponse} {
						if got[op] != total {
							t.Errorf("CRC %v, Markers %02b, MULPDU %d: %v %v carries %d octets, want %d", crc, markers, mulpdu, dir, op, got[op], total)
						}
					}
				}
			}
		}
	}
}

func TestMarkerThatPointsElsewhere(t *testing.T) {
	c := newCapture()
	request, reply := wiretest.Enhanced(mpa.KindRequest, false, 4, 4), wiretest.Enhanced(mpa.KindReply, false, 4, 4)
	reply.Markers = true
	s := c.Open(wiretest.Client, wiretest.Server).Start(request, reply)
	s.SendMessage(wire.ToResponder, 1, octets(5))
	first := len(c.Packets) - 1
	binary.BigEndian.PutUint16(c.Packets[first].Data[54+2:], 4) // the FPDUPTR of the Marker that starts the stream
	conn := testkit.Must(c.Trace(0))(t).Conns[0]
	if got := lastLine(conn); !strings.Contains(got, "36 octets not decoded") || !strings.Contains(got, mpa.ErrMarker.Error()) {
		t.Errorf("the last line is %q", got)
	}
}

func TestWrongCRC(t *testing.T) {
	c := newCapture()
	s := c.Begin(true)
	s.SendMessage(wire.ToResponder, 1, octets(5))
	spoiled := len(c.Packets) - 1
	s.SendMessage(wire.ToResponder, 2, octets(5))
	data := c.Packets[spoiled].Data
	data[len(data)-8] ^= 1 // the payload's last octet
	conn := testkit.Must(c.Trace(0))(t).Conns[0]
	f := conn.FPDUs(wire.ToResponder)
	if len(f) != 2 || !f[0].CRCWrong || f[1].CRCWrong || f[1].Err != nil {
		t.Fatalf("FPDUs %v: the first has a wrong CRC, the second a right one", f)
	}
	if got := story(conn)[2]; !strings.Contains(got, "WRONG") || !strings.Contains(got, mpa.ErrCRC.Error()) {
		t.Errorf("the ladder says %q", got)
	}
}

// TestCRCOfTwoSenders: the wrong CRCs of siw's two senders are distinguished from others
// (kernel-notes/siw-two-senders.md).
func TestCRCOfTwoSenders(t *testing.T) {
	for _, twice := range []bool{true, false} {
		c, castagnoli := newCapture(), crc32.MakeTable(crc32.Castagnoli)
		s := c.Begin(true)
		s.SendMessage(wire.ToResponder, 1, octets(5))
		data := c.Packets[len(c.Packets)-1].Data
		fpdu := data[54:] // after the headers of Ethernet, IPv4 and TCP
		covered, field := fpdu[:len(fpdu)-4], fpdu[len(fpdu)-4:]
		again := covered[2+18:] // payload and pad; the ULPDU length and an untagged header come first
		if !twice {
			again = again[:5]
		}
		sum := crc32.Update(crc32.Checksum(covered, castagnoli), castagnoli, again)
		binary.LittleEndian.PutUint32(field, sum)
		conn := testkit.Must(c.Trace(0))(t).Conns[0]
		f := conn.FPDUs(wire.ToResponder)
		if len(f) != 1 || !f[0].CRCWrong || !errors.Is(f[0].Err, mpa.ErrCRC) {
			t.Fatalf("FPDUs %v: one has a wrong CRC", f)
		}
		if got := story(conn)[2]; strings.Contains(got, "covers the payload twice") != twice {
			t.Errorf("the payload twice: %t: the ladder says %q", twice, got)
		}
	}
}

// Illegal frames are decoded as far as possible, with what is wrong.
func TestIllegalSegments(t *testing.T) {
	send := rdmap.SendHeader(rdmap.OpSend, 0, 1, 0, true)
	change := func(f func(h *ddp.Header)) ddp.Header {
		h := send
		f(&h)
		return h
	}
	for _, tc := range []struct {
		name  string
		ulpdu []byte
		err   error
		line  string
	}{
		{"nothing in it", nil, ddp.ErrShortSegment, "FPDU of 0 octets: "},
		{"half a header", octets(17), nil, "QN 1"},
		{"DDP version", appendHeader(change(func(h *ddp.Header) { h.Version = 2 })), ddp.ErrUntaggedVersion, "Send L QN 0 MSN 1 MO 0 length 0"},
		{"RDMAP version", appendHeader(change(func(h *ddp.Header) { h.ULPCtl = 0x83 })), rdmap.ErrVersion, "Send L QN 0 MSN 1"},
		{"opcode", appendHeader(change(func(h *ddp.Header) { h.ULPCtl = 0x4c })), rdmap.ErrReservedOpcode, "QN 0 MSN 1"},
		{"T bit", appendHeader(change(func(h *ddp.Header) { h.Tagged = true })), rdmap.ErrBufferModel, "Send L STag 0x00000000"},
		{"short Read Request", append(appendHeader(rdmap.ReadRequestHeader(1)), octets(27)...), rdmap.ErrShortReadRequest, "RDMA Read Request L QN 1 MSN 1 MO 0 length 27"},
		{"long Read Request", append(appendHeader(rdmap.ReadRequestHeader(1)), octets(29)...), rdmap.ErrLongReadReq, "RDMA Read Request L QN 1 MSN 1 MO 0 length 29"},
		{"short Terminate", append(appendHeader(rdmap.TerminateHeader()), octets(3)...), rdmap.ErrShortTerminate, "Terminate L QN 2 MSN 1 MO 0 length 3"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.name == "half a header" {
				tc.ulpdu[0], tc.err, tc.line = 0x41, ddp.ErrShortSegment, "FPDU of 17 octets: 41"
			}
			c := newCapture()
			s := c.Begin(false)
			s.ULPDU(wire.ToResponder, tc.ulpdu)
			s.SendMessage(wire.ToResponder, 1, nil)
			f := testkit.Must(c.Trace(0))(t).Conns[0].FPDUs(wire.ToResponder)
			if len(f) != 2 || f[1].Err != nil {
				t.Fatalf("FPDUs %v: what follows the illegal one is not seen", f)
			}
			if f[0].Err != tc.err || !strings.Contains(f[0].String(), tc.line) {
				t.Errorf("got %q with %v, want %q with %v", f[0], f[0].Err, tc.line, tc.err)
			}
		})
	}
}

func appendHeader(h ddp.Header) []byte { return h.AppendTo(nil) }

func TestTerminates(t *testing.T) {
	bad := rdmap.SendHeader(rdmap.OpSend, 0, 5, 0, true)
	term := rdmap.NewTerminate(ddp.ErrMSNRange, &bad, 23, nil)
	for _, siw := range []bool{false, true} {
		c := newCapture()
		s := c.Begin(false)
		s.FPDU(wire.ToResponder, bad, octets(5))
		s.Terminate(wire.ToInitiator, term, siw)
		f := testkit.Must(c.Trace(0))(t).Conns[0].FPDUs(wire.ToInitiator)[0]
		if f.Terminate == nil || f.Err != nil {
			t.Fatalf("%v: %v", f, f.Err)
		}
		layout := rdmap.LayoutRFC
		if siw {
			layout = rdmap.LayoutSIW
		}
		got := f.Terminate
		if got.Layout != layout || got.Layer != iwarp.LayerDDP || got.Code != iwarp.DDPUntaggedMSNRange || !got.HaveDDP || got.DDP != bad {
			t.Errorf("siw %v: %+v", siw, got)
		}
	}
}

// If the octets of a Terminate can mean two things, what came before it decides
// (rdmap.Layout): 20 06 is the RFC's "insufficient IRD", about the start-up, or
// siw's "unexpected opcode", about a message.
func TestTerminatePhase(t *testing.T) {
	for _, tc := range []struct {
		after  bool
		layout rdmap.Layout
	}{{false, rdmap.LayoutRFC}, {true, rdmap.LayoutSIW}} {
		for _, dir := range []wire.Direction{wire.ToResponder, wire.ToInitiator} {
			c := newCapture()
			s := c.Begin(false)
			if tc.after {
				s.SendMessage(1-dir, 1, nil)
			}
			s.FPDU(dir, rdmap.TerminateHeader(), []byte{0x20, 0x06, 0, 0})
			s.SendMessage(1-dir, 2, nil) // too late to matter
			f := testkit.Must(c.Trace(0))(t).Conns[0].FPDUs(dir)[0]
			if f.Terminate == nil || f.Terminate.Layout != tc.layout {
				t.Errorf("%v, after an FPDU %v: %v, want the %v layout", dir, tc.after, f, tc.layout)
			}
		}
	}
}

func TestStartupThatEndsThere(t *testing.T) {
	open := func() (*wiretest.Capture, *wiretest.Conn) {
		c := newCapture()
		return c, c.Open(wiretest.Client, wiretest.Server)
	}
	enhanced := wiretest.Enhanced(mpa.KindRequest, false, 4, 4)
	req := enhanced.AppendTo(nil)
	t.Run("request cut short", func(t *testing.T) {
		c, conn := open()
		conn.Send(wire.ToResponder, req[:21])
		want(t, testkit.Must(c.Trace(0))(t).Conns[0],
			"--> 21 octets not decoded: 4d504120494420526571204672616d65...  !! cut short: the stream ends inside the frame")
	})
	t.Run("FPDU without a reply", func(t *testing.T) {
		c, conn := open()
		conn.Send(wire.ToResponder, append(req, 0, 1, 2))
		want(t, testkit.Must(c.Trace(0))(t).Conns[0], request,
			"--> 3 octets not decoded: 000102  !! octets without an MPA Reply to say how they are framed")
	})
	t.Run("rejected, and octets after it", func(t *testing.T) {
		c, conn := open()
		reply := wiretest.Enhanced(mpa.KindReply, false, 4, 4)
		reply.Reject = true
		s := conn.Start(enhanced, reply)
		s.Octets(wire.ToResponder, []byte{1, 2, 3})
		want(t, testkit.Must(c.Trace(0))(t).Conns[0], request, "<-- MPA Reply Frame rev 2 R S IRD 4 ORD 4",
			"--> 3 octets not decoded: 010203  !! octets although the MPA Reply rejects the connection")
	})
	t.Run("request with a PD_Length beyond the limit", func(t *testing.T) {
		c, conn := open()
		long := uint16(600)
		f := mpa.Frame{Kind: mpa.KindRequest, Revision: 1, PDLength: &long}
		conn.Send(wire.ToResponder, f.AppendTo(nil))
		if got := lastLine(testkit.Must(c.Trace(0))(t).Conns[0]); !strings.Contains(got, mpa.ErrPDLength.Error()) {
			t.Errorf("the line is %q", got)
		}
	})
	t.Run("FPDU cut short", func(t *testing.T) {
		c, _ := open()
		c.Packets = nil
		s := c.Begin(false)
		s.Octets(wire.ToInitiator, []byte{0, 30, 0x41})
		want(t, testkit.Must(c.Trace(0))(t).Conns[0], request, reply,
			"<-- 3 octets not decoded: 001e41  !! cut short: the stream ends inside the frame")
	})
}

// TestDecode: each frame of the ladder belongs to one message of its direction, which has the kind
// of the line. Messages stand in the order of their first lines.
func TestDecode(t *testing.T) {
	trace := tell(t, ordinary, nil)
	ladder := trace.Ladder()
	owner := make([]string, len(ladder))
	last := -1
	for _, d := range trace.Decode() {
		if len(d.Fields) == 0 {
			t.Errorf("%s has no fields", d.Kind)
		}
		if len(d.Lines) > 0 {
			if d.Lines[0] < last {
				t.Errorf("%s of line %d comes after line %d", d.Kind, d.Lines[0], last)
			}
			last = d.Lines[0]
		}
		arrow := "-->"
		if d.Dir == wire.ToInitiator {
			arrow = "<--"
		}
		for _, i := range d.Lines {
			if owner[i] != "" {
				t.Errorf("line %d belongs to %s and to %s", i, owner[i], d.Kind)
			}
			owner[i] = d.Kind
			if !strings.Contains(ladder[i], arrow) {
				t.Errorf("line %d goes %s, but is: %s", i, d.Dir, ladder[i])
			}
		}
		if d.Kind == "terminate" && !strings.Contains(ladder[d.Lines[0]], "Terminate") {
			t.Errorf("a terminate is line %q", ladder[d.Lines[0]])
		}
	}
	if i := slices.Index(owner, ""); i >= 0 {
		t.Errorf("line %d belongs to no message: %s", i, ladder[i])
	}
	if !slices.Contains(owner, "terminate") {
		t.Errorf("no terminate among %q", owner)
	}
}
