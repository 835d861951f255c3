package engine

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/cm"
	"github.com/govs-rdma/govs/provider/engine/memnet"
	"github.com/govs-rdma/govs/provider/iwarp"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// wantCause checks that an event says why, in words that contain text.
func wantCause(t *testing.T, e provider.CMEvent, text string) {
	t.Helper()
	if e.Cause == nil || !strings.Contains(e.Cause.Error(), text) {
		t.Errorf("event %s, status %d: cause %v, want one that says %q", e.Type, e.Status, e.Cause, text)
	}
}

// TestCRCPolicies makes a peer answer with and without C to each policy.
//
//rfc:5044 MPA-7.1.1-07 M is per direction (asymmetric allowed)
//rfc:5044 MPA-7.1.1-09 C=1 on either: both generate and check
func TestCRCPolicies(t *testing.T) {
	for _, tc := range []struct {
		policy  CRCPolicy
		replies bool // the Reply declares CRCs
		crc     bool
		refused bool
	}{
		{CRCPreferred, true, true, false},
		{CRCPreferred, false, true, false},
		{CRCOff, true, true, false},
		{CRCOff, false, false, false},
		{CRCRequired, true, true, false},
		{CRCRequired, false, false, true},
	} {
		t.Run(fmt.Sprintf("policy %d, Reply %v", tc.policy, tc.replies), func(t *testing.T) {
			inMemory(t, Options{CRC: tc.policy}, func(t *testing.T, w *cmWorld) {
				client, p, f := w.toRaw(provider.ConnParam{})
				testkit.Equal(t, "the Request declares CRCs", f.CRC, tc.policy != CRCOff)
				p.send(rawReply(func(f *mpa.Frame) { f.CRC = tc.replies }))
				if tc.refused {
					e := w.active.want("the policy is not met", client, provider.CMConnectError, syscall.EINVAL)
					wantCause(t, e, "CRCs are required here")
					p.wantFPDU(false) // Terminate, with CRC, as both have to check
					return
				}
				w.active.want("established", client, provider.CMEstablished, 0)
				testkit.Equal(t, "CRC", qpOf(client).stream.Load().params.CRC, tc.crc)
				p.close()
				w.active.want("the peer left", client, provider.CMDisconnected, 0)
			})
		})
	}
}

// oldPeer is what a peer does to the first, enhanced Request.
var oldPeer = map[string]func(p *rawPeer){
	"hangs up": func(p *rawPeer) { p.close() },
	"resets":   func(p *rawPeer) { p.abort() },
	"accepts unenhanced": func(p *rawPeer) {
		p.send(mpa.Frame{Kind: mpa.KindReply, CRC: true, Revision: 1}.AppendTo(nil))
	},
	"rejects unenhanced": func(p *rawPeer) {
		p.send(mpa.Frame{Kind: mpa.KindReply, CRC: true, Revision: 1, Reject: true}.AppendTo(nil))
	},
}

// TestFallback: after what a peer of revision 1 does to an enhanced Request there is
// one more attempt, on a new connection from the same address, with revision 1.
//
//rfc:6581 MPA2-10-05 Initiator may retry unenhanced after close
func TestFallback(t *testing.T) {
	for name, act := range oldPeer {
		t.Run(name, func(t *testing.T) {
			onNetworks(t, Options{Conformance: Conformance{Fallback: FallbackClosed}}, func(t *testing.T, w *cmWorld) {
				dst, accepted := w.listenRaw()
				client := w.active.connect(dst, provider.ConnParam{ResponderResources: 4, InitiatorDepth: 3, PrivateData: []byte("hello")})
				p := accepted()
				if f := p.wantFrame("the first attempt", mpa.KindRequest); f.Revision != 2 || !f.UsesEnhanced() {
					t.Errorf("first Request %+v", f)
				}
				act(p)
				second := accepted()
				f := second.wantFrame("the second attempt", mpa.KindRequest)
				if f.Revision != 1 || f.Enhanced || string(f.PrivateData) != "hello" {
					t.Errorf("second Request %+v", f)
				}
				second.send(mpa.Frame{Kind: mpa.KindReply, CRC: true, Revision: 1, PrivateData: []byte("welcome")}.AppendTo(nil))
				e := w.active.want("established", client, provider.CMEstablished, 0)
				if e.Param.ResponderResources != 4 || e.Param.InitiatorDepth != 3 || string(e.Param.PrivateData) != "welcome" {
					t.Errorf("established with %+v", e.Param)
				}
				testkit.Equal(t, "where the id is", client.LocalAddr(), second.conn.RemoteAddr())
				second.close()
				w.active.want("the peer left", client, provider.CMDisconnected, 0)
			})
		})
	}
}

