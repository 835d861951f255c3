//go:build !race

package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs/rsocket"
	"github.com/govs-rdma/govs/provider/conformance/capture"
	"github.com/govs-rdma/govs/provider/conformance/wire"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// streamScripts are calls that both ends make. What an end sends does not depend on the other end's
// speed, except for the times of grants in the loose scripts. Scripts end with a byte each way, so
// that C's last grants come before the end.
var streamScripts = []struct {
	name, client, server string
	loose                bool
}{
	{name: "a byte", client: "w1 r1 c", server: "r1 w1 e c"},
	{name: "half close", client: "w10 r10 s r10 e c", server: "r10 w10 e w10 c"},
	{name: "both directions", client: "w10 r10 b c", server: "r10 w10 e c"},
	{name: "the server ends", client: "w10 r10 e c", server: "r10 w10 c"},
	{name: "sizes", client: "w100000 r1 w1 r1 c", server: "r100000 w1 r1 w1 e c", loose: true},
	{name: "the ring", client: strings.Repeat("w65536 r1 ", 3) + "w1 r1 c",
		server: strings.Repeat("r65536 w1 ", 3) + "r1 w1 e c"},
	{name: "the ring, both ways", client: strings.Repeat("w32768 r32768 ", 6) + "w1 r1 c",
		server: strings.Repeat("r32768 w32768 ", 6) + "r1 w1 e c"},
	{name: "credits", client: strings.Repeat("w1 r1 ", 400) + "c",
		server: strings.Repeat("r1 w1 ", 400) + "e c"},
}

// recordStream makes two ends make calls, in C or in Go, and returns what each sent, the client
// first.
func recordStream(t *testing.T, b *bridged, inC [2]bool, client, server string) [2]streamSent {
	t.Helper()
	port := freePort()
	addr := netip.MustParseAddr("127.0.0.1")
	w := &capture.Wire{Interface: loopback}
	c := testkit.Must(w.Start(port))(t)
	s := &streamSite{addr: addr, program: b.of(t).launch}
	served := make(chan error, 1)
	var programs []*program
	if inC[1] {
		p := cCalls(s.program, addr, port, "listen", server)
		awaitListener(t, p, port)
		programs = append(programs, p)
		served <- nil
	} else {
		s.vctx = openEngine(t)
		l := s.listen(t, port)
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			c, err := l.AcceptContext(ctx)
			if err == nil {
				err = goCalls(c, server)
			}
			served <- err
		}()
	}
	if inC[0] {
		programs = append(programs, cCalls(s.program, addr, port, "connect", client))
	} else {
		if s.vctx == nil {
			s.vctx = openEngine(t)
		}
		conn := testkit.Must(rsocket.Dial(t.Context(), s.vctx, "tcp", netip.AddrPortFrom(addr, port).String()))(t)
		testkit.OK(t, goCalls(limited(t, conn), client))
	}
	testkit.OK(t, <-served)
	for _, p := range programs {
		p.want(t, 0, "all calls were made")
	}
	file := filepath.Join(t.TempDir(), "stream.pcapng")
	testkit.OK(t, c.Stop(file))
	trace := testkit.Must(wire.ReadFile(file, port))(t).IWARP()
	if len(trace.Conns) != 1 {
		t.Fatalf("%d connections were captured", len(trace.Conns))
	}
	return [2]streamSent{
		testkit.Must(streamMessages(trace.Conns[0], wire.ToResponder, inC[0]))(t),
		testkit.Must(streamMessages(trace.Conns[0], wire.ToInitiator, inC[1]))(t),
	}
}

// recordReference records two C ends. On a busy machine one end once sent something else: its
// opening Write after the first data, and no FIN. So the reference is what they send twice.
func recordReference(t *testing.T, b *bridged, client, server string, loose bool) [2]streamSent {
	t.Helper()
	same := func(a, b streamSent) bool {
		if loose {
			a.grants, b.grants = withoutCredits(a.grants), withoutCredits(b.grants)
		}
		return slices.Equal(a.data, b.data) && slices.Equal(a.grants, b.grants)
	}
	var all [][2]streamSent
	for range 6 {
		got := recordStream(t, b, [2]bool{true, true}, client, server)
		for _, before := range all {
			if same(got[0], before[0]) && same(got[1], before[1]) {
				return got
			}
		}
		all = append(all, got)
	}
	t.Fatalf("ends in C have sent something else each time: %+v", all)
	return all[0]
}

