package wire_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider/conformance/wire"
	"github.com/govs-rdma/govs/provider/conformance/wire/wiretest"
)

const (
	request = "--> MPA Request Frame rev 2 S IRD 4 ORD 4"
	reply   = "<-- MPA Reply Frame rev 2 S IRD 4 ORD 4"
)

// bulk sends one Send of many segments in many packets.
func bulk(c *wiretest.Capture) *wiretest.Session {
	s := c.Begin(true)
	s.SendMessage(wire.ToResponder, 1, octets(20000))
	s.Close()
	return s
}

// message checks that the connection carried one Send whole, whatever happened to its
// packets.
func message(t *testing.T, c *wire.Conn, n int) {
	t.Helper()
	var got []byte
	for _, f := range c.FPDUs(wire.ToResponder) {
		if f.Err != nil {
			t.Errorf("%s: %v", f, f.Err)
		}
		got = append(got, f.Payload...)
	}
	if !slices.Equal(got, octets(n)) {
		t.Errorf("the Send has %d octets, or others than were sent; want %d", len(got), n)
	}
}

func TestRetransmissions(t *testing.T) {
	for name, change := range map[string]func([]wiretest.Packet) []wiretest.Packet{
		"every packet twice": func(p []wiretest.Packet) []wiretest.Packet {
			var out []wiretest.Packet
			for _, x := range p {
				out = append(out, x, x)
			}
			return out
		},
		"out of order": func(p []wiretest.Packet) []wiretest.Packet {
			slices.Reverse(p[5 : len(p)-2])
			return p
		},
		"the handshake last": func(p []wiretest.Packet) []wiretest.Packet {
			return append(slices.Clone(p[3:]), p[:3]...)
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCapture()
			bulk(c)
			c.Packets = change(c.Packets)
			if name == "the handshake last" {
				// A SYN after other packets belongs to another connection.
				if n := len(testkit.Must(c.Trace(0))(t).Conns); n != 2 {
					t.Errorf("%d connections", n)
				}
				return
			}
			trace := testkit.Must(c.Trace(0))(t)
			message(t, trace.Conns[0], 20000)
			if len(trace.Conns[0].Notes) != 0 {
				t.Errorf("notes %q", trace.Conns[0].Notes)
			}
		})
	}
	t.Run("in other pieces", func(t *testing.T) {
		c := newCapture()
		s := c.Begin(false)
		c.MSS = 100
		s.Hold()
		s.SendMessage(wire.ToResponder, 1, octets(1000))
		s.Release()
		sent := c.Packets[5]
		s.At(wire.ToResponder, 24+50, append(slices.Clone(sent.Data[54+50:]), octets(0)...))
		s.Close()
		message(t, testkit.Must(c.Trace(0))(t).Conns[0], 1000)
	})
	t.Run("with another content", func(t *testing.T) {
		c := newCapture()
		s := bulk(c)
		s.At(wire.ToResponder, 30, []byte("not what was sent"))
		conn := testkit.Must(c.Trace(0))(t).Conns[0]
		message(t, conn, 20000)
		if want := []string{"to-responder: octets from 30 on were sent again with another content"}; !slices.Equal(conn.Notes, want) {
			t.Errorf("notes are %q, want %q", conn.Notes, want)
		}
	})
	t.Run("a keep-alive's octet says nothing", func(t *testing.T) {
		c := newCapture()
		s := bulk(c)
		s.At(wire.ToResponder, 19, []byte{0xff})
		conn := testkit.Must(c.Trace(0))(t).Conns[0]
		message(t, conn, 20000)
		if len(conn.Notes) != 0 {
			t.Errorf("notes %q", conn.Notes)
		}
	})
}

