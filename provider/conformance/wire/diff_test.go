package wire_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider/conformance/wire"
	"github.com/govs-rdma/govs/provider/conformance/wire/wiretest"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// terms are what may differ between two tellings of a story.
type terms struct {
	stags  [4]uint32
	base   uint64
	mulpdu int
	mss    int
	hold   bool
	client netip.AddrPort
}

var ordinary = terms{stags: [4]uint32{0x100, 0x200, 0x300, 0x400}, base: 0x7f0000000000, mulpdu: 1420, client: wiretest.Client}

// tell makes a connection with all kinds of messages; change alters one of them.
func tell(t *testing.T, w terms, change func(*telling)) *wire.Trace {
	t.Helper()
	c := newCapture()
	c.MSS = w.mss
	s := telling{
		terms: w, c: c,
		request: wiretest.Enhanced(mpa.KindRequest, true, 4, 4), reply: wiretest.Enhanced(mpa.KindReply, true, 4, 4),
		first: octets(3000), msn: 1, writeTo: 16, readSize: 2000, invalidate: w.stags[0], endInitiator: (*wiretest.Session).FIN,
		response: func(*rdmap.ReadRequest) {},
		term: rdmap.NewTerminate(ddp.ErrNoBuffer, &ddp.Header{
			Version: 1, Last: true, ULPCtl: 0x43, MSN: 2,
		}, 23, nil),
	}
	if change != nil {
		change(&s)
	}
	s.tell()
	return testkit.Must(c.Trace(0))(t)
}

type telling struct {
	terms
	c              *wiretest.Capture
	request, reply mpa.Frame
	first          []byte
	msn            uint32
	writeTo        uint64
	readSize       uint32
	invalidate     uint32
	response       func(*rdmap.ReadRequest)
	term           rdmap.Terminate
	siw            bool
	endInitiator   func(*wiretest.Session, wire.Direction)
	lateRST        bool
}

func (w *telling) tell() {
	s := w.c.Open(w.client, wiretest.Server).Start(w.request, w.reply)
	s.MULPDU = w.mulpdu
	if w.hold {
		s.Hold()
	}
	s.SendMessage(wire.ToResponder, w.msn, w.first)
	s.Write(wire.ToResponder, w.stags[0], w.base+w.writeTo, octets(100))
	s.Write(wire.ToResponder, w.stags[0], w.base, octets(4000))
	r := rdmap.ReadRequest{SinkSTag: w.stags[1], SinkTO: w.base + 64, Size: w.readSize, SourceSTag: w.stags[2], SourceTO: w.base + 8}
	s.FPDU(wire.ToResponder, rdmap.ReadRequestHeader(1), r.AppendTo(nil))
	w.response(&r)
	s.Respond(wire.ToInitiator, r.SinkSTag, r.SinkTO, octets(2000))
	s.Write(wire.ToInitiator, w.stags[3], w.base, nil)
	s.SendInvalidate(wire.ToResponder, w.msn+1, w.invalidate, []byte("hello"))
	s.Terminate(wire.ToInitiator, w.term, w.siw)
	if w.hold {
		s.Release()
	}
	w.endInitiator(s, wire.ToInitiator)
	s.FIN(wire.ToResponder)
	if w.lateRST {
		s.RST(wire.ToInitiator)
	}
}

func TestNoDifference(t *testing.T) {
	reference := tell(t, ordinary, nil)
	if n := len(reference.Conns[0].Messages(wire.ToResponder)); n != 7 {
		t.Fatalf("the story has %d messages to the responder: %v", n, reference.Conns[0].Messages(wire.ToResponder))
	}
	for name, w := range map[string]func(w *terms){
		"itself":            func(*terms) {},
		"other STags":       func(w *terms) { w.stags = [4]uint32{0xffffffff, 1, 2, 0x10000000} },
		"one STag for both": func(w *terms) { w.stags = [4]uint32{7, 7, 8, 8} },
		"other offsets":     func(w *terms) { w.base = 0 },
		"offsets that wrap": func(w *terms) { w.base = 1<<64 - 2000 },
		"larger segments":   func(w *terms) { w.mulpdu = mpa.MaxULPDU },
		"smaller segments":  func(w *terms) { w.mulpdu = 128 },
		"other packets":     func(w *terms) { w.mss = 77 },
		"coalesced":         func(w *terms) { w.hold = true },
		"another port":      func(w *terms) { w.client = wiretestAddr("192.0.2.200:5") },
	} {
		t.Run(name, func(t *testing.T) {
			other := ordinary
			w(&other)
			if d := wire.Diff(reference, tell(t, other, nil)); len(d) != 0 {
				t.Errorf("differences: %s", keys(d))
			}
		})
	}
	t.Run("an RST after the FIN", func(t *testing.T) {
		late := tell(t, ordinary, func(s *telling) { s.lateRST = true })
		if d := append(wire.Diff(reference, late), wire.Diff(late, reference)...); len(d) != 0 {
			t.Errorf("differences: %s", keys(d))
		}
	})
	t.Run("siw with itself", func(t *testing.T) {
		if d := wire.Diff(siw(t, 0), siw(t, 0)); len(d) != 0 {
			t.Errorf("differences: %s", keys(d))
		}
	})
}

