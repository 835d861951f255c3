package proto

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
)

// end is one end of a simulated stream. Its memory is at the addresses that it announces.
type end struct {
	st        *State
	cfg       Config
	hello     Hello
	ring, sgl []byte
	buf       []byte // the send buffer

	wire         []op  // on the way to the peer
	data         []int // bytes of incomplete transfers
	slots        []int // control slots of incomplete messages
	wrote, read  uint64
	sent, grants int
}

// op is a Write, if data is not nil, or a message.
type op struct {
	addr uint64
	data []byte
	msg  [MessageLen]byte
}

const (
	ringAt = 0x10000
	sglAt  = 0x8000
)

// newEnds makes the two ends of a stream.
func newEnds(a, b Config) (x, y *end) {
	x, y = &end{cfg: a}, &end{cfg: b}
	for _, e := range []*end{x, y} {
		e.ring, e.sgl = make([]byte, e.cfg.Ring.Len), make([]byte, SGLEntries*EntryLen)
		e.buf = make([]byte, e.cfg.SendRing)
		e.cfg.Ring.Addr, e.cfg.Ring.Key = ringAt, 0x1234
		e.cfg.SGL = e.sgl
		e.hello = Hello{BigEndian: e.cfg.BigEndian, Credits: uint16(e.cfg.Receives),
			SGL:  Region{sglAt, 0x4321, SGLEntries},
			Data: Region{ringAt, 0x1234, e.cfg.Ring.Len / 2}}
	}
	x.st, y.st = New(x.cfg, y.hello), New(y.cfg, x.hello)
	return x, y
}

// byte returns the stream's byte at offset n.
func octet(n uint64) byte { return byte(n * 0x9e3779b1 >> 13) }

// write sends n bytes, if possible.
func (e *end) write(n int, inline bool) {
	n = min(n, e.st.CanSend())
	if n == 0 {
		return
	}
	tr := e.st.Send(n, inline)
	p := make([]byte, n)
	for i := range p {
		p[i] = octet(e.wrote)
		e.wrote++
	}
	o := op{addr: tr.Addr, data: p}
	if !inline { // from the send buffer, to detect overlapping transfers
		k := copy(e.buf[tr.Offset:], p)
		copy(e.buf, p[k:])
		o.data = append(append([]byte(nil), e.buf[tr.Offset:tr.Offset+k]...), e.buf[:n-k]...)
		e.data = append(e.data, n)
	} else {
		e.data = append(e.data, 0)
	}
	e.wire = append(e.wire, o)
	e.message(tr.Msg)
	e.sent++
}

func (e *end) message(m Message) {
	var o op
	e.st.PutMessage(o.msg[:], m)
	e.wire = append(e.wire, o)
}

// grant sends the grants that are due.
func (e *end) grant() {
	var g Grant
	for e.st.Grant(&g) {
		if g.Write {
			e.wire = append(e.wire, op{addr: g.Addr, data: append([]byte(nil), g.Entry[:]...)})
		}
		e.message(g.Msg)
		e.slots = append(e.slots, g.Slots)
		e.grants++
	}
}

// complete processes the oldest completions.
func (e *end) complete() {
	if len(e.data) > 0 {
		e.st.Sent(e.data[0])
		e.data = e.data[1:]
	}
	if len(e.slots) > 0 {
		e.st.FreeSlots(e.slots[0])
		e.slots = e.slots[1:]
	}
}

// deliver makes the oldest operation on the way to e arrive.
func (e *end) deliver(t testing.TB, from *end) {
	if len(from.wire) == 0 {
		return
	}
	o := from.wire[0]
	from.wire = from.wire[1:]
	switch {
	case o.data == nil:
		if m, err := e.st.Receive(o.msg[:]); err != nil {
			t.Fatalf("%v: %v", m, err)
		}
	case o.addr >= ringAt:
		copy(e.ring[o.addr-ringAt:][:len(o.data)], o.data)
	default:
		copy(e.sgl[o.addr-sglAt:][:len(o.data)], o.data)
	}
}