func TestLostPackets(t *testing.T) {
	t.Run("in the middle", func(t *testing.T) {
		c := newCapture()
		s := c.Begin(false)
		s.SendMessage(wire.ToResponder, 1, octets(10))
		s.Skip(wire.ToResponder, 500)
		s.SendMessage(wire.ToResponder, 2, octets(10))
		s.Close()
		want(t, testkit.Must(c.Trace(0))(t).Conns[0], request, reply, "--> Send L QN 0 MSN 1 MO 0 length 10",
			"--> nothing more to decode  !! 500 octets are missing from the capture here, and "+
				"36 after them are not decoded",
			"--> FIN", "<-- FIN")
	})
	t.Run("inside an FPDU", func(t *testing.T) {
		c := newCapture()
		s := c.Begin(false)
		s.SendMessage(wire.ToResponder, 1, octets(5000))
		c.Packets = slices.Delete(c.Packets, 7, 8)
		conn := testkit.Must(c.Trace(0))(t).Conns[0]
		if got := lastLine(conn); got != "--> nothing more to decode  !! 1428 octets are "+
			"missing from the capture here, and 820 after them are not decoded" {
			t.Errorf("the last line is %q", got)
		}
		if n := len(conn.FPDUs(wire.ToResponder)); n != 2 {
			t.Errorf("%d FPDUs before the gap, want 2", n)
		}
	})
	t.Run("at the end, shown by an acknowledgement", func(t *testing.T) {
		c := newCapture()
		s := c.Begin(false)
		s.SendMessage(wire.ToResponder, 1, octets(10))
		s.Skip(wire.ToResponder, 77)
		s.Ack(wire.ToInitiator)
		want(t, testkit.Must(c.Trace(0))(t).Conns[0], request, reply, "--> Send L QN 0 MSN 1 MO 0 length 10",
			"--> nothing more to decode  !! the last 77 octets that were sent are missing from the capture")
	})
	t.Run("at the end, shown by the FIN", func(t *testing.T) {
		c := newCapture()
		s := c.Begin(false)
		s.Skip(wire.ToInitiator, 9)
		s.Close()
		want(t, testkit.Must(c.Trace(0))(t).Conns[0], request, reply,
			"<-- nothing more to decode  !! the last 9 octets that were sent are missing from the capture", "--> FIN", "<-- FIN")
	})
	t.Run("a lost FIN is no lost octet", func(t *testing.T) {
		c := newCapture()
		s := c.Begin(false)
		s.Skip(wire.ToResponder, 1)
		s.Ack(wire.ToInitiator)
		want(t, testkit.Must(c.Trace(0))(t).Conns[0], request, reply)
	})
	t.Run("packets of which the capture has only the beginning", func(t *testing.T) {
		c := newCapture()
		s := c.Begin(false)
		s.SendMessage(wire.ToResponder, 1, octets(100))
		p := &c.Packets[len(c.Packets)-1]
		p.Data, p.Cut = p.Data[:96], len(p.Data)-96
		want(t, testkit.Must(c.Trace(0))(t).Conns[0], request, reply,
			"--> 42 octets not decoded: 00764143000000000000000000000001...  !! cut short: the stream ends inside the frame",
			"--> nothing more to decode  !! the capture has only the beginning of a packet: 82 octets are missing here")
	})
	t.Run("and the rest of it sent again", func(t *testing.T) {
		c := newCapture()
		s := c.Begin(false)
		s.SendMessage(wire.ToResponder, 1, octets(100))
		whole := c.Packets[len(c.Packets)-1]
		p := &c.Packets[len(c.Packets)-1]
		p.Data, p.Cut = p.Data[:96], len(p.Data)-96
		c.Packets = append(c.Packets, whole)
		message(t, testkit.Must(c.Trace(0))(t).Conns[0], 100)
	})
}

