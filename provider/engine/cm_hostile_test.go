package engine

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/cm"
	"github.com/govs-rdma/govs/provider/engine/transport"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
)

// wantServed checks that a listener still serves others.
func (w *cmWorld) wantServed(l *cm.ID) {
	w.t.Helper()
	w.meet("others are still served", w.active.connect(l.LocalAddr(), provider.ConnParam{}), l)
}

// TestIllegalRequests sends bytes that are not a Request. Each time the connection is closed
// without an answer, the program sees nothing, and other connections go on.
//
//rfc:5044 MPA-7.1.1-03 Responder closes and reports on wrong Req key
//rfc:5044 MPA-7.1.1-16 Unsupported Rev: close and report locally
//rfc:5044 MPA-7.1.1-19 PD_Length mismatch or >512: close and report
//rfc:5044 MPA-7.1.2-2-02 Malformed Request: close TCP, leave MPA
//rfc:6581 MPA2-6-08 S=1 with PD_Length <4 is malformed
func TestIllegalRequests(t *testing.T) {
	tooLong, lies := uint16(513), uint16(65535)
	cases := map[string][]byte{

		"revision 3":   rawRequest(func(f *mpa.Frame) { f.Revision = 3 }),
		"revision 255": rawRequest(func(f *mpa.Frame) { f.Revision = 255 }),
		"a Reply":      rawReply(nil),
		"PD_Length one too long": rawRequest(func(f *mpa.Frame) {
			f.PDLength, f.PrivateData = &tooLong, octets(513)
		}),
		"PD_Length 65535": rawRequest(func(f *mpa.Frame) { f.PDLength = &lies }),
		"enhanced without room for it": rawRequest(func(f *mpa.Frame) {
			f.PrivateData = f.PrivateData[:3]
		}),
		"HTTP":  []byte("GET / HTTP/1.1\r\nHost: 192.0.2.1\r\n\r\n"),
		"zeros": make([]byte, 600),
		"nothing but the first byte": func() []byte {
			b := make([]byte, 20_000)
			for i := range b {
				b[i] = 'M'
			}
			return b
		}(),
	}
	for i := range mpa.KeyLen {
		b := rawRequest(nil)
		b[i] ^= 0x20
		cases[fmt.Sprintf("byte %d of the key", i)] = b
	}
	onNetworks(t, Options{}, func(t *testing.T, w *cmWorld) {
		l := w.server.listen()
		for name, b := range cases {
			p := w.dialRaw(l.LocalAddr())
			p.trySend(b)
			_ = p.wantEnd(name)
			p.close()
		}
		w.wantServed(l)
		w.server.wantIdle("of illegal requests a program hears nothing")
	})
}

// TestOctetsBehindARequest sends them together with it.
//
//rfc:5044 MPA-7.1.1-19 PD_Length mismatch or >512: close and report
//rfc:5044 MPA-7.1.5-01 Enable MPA only when no streaming data is expected
func TestOctetsBehindARequest(t *testing.T) {
	onWholeNetworks(t, Options{}, func(t *testing.T, w *cmWorld) {
		l := w.server.listen()
		for name, behind := range map[string][]byte{"a byte": {0}, "an FPDU": make([]byte, 24),
			"another Request": rawRequest(nil)} {
			p := w.dialRaw(l.LocalAddr())
			p.send(append(rawRequest(nil), behind...))
			_ = p.wantEnd(name)
		}
		w.wantServed(l)
		w.server.wantIdle("of illegal requests a program hears nothing")
	})
}