// TestNoFallback has what does not lead to a second attempt.
func TestNoFallback(t *testing.T) {
	rejected := func(p *rawPeer) { p.send(rawReply(func(f *mpa.Frame) { f.Reject = true })) }
	partial := func(p *rawPeer) {
		p.send(rawReply(nil)[:10])
		p.close()
	}
	type event struct {
		typ   provider.CMEventType
		errno syscall.Errno
	}
	refused, reset := event{provider.CMRejected, syscall.ECONNREFUSED}, event{provider.CMRejected, syscall.ECONNRESET}
	invalid := event{provider.CMConnectError, syscall.EINVAL}
	for name, tc := range map[string]struct {
		policy FallbackPolicy
		act    func(p *rawPeer)
		want   event
	}{
		"an enhanced reject is the program's":     {FallbackClosed, rejected, refused},
		"part of a Reply came":                    {FallbackClosed, partial, reset},
		"hung up, and the policy wants an answer": {FallbackUnenhanced, oldPeer["hangs up"], reset},
		"hung up, no policy":                      {FallbackNever, oldPeer["hangs up"], reset},
		"an unenhanced Reply, no policy":          {FallbackNever, oldPeer["accepts unenhanced"], invalid},
		"an unenhanced reject, no policy":         {FallbackNever, oldPeer["rejects unenhanced"], refused},
		"something else than MPA, every policy": {FallbackClosed,
			func(p *rawPeer) { p.send([]byte("220 smtp.example.com ESMTP\r\n")) }, invalid},
	} {
		t.Run(name, func(t *testing.T) {
			onWholeNetworks(t, Options{Conformance: Conformance{Fallback: tc.policy}}, func(t *testing.T, w *cmWorld) {
				client, p, _ := w.toRaw(provider.ConnParam{})
				tc.act(p)
				w.active.want("the end", client, tc.want.typ, tc.want.errno)
			})
		})
	}
}

// TestFallbackKeepsTheSourcePort: both attempts use a port that the program bound. The second one
// fails like any other, and there is no third one.
func TestFallbackKeepsTheSourcePort(t *testing.T) {
	onTCP(t, Options{Conformance: Conformance{Fallback: FallbackUnenhanced}}, func(t *testing.T, w *cmWorld) {
		dst, accepted := w.listenRaw()
		id := w.active.id()
		testkit.OK(t, id.BindAddr(w.addr))
		bound := id.LocalAddr()
		w.active.resolve(id, dst)
		testkit.OK(t, id.Connect(provider.ConnParam{}))
		p := accepted()
		p.wantFrame("the first attempt", mpa.KindRequest)
		oldPeer["rejects unenhanced"](p)
		second := accepted()
		second.wantFrame("the second attempt", mpa.KindRequest)
		if a := second.conn.RemoteAddr(); a != bound || p.conn.RemoteAddr() != bound {
			t.Errorf("attempts from %s and %s, bound to %s", p.conn.RemoteAddr(), a, bound)
		}
		second.close()
		w.active.want("hung up", id, provider.CMRejected, syscall.ECONNRESET)
	})
}