func TestOneDifference(t *testing.T) {
	reference := tell(t, ordinary, nil)
	for _, tc := range []struct {
		name   string
		change func(*telling)
		want   string
	}{
		{"IRD of the request", func(s *telling) { s.request = wiretest.Enhanced(mpa.KindRequest, true, 8, 4) },
			"to-responder:request:IRD[4|8]"},
		{"C of the reply", func(s *telling) { s.reply = wiretest.Enhanced(mpa.KindReply, false, 4, 4) },
			"to-initiator:reply:C[1|0]"},
		{"reserved bits of the reply", func(s *telling) { s.reply.Reserved = 0xf },
			"to-initiator:reply:reserved[0|15]"},
		{"private data of the request", func(s *telling) { s.request.PrivateData = append(s.request.PrivateData, 'x') },
			"to-responder:request:private[0:00000000|1:8cdc1683]"},
		{"one octet of the Send", func(s *telling) { s.first = octets(3000); s.first[2999]++ },
			"to-responder:send:octets[225c866f|555bb6f9]"},
		{"MSN", func(s *telling) { s.msn = 2 },
			"to-responder:send:MSN[1|2] to-responder:send-with-invalidate:MSN[2|3]"},
		{"where the first Write goes", func(s *telling) { s.writeTo = 17 },
			"to-responder:rdma-write:TO[-16|-17]"},
		{"size of the Read", func(s *telling) { s.readSize = 2001 },
			"to-responder:rdma-read-request:size[2000|2001]"},
		{"STag of the response", func(s *telling) { s.response = func(r *rdmap.ReadRequest) { r.SinkSTag++ } },
			"to-initiator:rdma-read-response:STag[as requested|of no request]"},
		{"offset of the response", func(s *telling) { s.response = func(r *rdmap.ReadRequest) { r.SinkTO += 3 } },
			"to-initiator:rdma-read-response:TO[+0|+3]"},
		{"which STag is invalidated", func(s *telling) { s.invalidate = s.stags[2] },
			"to-responder:send-with-invalidate:invalidate[r1|r2]"},
		{"layout of the Terminate", func(s *telling) { s.siw = true },
			"to-initiator:terminate:layout[RFC|siw]"},
		{"code of the Terminate", func(s *telling) { s.term.Code = 5 },
			"to-initiator:terminate:error[1/2/0x02|1/2/0x05]"},
		{"length in the Terminate", func(s *telling) { s.term.SegmentLength = 5 },
			"to-initiator:terminate:segment-length[23|5]"},
		{"header in the Terminate", func(s *telling) { s.term.DDP.MSN = 9 },
			"to-initiator:terminate:header[untagged QN 0 MSN 2 MO 0|untagged QN 0 MSN 9 MO 0]"},
		{"RST instead of FIN", func(s *telling) { s.endInitiator = (*wiretest.Session).RST },
			"to-initiator:end:how[FIN|RST]"},
		{"no FIN", func(s *telling) { s.endInitiator = func(*wiretest.Session, wire.Direction) {} },
			"to-initiator:end:how[FIN|none]"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := keys(wire.Diff(reference, tell(t, ordinary, tc.change))); got != tc.want {
				t.Errorf("got  %s\nwant %s", got, tc.want)
			}
		})
	}
}

// send makes a trace in which sends say what is wrong with single messages.
func sends(t *testing.T, body func(*wiretest.Session)) *wire.Trace {
	t.Helper()
	c := newCapture()
	s := c.Begin(true)
	body(s)
	s.Close()
	return testkit.Must(c.Trace(0))(t)
}

