package capture

import (
	"bytes"
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/govs-rdma/govs/provider/conformance"
	"github.com/govs-rdma/govs/provider/conformance/wire"
	"github.com/govs-rdma/govs/provider/engine/transport"
)

var (
	client4 = netip.MustParseAddrPort("127.0.0.1:40000")
	server4 = netip.MustParseAddrPort("127.0.0.1:20001")
	client6 = netip.MustParseAddrPort("[::1]:40000")
	server6 = netip.MustParseAddrPort("[::1]:20001")
)

// end is one end of a stream, as a tap sees it.
type end struct {
	tap   transport.Tap
	r     transport.TapRecord
	clock *time.Time
}

func (e *end) tell(event transport.TapEvent, sent bool, data []byte) {
	*e.clock = e.clock.Add(time.Microsecond)
	r := e.r
	r.Time, r.Event, r.Sent, r.Data = *e.clock, event, sent, data
	e.tap.Tap(r)
	clear(data) // the tap may not keep it
}

// ends returns the two ends of a stream with numbers from n on.
func ends(tap transport.Tap, clock *time.Time, n uint64, client, server netip.AddrPort) (c, s *end) {
	c = &end{tap, transport.TapRecord{Conn: n, Local: client, Remote: server, Dialed: true}, clock}
	s = &end{tap, transport.TapRecord{Conn: n + 1, Local: server, Remote: client}, clock}
	return c, s
}

// talk makes octets go both ways between two ends. One of them may be nil: then it has
// no tap.
func talk(c, s *end, out, in []byte) {
	both := func(from, to *end, event transport.TapEvent, data []byte) {
		if from != nil {
			from.tell(event, true, bytes.Clone(data))
		}
		if to != nil {
			to.tell(event, false, bytes.Clone(data))
		}
	}
	both(c, s, transport.TapOpen, nil)
	for len(out) > 0 || len(in) > 0 {
		n, m := min(len(out), 70_000), min(len(in), 70_000)
		if n > 0 {
			both(c, s, transport.TapData, out[:n])
		}
		if m > 0 {
			both(s, c, transport.TapData, in[:m])
		}
		out, in = out[n:], in[m:]
	}
	both(c, s, transport.TapFIN, nil)
	both(s, c, transport.TapFIN, nil)
}

func recordTap(t *testing.T, body func(*Tap)) string {
	t.Helper()
	tap := &Tap{}
	c, err := tap.Start(server4.Port())
	if err != nil {
		t.Fatal(err)
	}
	body(tap)
	file := filepath.Join(t.TempDir(), "run.pcapng")
	if err := c.Stop(file); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestTapRoundTrip(t *testing.T) {
	sent, answer := random(200_000), random(3)
	for _, tc := range []struct {
		name           string
		client, server netip.AddrPort
		ends           string
	}{
		{"both ends", client4, server4, "cs"},
		{"the initiator's end", client4, server4, "c"},
		{"the responder's end", client4, server4, "s"},
		{"both ends, IPv6", client6, server6, "cs"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			file := recordTap(t, func(tap *Tap) {
				clock := time.Now()
				c, s := ends(tap, &clock, 1, tc.client, tc.server)
				switch tc.ends {
				case "c":
					s = nil
				case "s":
					c = nil
				}
				talk(c, s, sent, answer)
			})
			out, in := streams(t, file, 0)
			if !bytes.Equal(out, sent) || !bytes.Equal(in, answer) {
				t.Errorf("the capture has %d and %d octets, or others than the %d and %d that were sent", len(out), len(in), len(sent), len(answer))
			}
			trace, err := wire.ReadFile(file, server4.Port())
			if err != nil {
				t.Fatal(err)
			}
			if c := trace.Conns[0]; c.Initiator != tc.client || c.Responder != tc.server {
				t.Errorf("the capture's connection is %v -> %v", c.Initiator, c.Responder)
			}
		})
	}
}

func TestTapConnectionsOnTheSamePorts(t *testing.T) {
	first, second := random(1000), random(10)
	file := recordTap(t, func(tap *Tap) {
		clock := time.Now()
		c, s := ends(tap, &clock, 1, client4, server4)
		talk(c, s, first, nil)
		c, s = ends(tap, &clock, 3, client4, server4)
		talk(c, s, second, nil)
	})
	trace, err := wire.ReadFile(file, 0)
	if err != nil {
		t.Fatal(err)
	}
	if len(trace.Conns) != 2 {
		t.Fatalf("%d connections, want 2", len(trace.Conns))
	}
	for i, want := range [][]byte{first, second} {
		if out, _ := octetsOf(t, trace.Conns[i]); !bytes.Equal(out, want) {
			t.Errorf("connection %d has %d octets, want %d", i+1, len(out), len(want))
		}
	}
}