// consume reads up to n bytes, and checks them.
func (e *end) consume(t testing.TB, n int) {
	off, have := e.st.Readable()
	n = min(n, have)
	for i, b := range e.ring[off : off+n] {
		if want := octet(e.read + uint64(i)); b != want {
			t.Fatalf("byte %d of the stream is %#x, and not %#x", e.read+uint64(i), b, want)
		}
	}
	e.read += uint64(n)
	e.st.Consume(n)
}

// TestStreams makes two ends do everything that is permitted, in any order, for many sizes of rings
// and queues, and both byte orders.
func TestStreams(t *testing.T) {
	seeds := uint64(300)
	if testkit.Race { // nothing here is concurrent; ci/test also runs all without the race detector
		seeds = 20
	}
	for seed := range seeds {
		r := rand.New(rand.NewPCG(seed, 1))
		cfg := func(silent bool) Config {
			return Config{
				BigEndian: r.IntN(2) == 0, Receives: 2 + r.IntN(40), Silent: silent,
				Ring: Region{Len: 2 * (1 + r.Uint32N(1<<r.IntN(14)))}, SendQueue: 6 + r.IntN(60),
				SendRing: 1 + r.IntN(1<<r.IntN(15)),
			}
		}
		x, y := newEnds(cfg(false), cfg(true))
		steps := 20000
		for i := 0; i < steps || x.busy() || y.busy(); i++ {
			e, peer := x, y
			if r.IntN(2) == 0 {
				e, peer = y, x
			}
			action := r.IntN(6)
			if action == 0 && i >= steps {
				action = 1 // no more writes
			}
			switch action {
			case 0:
				e.write(1+r.IntN(1<<r.IntN(17)), r.IntN(4) == 0)
			case 1, 2:
				e.deliver(t, peer)
			case 3:
				e.complete()
			case 4:
				e.consume(t, r.IntN(1<<r.IntN(17)))
			case 5:
				e.grant()
			}
			if i > 4*steps {
				t.Fatalf("seed %d: what is on its way does not arrive: %+v %+v", seed, x.st, y.st)
			}
		}
		for _, e := range []*end{x, y} {
			peer := map[*end]*end{x: y, y: x}[e]
			if e.read != peer.wrote || e.sent < 100 {
				t.Errorf("seed %d: of %d bytes in %d transfers %d were read", seed, peer.wrote, peer.sent, e.read)
			}
			e.complete()
			if out := e.st.Out(); out.Buffer != e.cfg.SendRing || out.Places != e.cfg.SendQueue-ControlSlots {
				t.Errorf("seed %d: at the end, of %+v there is %+v", seed, e.cfg, out)
			}
		}
	}
}

func (e *end) busy() bool {
	return len(e.wire)+len(e.data)+len(e.slots)+e.st.Unread() > 0
}

// TestSilence: an end that accepted sends nothing before the first message, and then has to send
// the grant of its second half.
func TestSilence(t *testing.T) {
	x, y := newEnds(plain(), Config{Receives: 16, Ring: Region{Len: 64}, SendQueue: 16, SendRing: 4096, Silent: true})
	var g Grant
	if y.st.CanSend() != 0 || y.st.Grant(&g) || y.st.Keepalive() {
		t.Error("an end that has to be silent may send")
	}
	x.grant()
	y.deliver(t, x)
	y.deliver(t, x)
	if y.st.CanSend() != 32 || !y.st.Grant(&g) || !g.Write {
		t.Errorf("after the first message it may send %d bytes, and %+v", y.st.CanSend(), g)
	}
	// The grant has taken two of the control slots.
	for i, want := range []bool{true, true, false} {
		if got := y.st.Keepalive(); got != want {
			t.Errorf("keepalive %d may be sent: %v", i, got)
		}
	}
	if y.st.FreeSlots(1); !y.st.Keepalive() {
		t.Error("a slot that is free again is not used")
	}
}

func plain() Config {
	return Config{Receives: 16, Ring: Region{Len: 64}, SendQueue: 16, SendRing: 4096}
}