// TestLegalRequests sends Requests that are unusual but legal, and looks at the
// Reply.
//
//rfc:5044 MPA-7.1.1-11 R=0 in a Request, not checked; R=1 in a Reply rejects
//rfc:5044 MPA-7.1.1-13 Res bits not checked on receive
//rfc:6581 MPA2-6-04 Responder keeps accepting Rev 1 requests
//rfc:6581 MPA2-6-05 Reply to a Rev1 request is unenhanced
//rfc:6581 MPA2-6-09 S=1 with Rev 1: S is a reserved bit and not checked
//rfc:6581 MPA2-6-10 Rev 2 with S=0 is treated as unenhanced
//rfc:6581 MPA2-10-01 Enhanced responder answers enhanced to enhanced
//rfc:6581 MPA2-10-02 Any responder answers unenhanced to unenhanced
func TestLegalRequests(t *testing.T) {
	enhanced := mpa.Enhanced{IRD: 1, ORD: 1}.AppendTo(nil)
	for _, tc := range []struct {
		name     string
		request  func(*mpa.Frame)
		private  int // bytes of the ULP that arrive
		depths   [2]int
		revision uint8
		reply    []byte // private data of the Reply
	}{
		{"enhanced", nil, 0, [2]int{1, 1}, 2, enhanced},
		{"revision 1", func(f *mpa.Frame) { f.Enhanced, f.Revision = false, 1 }, 4, [2]int{}, 1, nil},
		{"revision 1 with S", func(f *mpa.Frame) { f.Revision = 1 }, 4, [2]int{}, 1, nil},
		{"revision 2 without S", func(f *mpa.Frame) { f.Enhanced = false }, 4, [2]int{}, 2, nil},
		{"R and reserved bits set", func(f *mpa.Frame) { f.Reject, f.Reserved = true, 0x0f }, 0, [2]int{1, 1}, 2, enhanced},
		{"markers wanted", func(f *mpa.Frame) { f.Markers = true }, 0, [2]int{1, 1}, 2, enhanced},
		{"CRC wanted", func(f *mpa.Frame) { f.CRC = true }, 0, [2]int{1, 1}, 2, enhanced},
		{"512 bytes", func(f *mpa.Frame) { f.PrivateData = append(f.PrivateData, octets(508)...) },
			508, [2]int{1, 1}, 2, enhanced},
		{"depths left to the programs", func(f *mpa.Frame) {
			f.PrivateData = mpa.Enhanced{IRD: mpa.NotNegotiated, ORD: mpa.NotNegotiated}.AppendTo(nil)
		}, 0, [2]int{128, 128}, 2, mpa.Enhanced{IRD: mpa.NotNegotiated, ORD: mpa.NotNegotiated}.AppendTo(nil)},
		{"depths beyond ours", func(f *mpa.Frame) {
			f.PrivateData = mpa.Enhanced{IRD: 1000, ORD: 1000}.AppendTo(nil)
		}, 0, [2]int{128, 128}, 2, mpa.Enhanced{IRD: 128, ORD: 1}.AppendTo(nil)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			onNetworks(t, Options{}, func(t *testing.T, w *cmWorld) {
				l := w.server.listen()
				p := w.dialRaw(l.LocalAddr())
				p.send(rawRequest(tc.request))
				server, param := w.server.wantRequest("the Request is legal", l)
				if len(param.PrivateData) != tc.private || [2]int{param.ResponderResources, param.InitiatorDepth} != tc.depths {
					t.Errorf("the program hears of %d bytes and depths %d, %d",
						len(param.PrivateData), param.ResponderResources, param.InitiatorDepth)
				}
				testkit.OK(t, server.Accept(provider.ConnParam{ResponderResources: 1, InitiatorDepth: 1}))
				f := p.wantFrame("accepted", mpa.KindReply)
				if f.Reject || f.Revision != tc.revision || f.Enhanced != (tc.reply != nil) || f.Markers || !f.CRC || f.Reserved != 0 ||
					string(f.PrivateData) != string(tc.reply) {
					t.Errorf("Reply %+v, want revision %d, private data %x", f, tc.revision, tc.reply)
				}
				w.server.want("accepted", server, provider.CMEstablished, 0)
			})
		})
	}
}

// TestRequestCutShort stops at every byte of a Request: by silence, by FIN, by
// reset.
//
//rfc:5044 MPA-7.1.2-8-02 Responder times out waiting for Request
//rfc:5044 MPA-7.1.2-10-01 Timeout over the whole startup exchange
func TestRequestCutShort(t *testing.T) {
	request := rawRequest(func(f *mpa.Frame) { f.PrivateData = append(f.PrivateData, "hello"...) })
	onNetworks(t, Options{StartupTimeout: time.Second}, func(t *testing.T, w *cmWorld) {
		l := w.server.listen()
		var silent []*rawPeer
		for n := range request {
			p := w.dialRaw(l.LocalAddr())
			p.trySend(request[:n]) // on a slow machine its time may be over
			silent = append(silent, p)

			p = w.dialRaw(l.LocalAddr())
			p.trySend(request[:n])
			_ = p.conn.CloseWrite()
			_ = p.wantEnd(fmt.Sprintf("FIN after %d bytes", n))

			p = w.dialRaw(l.LocalAddr())
			p.trySend(request[:n])
			testkit.OK(t, p.conn.Abort())
		}
		for n, p := range silent {
			_ = p.wantEnd(fmt.Sprintf("silence after %d bytes", n))
		}
		w.wantServed(l)
		w.server.wantIdle("of broken requests a program hears nothing")
	})
}