// TestPeerToPeerFlags looks at what the two ends say to each other of RTR, for
// every set that either may have. Package mpa has the rules; here the options are
// tried.
//
//rfc:6581 MPA2-9.2-01 A=1 for peer-to-peer
//rfc:6581 MPA2-9.2-03 Responder supports at least one RTR option
//rfc:6581 MPA2-9.2-08 Initiator emits one negotiated RTR after an accept with A=1
//rfc:6581 MPA2-9.2-09 No common RTR: TERM 2/0/7 and terminate
func TestPeerToPeerFlags(t *testing.T) {
	for active := mpa.RTR(1); active <= mpa.RTRAll; active++ {
		for passive := mpa.RTR(1); passive <= mpa.RTRAll; passive++ {
			t.Run(fmt.Sprintf("%s to %s", active, passive), func(t *testing.T) {
				inMemory(t, Options{Conformance: Conformance{RTR: active}, PeerToPeer: true}, func(t *testing.T, w *cmWorld) {
					w.server = w.host(Options{Conformance: Conformance{RTR: passive}, Network: w.net})
					l := w.server.listen()
					client := w.active.connect(l.LocalAddr(), provider.ConnParam{ResponderResources: 1, InitiatorDepth: 1})
					server, _ := w.server.wantRequest("the Request arrives", l)
					testkit.OK(t, server.Accept(provider.ConnParam{ResponderResources: 1, InitiatorDepth: 1}))
					w.server.want("the Reply is sent", server, provider.CMEstablished, 0)
					if active&passive == 0 {
						e := w.active.want("nothing in common", client, provider.CMConnectError, syscall.EINVAL)
						wantCause(t, e, "no RTR indication in common")
						w.server.want("the initiator left", server, provider.CMDisconnected, 0)
						return
					}
					w.active.want("the Reply arrives", client, provider.CMEstablished, 0)
					p := qpOf(client).stream.Load().params
					if !p.PeerToPeer || p.RTR&active&passive != p.RTR || p.RTR == 0 {
						t.Errorf("the initiator begins with %s", p.RTR)
					}
					waitFor(t, "the RTR indication has come, and the responder may send",
						qpOf(server).stream.Load().maySend.Load)
				})
			})
		}
	}
}

// TestRequestOfOptions looks at the Request that options lead to, byte by byte. Depths that the
// programs see to themselves are sent as 0x3fff, and both ends have what their programs gave.
//
//rfc:5044 MPA-7.1.1-01 Req key is the 16 octets 'MPA ID Req Frame'
//rfc:5044 MPA-7.1.1-12 Res bits zero on send
//rfc:5044 MPA-7.1.1-14 Rev=1 for this spec
//rfc:5044 MPA-7.1.1-17 PD_Length equals private data length
//rfc:6581 MPA2-6-01 S=1 iff private data starts with the enhanced block
//rfc:6581 MPA2-6-06 PD_Length includes the 4-octet block
//rfc:6581 MPA2-9.1-10 Initiator ORD 0x3FFF: responder keeps and answers its IRD
//rfc:6581 MPA2-9.1-11 Initiator IRD 0x3FFF: responder keeps and answers its ORD
//rfc:6581 MPA2-9.1-12 Responder IRD 0x3FFF: initiator ORD unchanged
//rfc:6581 MPA2-9.1-13 Responder ORD 0x3FFF: initiator IRD unchanged
//rfc:6581 MPA2-9.2-10 A=0 for client-server
//rfc:6581 MPA2-9.2-12 A=0 forces B=C=D=0 on send
//rfc:6581 MPA2-10-03 Enhanced format not used when no feature is wanted
func TestRequestOfOptions(t *testing.T) {
	both := Conformance{ManualIRD: true, ManualORD: true}
	for _, tc := range []struct {
		opts    Options
		request string // between the key and the program's private data
		server  [2]int // IRD and ORD of the responder, which accepts 2 and 16
	}{
		{Options{}, "\x50\x02\x00\x06\x00\x04\x00\x05", [2]int{8, 4}},
		{Options{CRC: CRCOff}, "\x10\x02\x00\x06\x00\x04\x00\x05", [2]int{8, 4}},
		{Options{Conformance: Conformance{Markers: true}}, "\xd0\x02\x00\x06\x00\x04\x00\x05", [2]int{8, 4}},
		{Options{Conformance: Conformance{ManualIRD: true}}, "\x50\x02\x00\x06\x3f\xff\x00\x05", [2]int{8, 16}},
		{Options{Conformance: Conformance{ManualORD: true}}, "\x50\x02\x00\x06\x00\x04\x3f\xff", [2]int{2, 4}},
		{Options{Conformance: both, PeerToPeer: true}, "\x50\x02\x00\x06\xff\xff\xff\xff", [2]int{2, 16}},
		{Options{Conformance: both}, "\x40\x01\x00\x02", [2]int{2, 16}},
		{Options{Conformance: Conformance{Revision: 1}}, "\x40\x01\x00\x02", [2]int{2, 16}},
		{Options{Conformance: Conformance{Revision: 1, Markers: true}, CRC: CRCOff}, "\x80\x01\x00\x02", [2]int{2, 16}},
	} {
		t.Run(fmt.Sprintf("%q", tc.request), func(t *testing.T) {
			inMemory(t, tc.opts, func(t *testing.T, w *cmWorld) {
				param := provider.ConnParam{ResponderResources: 4, InitiatorDepth: 5, PrivateData: []byte("hi")}
				client, p, f := w.toRaw(param)
				testkit.Equal(t, "the Request", string(f.AppendTo(nil)),
					"MPA ID Req Frame"+tc.request+"hi")
				p.close()
				w.active.want("hung up", client, provider.CMRejected, syscall.ECONNRESET)

				l := w.server.listen()
				client = w.active.connect(l.LocalAddr(), param)
				server, _ := w.server.wantRequest("the Request arrives", l)
				testkit.OK(t, server.Accept(provider.ConnParam{ResponderResources: 2, InitiatorDepth: 16}))
				e := w.server.want("the Reply is sent", server, provider.CMEstablished, 0)
				testkit.Equal(t, "the responder's IRD and ORD", depthsOf(e), tc.server)
				e = w.active.want("the Reply arrives", client, provider.CMEstablished, 0)
				testkit.Equal(t, "the initiator's IRD and ORD", depthsOf(e), [2]int{4, 5})
			})
		})
	}
}

