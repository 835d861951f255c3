package engine

import (
	"fmt"
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
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
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
				if f.CRC != (tc.policy != CRCOff) {
					t.Errorf("the Request declares %v", f.CRC)
				}
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