func TestDifferencesOfSegments(t *testing.T) {
	two := func(secondMO uint32, last bool) func(*wiretest.Session) {
		return func(s *wiretest.Session) {
			s.FPDU(wire.ToResponder, rdmap.SendHeader(rdmap.OpSend, 0, 1, 0, false), octets(10))
			s.FPDU(wire.ToResponder, rdmap.SendHeader(rdmap.OpSend, 0, 1, secondMO, last), octets(10))
		}
	}
	spoil := func(s *wiretest.Session) {
		h := rdmap.SendHeader(rdmap.OpSend, 0, 1, 0, true)
		fpdu, err := new(mpa.Framer).AppendFPDU(nil, append(h.AppendTo(nil), octets(10)...))
		if err != nil {
			t.Fatal(err)
		}
		s.Octets(wire.ToResponder, fpdu) // with a CRC of zero
	}
	whole := func(s *wiretest.Session) { s.SendMessage(wire.ToResponder, 1, octets(10)) }
	changed := func(change func(second *ddp.Header)) func(*wiretest.Session) {
		return func(s *wiretest.Session) {
			h := rdmap.WriteHeader(7, 100, false)
			s.FPDU(wire.ToResponder, h, octets(10))
			h.TO, h.Last = 110, true
			change(&h)
			s.FPDU(wire.ToResponder, h, octets(10))
		}
	}
	same := changed(func(*ddp.Header) {})
	reserved := func(change func(*ddp.Header)) func(*wiretest.Session) {
		return func(s *wiretest.Session) {
			h := rdmap.SendHeader(rdmap.OpSend, 0, 1, 0, true)
			change(&h)
			s.FPDU(wire.ToResponder, h, octets(10))
		}
	}
	for _, tc := range []struct {
		name           string
		reference, got func(*wiretest.Session)
		want           string
	}{
		{"a gap inside a message", two(10, true), two(11, true), "to-responder:send:offsets[in order|not in order]"},
		{"a message without its end", two(10, true), two(10, false), "to-responder:send:last[true|false]"},
		{"a wrong CRC", whole, spoil, "to-responder:send:crc[ok|wrong]"},
		{"another STag within a message", same, changed(func(h *ddp.Header) { h.STag++ }),
			"to-responder:rdma-write:segments[(none)|with unlike headers]"},
		{"another MSN within a message", two(10, true), func(s *wiretest.Session) {
			s.FPDU(wire.ToResponder, rdmap.SendHeader(rdmap.OpSend, 0, 1, 0, false), octets(10))
			s.FPDU(wire.ToResponder, rdmap.SendHeader(rdmap.OpSend, 0, 2, 10, true), octets(10))
		}, "to-responder:send:segments[(none)|with unlike headers]"},
		{"reserved bits of a later segment", same, changed(func(h *ddp.Header) { h.Reserved = 1 }),
			"to-responder:rdma-write:segments[(none)|with unlike headers]"},
		{"reserved bits of DDP", whole, reserved(func(h *ddp.Header) { h.Reserved = 5 }),
			"to-responder:send:ddp-reserved[(none)|5]"},
		{"reserved bits of RDMAP", whole, reserved(func(h *ddp.Header) { h.ULPCtl |= 0x20 }),
			"to-responder:send:rdmap-reserved[(none)|2]"},
		{"a message too many", whole, func(s *wiretest.Session) { whole(s); s.Write(wire.ToResponder, 1, 0, nil) },
			"to-responder:rdma-write:extra[|rdma-write crc=ok last=true STag=r1 TO=+0 offsets=in order length=0 octets=00000000]"},
		{"a message missing", whole, func(*wiretest.Session) {},
			"to-responder:send:missing[send crc=ok last=true QN=0 MSN=1 MO=0 offsets=in order length=10 octets=1e2d62eb|]"},
		{"an FPDU with half a header", func(*wiretest.Session) {}, func(s *wiretest.Session) { s.ULPDU(wire.ToResponder, octets(3)) },
			"to-responder:short-fpdu:extra[|short-fpdu length=3]"},
		{"octets that are nothing", func(*wiretest.Session) {}, func(s *wiretest.Session) { s.Octets(wire.ToResponder, []byte{9}) },
			"to-responder:undecoded:extra[|undecoded length=1 why=cut short: the stream ends inside the frame]"},
		{"a response nobody asked for", func(*wiretest.Session) {}, func(s *wiretest.Session) { s.Respond(wire.ToInitiator, 5, 0, nil) },
			"to-initiator:rdma-read-response:extra[|rdma-read-response crc=ok last=true STag=of no request TO=+0 offsets=in order length=0 octets=00000000]"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := keys(wire.Diff(sends(t, tc.reference), sends(t, tc.got))); got != tc.want {
				t.Errorf("got  %s\nwant %s", got, tc.want)
			}
		})
	}
}