// depthsOf returns IRD and ORD of an event.
func depthsOf(e provider.CMEvent) [2]int {
	return [2]int{e.Param.ResponderResources, e.Param.InitiatorDepth}
}

// TestMaxAccepted: how many connections a device takes over all its listeners, in all and from one
// address, and that each kind of end gives its place back.
func TestMaxAccepted(t *testing.T) {
	for name, opts := range map[string]Options{
		"in all":   {MaxAccepted: 2, MaxAcceptedPerPeer: -1, MaxPending: 4},
		"per peer": {MaxAccepted: 100, MaxAcceptedPerPeer: 2},
	} {
		t.Run(name, func(t *testing.T) {
			onWholeNetworks(t, opts, func(t *testing.T, w *cmWorld) {
				l, other := w.server.listen(), w.server.listen()
				w.acceptedOn(l)
				full := func(what string) {
					t.Helper()
					client := w.active.connect(other.LocalAddr(), provider.ConnParam{})
					e := w.active.next(what)
					if e.Type != provider.CMRejected || e.Status != -int(syscall.ECONNRESET) || e.ID != client {
						t.Errorf("%s: event %s, status %d", what, e.Type, e.Status)
					}
					w.moment()
					if e, more := cm.Poll(w.server.ch); more {
						t.Errorf("%s: event %s at the server", what, e.Type)
					}
				}
				for end, act := range map[string]func(client, server *cm.ID){
					"disconnect": func(client, server *cm.ID) {
						testkit.OK(t, client.Disconnect())
						w.wantDisconnected("disconnected", client, server)
					},
					"close": func(client, server *cm.ID) {
						w.server.closeID(server)
						w.active.want("the server closed", client, provider.CMDisconnected, 0)
					},
				} {
					c, s := w.acceptedOn(l)
					full("two are there, " + end)
					act(c, s)
					waitFor(t, "its place is given back", func() bool { return w.server.dev.cm.Accepted() == 1 })
				}
				client := w.active.connect(l.LocalAddr(), provider.ConnParam{})
				server, _ := w.server.wantRequest("not answered yet", l)
				full("a request counts")
				testkit.OK(t, server.Reject(nil))
				w.active.want("rejected", client, provider.CMRejected, syscall.ECONNREFUSED)

				gone := w.request(l)
				server, _ = w.server.wantRequest("its peer leaves", l)
				gone.close()
				wantLeft(t, server)
				wantErr(t, server.Accept(provider.ConnParam{}), syscall.ECONNRESET)

				bad := w.dialRaw(l.LocalAddr())
				bad.trySend([]byte("GET / HTTP/1.1\r\n\r\n"))
				_ = bad.wantEnd("not MPA")
				waitFor(t, "their places are given back", func() bool { return w.server.dev.cm.Accepted() == 1 })
				c, s := w.acceptedOn(l)
				testkit.OK(t, c.Disconnect())
				w.wantDisconnected("disconnected", c, s)
				waitFor(t, "the first one is counted only", func() bool { return w.server.dev.cm.Accepted() == 1 })
				testkit.Equal(t, "peers that are counted", w.server.dev.cm.AcceptedPeers(), 1)
			})
		})
	}
}

