package tshark

import (
	"strings"
	"testing"

	"github.com/govs-rdma/govs/provider/conformance/wire"
	"github.com/govs-rdma/govs/provider/conformance/wire/wiretest"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// A decoder of ours that got one thing wrong is found out, whatever it is.
func TestDisagreement(t *testing.T) {
	need(t)
	c := &wiretest.Capture{}
	s := c.Begin(true)
	s.SendInvalidate(wire.ToResponder, 1, 77, octets(10))
	s.Write(wire.ToResponder, 5, 6, octets(10))
	s.Read(wire.ToResponder, 1, rdmap.ReadRequest{SinkSTag: 1, SinkTO: 2, Size: 3, SourceSTag: 4, SourceTO: 5}, octets(3))
	h := rdmap.SendHeader(rdmap.OpSend, 0, 5, 0, true)
	s.Terminate(wire.ToInitiator, rdmap.NewTerminate(ddp.ErrMSNRange, &h, 28, nil), false)
	s.Close()
	_, file := save(t, c)
	theirs := decoded(t, file)
	fpdu := func(dir wire.Direction, n int, change func(*wire.Frame)) func(*wire.Trace) {
		return func(tr *wire.Trace) { change(tr.Conns[0].FPDUs(dir)[n]) }
	}
	out := func(n int, change func(*wire.Frame)) func(*wire.Trace) { return fpdu(wire.ToResponder, n, change) }
	term := func(change func(*wire.Frame)) func(*wire.Trace) { return fpdu(wire.ToInitiator, 1, change) }
	drop := func(tr *wire.Trace, k wire.Kind, dir wire.Direction) {
		c := tr.Conns[0]
		for i := range c.Frames {
			if c.Frames[i].Kind == k && c.Frames[i].Dir == dir {
				c.Frames = append(c.Frames[:i], c.Frames[i+1:]...)
				return
			}
		}
	}
	for _, tc := range []struct {
		name   string
		change func(*wire.Trace)
		want   string
	}{
		{"revision", func(tr *wire.Trace) { tr.Conns[0].Frames[0].Startup.Revision = 1 }, `"Revision" is 0x1 to us and "2" to tshark`},
		{"M", func(tr *wire.Trace) { tr.Conns[0].Frames[0].Startup.Reject = true }, `"Connection rejected flag"`},
		{"S", func(tr *wire.Trace) { tr.Conns[0].Frames[1].Startup.Enhanced = false }, `"Reserved" is 0x0`},
		{"private data", func(tr *wire.Trace) { tr.Conns[0].Frames[1].Startup.PrivateData = []byte{0, 4, 0, 5} }, "private data 00040005, tshark 00040004"},
		{"kind", func(tr *wire.Trace) { tr.Conns[0].Frames[0].Startup.Kind = mpa.KindReply }, "to tshark it is a Request"},
		{"length", out(0, func(f *wire.Frame) { f.Payload = f.Payload[1:] }), `"ULPDU length" is 0x1b`},
		{"CRC field", out(0, func(f *wire.Frame) { f.CRC++ }), `"CRC check"`},
		{"CRC verdict", out(0, func(f *wire.Frame) { f.CRCWrong = true }), "we take its CRC to be bad"},
		{"L", out(0, func(f *wire.Frame) { f.Header.Last = false }), `"Last flag"`},
		{"DV", out(0, func(f *wire.Frame) { f.Header.Version = 0 }), `"DDP protocol version"`},
		{"RV", out(0, func(f *wire.Frame) { f.Header.ULPCtl = 0x84 }), `"Version"`},
		{"opcode", out(1, func(f *wire.Frame) { f.Header.ULPCtl = 0x42 }), `"OpCode" is 0x2`},
		{"QN", out(0, func(f *wire.Frame) { f.Header.QN = 1 }), `"Queue number"`},
		{"MSN", out(0, func(f *wire.Frame) { f.Header.MSN = 9 }), `"Message sequence number"`},
		{"MO", out(0, func(f *wire.Frame) { f.Header.MO = 9 }), `"Message offset"`},
		{"invalidated STag", out(0, func(f *wire.Frame) { f.Header.ULP32 = 9 }), `"Invalidate STag"`},
		{"STag", out(1, func(f *wire.Frame) { f.Header.STag = 9 }), `"(Data Sink) Steering Tag"`},
		{"TO", out(1, func(f *wire.Frame) { f.Header.TO = 9 }), `"(Data Sink) Tagged offset"`},
		{"sink STag", out(2, func(f *wire.Frame) { f.Read.SinkSTag = 9 }), `"Data Sink STag"`},
		{"sink TO", out(2, func(f *wire.Frame) { f.Read.SinkTO = 9 }), `"Data Sink Tagged Offset"`},
		{"size", out(2, func(f *wire.Frame) { f.Read.Size = 9 }), `"RDMA Read Message Size"`},
		{"source STag", out(2, func(f *wire.Frame) { f.Read.SourceSTag = 9 }), `"Data Source STag"`},
		{"source TO", out(2, func(f *wire.Frame) { f.Read.SourceTO = 9 }), `"Data Source Tagged Offset"`},
		{"layer", term(func(f *wire.Frame) { f.Terminate.Raw[0] = 0x22 }), `"Layer"`},
		{"type", term(func(f *wire.Frame) { f.Terminate.Raw[0] = 0x11 }), `"Error Types"`},
		{"code", term(func(f *wire.Frame) { f.Terminate.Raw[1] = 9 }), `"Error Code"`},
		{"M of the Terminate", term(func(f *wire.Frame) { f.Terminate.Raw[2] = 0x40 }), `"M bit"`},
		{"D of the Terminate", term(func(f *wire.Frame) { f.Terminate.Raw[2] = 0x80 }), `"D bit"`},
		{"R of the Terminate", term(func(f *wire.Frame) { f.Terminate.Raw[2] = 0xe0 }), `"R bit"`},
		{"an FPDU less", func(tr *wire.Trace) {
			drop(tr, wire.KindFPDU, wire.ToInitiator)
			drop(tr, wire.KindFPDU, wire.ToInitiator)
		}, "we see 1 frames, tshark 3"},
		{"an FPDU more", func(tr *wire.Trace) {
			c := tr.Conns[0]
			c.Frames = append(c.Frames, *c.FPDUs(wire.ToResponder)[2])
		}, "we see 5 frames, tshark 4"},
		{"no connection", func(tr *wire.Trace) { tr.Conns = nil }, "tshark sees an MPA Request, we do not"},
		{"one connection too many", func(tr *wire.Trace) {
			again := *tr.Conns[0]
			again.Responder = wiretest.Client
			tr.Conns = append(tr.Conns, &again)
		}, "we see an MPA Request, tshark does not"},
		{"roles", func(tr *wire.Trace) { c := tr.Conns[0]; c.Initiator, c.Responder = c.Responder, c.Initiator }, "we see an MPA Request, tshark does not"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			trace, err := wire.ReadFile(file, 0)
			if err != nil {
				t.Fatal(err)
			}
			if why := compare(trace, theirs); why != "" {
				t.Fatalf("before anything is changed: %s", why)
			}
			tc.change(trace)
			if why := compare(trace, theirs); !strings.Contains(why, tc.want) {
				t.Errorf("the comparison says %q, want something with %q", why, tc.want)
			}
		})
	}
}