// STags and tagged offsets may differ even where they are not expected, and faults in them
// are still found.
func TestTagsOutOfPlace(t *testing.T) {
	request := func(base uint32) rdmap.ReadRequest {
		return rdmap.ReadRequest{SinkSTag: base, SinkTO: uint64(base) << 20, Size: 10, SourceSTag: base + 1, SourceTO: uint64(base) << 30}
	}
	two := func(s *wiretest.Session, base uint32) (first, second rdmap.ReadRequest) {
		first, second = request(base), request(base+0x100)
		s.FPDU(wire.ToResponder, rdmap.ReadRequestHeader(1), first.AppendTo(nil))
		s.FPDU(wire.ToResponder, rdmap.ReadRequestHeader(2), second.AppendTo(nil))
		return first, second
	}
	malformed := func(length int) func(*wiretest.Session, uint32) {
		return func(s *wiretest.Session, base uint32) {
			r := request(base)
			s.FPDU(wire.ToResponder, rdmap.ReadRequestHeader(1), append(r.AppendTo(nil), "more"...)[:length])
		}
	}
	reserved := func(value func(base uint32) uint32) func(*wiretest.Session, uint32) {
		return func(s *wiretest.Session, base uint32) {
			h := rdmap.SendHeader(rdmap.OpSend, 0, 1, 0, true)
			h.ULP32 = value(base)
			s.FPDU(wire.ToResponder, h, octets(10))
			s.Write(wire.ToResponder, base, uint64(base)<<8, octets(10))
		}
	}
	ordered := func(s *wiretest.Session, base uint32) {
		first, second := two(s, base)
		s.Respond(wire.ToInitiator, first.SinkSTag, first.SinkTO, octets(10))
		s.Respond(wire.ToInitiator, second.SinkSTag, second.SinkTO, octets(10))
	}
	crossed := func(s *wiretest.Session, base uint32) {
		first, second := two(s, base)
		s.Respond(wire.ToInitiator, second.SinkSTag, second.SinkTO, octets(10))
		s.Respond(wire.ToInitiator, first.SinkSTag, first.SinkTO, octets(10))
	}
	elsewhere := func(s *wiretest.Session, base uint32) {
		two(s, base)
		s.Respond(wire.ToInitiator, base+0x700, uint64(base)<<7, octets(10))
		s.Respond(wire.ToInitiator, base+0x700, uint64(base)<<7+16, octets(10))
	}
	zero := func(uint32) uint32 { return 0 }
	for _, tc := range []struct {
		name           string
		got, reference func(s *wiretest.Session, base uint32)
		want           string // of got beside reference
	}{
		{"responses in another order", crossed, ordered,
			"to-initiator:rdma-read-response:STag[as requested|of request 2, not 1] to-initiator:rdma-read-response:STag[as requested|of request 1, not 2]"},
		{"responses to an STag of their own", elsewhere, ordered,
			"to-initiator:rdma-read-response:STag[as requested|of no request] to-initiator:rdma-read-response:STag[as requested|of no request] " +
				"to-initiator:rdma-read-response:TO[+0|+16]"},
		{"a Read Request cut short", malformed(24), malformed(20),
			"to-responder:rdma-read-request:length[20|24] to-responder:rdma-read-request:octets[4565832c|36ef40be]"},
		{"a Read Request with payload", malformed(32), malformed(31),
			"to-responder:rdma-read-request:length[31|32] to-responder:rdma-read-request:octets[81db2997|8130a794]"},
		{"an STag where none belongs", reserved(func(base uint32) uint32 { return base }), reserved(zero), "to-responder:send:reserved[(none)|r1]"},
		{"a number where none belongs", reserved(func(uint32) uint32 { return 0xbad }), reserved(zero), "to-responder:send:reserved[(none)|0x00000bad]"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			play := func(body func(*wiretest.Session, uint32), base uint32) *wire.Trace {
				return sends(t, func(s *wiretest.Session) { body(s, base) })
			}
			if d := wire.Diff(play(tc.got, 0x11000), play(tc.got, 0x7a3000)); len(d) != 0 {
				t.Errorf("with other STags and offsets: %s", keys(d))
			}
			if got := keys(wire.Diff(play(tc.reference, 0x11000), play(tc.got, 0x7a3000))); got != tc.want {
				t.Errorf("got  %s\nwant %s", got, tc.want)
			}
		})
	}
}