// TestArrivedRequestIsNotSilent: a connection whose Request has arrived by the time that it
// comes out of the backlog does not count against MaxPendingPerPeer, however many come out at
// once.
func TestArrivedRequestIsNotSilent(t *testing.T) {
	const places = 8
	synctest.Test(t, func(t *testing.T) {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // all are accepted before one is looked at
		opts := Options{MaxPending: places, MaxPendingPerPeer: 2}
		w := newCMWorld(t, memnet.New(nil), "192.0.2.1:0", opts, true)
		l := w.server.listen()
		w.moment() // until the place of the next connection is taken
		release := cm.TakePlaces(l, places-1)
		var peers []*rawPeer
		for range places {
			p := w.request(l)
			peers = append(peers, p)
		}
		first, _ := w.server.wantRequest("the one place", l)
		w.server.wantIdle("the others wait in the backlog")
		release()
		testkit.OK(t, first.Reject(nil))
		for range places - 1 {
			server, _ := w.server.wantRequest("an honest peer's", l)
			testkit.OK(t, server.Reject(nil))
		}
		for _, p := range peers {
			p.wantFrame("rejected", mpa.KindReply)
		}
	})
}

// TestSilentPeersLeaveRoomForOthers: if only MaxAccepted is set, or lowered by RLIMIT_NOFILE,
// silent connections make others wait in the backlog, but not be reset.
func TestSilentPeersLeaveRoomForOthers(t *testing.T) {
	addrs := []netip.Addr{
		netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"),
		netip.MustParseAddr("192.0.2.3"),
	}
	synctest.Test(t, func(t *testing.T) {
		network := memnet.New(&memnet.Options{Addrs: addrs})
		w := newCMWorld(t, network, "192.0.2.1:0", Options{MaxAccepted: 8}, true)
		l := w.server.listen()
		for range 8 {
			for _, silent := range addrs[1:] {
				w.dialRawFrom(silent, l.LocalAddr())
			}
		}
		w.moment()
		honest := w.dialRawFrom(addrs[0], l.LocalAddr())
		honest.send(rawRequest(nil))
		server, _ := w.server.wantRequest("when the time of the silent ones is over", l)
		testkit.OK(t, server.Reject(nil))
		honest.wantFrame("rejected", mpa.KindReply)
	})
}

// TestRDMACRefusal looks at the bytes of the refusals, and at how the connection ends:
// gracefully, so that the peer can read them.
//
//rfc:5044 RDMAC-C.2.1-01 Non-permissive responder to Rev0: Reply Rev 1, then close
//rfc:5044 RDMAC-C.2.3-02 Permissive responder never sends M=0 to an RDMAC initiator
func TestRDMACRefusal(t *testing.T) {
	zero := func(f *mpa.Frame) { *f = mpa.Frame{Markers: true, CRC: true} }
	for name, tc := range map[string]struct {
		policy  mpa.RDMACPolicy
		request []byte
		want    *mpa.Frame // nil: no Reply
	}{
		"revision 0 refused": {mpa.RDMACRefused, rawRequest(zero),
			&mpa.Frame{Kind: mpa.KindReply, Reject: true, CRC: true, Revision: 1}},
		"revision 0 without M refused": {mpa.RDMACRefused,
			rawRequest(func(f *mpa.Frame) { f.Revision = 0 }),
			&mpa.Frame{Kind: mpa.KindReply, Reject: true, CRC: true, Revision: 1}},
		"revision 2 where only 0 is known": {mpa.RDMACOnly, rawRequest(nil),
			&mpa.Frame{Kind: mpa.KindReply, Reject: true, CRC: true, Markers: true}},
		"revision 0 without M": {mpa.RDMACPermitted,
			rawRequest(func(f *mpa.Frame) { f.Revision = 0 }), nil},
	} {
		t.Run(name, func(t *testing.T) {
			onNetworks(t, Options{Conformance: Conformance{RDMAC: tc.policy}}, func(t *testing.T, w *cmWorld) {
				l := w.server.listen()
				p := w.dialRaw(l.LocalAddr())
				p.send(tc.request)
				if tc.want != nil {
					f := p.wantFrame("a Reply says which revision there is", mpa.KindReply)
					testkit.Equal(t, "the Reply", fmt.Sprint(f), fmt.Sprint(*tc.want))
				}
				if err := p.wantEnd("then it closes"); tc.want != nil && err != io.EOF {
					t.Errorf("with %v", err)
				}
				w.server.wantIdle("the program hears nothing")
			})
		})
	}
}