// TestLimits: each limit that stops a sender.
func TestLimits(t *testing.T) {
	cfg := plain()
	cfg.SendQueue = ControlSlots + 2*3 // three transfers
	x, y := newEnds(cfg, cfg)
	for range 3 {
		x.write(1, false)
	}
	if x.st.CanSend() != 0 {
		t.Error("there are no places in the send queue")
	}
	x.complete()
	if x.st.CanSend() != 29 {
		t.Errorf("with a place again, %d bytes can be sent, and not the 29 of the half", x.st.CanSend())
	}
	x.write(100, false)
	x.complete()
	if x.st.CanSend() != 0 {
		t.Error("there is no half of the ring")
	}
	y.grant() // the second half
	x.deliver(t, y)
	x.deliver(t, y)
	if x.st.CanSend() != 32 {
		t.Errorf("in the second half there is room for 32 bytes, and not %d", x.st.CanSend())
	}
	for i := range 12 - 4 { // a quarter of 16 credits is left unused
		if x.st.CanSend() == 0 {
			t.Fatalf("no credits after %d transfers", 4+i)
		}
		x.write(1, true)
		x.complete()
	}
	if x.st.CanSend() != 0 || x.st.Out().Credits != 4 {
		t.Errorf("there are %d credits", x.st.Out().Credits)
	}
	for range 2 * 12 {
		y.deliver(t, x)
	}
	y.consume(t, 100)
	y.consume(t, 100)
	y.grant()
	x.deliver(t, y)
	x.deliver(t, y)
	if x.st.CanSend() != 24 || x.st.Out().Credits != 16 {
		t.Errorf("after all was read, %d bytes can be sent, with %d credits", x.st.CanSend(), x.st.Out().Credits)
	}
	low := newLow()
	low.write(2049, false)
	if low.st.CanSend() != 0 {
		t.Error("with less than the low water free, nothing is sent")
	}
	low.complete()
	if low.st.CanSend() != 4096 {
		t.Errorf("with all free, %d", low.st.CanSend())
	}
}

func newLow() *end {
	c := plain()
	c.Ring.Len = 1 << 20
	x, _ := newEnds(c, c)
	return x
}

// TestHellos: invalid private data, and the errors.
func TestHellos(t *testing.T) {
	good := testkit.Unhex(t, "0102018000000000 00007fc7f4002000d8501f0000000002 00007fc7f8c2600010ac050000080000")
	if _, err := ParseHello(good); err != nil {
		t.Fatal(err)
	}
	set := func(at int, b ...byte) []byte {
		bad := bytes.Clone(good)
		copy(bad[at:], b)
		return bad
	}
	for name, tc := range map[string]struct {
		data []byte
		say  string
	}{
		"none":            {nil, "no private data"},
		"text":            {[]byte("please"), "version 112"},
		"version":         {set(0, 2), "version 2"},
		"short":           {good[:39], "39 bytes; rsocket's has 40"},
		"long":            {append(bytes.Clone(good), 0), "41 bytes"},
		"no credits":      {set(2, 0, 0), "posted no receives"},
		"SGL at 0":        {set(8, make([]byte, 8)...), "SGL at address 0"},
		"SGL of nothing":  {set(20, 0, 0, 0, 0), "SGL of 0 entries"},
		"SGL of one":      {set(20, 0, 0, 0, 1), "SGL of 1 entries"},
		"SGL at the end":  {set(8, 255, 255, 255, 255, 255, 255, 255, 240), "beyond the last address"},
		"ring at 0":       {set(24, make([]byte, 8)...), "ring at address 0"},
		"ring of nothing": {set(36, 0, 0, 0, 0), "ring of no bytes"},
		"ring too long":   {set(36, 128, 0, 0, 0), "twice 2147483648"},
		"ring at the end": {set(24, 255, 255, 255, 255, 255, 255, 255, 0), "beyond the last address"},
	} {
		_, err := ParseHello(tc.data)
		wantBroken(t, name, err, tc.say)
	}
}

func wantBroken(t *testing.T, name string, err error, say string) {
	t.Helper()
	if broke := (*Error)(nil); !errors.As(err, &broke) || !strings.Contains(err.Error(), say) {
		t.Errorf("%s: got %v, and want an Error that says %q", name, err, say)
	}
}