// TestTrickledRequest shows that the time for a Request is absolute.
//
//rfc:5044 MPA-7.1.2-10-01 Timeout over the whole startup exchange
func TestTrickledRequest(t *testing.T) {
	inMemory(t, Options{StartupTimeout: 2 * time.Second}, func(t *testing.T, w *cmWorld) {
		l := w.server.listen()
		start := time.Now()
		p := w.dialRaw(l.LocalAddr())
		for _, octet := range rawRequest(nil) {
			p.trySend([]byte{octet})
			time.Sleep(time.Second / 4)
			if _, err := p.conn.Readv([][]byte{make([]byte, 1)}); err != transport.ErrWouldBlock {
				break
			}
		}
		if d := time.Since(start); d < 2*time.Second || d > 2500*time.Millisecond {
			t.Errorf("a byte each quarter of a second: closed after %s", d)
		}
		w.server.wantIdle("of slow requests a program hears nothing")
	})
}

// TestIllegalReplies answers a Request with bytes that are not a Reply to it.
//
//rfc:5044 MPA-7.1.1-04 Initiator closes and reports on wrong Rep key
//rfc:5044 MPA-7.1.2-3-02 Malformed Reply: close TCP
//rfc:5044 MPA-7.1.2-8-01 Initiator/Initiator crossing detected by key
//rfc:6581 MPA2-10-06 Reply lacking S/Rev2 to enhanced request is a failure
func TestIllegalReplies(t *testing.T) {
	tooLong := uint16(513)
	cases := map[string][]byte{
		"a Request":          rawRequest(nil),
		"revision 0":         rawReply(func(f *mpa.Frame) { f.Revision = 0 }),
		"revision 3":         rawReply(func(f *mpa.Frame) { f.Revision = 3 }),
		"revision 1":         rawReply(func(f *mpa.Frame) { f.Revision, f.Enhanced, f.PrivateData = 1, false, nil }),
		"without S":          rawReply(func(f *mpa.Frame) { f.Enhanced = false }),
		"S without room":     rawReply(func(f *mpa.Frame) { f.PrivateData = f.PrivateData[:2] }),
		"PD_Length too long": rawReply(func(f *mpa.Frame) { f.PDLength, f.PrivateData = &tooLong, octets(513) }),
		"garbage":            []byte("\x00\x01\x02\x03"),
	}
	onNetworks(t, Options{}, func(t *testing.T, w *cmWorld) {
		for name, b := range cases {
			client, p, _ := w.toRaw(provider.ConnParam{})
			p.trySend(b)
			w.active.want(name, client, provider.CMConnectError, syscall.EINVAL)
			_ = p.wantEnd(name)
			if state := qpOf(client).getState(); state != provider.QPInit {
				t.Errorf("%s: QP in %s", name, state)
			}
		}
	})
}

// TestReplyCutShort ends a Reply at every byte.
func TestReplyCutShort(t *testing.T) {
	reply := rawReply(nil)
	onNetworks(t, Options{}, func(t *testing.T, w *cmWorld) {
		for n := range reply {
			for _, reset := range []bool{false, true} {
				client, p, _ := w.toRaw(provider.ConnParam{})
				p.send(reply[:n])
				if reset {
					testkit.OK(t, p.conn.Abort())
				} else {
					testkit.OK(t, p.conn.CloseWrite())
				}
				w.active.want(fmt.Sprintf("the peer hung up after %d bytes of the Reply", n),
					client, provider.CMRejected, syscall.ECONNRESET)
				if !reset {
					_ = p.wantEnd("then so do we")
				}
			}
		}
	})
}

