package proto

import (
	"bytes"
	"encoding/binary"
	"os"
	"strings"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
)

// step is a line of the recording.
type step struct {
	from, kind string
	data       []byte // for private data and Sends
	key        uint32 // for Writes
	addr       uint64
	payload    []byte
}

func recording(t *testing.T) []step {
	var steps []step
	for line := range strings.Lines(string(testkit.Must(os.ReadFile("testdata/siw-rstream.txt"))(t))) {
		f := strings.Fields(line)
		if f[0] == "#" {
			continue
		}
		s := step{from: f[0], kind: f[1]}
		if s.kind == "write" {
			s.key = binary.BigEndian.Uint32(testkit.Unhex(t, f[2]))
			s.addr = binary.BigEndian.Uint64(testkit.Unhex(t, f[3]))
			if f[len(f)-1] == "octets" {
				s.payload = make([]byte, 2048)
			} else {
				s.payload = testkit.Unhex(t, strings.Join(f[4:], ""))
			}
		} else {
			s.data = testkit.Unhex(t, strings.Join(f[2:], ""))
		}
		steps = append(steps, s)
	}
	return steps
}

// TestRecording replaces each of C's two ends by a State: it accepts what the other end sent, and
// would send the same bytes.
func TestRecording(t *testing.T) {
	steps := recording(t)
	for _, me := range []string{"client", "server"} {
		t.Run(me, func(t *testing.T) {
			var mine, peer Hello
			for _, s := range steps[:2] {
				h := testkit.Must(ParseHello(s.data))(t)
				if got := h.Append(nil); !bytes.Equal(got, s.data) {
					t.Errorf("the private data %x is encoded as %x", s.data, got)
				}
				if s.from == me {
					mine = h
				} else {
					peer = h
				}
			}
			ring := mine.Data
			ring.Len *= 2
			sgl := make([]byte, SGLEntries*EntryLen)
			st := New(Config{
				Receives: int(mine.Credits), Ring: ring, SGL: sgl, SendQueue: 384, SendRing: 1 << 20,
				Silent: me == "server",
			}, peer)
			if st.Silent() != (me == "server") {
				t.Errorf("the %s is silent: %v", me, st.Silent())
			}
			var msg [MessageLen]byte
			var write step // the Write whose message is still missing
			unread := 0
			for _, s := range steps[2:] {
				switch {
				case s.kind == "write":
					write = s
				case s.from != me:
					if off := write.addr - mine.SGL.Addr; write.key == mine.SGL.Key && off < uint64(len(sgl)) {
						copy(sgl[off:], write.payload)
					}
					m, err := st.Receive(s.data)
					if err != nil {
						t.Fatalf("%s %x, %v: %v", s.from, s.data, m, err)
					}
					if m.Kind() == KindData {
						off, n := st.Readable()
						if n != len(write.payload) || ring.Addr+uint64(off) != write.addr {
							t.Errorf("%d octets at %d of the ring are to be read, and not %d at %#x", n, off,
								len(write.payload), write.addr)
						}
						unread += n
					}
				default:
					if Message(binary.LittleEndian.Uint32(s.data)).Kind() == KindData {
						st.Consume(unread) // it answers the data that it has read
						unread = 0
					}
					st.replay(t, s, write, msg[:])
				}
			}
			if me == "server" && st.PeerEnd() != Disconnect {
				t.Errorf("the server sees no disconnect, but %v", st.PeerEnd())
			}
			if out := st.Out(); out.Credits != 384-2 || out.Room != 1<<20-16-2048 {
				t.Errorf("at the end there are %d credits and %d octets of room", out.Credits, out.Room)
			}
		})
	}
}

// replay makes st send the recorded messages.
func (s *State) replay(t *testing.T, want, write step, msg []byte) {
	t.Helper()
	var addr uint64
	var key uint32
	switch m := Message(binary.LittleEndian.Uint32(want.data)); m.Kind() {
	case KindCredits:
		var g Grant
		if !s.Grant(&g) || !g.Write || g.Slots != 2 {
			t.Fatalf("no grant with a Write is due: %+v", g)
		}
		if !bytes.Equal(g.Entry[:], write.payload) {
			t.Errorf("the entry is %x, recorded is %x", g.Entry, write.payload)
		}
		addr, key = g.Addr, g.Key
		s.PutMessage(msg, g.Msg)
		if s.Grant(&g) {
			t.Errorf("another grant is due: %+v", g)
		}
	case KindData:
		n := len(write.payload)
		if can := s.CanSend(); can < n {
			t.Fatalf("%d octets can be sent, recorded is %d", can, n)
		}
		tr := s.Send(n, false)
		addr, key = tr.Addr, tr.Key
		s.PutMessage(msg, tr.Msg)
	case KindControl:
		addr, key = write.addr, write.key
		s.PutMessage(msg, Disconnect)
	}
	if addr != write.addr || key != write.key {
		t.Errorf("the Write goes to %#x with key %#x, recorded is %#x with %#x", addr, key, write.addr, write.key)
	}
	if !bytes.Equal(msg, want.data) {
		t.Errorf("the message is %x, recorded is %x", msg, want.data)
	}
}

// TestMessages: the texts of messages.
func TestMessages(t *testing.T) {
	for text, m := range map[string]Message{
		"data of 65536 bytes":       message(KindData, MaxTransfer),
		"credits up to 384":         0x80000180,
		"iomap entry 3":             0xc0000003,
		"disconnect":                0xe0000000,
		"shutdown":                  0xe0000002,
		"message of kind 7 with 1":  0xe0000001,
		"message of kind 3 with 17": 0x60000011,
	} {
		if m.String() != text {
			t.Errorf("%#x is %q, and not %q", uint32(m), m, text)
		}
	}
}

// FuzzHello: encoding accepted private data again returns the same bytes, except for unused fields.
func FuzzHello(f *testing.F) {
	f.Add((&Hello{Credits: 1, SGL: Region{1, 2, 2}, Data: Region{3, 4, 5}}).Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := ParseHello(b)
		if err != nil {
			return
		}
		again := h.Append(nil)
		if h2, err := ParseHello(again); err != nil || h2 != h {
			t.Errorf("%x is %+v, which is encoded as %x: %+v, %v", b, h, again, h2, err)
		}
		end := h.Data.Addr + 2*uint64(h.Data.Len)
		if end < h.Data.Addr || binary.BigEndian.Uint16(b[2:]) == 0 {
			t.Errorf("%+v is accepted", h)
		}
	})
}