// TestRDMACRejects: the program's own reject has the revision of the connection.
//
//rfc:5044 RDMAC-C.2.3-02 Permissive responder never sends M=0 to an RDMAC initiator
func TestRDMACRejects(t *testing.T) {
	onNetworks(t, Options{Conformance: Conformance{RDMAC: mpa.RDMACPermitted}}, func(t *testing.T, w *cmWorld) {
		rdmac := w.host(Options{Conformance: Conformance{RDMAC: mpa.RDMACOnly}, Network: w.net})
		l := w.server.listen()
		client := rdmac.connect(l.LocalAddr(), provider.ConnParam{})
		server, _ := w.server.wantRequest("revision 0", l)
		testkit.OK(t, server.Reject([]byte("not today")))
		e := rdmac.want("rejected", client, provider.CMRejected, syscall.ECONNREFUSED)
		testkit.Equal(t, "private data", string(e.Param.PrivateData), "not today")

		// An enhanced Request is rejected unseen and made again in revision 1.
		old := rdmac.listen()
		client = w.active.connect(old.LocalAddr(), provider.ConnParam{})
		server, _ = rdmac.wantRequest("revision 1", old)
		testkit.OK(t, server.Reject([]byte("no")))
		e = w.active.want("rejected", client, provider.CMRejected, syscall.ECONNREFUSED)
		testkit.Equal(t, "private data", string(e.Param.PrivateData), "no")
	})
}

func TestRDMACOptions(t *testing.T) {
	for _, o := range []Options{
		{Conformance: Conformance{RDMAC: mpa.RDMACOnly + 1}},
		{Conformance: Conformance{RDMAC: mpa.RDMACOnly}, PeerToPeer: true},
		{Conformance: Conformance{RDMAC: mpa.RDMACOnly}, Extensions: true},
	} {
		testkit.WantErr(t, fmt.Sprintf("%+v", o), errOf(New(&o).Open("")), syscall.EINVAL, "RDMAC")
	}
}

// rdmacParams returns the parameters of a connection of version 0.
func rdmacParams() mpa.Params {
	return mpa.Params{RDMAC: true, CRC: true, MarkersTx: true, MarkersRx: true, IRD: 4, ORD: 4}
}

// zero is a header in version 0.
func zero(h ddp.Header) ddp.Header { rdmap.SetRDMAC(&h); return h }