// TestTerminateForAReply has responders that agree to what an initiator can't
// have. It says so in a Terminate message before it hangs up.
//
//rfc:6581 MPA2-8-01 Enhanced errors reported as Layer 2 / Type 0
//rfc:6581 MPA2-9.1-08 Insufficient IRD: TERM 2/0/6 then terminate
//rfc:6581 MPA2-9.2-09 No common RTR: TERM 2/0/7 and terminate
func TestTerminateForAReply(t *testing.T) {
	for name, tc := range map[string]struct {
		reply   func(*mpa.Frame)
		code    byte
		markers bool
	}{
		"ORD beyond our IRD": {func(f *mpa.Frame) {
			f.PrivateData = mpa.Enhanced{IRD: 1, ORD: 129}.AppendTo(nil)
		}, 6, false},
		"peer-to-peer that nobody asked for": {func(f *mpa.Frame) {
			f.PrivateData = mpa.Enhanced{IRD: 1, ORD: 1, A: true, C: true}.AppendTo(nil)
		}, 7, false},
		"ORD beyond our IRD, with markers": {func(f *mpa.Frame) {
			f.Markers = true
			f.PrivateData = mpa.Enhanced{IRD: 1, ORD: 129}.AppendTo(nil)
		}, 6, true},
	} {
		t.Run(name, func(t *testing.T) {
			onNetworks(t, Options{}, func(t *testing.T, w *cmWorld) {
				client, p, _ := w.toRaw(provider.ConnParam{})
				p.send(rawReply(tc.reply))
				w.active.want("we can't", client, provider.CMConnectError, syscall.EINVAL)
				ulpdu := p.wantFPDU(tc.markers)
				// DDP: untagged, last, version 1; RDMAP: version 1, Terminate; QN 2,
				// MSN 1. Then layer 2, type 0, the code, and nothing attached.
				want := []byte{0x41, 0x47, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0, 0x20, tc.code, 0, 0}
				if string(ulpdu) != string(want) {
					t.Errorf("ULPDU %x, want %x", ulpdu, want)
				}
				if err := p.wantEnd("FIN after the Terminate"); err != io.EOF {
					t.Errorf("the stream ended with %v", err)
				}
			})
		})
	}
}

// wantFPDU reads one FPDU that the peer sends first, with CRC.
func (p *rawPeer) wantFPDU(markers bool) []byte {
	p.t.Helper()
	r := rawOn(p.t, p.conn, mpa.Params{CRC: true, MarkersTx: markers})
	h, payload := r.next("an FPDU")
	if len(r.in) > 0 {
		p.t.Fatalf("after the FPDU came % x", r.in)
	}
	return append(h.AppendTo(nil), payload...)
}

// TestPlaces fills a listener with silent peers.
//
//rfc:5044 MPA-7.1.2-10-01 Timeout over the whole startup exchange
func TestPlaces(t *testing.T) {
	inMemory(t, Options{MaxPending: 8}, func(t *testing.T, w *cmWorld) {
		l := w.server.listen()
		from := func(src string) *rawPeer {
			return w.dialRawFrom(netip.MustParseAddr(src), l.LocalAddr())
		}
		for range 4 {
			from("192.0.2.1")
		}
		w.moment()
		if err := from("192.0.2.1").wantEnd("half of the places is what one address gets"); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("the stream ended with %v", err)
		}
		for range 4 {
			from("192.0.2.2")
		}
		start := time.Now()
		client := w.active.connect(l.LocalAddr(), provider.ConnParam{})
		server, _ := w.server.wantRequest("all places are taken until the first peer's time is over", l)
		if d := time.Since(start); d < 8*time.Second || d > 10*time.Second {
			t.Errorf("after %s", d)
		}
		testkit.OK(t, server.Reject(nil))
		w.active.want("rejected", client, provider.CMRejected, syscall.ECONNREFUSED)
		w.wantServed(l)
	})
}

// TestAcceptFails has Accept fail for a while, as for want of file descriptors.
func TestAcceptFails(t *testing.T) {
	inMemory(t, Options{}, func(t *testing.T, w *cmWorld) {
		l := w.server.id()
		testkit.OK(t, l.BindAddr(w.addr))
		cm.ReplaceBinding(l, func(b transport.Binding) transport.Binding { return poorBinding{b} })
		testkit.OK(t, l.Listen(0))
		start := time.Now()
		client := w.active.connect(l.LocalAddr(), provider.ConnParam{})
		server, _ := w.server.wantRequest("file descriptors are back", l)
		if d := time.Since(start); d < 100*time.Millisecond || d > time.Second {
			t.Errorf("after %s", d)
		}
		testkit.OK(t, server.Reject(nil))
		w.active.want("rejected", client, provider.CMRejected, syscall.ECONNREFUSED)
	})
}

// poorBinding makes a listener that has no file descriptors the first five times.
type poorBinding struct{ transport.Binding }

func (b poorBinding) Listen(backlog int) (transport.Listener, error) {
	l, err := b.Binding.Listen(backlog)
	return &poorListener{Listener: l, failures: 5}, err
}

type poorListener struct {
	transport.Listener
	failures int
}

func (l *poorListener) Accept(ctx context.Context) (transport.Conn, error) {
	if l.failures > 0 {
		l.failures--
		return nil, syscall.EMFILE
	}
	return l.Listener.Accept(ctx)
}
