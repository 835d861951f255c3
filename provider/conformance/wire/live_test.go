package wire_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/gopacket/gopacket/pcapgo"

	"github.com/govs-rdma/govs/provider/conformance/wire"
	"github.com/govs-rdma/govs/provider/conformance/wire/wiretest"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
)

// feed hands the packets of a capture to a Live.
type feed struct {
	t       *testing.T
	live    *wire.Live
	capture *wiretest.Capture
	next    int // packet
}

func newFeed(t *testing.T, mss int) *feed {
	return &feed{t: t, live: wire.NewLive(wiretest.Server.Port()), capture: &wiretest.Capture{MSS: mss}}
}

// want hands over all new packets, one at a time, and compares what is printed, without times.
func (f *feed) want(what string, want ...string) {
	f.t.Helper()
	var got []string
	for ; f.next < len(f.capture.Packets); f.next++ {
		p := f.capture.Packets[f.next]
		f.live.Packet(p.Data, p.Time)
		got = append(got, f.live.Lines()...)
	}
	f.compare(what, got, want)
}

func (f *feed) compare(what string, got, want []string) {
	f.t.Helper()
	got, want = withoutTimes(got), slices.Clone(want)
	if diff := cmp.Diff(want, got); diff != "" && len(want)+len(got) > 0 {
		f.t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// withoutTimes removes the times of lines, and what a start-up frame asks for.
func withoutTimes(lines []string) (out []string) {
	for _, line := range lines {
		if strings.HasPrefix(line, "   ") {
			line = strings.TrimSpace(line[13:])
		}
		line, _, _ = strings.Cut(line, " rev 2")
		out = append(out, line)
	}
	return out
}

// begin starts a connection up.
func (f *feed) begin(c *wiretest.Conn) *wiretest.Session {
	return c.Start(wiretest.Enhanced(mpa.KindRequest, true, 4, 4), wiretest.Enhanced(mpa.KindReply, true, 4, 4))
}

const (
	sendLine    = "--> Send L QN 0 MSN 1 MO 0 length 40 CRC ok"
	replyLine   = "<-- MPA Reply Frame"
	headOne     = "connection 1: 192.0.2.1:40000 -> 192.0.2.1:20001"
	headTwo     = "connection 2: 192.0.2.1:40001 -> 192.0.2.1:20001"
	headThree   = "connection 3: 192.0.2.1:40000 -> 192.0.2.1:20001"
	requestLine = "--> MPA Request Frame"
)

// TestLive is a story of two connections: each frame is printed with the packet that completes it,
// and the end of a connection frees it.
func TestLive(t *testing.T) {
	f := newFeed(t, 1448)
	first := f.capture.Open(wiretest.Client, wiretest.Server)
	f.want("a handshake")
	one := f.begin(first)
	f.want("the start-up", headOne, requestLine, replyLine)
	two := f.begin(f.capture.Open(wiretestAddr("192.0.2.1:40001"), wiretest.Server))
	f.want("another connection", headTwo, requestLine, replyLine)

	f.capture.MSS = 10
	one.SendMessage(wire.ToResponder, 1, octets(40))
	last := f.capture.Packets[len(f.capture.Packets)-1]
	f.capture.Packets = f.capture.Packets[:len(f.capture.Packets)-1]
	f.want("a message without its last packet")
	f.capture.Packets = append(f.capture.Packets, last)
	f.want("the last packet", headOne, sendLine)

	one.FIN(wire.ToResponder)
	f.want("the first FIN", "--> FIN")
	one.FIN(wire.ToInitiator)
	f.want("the second FIN", "<-- FIN")
	again := wiretest.Enhanced(mpa.KindRequest, true, 4, 4)
	one.At(wire.ToResponder, 0, again.AppendTo(nil))
	f.want("the Request again, after the end")
	three := f.capture.DialISN(wiretest.Client, wiretest.Server, [2]uint32{5000, 6000})
	three.Handshake()
	f.begin(three)
	f.want("the same addresses again", headThree, requestLine, replyLine)
	two.RST(wire.ToInitiator)
	f.want("a reset", headTwo, "<-- RST")
	f.compare("the end", f.live.End(), nil)
}

// TestLiveHolds: what follows missing octets is held until these come, or until the end.
func TestLiveHolds(t *testing.T) {
	f := newFeed(t, 1448)
	s := f.begin(f.capture.Open(wiretest.Client, wiretest.Server))
	f.want("the start-up", headOne, requestLine, replyLine)
	s.SendMessage(wire.ToResponder, 1, octets(40))
	lost := f.capture.Packets[f.next]
	f.capture.Packets = f.capture.Packets[:f.next]
	s.SendMessage(wire.ToResponder, 2, octets(40))
	s.FIN(wire.ToResponder)
	s.FIN(wire.ToInitiator)
	f.want("a message after one that is lost, and the end", "<-- FIN")
	f.capture.Packets = append(f.capture.Packets, lost)
	f.want("the message comes", sendLine, strings.Replace(sendLine, "MSN 1", "MSN 2", 1), "--> FIN")

	f = newFeed(t, 1448)
	s = f.begin(f.capture.Open(wiretest.Client, wiretest.Server))
	s.Skip(wire.ToResponder, 5)
	s.SendMessage(wire.ToResponder, 2, octets(40))
	f.want("a message after octets that are missing", headOne, requestLine, replyLine)
	f.compare("the end", f.live.End(), []string{
		"--> nothing more to decode  !! 5 octets are missing from the capture here, and 64 after them are not decoded"})
}

// TestLiveAll: connections that are not iWARP are left out, unless asked for. A connection that is
// too long is given up.
func TestLiveAll(t *testing.T) {
	for _, all := range []bool{false, true} {
		f := newFeed(t, 1448)
		f.live.All = all
		c := f.capture.Open(wiretest.Client, wiretest.Server)
		c.Send(wire.ToResponder, []byte("GET / HTTP/1.1\r\n\r\n and more than a Request has"))
		f.want("a request of HTTP")
		lines := f.live.End()
		if all != (len(lines) == 2 && strings.Contains(lines[1], "octets not decoded: 474554")) || !all && len(lines) > 0 {
			t.Errorf("All %v: %q", all, lines)
		}
	}
	f := newFeed(t, 1448)
	f.live.Limit = 3*128 + 100
	s := f.begin(f.capture.Open(wiretest.Client, wiretest.Server))
	f.want("the start-up", headOne, requestLine, replyLine)
	s.SendMessage(wire.ToResponder, 1, octets(40))
	f.want("the octet after Limit", sendLine, "note: not decoded any further after 112 octets")
	s.SendMessage(wire.ToResponder, 2, octets(40))
	f.want("later")
}

// TestLiveLimitCountsPackets: a peer that sends a byte at a time, or packets that say they are
// longer than they are, does not make a Live keep many times its Limit.
func TestLiveLimitCountsPackets(t *testing.T) {
	f := newFeed(t, 1)
	f.live.Limit = 10_000 // 77 packets of a byte
	s := f.begin(f.capture.Open(wiretest.Client, wiretest.Server))
	s.SendMessage(wire.ToResponder, 1, octets(200))
	f.want("a byte at a time", headOne, requestLine, replyLine,
		"--> 30 octets not decoded: 00da4143000000000000000000000001...  !! cut short: the stream ends inside the frame",
		"note: not decoded any further after 78 octets")

	f = newFeed(t, 1448)
	f.live.Limit = 10_000
	s = f.begin(f.capture.Open(wiretest.Client, wiretest.Server))
	f.want("the start-up", headOne, requestLine, replyLine)
	s.SendMessage(wire.ToResponder, 1, octets(40))
	short := &f.capture.Packets[f.next]
	short.Data = short.Data[:len(short.Data)-64]
	for range 100 {
		f.capture.Packets = append(f.capture.Packets, *short)
	}
	f.want("packets without what they say they have",
		"--> nothing more to decode  !! the capture has only the beginning of a packet: 64 octets are missing here",
		"note: not decoded any further after 48 octets")
}

// TestLiveLimitOfAll: Limit is for all connections together. The connection of which the most is
// kept is given up, even if the packet is another's.
func TestLiveLimitOfAll(t *testing.T) {
	f := newFeed(t, 1448)
	f.live.Limit = 1900
	one := f.begin(f.capture.Open(wiretest.Client, wiretest.Server))
	two := f.begin(f.capture.Open(wiretestAddr("192.0.2.1:40001"), wiretest.Server))
	f.want("the start-up", headOne, requestLine, replyLine, headTwo, requestLine, replyLine)
	one.SendMessage(wire.ToResponder, 1, octets(1000))
	f.want("a long message", headOne, strings.Replace(sendLine, "length 40", "length 1000", 1))
	two.SendMessage(wire.ToResponder, 1, octets(40))
	f.want("a short one", headTwo, sendLine, headOne, "note: not decoded any further after 1072 octets")
	one.SendMessage(wire.ToResponder, 2, octets(1000))
	for msn := range 4 {
		two.SendMessage(wire.ToResponder, uint32(2+msn), octets(40))
	}
	var more []string
	for msn := range 4 {
		more = append(more, strings.Replace(sendLine, "MSN 1", fmt.Sprint("MSN ", 2+msn), 1))
	}
	f.want("after that", append([]string{headTwo}, more...)...)
}

// TestLiveAgrees: packet by packet, the lines of a capture of siw are the lines of its ladder, even
// if neighbouring packets have changed places.
func TestLiveAgrees(t *testing.T) {
	want := make(map[string][]string)
	for _, c := range siw(t, 0).IWARP().Conns {
		key := c.Initiator.String() + " -> " + c.Responder.String()
		want[key] = slices.Sorted(slices.Values(withoutTimes(c.Ladder())))
	}
	file, err := os.Open(siwCapture)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	r, err := pcapgo.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	var packets []wiretest.Packet
	for {
		data, ci, err := r.ReadPacketData()
		if err != nil {
			break
		}
		packets = append(packets, wiretest.Packet{Time: ci.Timestamp, Data: data})
	}
	for _, swapped := range []bool{false, true} {
		live := wire.NewLive(0)
		var lines []string
		for i, p := range packets {
			if j := i ^ 1; swapped && j < len(packets) {
				p = packets[j]
			}
			live.Packet(p.Data, p.Time)
			lines = append(lines, live.Lines()...)
		}
		lines = append(lines, live.End()...)
		got, key := make(map[string][]string), ""
		for _, line := range withoutTimes(lines) {
			if _, head, ok := strings.Cut(line, ": "); ok && strings.HasPrefix(line, "connection ") {
				key = head
				continue
			}
			got[key] = append(got[key], line)
		}
		for _, of := range got {
			slices.Sort(of)
		}
		if diff := cmp.Diff(want, got); diff != "" || len(want) == 0 {
			t.Errorf("swapped %v: %d connections (-want +got):\n%s", swapped, len(want), diff)
		}
	}
}