func TestCaptureBeginsLate(t *testing.T) {
	t.Run("before start-up", func(t *testing.T) {
		c := newCapture()
		s := c.Dial(wiretest.Client, wiretest.Server).Start(wiretest.Enhanced(0, false, 4, 4), wiretest.Enhanced(1, false, 4, 4))
		s.SendMessage(wire.ToResponder, 1, octets(5))
		want(t, testkit.Must(c.Trace(0))(t).Conns[0], request, reply, "--> Send L QN 0 MSN 1 MO 0 length 5")
	})
	t.Run("before start-up, with the reply first", func(t *testing.T) {
		c := newCapture()
		c.Dial(wiretest.Client, wiretest.Server).Start(wiretest.Enhanced(0, false, 4, 4), wiretest.Enhanced(1, false, 4, 4))
		c.Packets[0], c.Packets[1] = c.Packets[1], c.Packets[0]
		c.Packets[0].Time, c.Packets[1].Time = c.Packets[1].Time, c.Packets[0].Time
		conn := testkit.Must(c.Trace(0))(t).Conns[0]
		if conn.Initiator != wiretest.Client {
			t.Errorf("the initiator is %v", conn.Initiator)
		}
		want(t, conn, reply, request)
	})
	t.Run("after the request", func(t *testing.T) {
		c := newCapture()
		s := c.Dial(wiretest.Client, wiretest.Server).Start(wiretest.Enhanced(0, false, 4, 4), wiretest.Enhanced(1, false, 4, 4))
		s.SendMessage(wire.ToInitiator, 1, octets(5))
		c.Packets = c.Packets[1:]
		conn := testkit.Must(c.Trace(0))(t).Conns[0]
		if conn.Initiator != wiretest.Client {
			t.Errorf("the initiator is %v", conn.Initiator)
		}
		want(t, conn, reply,
			"<-- 32 octets not decoded: 00174143000000000000000000000001...  !! octets without an MPA Request to say how they are framed")
	})
	t.Run("in the middle", func(t *testing.T) {
		c := newCapture()
		s := c.Dial(wiretest.Client, wiretest.Server).Start(wiretest.Enhanced(0, false, 4, 4), wiretest.Enhanced(1, false, 4, 4))
		s.SendMessage(wire.ToInitiator, 1, octets(5))
		s.SendMessage(wire.ToResponder, 1, octets(5))
		c.Packets = c.Packets[2:]
		trace, err := c.Trace(wiretest.Server.Port())
		if err != nil {
			t.Fatal(err)
		}
		conn := trace.Conns[0]
		if conn.Initiator != wiretest.Client {
			t.Errorf("the initiator is %v, although the port is known to be the responder's", conn.Initiator)
		}
		const why = "  !! not an MPA start-up frame: the connection is not iWARP, or its start is not in the capture"
		want(t, conn,
			"<-- 32 octets not decoded: 00174143000000000000000000000001..."+why,
			"--> 32 octets not decoded: 00174143000000000000000000000001..."+why)
	})
}

func TestPortsUsedAgain(t *testing.T) {
	c := newCapture()
	for i := range 3 {
		conn := c.DialISN(wiretest.Client, wiretest.Server, [2]uint32{uint32(i) * 1e6, uint32(i) * 3e6})
		conn.Handshake()
		s := conn.Start(wiretest.Enhanced(0, false, 4, 4), wiretest.Enhanced(1, false, 4, 4))
		s.SendMessage(wire.ToResponder, 1, octets(i))
		s.Close()
	}
	trace := testkit.Must(c.Trace(0))(t)
	if len(trace.Conns) != 3 {
		t.Fatalf("%d connections, want 3", len(trace.Conns))
	}
	for i, conn := range trace.Conns {
		message(t, conn, i)
	}
}

func TestRefusedConnection(t *testing.T) {
	c := newCapture()
	conn := c.Open(wiretest.Client, wiretest.Server)
	c.Packets = c.Packets[:1]
	conn.RST(wire.ToInitiator)
	want(t, testkit.Must(c.Trace(0))(t).Conns[0], "<-- RST")
}

func TestConnectionsAreInOrder(t *testing.T) {
	c := newCapture()
	var sessions []*wiretest.Session
	for i := range 5 {
		client := netip.AddrPortFrom(wiretest.Client.Addr(), uint16(50000-i))
		sessions = append(sessions, c.Open(client, wiretest.Server).Start(wiretest.Enhanced(0, false, 4, 4), wiretest.Enhanced(1, false, 4, 4)))
	}
	for i, s := range slices.Backward(sessions) {
		s.SendMessage(wire.ToResponder, 1, octets(i))
	}
	for i, conn := range testkit.Must(c.Trace(0))(t).Conns {
		if conn.Initiator.Port() != uint16(50000-i) {
			t.Errorf("connection %d is that from %v", i, conn.Initiator)
		}
		message(t, conn, i)
	}
}