// streamHello is the private data of an end, decoded without package rsocket.
type streamHello struct {
	sglAddr, ringAddr uint64
	sglKey, ringKey   uint32
}

func (h *streamHello) parse(f *mpa.Frame) (string, error) {
	_, b, err := f.SplitPrivateData()
	if err != nil || len(b) != 40 {
		return "", fmt.Errorf("private data %x: %w", b, err)
	}
	u32, u64 := binary.BigEndian.Uint32, binary.BigEndian.Uint64
	*h = streamHello{sglAddr: u64(b[8:]), sglKey: u32(b[16:]), ringAddr: u64(b[24:]),
		ringKey: u32(b[32:])}
	return fmt.Sprintf("hello %x: SGL of %d, half of %d", b[:8], u32(b[20:]), u32(b[36:])), nil
}

// streamSent is what one end sent. Grants are separate, because their order depends on timing.
type streamSent struct {
	data   []string
	grants []string
	behind []int // for each grant, the number of data messages before it
}

// add adds a message, which for a grant is the Write or the Send.
func (s *streamSent) add(m string) {
	switch {
	case strings.HasPrefix(m, "credits "), strings.HasPrefix(m, "grant "):
		s.grants = append(s.grants, m)
		s.behind = append(s.behind, len(s.data))
	default:
		s.data = append(s.data, m)
	}
}

// streamMessages returns what one end sent, with addresses relative to those that the ends named.
// It leaves out the Writes without bytes that a Go end sends after Dial to a peer that is
// slow to answer.
func streamMessages(c *wire.Conn, dir wire.Direction, inC bool) (out streamSent, err error) {
	var mine, peers streamHello
	own, other := c.Request, c.Reply
	if dir == wire.ToInitiator {
		own, other = other, own
	}
	if own == nil || other == nil {
		return out, errors.New("the start-up is not in the capture")
	}
	hello, err := mine.parse(own)
	if err != nil {
		return out, err
	}
	if _, err := peers.parse(other); err != nil {
		return out, err
	}
	out.add(hello)
	var octets []byte
	var at uint64
	for _, f := range c.FPDUs(dir) {
		if len(octets) == 0 {
			at = f.Header.TO
		}
		octets = append(octets, f.Payload...)
		if !f.Header.Last {
			continue
		}
		if m := describeStream(f, at, octets, &mine, &peers); inC || m != openingWrite {
			out.add(m)
		}
		octets = nil
	}
	out.add(c.End(dir))
	return out, nil
}

// describeStream describes a message whose last segment is f.
func describeStream(f *wire.Frame, at uint64, octets []byte, mine, peers *streamHello) string {
	switch op := f.Opcode(); {
	case f.Err != nil:
		return f.Err.Error()
	case op == rdmap.OpSend && len(octets) == 4:
		return describeMessage(binary.LittleEndian.Uint32(octets))
	case op != rdmap.OpWrite:
		return fmt.Sprintf("%v of %d bytes", op, len(octets))
	case len(octets) == 16 && f.Header.STag == peers.sglKey && at-peers.sglAddr < 32:
		u32, u64 := binary.LittleEndian.Uint32, binary.LittleEndian.Uint64
		what := fmt.Sprintf("%d bytes at %d", u32(octets[12:]), u64(octets)-mine.ringAddr)
		if key := u32(octets[8:]); key != mine.ringKey {
			what += fmt.Sprintf(" of key %#x", key)
		}
		return fmt.Sprintf("grant %d: %s", (at-peers.sglAddr)/16, what)
	case f.Header.STag == peers.ringKey:
		return fmt.Sprintf("write %d bytes at %d", len(octets), at-peers.ringAddr)
	}
	return fmt.Sprintf("write %d bytes at %#x with %#x", len(octets), at, f.Header.STag)
}