// A message is distinguished from another that is under way, because segments of Sends and
// Writes may alternate.
func TestInterleavedMessages(t *testing.T) {
	apart := func(s *wiretest.Session) {
		s.MULPDU = 128
		s.SendMessage(wire.ToResponder, 1, octets(400))
		s.Write(wire.ToResponder, 9, 0, octets(400))
	}
	mixed := func(s *wiretest.Session) {
		for at := 0; at < 400; at += 100 {
			s.FPDU(wire.ToResponder, rdmap.SendHeader(rdmap.OpSend, 0, 1, uint32(at), at == 300), octets(400)[at:at+100])
			s.FPDU(wire.ToResponder, rdmap.WriteHeader(9, uint64(at), at == 300), octets(400)[at:at+100])
		}
	}
	if d := wire.Diff(sends(t, apart), sends(t, mixed)); len(d) != 0 {
		t.Errorf("differences: %s", keys(d))
	}
}

// When one side resets, the other may or may not have sent its FIN before.
func TestFINAgainstReset(t *testing.T) {
	tell := func(fin bool) *wire.Trace {
		c := newCapture()
		s := c.Begin(true)
		if fin {
			s.FIN(wire.ToResponder)
		}
		s.RST(wire.ToInitiator)
		return testkit.Must(c.Trace(0))(t)
	}
	if d := append(wire.Diff(tell(true), tell(false)), wire.Diff(tell(false), tell(true))...); len(d) != 0 {
		t.Errorf("differences: %s", keys(d))
	}
}

func TestConnectionsInAnotherOrder(t *testing.T) {
	many := func(order ...int) *wire.Trace {
		c := newCapture()
		for i, k := range order {
			client := netip.AddrPortFrom(wiretest.Client.Addr(), uint16(40000+i))
			s := c.Open(client, wiretest.Server).Start(wiretest.Enhanced(0, true, 1, 1), wiretest.Enhanced(1, true, 1, 1))
			s.SendMessage(wire.ToResponder, 1, octets(k))
			s.Close()
		}
		return testkit.Must(c.Trace(0))(t)
	}
	reference := many(1, 2, 3, 4)
	for _, tc := range []struct {
		got  *wire.Trace
		want string
	}{
		{many(3, 1, 4, 2), ""},
		{many(3, 1, 4), "connection:missing[request, send, end, reply, end|]"},
		{many(3, 1, 4, 2, 2), "connection:extra[|request, send, end, reply, end]"},
		{many(3, 5, 4, 1), "to-responder:send:length[2|5] to-responder:send:octets[1c291ca3|fe0f0b28]"},
	} {
		got := keys(wire.Diff(reference, tc.got))
		// What the octets are does not matter here.
		if tc.want != got && !strings.HasPrefix(got, strings.SplitAfter(tc.want, "octets[")[0]) || tc.want == "" && got != "" {
			t.Errorf("got  %s\nwant %s", got, tc.want)
		}
	}
}

// The rows of an alignment have all lines of both ladders, each once, and their indices
// point to the right lines.
func TestAlign(t *testing.T) {
	reference := tell(t, ordinary, nil)
	small := ordinary
	small.mulpdu = 128
	got := tell(t, small, func(s *telling) { s.siw = true })
	rows := wire.Align(reference, got)
	var left, right []int
	differing := 0
	for _, r := range rows {
		left, right = append(left, r.Reference...), append(right, r.Got...)
		if len(r.Differences) == 0 {
			continue
		}
		differing++
		for side, line := range map[string]string{"left": reference.Ladder()[r.Reference[0]], "right": got.Ladder()[r.Got[0]]} {
			if !strings.Contains(line, "Terminate") {
				t.Errorf("the differing row's %s line is %q", side, line)
			}
		}
	}
	if differing != 1 {
		t.Errorf("%d rows differ, want 1", differing)
	}
	for side, tc := range map[string]struct {
		lines []int
		n     int
	}{"left": {left, len(reference.Ladder())}, "right": {right, len(got.Ladder())}} {
		slices.Sort(tc.lines)
		if fmt.Sprint(tc.lines) != fmt.Sprint(counting(tc.n)) {
			t.Errorf("%s: the rows have lines %v of %d", side, tc.lines, tc.n)
		}
	}
}

func counting(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	return out
}

func TestAlignOfSeveralConnections(t *testing.T) {
	reference, got := siw(t, 0), siw(t, 0)
	lines := got.Ladder()
	n := 0
	for _, r := range wire.Align(reference, got) {
		if !slices.Equal(r.Reference, r.Got) {
			t.Fatalf("lines %v beside lines %v of the same capture", r.Reference, r.Got)
		}
		for _, i := range r.Got {
			if !strings.Contains(lines[i], "-->") && !strings.Contains(lines[i], "<--") {
				t.Fatalf("line %d is no frame: %q", i, lines[i])
			}
			n++
		}
	}
	if n != 173 {
		t.Errorf("%d lines of frames in rows, the capture has 173", n)
	}
}
