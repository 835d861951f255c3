package wire_test

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider/conformance/wire"
	"github.com/govs-rdma/govs/provider/conformance/wire/wiretest"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
)

// use does everything with a trace that the suite does with one.
func use(t *testing.T, trace *wire.Trace) {
	t.Helper()
	trace.Ladder()
	trace.Count()
	trace.IWARP()
	if d := wire.Diff(trace, trace); len(d) != 0 {
		t.Fatalf("a trace differs from itself: %s", keys(d))
	}
	for _, c := range trace.Conns {
		var ends [2]uint64
		for i := range c.Frames {
			f := &c.Frames[i]
			if f.Offset != ends[f.Dir] {
				t.Fatalf("frame %d (%v) begins at octet %d of its direction, the one before it ends at %d", i+1, f, f.Offset, ends[f.Dir])
			}
			ends[f.Dir] += uint64(len(f.Octets))
			if f.Kind == wire.KindUndecoded && f.Err == nil {
				t.Fatalf("frame %d is not decoded, and does not say why", i+1)
			}
		}
	}
}

func FuzzRead(f *testing.F) {
	siw, err := os.ReadFile(siwCapture)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(siw[:4000], uint16(7174))
	f.Add(sendOne(&wiretest.Capture{}, "192.0.2.1:40000", "192.0.2.2:20001").Pcap(), uint16(0))
	f.Add(sendOne(&wiretest.Capture{VLANs: []uint16{1}}, "[2001:db8::1]:40000", "[2001:db8::2]:20001").Pcap(), uint16(20001))
	small := &wiretest.Capture{MSS: 200}
	request, reply := wiretest.Enhanced(mpa.KindRequest, true, 4, 4), wiretest.Enhanced(mpa.KindReply, true, 4, 4)
	request.Markers, reply.Markers = true, true
	s := small.Open(wiretest.Client, wiretest.Server).Start(request, reply)
	s.SendMessage(wire.ToResponder, 1, octets(600))
	s.RST(wire.ToInitiator)
	f.Add(small.Pcap(), uint16(0))
	f.Add([]byte("\x0a\x0d\x0d\x0a\x1c\x00\x00\x00\x4d\x3c\x2b\x1a\x01\x00\x00\x00\xff\xff\xff\xff\xff\xff\xff\xff\x1c\x00\x00\x00"), uint16(0))
	f.Fuzz(func(t *testing.T, file []byte, port uint16) {
		if len(file) > 1<<16 {
			return
		}
		trace, err := wire.Read(bytes.NewReader(file), port)
		if err != nil {
			return
		}
		use(t, trace)
	})
}

// FuzzStreams gives the decoder streams that arrive whole and have no meaning. What it
// decodes must not depend on where TCP's segments end.
func FuzzStreams(f *testing.F) {
	request, reply := wiretest.Enhanced(mpa.KindRequest, true, 4, 4), wiretest.Enhanced(mpa.KindReply, false, 4, 4)
	f.Add(request.AppendTo(nil), reply.AppendTo(nil))
	f.Add(append(request.AppendTo(nil), octets(400)...), append(reply.AppendTo(nil), octets(300)...))
	request.Markers = true
	f.Add(append(request.AppendTo(nil), octets(4)...), append(reply.AppendTo(nil), 0, 0, 0, 0, 0, 18, 0x41, 0x47))
	f.Fuzz(func(t *testing.T, out, in []byte) {
		if len(out)+len(in) > 1<<13 {
			return // too long: the capture below may have a packet for each octet
		}
		c := newCapture()
		conn := c.Open(wiretest.Client, wiretest.Server)
		conn.Send(wire.ToResponder, out)
		conn.Send(wire.ToInitiator, in)
		trace := testkit.Must(c.Trace(0))(t)
		use(t, trace)
		for dir, sent := range map[wire.Direction][]byte{wire.ToResponder: out, wire.ToInitiator: in} {
			var seen []byte
			for _, f := range trace.Conns[0].Frames {
				if f.Dir == dir {
					seen = append(seen, f.Octets...)
				}
			}
			if !bytes.Equal(seen, sent) {
				t.Fatalf("%v: %d octets were sent, the frames have %d, or others", dir, len(sent), len(seen))
			}
		}
		c = newCapture()
		c.MSS = 1 + len(out)%37
		conn = c.Open(wiretest.Client, wiretest.Server)
		conn.Send(wire.ToResponder, out)
		conn.Send(wire.ToInitiator, in)
		cut := testkit.Must(c.Trace(0))(t)
		for dir := range 2 {
			whole, pieces := framesOf(trace, wire.Direction(dir)), framesOf(cut, wire.Direction(dir))
			if !slices.Equal(whole, pieces) {
				t.Fatalf("in segments of %d octets:\n%v\nin one piece:\n%v", c.MSS, pieces, whole)
			}
		}
	})
}

// framesOf describes the frames of a direction.
func framesOf(trace *wire.Trace, dir wire.Direction) (all []string) {
	for i := range trace.Conns[0].Frames {
		if f := &trace.Conns[0].Frames[i]; f.Dir == dir {
			all = append(all, fmt.Sprintf("%v at %d, %v, %x", f.Kind, f.Offset, f.Err, f.Octets))
		}
	}
	return all
}

func TestEveryPrefixOfACapture(t *testing.T) {
	file, err := os.ReadFile(siwCapture)
	if err != nil {
		t.Fatal(err)
	}
	for n := 24; n < 12000; n += 41 {
		trace, err := wire.Read(bytes.NewReader(file[:n]), 0)
		if err == nil {
			use(t, trace)
		}
	}
}
