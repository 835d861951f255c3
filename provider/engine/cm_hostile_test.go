package engine

import (
	"context"
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
				testkit.Equal(t, "the ULPDU", string(ulpdu), string(want))
				testkit.Equal(t, "the end", p.wantEnd("FIN after the Terminate"), io.EOF)
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
		testkit.WantErr(t, "the end",
			from("192.0.2.1").wantEnd("half of the places is what one address gets"), syscall.ECONNRESET)
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
