package engine

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/cm"
	"github.com/govs-rdma/govs/provider/engine/internal/memory"
	"github.com/govs-rdma/govs/provider/engine/transport"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// wantServed checks that a listener still serves others.
func (w *cmWorld) wantServed(l *cm.ID) {
	w.t.Helper()
	w.meet("others are still served", w.active.connect(l.LocalAddr(), provider.ConnParam{}), l)
}

// TestIllegalRequests sends bytes that are not a Request. Each time the connection is closed
// without an answer, the program sees nothing, and other connections go on. The scenarios
// mpa/request-* have more of them.
//
//rfc:5044 MPA-7.1.1-03 Responder closes and reports on wrong Req key
//rfc:5044 MPA-7.1.1-16 Unsupported Rev: close and report locally
//rfc:5044 MPA-7.1.2-2-02 Malformed Request: close TCP, leave MPA
//rfc:6581 MPA2-6-08 S=1 with PD_Length <4 is malformed
func TestIllegalRequests(t *testing.T) {
	cases := map[string][]byte{
		"revision 3": rawRequest(func(f *mpa.Frame) { f.Revision = 3 }),
		"enhanced without room for it": rawRequest(func(f *mpa.Frame) {
			f.PrivateData = f.PrivateData[:3]
		}),
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
		testkit.Within(t, "when it closes, with a byte each quarter of a second", time.Since(start),
			2*time.Second, 2500*time.Millisecond)
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
		testkit.Within(t, "how long it took", time.Since(start), 8*time.Second, 10*time.Second)
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
		testkit.Within(t, "how long it took", time.Since(start), 100*time.Millisecond, time.Second)
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

// Tests of a responder that does not wait for the initiator's first FPDU (RFC 5044 section 7.1.2
// rule 4), as siw does not: what it sends may be there before the initiator has read the Reply.

// An earlyCase is a Reply that FPDUs follow.
type earlyCase struct {
	opts       Options
	reply      mpa.Frame
	unanswered int  // connections that the peer closes without an answer, before the one that it serves
	markers    bool // in what the peer sends
	noCRC      bool
	rdmac      bool
}

func enhanced(change func(*mpa.Frame, *mpa.Enhanced)) mpa.Frame {
	f := mpa.Frame{Kind: mpa.KindReply, CRC: true, Enhanced: true, Revision: 2}
	e := mpa.Enhanced{IRD: 4, ORD: 4}
	if change != nil {
		change(&f, &e)
	}
	f.PrivateData = append(e.AppendTo(nil), "welcome"...)
	return f
}

func earlyCases() map[string]earlyCase {
	plain := mpa.Frame{Kind: mpa.KindReply, CRC: true, Revision: 1, PrivateData: []byte("welcome")}
	consortium := plain
	consortium.Revision, consortium.Markers = 0, true
	cases := map[string]earlyCase{
		"enhanced": {reply: enhanced(nil)},
		"markers": {opts: Options{Conformance: Conformance{Markers: true}}, markers: true,
			reply: enhanced(nil)},
		"markers too": {reply: enhanced(func(f *mpa.Frame, _ *mpa.Enhanced) { f.Markers = true })},
		"no CRC": {opts: Options{CRC: CRCOff}, noCRC: true,
			reply: enhanced(func(f *mpa.Frame, _ *mpa.Enhanced) { f.CRC = false })},
		"second attempt": {opts: Options{Conformance: Conformance{Fallback: FallbackClosed}},
			unanswered: 1, reply: plain},
		"RDMAC": {opts: Options{Conformance: Conformance{RDMAC: mpa.RDMACOnly}}, markers: true,
			rdmac: true, reply: consortium},
	}
	for _, rtr := range []mpa.RTR{mpa.RTRSend, mpa.RTRWrite, mpa.RTRRead} {
		cases["peer-to-peer, "+rtr.String()] = earlyCase{
			opts: Options{Conformance: Conformance{RTR: rtr}, PeerToPeer: true},
			reply: enhanced(func(_ *mpa.Frame, e *mpa.Enhanced) {
				e.A, e.B, e.C, e.D = true, rtr == mpa.RTRSend, rtr == mpa.RTRWrite, rtr == mpa.RTRRead
			}),
		}
	}
	return cases
}

// fpdus makes the peer's first bytes after the Reply.
func (tc earlyCase) fpdus(t *testing.T, segments ...earlySegment) []byte {
	t.Helper()
	framer := mpa.NewFramer(tc.markers, !tc.noCRC)
	var b []byte
	for _, s := range segments {
		if tc.rdmac {
			s.header = zero(s.header)
		}
		b = testkit.Must(framer.AppendFPDU(b, append(s.header.AppendTo(nil), s.payload...)))(t)
	}
	return b
}

type earlySegment struct {
	header  ddp.Header
	payload []byte
}

// earlySend is the peer's n-th Send.
func earlySend(n int, payload string) earlySegment {
	return earlySegment{rdmap.SendHeader(rdmap.OpSend, 0, uint32(n), 0, true), []byte(payload)}
}

// An earlyConn is an id that connects to a scripted peer, with memory for what comes.
type earlyConn struct {
	t      *testing.T
	h      *cmHost
	id     *cm.ID
	peer   *rawPeer
	memory []byte
	mr     *memory.Region
}

// early connects h to a peer that has the Request and has answered nothing. receives are posted.
func (tc earlyCase) early(t *testing.T, h *cmHost, receives, room int) *earlyConn {
	t.Helper()
	dst, accepted := h.w.listenRaw()
	c := &earlyConn{t: t, h: h, id: h.routed(dst), memory: make([]byte, room)}
	c.mr = testkit.Must(h.pd.RegMR(c.memory,
		provider.AccessLocalWrite|provider.AccessRemoteWrite))(t).(*memory.Region)
	for i := range receives {
		_, err := qpOf(c.id).PostRecv([]provider.RecvWR{{WRID: uint64(i + 1), SGList: []provider.SGE{
			{Addr: c.mr.Addr() + uint64(16*i), Length: 16, LKey: c.mr.LKey()}}}})
		testkit.OK(t, err)
	}
	testkit.OK(t, c.id.Connect(provider.ConnParam{ResponderResources: 4, InitiatorDepth: 4}))
	for range tc.unanswered {
		p := accepted()
		p.wantFrame("an attempt that is not answered", mpa.KindRequest)
		p.close()
	}
	c.peer = accepted()
	c.peer.wantFrame("the initiator begins", mpa.KindRequest)
	return c
}

// wantEstablished checks that the Reply has come to the program.
func (c *earlyConn) wantEstablished(what string) {
	c.t.Helper()
	e := c.h.want(what, c.id, provider.CMEstablished, 0)
	testkit.Equal(c.t, what+": private data", string(e.Param.PrivateData), "welcome")
}

// wantReceived checks the messages that have come, each in the receive that was posted for it.
func (c *earlyConn) wantReceived(what string, messages ...string) {
	c.t.Helper()
	for i, want := range messages {
		wc := c.completion(what)
		n := uint64(i + 1)
		got := string(c.memory[16*i:][:wc.ByteLen])
		if wc.WRID != n || wc.Status != provider.WCSuccess || got != want {
			c.t.Errorf("%s: %+v with %q, want receive %d with %q", what, wc, got, n, want)
		}
	}
}

// completion waits for one.
func (c *earlyConn) completion(what string) provider.WC {
	c.t.Helper()
	var wc [1]provider.WC
	waitFor(c.t, what, func() bool { return testkit.Must(c.h.cq.Poll(wc[:]))(c.t) == 1 })
	return wc[0]
}

// end makes the peer leave.
func (c *earlyConn) end(what string) {
	c.t.Helper()
	c.peer.close()
	c.h.want(what, c.id, provider.CMDisconnected, 0)
	c.free()
}

// free closes the id now and not with the test, which may have hundreds of them.
func (c *earlyConn) free() {
	c.t.Helper()
	testkit.OK(c.t, c.mr.Close())
}

// settle lets what was sent arrive, where time is the test's own. Over TCP it may arrive or not.
func (w *cmWorld) settle() {
	if w.fake {
		synctest.Wait()
	}
}

// TestFPDUsAfterTheReply: FPDUs that come with the Reply, in one piece or cut anywhere, are taken
// like those that come later.
//
//rfc:5044 MPA-7.1.2-3-04 Good Reply: enter Full Operation
//rfc:5044 MPA-7.1-01 MPA enabled at the same octet on both sides
func TestFPDUsAfterTheReply(t *testing.T) {
	for name, tc := range earlyCases() {
		t.Run(name, func(t *testing.T) {
			onNetworks(t, Options{}, func(t *testing.T, w *cmWorld) {
				opts := tc.opts
				opts.Network = w.net
				h := w.host(opts)
				reply := tc.reply.AppendTo(nil)
				all := slices.Concat(reply, tc.fpdus(t, earlySend(1, "first"), earlySend(2, "")))
				for cut := range len(all) + 1 {
					if (!w.fake || testkit.Race) && cut%7 != 0 && cut != len(reply) && cut != len(all) {
						continue // sockets of TCP are scarce, and each place is tried without the detector
					}
					what := fmt.Sprintf("cut after %d of %d bytes", cut, len(all))
					c := tc.early(t, h, 2, 64)
					c.peer.send(all[:cut])
					w.settle()
					c.peer.send(all[cut:])
					c.wantEstablished(what)
					c.wantReceived(what, "first", "")
					c.end(what)
				}
			})
		})
	}
}

// TestEndAfterTheReply makes the peer end its direction in the segment with the Reply and a Send.
// The message is received, and the events are those of an ended connection.
func TestEndAfterTheReply(t *testing.T) {
	tc := earlyCase{reply: enhanced(nil)}
	onNetworks(t, Options{}, func(t *testing.T, w *cmWorld) {
		c := tc.early(t, w.active, 1, 64)
		c.peer.send(append(tc.reply.AppendTo(nil), tc.fpdus(t, earlySend(1, "farewell"))...))
		testkit.OK(t, c.peer.conn.CloseWrite())
		c.wantEstablished("the Reply")
		c.wantReceived("the message before the end", "farewell")
		w.active.want("the peer has left", c.id, provider.CMDisconnected, 0)
		c.free()
	})
}

// TestBadFPDUAfterTheReply: a faulty FPDU that comes with the Reply ends the connection as a later
// one does, after ESTABLISHED.
//
//rfc:5044 MPA-4.4-14 CRC mismatch makes the FPDU invalid
func TestBadFPDUAfterTheReply(t *testing.T) {
	tc := earlyCase{reply: enhanced(nil)}
	good := tc.fpdus(t, earlySend(1, "first"))
	wrongCRC := bytes.Clone(good)
	wrongCRC[len(wrongCRC)-1] ^= 1
	for name, v := range map[string]struct {
		fpdu      []byte
		receives  int
		terminate []byte // layer and type, code
		cause     string
	}{
		"wrong CRC":            {wrongCRC, 1, []byte{0x20, 0x02}, "CRC"},
		"zeros":                {make([]byte, 24), 1, []byte{0x20, 0x02}, "CRC"},
		"no receive is posted": {good, 0, []byte{0x12, 0x02}, "no buffer"},
	} {
		t.Run(name, func(t *testing.T) {
			onNetworks(t, Options{}, func(t *testing.T, w *cmWorld) {
				for _, later := range []bool{false, true} {
					what := fmt.Sprintf("%s, later %v", name, later)
					c := tc.early(t, w.active, v.receives, 64)
					if later {
						c.peer.send(tc.reply.AppendTo(nil))
						c.wantEstablished(what)
						c.peer.send(v.fpdu)
					} else {
						c.peer.send(append(tc.reply.AppendTo(nil), v.fpdu...))
						c.wantEstablished(what)
					}
					ulpdu := c.peer.wantFPDU(false)
					testkit.EqualBytes(t, what+": Terminate", ulpdu[ddp.UntaggedHeaderLen:][:2],
						v.terminate)
					c.peer.close()
					w.active.want(what, c.id, provider.CMDisconnected, 0)
					if err := qpOf(c.id).Cause(); err == nil || !strings.Contains(err.Error(), v.cause) {
						t.Errorf("%s: the connection ended with %v", what, err)
					}
					if v.receives > 0 {
						testkit.Equal(t, what+": the receive", c.completion(what).Status,
							provider.WCWRFlushErr)
					}
					c.free()
				}
			})
		})
	}
}

// TestOctetsAfterABadReply: a Reply that ends the start-up may have bytes after it, the ULP's
// or the rest of another protocol. They change nothing, and the peer gets a FIN, not the reset that
// TCP sends for bytes unread.
//
//rfc:5044 MPA-7.1.2-3-02 Malformed Reply: close TCP
//rfc:5044 MPA-7.1.2-3-03 R=1: exit MPA, TCP left open
func TestOctetsAfterABadReply(t *testing.T) {
	for name, tc := range map[string]struct {
		octets []byte
		event  provider.CMEventType
		errno  syscall.Errno
	}{
		"rejecting": {append(enhanced(func(f *mpa.Frame, _ *mpa.Enhanced) { f.Reject = true }).AppendTo(nil),
			"other words"...), provider.CMRejected, syscall.ECONNREFUSED},
		"revision 3": {append(enhanced(func(f *mpa.Frame, _ *mpa.Enhanced) { f.Revision = 3 }).AppendTo(nil),
			"other words"...), provider.CMConnectError, syscall.EINVAL},
		"HTTP": {[]byte("HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n<html>"),
			provider.CMConnectError, syscall.EINVAL},
	} {
		t.Run(name, func(t *testing.T) {
			onWholeNetworks(t, Options{}, func(t *testing.T, w *cmWorld) {
				c := earlyCase{}.early(t, w.active, 0, 64)
				c.peer.send(tc.octets)
				e := w.active.want(name, c.id, tc.event, tc.errno)
				if name == "rejecting" && string(e.Param.PrivateData) != "welcome" {
					t.Errorf("private data %q", e.Param.PrivateData)
				}
				testkit.WantErr(t, "what the peer sees", c.peer.wantEnd(name), io.EOF)
				c.free()
			})
		})
	}
}