// TestBroken: messages that a peer may not send, after the events that make them invalid.
func TestBroken(t *testing.T) {
	data := func(n uint32) Message { return message(KindData, n) }
	credits := func(n uint32) Message { return message(KindCredits, n) }
	for name, tc := range map[string]struct {
		before func(x, y *end)
		send   []Message
		say    string
	}{
		"no bytes": {nil, []Message{data(0)}, "data of 0 bytes"},
		"more than the half": {nil, []Message{data(33)},
			"33 bytes; the half of the ring that it writes has room for 32"},
		"across the half": {nil, []Message{data(20), data(13)},
			"13 bytes; the half of the ring that it writes has room for 12"},
		"in a half not granted":  {nil, []Message{data(32), data(1)}, "has room for 0"},
		"across the second half": {func(x, _ *end) { x.grant() }, []Message{data(32), data(33)}, "has room for 32"},
		"the largest number":     {nil, []Message{data(1<<29 - 1)}, "has room for 32"},
		"without credits":        {nil, repeat(17, data(1)), "more data messages than it has credits for: 16"},
		"after the shutdown":     {nil, []Message{Shutdown, data(1)}, "after its shutdown"},
		"after the disconnect":   {nil, []Message{Disconnect, data(1)}, "after its disconnect"},
		"credits for nothing":    {nil, []Message{credits(17)}, "grants credits up to 17; of 0 messages"},
		"credits for more": {func(x, _ *end) { x.write(1, false) }, []Message{credits(18)},
			"of 1 messages it has read 1 at most, which allows 17"},
		"fewer credits": {nil, []Message{credits(15)}, "credits up to 15"},
		"credits go back": {func(x, _ *end) { x.write(1, false) }, []Message{credits(17), credits(16)},
			"credits up to 16"},
		"iomap":            {nil, []Message{0xc0000000}, "iomap entry"},
		"reserved 1":       {nil, []Message{message(1, 1)}, "message of kind 1"},
		"reserved 2":       {nil, []Message{message(2, 1)}, "message of kind 2"},
		"reserved 3":       {nil, []Message{message(3, 1)}, "message of kind 3"},
		"reserved 5":       {nil, []Message{message(5, 1)}, "message of kind 5"},
		"keepalive":        {nil, []Message{message(KindControl, ControlKeepalive)}, "kind 7 with 1"},
		"control 3":        {nil, []Message{message(KindControl, 3)}, "kind 7 with 3"},
		"the same credits": {nil, repeat(maxIdle+1, credits(16)), "change nothing"},
		"many shutdowns":   {nil, repeat(maxIdle+2, Shutdown), "change nothing, of which the last is shutdown"},
		"a wrong grant": {func(x, _ *end) { putEntry(false, x.sgl[EntryLen:], Region{ringAt, 0x1234, 32}) },
			repeat(2, credits(16)),
			"grants 32 bytes at 0x10000 with key 0x1234; the half of its ring that is free has 32 at 0x10020"},
		"a grant that is too long": {func(x, _ *end) {
			putEntry(false, x.sgl[EntryLen:], Region{ringAt + 32, 0x1234, math.MaxUint32})
		},
			repeat(2, credits(16)), "grants 4294967295 bytes"},
		"a grant with another key": {func(x, _ *end) { putEntry(false, x.sgl[EntryLen:], Region{ringAt + 32, 0x1235, 32}) },
			repeat(2, credits(16)), "with key 0x1235"},
	} {
		x, y := newEnds(plain(), plain())
		if tc.before != nil {
			tc.before(x, y)
		}
		var err error
		for i, m := range tc.send {
			var b [MessageLen]byte
			binary.LittleEndian.PutUint32(b[:], uint32(m))
			if _, err = x.st.Receive(b[:]); err != nil && i < len(tc.send)-1 {
				t.Errorf("%s: message %d: %v", name, i, err)
			}
		}
		wantBroken(t, name, err, tc.say)
	}
	x, _ := newEnds(plain(), plain())
	_, err := x.st.Receive([]byte{1, 0, 0})
	wantBroken(t, "short", err, "a message of 3 bytes")
}

func repeat(n int, m Message) []Message {
	all := make([]Message, n)
	for i := range all {
		all[i] = m
	}
	return all
}