func TestTapReset(t *testing.T) {
	for _, byPeer := range []bool{false, true} {
		file := recordTap(t, func(tap *Tap) {
			clock := time.Now()
			c, _ := ends(tap, &clock, 1, client4, server4)
			c.tell(transport.TapOpen, true, nil)
			c.tell(transport.TapReset, !byPeer, nil)
		})
		trace, err := wire.ReadFile(file, 0)
		if err != nil {
			t.Fatal(err)
		}
		f := trace.Conns[0].Frames
		if len(f) != 1 || f[0].Kind != wire.KindRST || (f[0].Dir == wire.ToInitiator) != byPeer {
			t.Errorf("reset by the peer %v: %v", byPeer, f)
		}
	}
}

func TestTapHearsOnlyItsPortAndTime(t *testing.T) {
	tap := &Tap{}
	clock := time.Now()
	c, s := ends(tap, &clock, 1, client4, server4)
	talk(c, s, random(10), nil) // nobody records
	rec, err := tap.Start(server4.Port())
	if err != nil {
		t.Fatal(err)
	}
	other := netip.AddrPortFrom(server4.Addr(), 20002)
	c, s = ends(tap, &clock, 3, client4, other)
	talk(c, s, random(10), nil)
	file := filepath.Join(t.TempDir(), "run.pcapng")
	if err := rec.Stop(file); err != nil {
		t.Fatal(err)
	}
	talk(c, s, random(10), nil)
	trace, err := wire.ReadFile(file, 0)
	if err != nil {
		t.Fatal(err)
	}
	if len(trace.Conns) != 0 {
		t.Errorf("%d connections in the capture of a run that had none", len(trace.Conns))
	}
}

// Runs that are under way at the same time have separate recordings.
func TestTapRecordsSeveralRuns(t *testing.T) {
	tap := &Tap{}
	clock := time.Now()
	ports := []netip.AddrPort{server4, netip.AddrPortFrom(server4.Addr(), 20002)}
	sent := [][]byte{random(1000), random(10)}
	var recordings []conformance.Capture
	for _, server := range ports {
		rec, err := tap.Start(server.Port())
		if err != nil {
			t.Fatal(err)
		}
		recordings = append(recordings, rec)
	}
	for i, server := range ports {
		c, s := ends(tap, &clock, uint64(1+2*i), client4, server)
		talk(c, s, sent[i], nil)
	}
	for i, rec := range recordings {
		file := filepath.Join(t.TempDir(), "run.pcapng")
		if err := rec.Stop(file); err != nil {
			t.Fatal(err)
		}
		if out, _ := streams(t, file, 0); !bytes.Equal(out, sent[i]) {
			t.Errorf("recording %d has %d octets, want %d", i, len(out), len(sent[i]))
		}
	}
}

// TestTapLimit: a recording that exceeds its limit keeps nothing, and says so.
func TestTapLimit(t *testing.T) {
	tap := &Tap{Limit: 10_000}
	clock := time.Now()
	rec, err := tap.Start(server4.Port())
	if err != nil {
		t.Fatal(err)
	}
	for i := range uint64(3) {
		c, s := ends(tap, &clock, 2*i+1, client4, server4)
		talk(c, s, random(3000), nil)
	}
	if c := rec.(*tapCapture); c.records != nil {
		t.Errorf("%d records are kept", len(c.records))
	}
	if err := rec.Stop(filepath.Join(t.TempDir(), "run.pcapng")); err == nil {
		t.Error("a recording above its limit is complete")
	}
	for range 3 { // of 3 KB and 128 for each record, one after the other
		if rec, err = tap.Start(server4.Port()); err != nil {
			t.Fatal(err)
		}
		c, s := ends(tap, &clock, 1, client4, server4)
		talk(c, s, random(1000), nil)
		if err := rec.Stop(filepath.Join(t.TempDir(), "run.pcapng")); err != nil {
			t.Error(err)
		}
	}
	if n := tap.held.Load(); n != 0 {
		t.Errorf("%d bytes are held, and nothing is recorded", n)
	}
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