func describeMessage(m uint32) string {
	n := m & (1<<29 - 1)
	switch kind := m >> 29; {
	case kind == 0:
		return fmt.Sprintf("data %d", n)
	case kind == 4:
		return fmt.Sprintf("credits %d", n)
	case kind == 7 && n == 0:
		return "disconnect"
	case kind == 7 && n == 2:
		return "shutdown"
	}
	return fmt.Sprintf("message %#x", m)
}

// streamDifferences are the differences between C ends and Go ends, with the reasons. Each occurs.
var streamDifferences = map[string]string{
	"opening": "The engine opens the stream of a C program with a Write of no bytes, because a " +
		"program that connects may wait for the other one. On siw there is none. Package rsocket " +
		"does without: its grant opens the stream.",
	"first grant": "Dial grants the second half of the ring at once, which lets the other end " +
		"send. C does so when it waits the first time.",
	"grants": "Read grants what it has read before it returns. C grants it when it waits the " +
		"next time.",
}

// openingWrite describes a Write of no bytes to nowhere.
const openingWrite = "write 0 bytes at 0x0 with 0x0"

// compareStream compares what a Go end sent with what a C end sends instead, and notes which
// differences occur.
func compareStream(t *testing.T, inC, inGo streamSent, loose bool, seen map[string]bool) {
	t.Helper()
	opened := 0
	if at := slices.Index(inC.data, openingWrite); at == 1 { // after the private data
		inC.data = slices.Delete(slices.Clone(inC.data), at, at+1)
		opened = 1
		seen["opening"] = true
	}
	if d := cmp.Diff(inC.data, inGo.data); d != "" {
		t.Errorf("data and ends (-C +Go):\n%s", d)
	}
	if loose {
		inC.grants, inGo.grants = withoutCredits(inC.grants), withoutCredits(inGo.grants)
	}
	if d := cmp.Diff(inC.grants, inGo.grants); d != "" {
		t.Errorf("grants (-C +Go):\n%s", d)
		return
	}
	for i := range inGo.behind {
		c, g := inC.behind[i]-opened, inGo.behind[i]
		name := "grants"
		if i < 2 { // Write and Send of the first message
			name = "first grant"
		}
		switch {
		case g < c:
			seen[name] = true
		case g > c && !loose:
			t.Errorf("%s is sent behind %d messages, and C's behind %d", inGo.grants[i], g, c)
		}
	}
}

// withoutCredits masks the numbers of credits.
func withoutCredits(grants []string) []string {
	out := slices.Clone(grants)
	for i, g := range out {
		if strings.HasPrefix(g, "credits ") {
			out[i] = "credits"
		}
	}
	return out
}

// TestStreamLikeC makes two ends make the same calls, in C and in Go, and compares what they send.
// Every difference is in streamDifferences, and every entry there occurs.
func TestStreamLikeC(t *testing.T) {
	b := newBridged(t)
	if err := (&capture.Wire{Interface: loopback}).Usable(); err != nil {
		if os.Getenv("REQUIRE_SIW") == "1" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	buildStreamCalls(t)
	seen := make(map[string]bool)
	ran := 0
	for _, script := range streamScripts {
		t.Run(script.name, func(t *testing.T) {
			ran++
			reference := recordReference(t, b, script.client, script.server, script.loose)
			for _, inC := range [][2]bool{{false, false}, {true, false}, {false, true}} {
				got := recordStream(t, b, inC, script.client, script.server)
				for end, name := range []string{"client", "server"} {
					if inC[end] {
						continue
					}
					t.Run(fmt.Sprintf("the %s, its peer in C: %v", name, inC[1-end]),
						func(t *testing.T) {
							compareStream(t, reference[end], got[end], script.loose, seen)
						})
				}
			}
		})
	}
	for name, why := range streamDifferences {
		if !seen[name] && ran == len(streamScripts) { // with -run fewer may have run
			t.Errorf("this difference does not occur: %s", why)
		}
	}
}