func TestParse(t *testing.T) {
	for name, tc := range map[string]struct{ text, want string }{
		"an address that is none": {"Internet Protocol Version 4, Src: nonsense, Dst: 1.2.3.4\n", "line 1"},
		"a port that is none": {"Internet Protocol Version 4, Src: 1.2.3.4, Dst: 1.2.3.4\n" +
			"Transmission Control Protocol, Src Port: 99999, Dst Port: 2\n", "line 2"},
		"an FPDU before a Request": {"Internet Protocol Version 4, Src: 1.2.3.4, Dst: 1.2.3.5\n" +
			"Transmission Control Protocol, Src Port: 1, Dst Port: 2, Seq: 1\n" +
			"iWARP Marker Protocol data unit Aligned framing\n    FPDU\n", "a FPDU from 1.2.3.4:1 to 1.2.3.5:2 before any Request"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := parse(tc.text); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("the error is %v, want one with %q", err, tc.want)
			}
		})
	}
	for value, want := range map[string]uint64{
		"True": 1, "Set": 1, "False": 0, "Not set": 0, "23 bytes": 23, "0x00000005": 5, "Send (0x3)": 3,
		"Invalid MSN - MSN range is not valid (0x03)": 3, "0xb990b10c (Good CRC32)": 0xb990b10c, "99": 99,
	} {
		if got, err := number(value); err != nil || got != want {
			t.Errorf("%q is %d (%v), want %d", value, got, err, want)
		}
	}
	if n, err := number("neither"); err == nil {
		t.Errorf("a word is the number %d", n)
	}
}

func TestWitnessOfNoFile(t *testing.T) {
	need(t)
	w := about(t.TempDir()+"/nothing.pcap", 0, &wire.Trace{})
	if w.Agrees || !strings.Contains(w.Why, "nothing.pcap") {
		t.Errorf("%+v", w)
	}
}

// FuzzParse gives the parser text that tshark may never write: it returns an error, or
// connections that begin with a Request, and whose values have one line each.
func FuzzParse(f *testing.F) {
	const head = "Internet Protocol Version 4, Src: 192.0.2.1, Dst: 192.0.2.2\n" +
		"Transmission Control Protocol, Src Port: 40000, Dst Port: 7, Seq: 1\n"
	f.Add(head + "iWARP Marker Protocol data unit Aligned framing\n    Request frame header\n" +
		"        ID Req frame: 4d\n        .1.. .... = CRC flag: True\n")
	f.Add(head + "iWARP Marker Protocol data unit Aligned framing\n    FPDU\n        ULPDU length: 18 bytes\n")
	f.Add("Internet Protocol Version 6, Src: 2001:db8::1, Dst: 2001:db8::2\n")
	f.Fuzz(func(t *testing.T, text string) {
		conns, err := parse(text)
		if err != nil && len(conns) > 0 {
			t.Fatalf("%d connections and %v", len(conns), err)
		}
		for _, c := range conns {
			if len(c.frames[0]) == 0 || c.frames[0][0].kind != request {
				t.Fatalf("%v does not begin with a Request", c)
			}
			for _, dir := range c.frames {
				for _, f := range dir {
					for label, value := range f.values {
						if strings.ContainsAny(label+value, "\n") {
							t.Fatalf("%q is %q", label, value)
						}
					}
				}
			}
		}
	})
}
