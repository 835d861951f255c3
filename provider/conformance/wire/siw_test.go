package wire_test

import (
	"fmt"
	"maps"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider/conformance/wire"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
)

const siwCapture = "testdata/siw-6.1.192-rping-and-send-bw.pcap"

func siw(t *testing.T, port uint16) *wire.Trace {
	t.Helper()
	trace, err := wire.ReadFile(siwCapture, port)
	if err != nil {
		t.Fatal(err)
	}
	return trace
}

// frames counts a connection's frames by direction and opcode or kind.
func frames(c *wire.Conn) map[string]int {
	counts := make(map[string]int)
	for i := range c.Frames {
		f := &c.Frames[i]
		what := map[wire.Kind]string{wire.KindStartup: "start-up", wire.KindFIN: "FIN", wire.KindRST: "RST", wire.KindUndecoded: "undecoded"}[f.Kind]
		if f.Kind == wire.KindFPDU {
			what = f.Opcode().String()
		}
		counts[f.Dir.String()+" "+what]++
	}
	return counts
}

func TestSIWCapture(t *testing.T) {
	trace := siw(t, 0)
	if len(trace.Conns) != 3 || len(trace.Notes) != 0 {
		t.Fatalf("%d connections and notes %q, the capture has 3 and nothing is wrong with it", len(trace.Conns), trace.Notes)
	}
	want := []struct {
		responder string
		ird, ord  uint16
		frames    map[string]int
	}{
		{"192.0.2.1:7174", 1, 1, map[string]int{
			"to-responder start-up": 1, "to-initiator start-up": 1, "to-responder FIN": 1, "to-initiator FIN": 1,
			"to-responder Send": 10, "to-initiator Send": 10,
			"to-initiator RDMA Read Request": 5, "to-responder RDMA Read Response": 5, "to-initiator RDMA Write": 5,
		}},
		{"192.0.2.1:18515", 0, 0, map[string]int{
			"to-responder start-up": 1, "to-initiator start-up": 1, "to-responder FIN": 1, "to-initiator FIN": 1,
			"to-responder Send": 11, "to-initiator Send": 11,
		}},
		{"192.0.2.1:18515", 0, 0, map[string]int{
			"to-responder start-up": 1, "to-initiator start-up": 1, "to-responder FIN": 1, "to-initiator FIN": 1,
			"to-responder Send": 100, "to-initiator RDMA Write": 4,
		}},
	}
	for i, w := range want {
		c := trace.Conns[i]
		if c.Responder.String() != w.responder {
			t.Errorf("connection %d is to %s, want %s", i+1, c.Responder, w.responder)
		}
		if got := frames(c); !maps.Equal(got, w.frames) {
			t.Errorf("connection %d:\n%s", i+1, cmp.Diff(w.frames, got))
		}
		for k, f := range c.Frames {
			if f.Err != nil {
				t.Errorf("connection %d, frame %d: %v", i+1, k+1, f.Err)
			}
		}
		enhanced := mpa.Enhanced{IRD: w.ird, ORD: w.ord}
		for kind, got := range map[mpa.Kind]*mpa.Frame{mpa.KindRequest: c.Request, mpa.KindReply: c.Reply} {
			frame := mpa.Frame{Kind: kind, Enhanced: true, Revision: 2, PrivateData: enhanced.AppendTo(nil)}
			if d := cmp.Diff(&frame, got); d != "" {
				t.Errorf("connection %d, %v (-want +got):\n%s", i+1, kind, d)
			}
		}
		if c.CRC() {
			t.Errorf("connection %d: CRCs are on, siw's default is off", i+1)
		}
	}
	if got := trace.Count(); got != 37+24+106 {
		t.Errorf("%d start-up frames and FPDUs, want %d", got, 37+24+106)
	}
}

func TestSIWLadder(t *testing.T) {
	lines := siw(t, 0).Ladder()
	if len(lines) != 178 {
		t.Fatalf("%d lines, want 178: 173 frames, 3 headings, 2 empty ones", len(lines))
	}
	for n, want := range map[int]string{
		0: "connection 1: 192.0.2.1:41130 -> 192.0.2.1:7174",
		1: "    0.018708 --> MPA Request Frame rev 2 S IRD 1 ORD 1",
		2: "    0.065784 <-- MPA Reply Frame rev 2 S IRD 1 ORD 1",
		3: "    0.070186 --> Send L QN 0 MSN 1 MO 0 length 16",
		4: "    0.072856 <-- RDMA Read Request L MSN 1 sink 0x47e2d000:0x55c5d907d170 size 64 source 0x57ad4500:0x5594d15cc470",
		5: "    0.074229 --> RDMA Read Response L STag 0x47e2d000 TO 0x55c5d907d170 length 64",
		8: "    0.077069 <-- RDMA Write L STag 0x87d9a600 TO 0x5594d15c9170 length 64",

		38: "    0.098740 --> FIN",
		39: "    0.099604 <-- FIN",
		40: "",
		41: "connection 2: 192.0.2.1:32903 -> 192.0.2.1:18515",
		64: "    0.374987 --> Send L QN 0 MSN 11 MO 0 length 56",
		66: "    0.379551 <-- FIN",
		69: "connection 3: 192.0.2.1:59379 -> 192.0.2.1:18515",

		174: "    0.084093 --> Send L QN 0 MSN 100 MO 0 length 4096",
		175: "    0.084269 <-- RDMA Write L STag 0x46fe2000 TO 0x5630a27bbe44 length 4",
		177: "    0.348173 <-- FIN",
	} {
		if lines[n] != want {
			t.Errorf("line %d:\n got %q\nwant %q", n, lines[n], want)
		}
	}
}

// What siw wrote and what the capture says it carried: the payload of the third
// connection's Sends is what ib_send_bw was called with.
func TestSIWPayload(t *testing.T) {
	c := siw(t, 0).Conns[2]
	for i, f := range c.FPDUs(wire.ToResponder) {
		if f.Header.MSN != uint32(i+1) || len(f.Payload) != 4096 || !f.Header.Last {
			t.Fatalf("Send %d is %v", i+1, f)
		}
		if f.CRC != 0 {
			t.Fatalf("Send %d has CRC %08x: siw leaves the field zero when CRCs are off", i+1, f.CRC)
		}
	}
}

func TestPortSelectsConnections(t *testing.T) {
	for port, conns := range map[uint16]int{0: 3, 7174: 1, 18515: 2, 41130: 1, 9: 0} {
		t.Run(fmt.Sprint(port), func(t *testing.T) {
			if got := len(siw(t, port).Conns); got != conns {
				t.Errorf("%d connections, want %d", got, conns)
			}
		})
	}
}

func TestIWARPLeavesOutOtherConnections(t *testing.T) {
	c := newCapture()
	c.Begin(false).Close()
	other := c.Open(wiretestAddr("192.0.2.7:999"), wiretestAddr("192.0.2.8:80"))
	other.Send(wire.ToResponder, []byte("GET / HTTP/1.1\r\nHost: example.org\r\n\r\n"))
	trace := testkit.Must(c.Trace(0))(t)
	if len(trace.Conns) != 2 || len(trace.IWARP().Conns) != 1 {
		t.Fatalf("%d connections, of which %d iWARP; want 2 and 1", len(trace.Conns), len(trace.IWARP().Conns))
	}
	if got := lastLine(trace.Conns[1]); got != "--> 37 octets not decoded: 474554202f20485454502f312e310d0a...  !! "+
		"not an MPA start-up frame: the connection is not iWARP, or its start is not in the capture" {
		t.Errorf("the other connection's line is %q", got)
	}
}