// TestCAfterEnd: messages that C's end sends after its shutdown and disconnect are accepted.
func TestCAfterEnd(t *testing.T) {
	x, y := newEnds(plain(), plain())
	x.write(5, false)
	for range 2 {
		y.deliver(t, x)
	}
	y.consume(t, 5)
	for _, m := range []Message{Shutdown, Shutdown, Disconnect, Disconnect, Shutdown} {
		y.message(m)
	}
	y.grant()
	for len(y.wire) > 0 {
		x.deliver(t, y)
	}
	if x.st.PeerEnd() != Disconnect || x.st.Out().Room != 64-5 {
		t.Errorf("the peer's end is %v, and there is %+v", x.st.PeerEnd(), x.st.Out())
	}
	// An end that has shut down needs no grants.
	var g Grant
	if x.st.Grant(&g) {
		t.Errorf("a peer that writes no more is granted %+v", g)
	}
}

// TestCreditsBeforeGrant: an entry that is still being written while earlier credits are processed
// is accepted with the next credits.
func TestCreditsBeforeGrant(t *testing.T) {
	x, _ := newEnds(plain(), plain())
	var b [MessageLen]byte
	send := func() {
		t.Helper()
		binary.LittleEndian.PutUint32(b[:], uint32(message(KindCredits, 16)))
		if _, err := x.st.Receive(b[:]); err != nil {
			t.Fatal(err)
		}
	}
	x.sgl[EntryLen] = 7 // half of an address
	send()
	if x.st.Out().Room != 32 {
		t.Errorf("half of an entry was taken: %+v", x.st.Out())
	}
	putEntry(false, x.sgl[EntryLen:], Region{ringAt + 32, 0x1234, 32})
	send()
	if x.st.Out().Room != 64 {
		t.Errorf("the entry was not taken: %+v", x.st.Out())
	}
	if !bytes.Equal(x.sgl, make([]byte, len(x.sgl))) {
		t.Errorf("it is still there: %x", x.sgl)
	}
}

// TestGrantOfUnreadHalf: an entry for a half that the peer has not read is ignored, because the
// peer may still be writing it.
func TestGrantOfUnreadHalf(t *testing.T) {
	x, y := newEnds(plain(), plain())
	y.grant()
	x.deliver(t, y)
	x.deliver(t, y)
	x.write(31, false)
	x.write(1, false) // the first half is full
	receive := func(read uint32, room int) {
		t.Helper()
		var b [MessageLen]byte
		binary.LittleEndian.PutUint32(b[:], uint32(message(KindCredits, 16+read)))
		if _, err := x.st.Receive(b[:]); err != nil {
			t.Fatal(err)
		}
		if got := x.st.Out().Room; got != room {
			t.Errorf("when %d messages are read, there is room for %d bytes, and not %d", read, got, room)
		}
	}
	putEntry(false, x.sgl, Region{ringAt, 0x1234, 32})
	receive(1, 32)
	receive(2, 64)
}

// FuzzReceive makes a peer send and write anything, while the program does everything that is
// permitted.
func FuzzReceive(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0, 1, 1, 0x80, 0, 0, 16, 2, 9, 3, 4, 5})
	f.Add(bytes.Repeat([]byte{0, 0, 0, 0, 7, 4, 9, 5}, 40))
	f.Fuzz(func(t *testing.T, program []byte) {
		cfg := plain()
		cfg.BigEndian = true
		x, _ := newEnds(cfg, cfg)
		next := func(n int) []byte {
			b := make([]byte, n)
			program = program[copy(b, program):]
			return b
		}
		for len(program) > 0 {
			switch next(1)[0] % 6 {
			case 0, 1:
				if _, err := x.st.Receive(next(MessageLen)); err != nil {
					wantBroken(t, "fuzz", err, "the peer")
					return
				}
			case 2:
				x.write(int(next(1)[0]), false)
			case 3:
				copy(x.sgl, next(len(x.sgl)))
			case 4:
				off, n := x.st.Readable()
				if off+n > len(x.ring) {
					t.Fatalf("%d bytes at %d of a ring of %d", n, off, len(x.ring))
				}
				x.st.Consume(min(n, int(next(1)[0])))
			case 5:
				x.grant()
				x.complete()
			}
			if u := x.st.Unread(); u < 0 || u > len(x.ring) {
				t.Fatalf("%d bytes in a ring of %d", u, len(x.ring))
			}
			if out := x.st.Out(); out.Room < 0 || out.Room > len(x.ring) || out.Credits > math.MaxUint16 {
				t.Fatalf("%+v", out)
			}
		}
	})
}