// TestRDMACOnTheWire looks at the header of everything that a QP can send.
//
//rfc:5044 RDMAC-C.1-02 No mixing of versions between MPA, DDP and RDMAP
//rfc:5044 RDMAC-C.1-03 Version identical in both directions
func TestRDMACOnTheWire(t *testing.T) {
	story(t, extended(Options{}), rdmacParams(), func(s *side, r *raw) {
		m := s.reg(4096, everything)
		one := []provider.SGE{m.sge(0, 16)}
		s.recv(provider.RecvWR{WRID: 1, SGList: []provider.SGE{m.sge(2048, 100)}})
		s.send(
			provider.SendWR{WRID: 1, Opcode: provider.WRSend, SGList: one},
			provider.SendWR{WRID: 2, Opcode: provider.WRSendWithInv, InvalidateRKey: 77,
				Flags: provider.SendSolicited, SGList: one},
			provider.SendWR{WRID: 3, Opcode: provider.WRRDMAWrite, RKey: 9, RemoteAddr: 70,
				SGList: []provider.SGE{m.sge(0, 2000)}},
			provider.SendWR{WRID: 4, Opcode: provider.WRRDMARead, RKey: 9, RemoteAddr: 70,
				SGList: []provider.SGE{m.sge(3000, 8)}, Flags: provider.SendSignaled},
		)
		r.want("a Send", zero(rdmap.SendHeader(rdmap.OpSend, 0, 1, 0, true)))
		r.want("a Send with SE and Invalidate", zero(rdmap.SendHeader(rdmap.OpSendSEInvalidate, 77, 2, 0, true)))
		first := r.want("a Write", zero(rdmap.WriteHeader(9, 70, false)))
		r.want("its second segment", zero(rdmap.WriteHeader(9, 70+uint64(len(first)), true)))
		q := testkit.Must(rdmap.ParseReadRequest(r.want("a Read Request",
			zero(rdmap.ReadRequestHeader(1)))))(t)
		r.send(zero(rdmap.ReadResponseHeader(q.SinkSTag, q.SinkTO, true)), make([]byte, 8))
		s.wantWC("the Read is answered", provider.WC{WRID: 4, Opcode: provider.WCRDMARead, ByteLen: 8})

		for _, op := range []provider.WROpcode{provider.WRSendWithImm, provider.WRRDMAWriteWithImm,
			provider.WRAtomicFetchAdd, provider.WRMaskedAtomicCmpAndSwp} {
			s.wantRefused("version 0", provider.SendWR{Opcode: op, SGList: one}, errors.ErrUnsupported,
				"RDMA Consortium")
		}

		r.send(zero(rdmap.SendHeader(rdmap.OpSend, 0, 1, 0, true)), make([]byte, 10))
		s.wantWC("a Send of the peer", provider.WC{WRID: 1, Opcode: provider.WCRecv, ByteLen: 10})
		req := rdmap.ReadRequest{SinkSTag: 5, SinkTO: 6, Size: 12, SourceSTag: m.m.STag(), SourceTO: m.to(0)}
		r.send(zero(rdmap.ReadRequestHeader(1)), req.AppendTo(nil))
		r.want("a Read Response", zero(rdmap.ReadResponseHeader(5, 6, true)))

		// The version differs from the stream's.
		h := rdmap.SendHeader(rdmap.OpSend, 0, 2, 0, true)
		r.send(h, make([]byte, 4))
		want := rdmap.Terminate{Layer: iwarp.LayerDDP, EType: iwarp.DDPUntaggedBuffer,
			Code: iwarp.DDPUntaggedInvalidVersion, M: true, D: true, DDP: h, SegmentLength: 22}
		got := r.want("a Terminate, of version 0 itself", zero(rdmap.TerminateHeader()))
		testkit.EqualBytes(t, "the Terminate", got, want.AppendTo(nil))
		r.wantFIN("and FIN")
	})
}

// TestRDMACTerminates: whatever ends the stream, and whoever finds it, the Terminate
// has the stream's version, and so has a header that it shows.
func TestRDMACTerminates(t *testing.T) {
	terminate := zero(rdmap.TerminateHeader())
	for name, end := range map[string]func(s *side, r *raw){
		"RDMAP version": func(s *side, r *raw) {
			h := zero(rdmap.WriteHeader(1, 2, true))
			h.ULPCtl |= rdmap.Version << 6
			r.send(h, nil)
			got := testkit.Must(rdmap.ParseTerminate(r.want("DV 0 with RV 1", terminate),
				rdmap.PhaseAfterFirstFPDU))(t)
			if got.Layer != iwarp.LayerRDMAP || got.Code != iwarp.RDMAPInvalidVersion || got.DDP != h {
				t.Errorf("%+v", got)
			}
		},
		"local": func(s *side, r *raw) {
			s.send(provider.SendWR{Opcode: provider.WRSend, SGList: []provider.SGE{{Addr: 1, Length: 1, LKey: 1}}})
			r.want("a work request that can't be sent", terminate)
		},
		"SQE": func(s *side, r *raw) {
			testkit.OK(t, s.modify(provider.QPSQE))
			r.want("the program ends the stream", terminate)
		},
		"source of a Read": func(s *side, r *raw) {
			h := zero(rdmap.ReadRequestHeader(1))
			req := rdmap.ReadRequest{SinkSTag: 5, SinkTO: 6, Size: 12, SourceSTag: 0x1234500, SourceTO: 0}
			r.send(h, req.AppendTo(nil))
			got := testkit.Must(rdmap.ParseTerminate(r.want("no such region", terminate),
				rdmap.PhaseAfterFirstFPDU))(t)
			if !got.HaveDDP || got.DDP != h || !got.HaveRead || got.Read != req {
				t.Errorf("%+v", got)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			story(t, Options{}, rdmacParams(), func(s *side, r *raw) {
				end(s, r)
				r.wantFIN("and FIN")
			})
		})
	}
}
