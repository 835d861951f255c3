package engine

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/cm"
	"github.com/govs-rdma/govs/provider/engine/memnet"
)

// octets returns n octets that say where they are.
func octets(n int) []byte {
	b := make([]byte, n)
	pattern(b, n)
	return b
}

func TestConnect(t *testing.T) {
	onNetworks(t, Options{}, func(t *testing.T, w *cmWorld) {
		l := w.server.listen()
		l.SetCookie("the listener's cookie")
		client := w.active.connect(l.LocalAddr(), provider.ConnParam{
			PrivateData: []byte("hello"), ResponderResources: 4, InitiatorDepth: 8,
		})
		server, param := w.server.wantRequest("the Request arrives", l)
		if string(param.PrivateData) != "hello" || param.ResponderResources != 8 || param.InitiatorDepth != 4 {
			t.Errorf("the Request says %+v; want ORD 8 as resources and IRD 4 as depth", param)
		}
		testkit.Equal(t, "the cookie", server.Cookie(), "the listener's cookie")
		testkit.OK(t, server.Accept(provider.ConnParam{PrivateData: []byte("welcome"),
			ResponderResources: 8, InitiatorDepth: 2}))
		e := w.server.want("the Reply is sent", server, provider.CMEstablished, 0)
		if e.Param.ResponderResources != 8 || e.Param.InitiatorDepth != 2 || e.Param.PrivateData != nil {
			t.Errorf("the responder's ESTABLISHED says %+v", e.Param)
		}
		e = w.active.want("the Reply arrives", client, provider.CMEstablished, 0)
		if e.Param.ResponderResources != 4 || e.Param.InitiatorDepth != 8 || string(e.Param.PrivateData) != "welcome" {
			t.Errorf("the initiator's ESTABLISHED says %+v", e.Param)
		}
		if client.LocalAddr() != server.RemoteAddr() || client.RemoteAddr() != server.LocalAddr() || client.LocalAddr().Port() == 0 {
			t.Errorf("addresses: %s to %s, %s to %s", client.LocalAddr(), client.RemoteAddr(), server.LocalAddr(), server.RemoteAddr())
		}
		if client.DeviceName() != DeviceName || server.DeviceName() != DeviceName {
			t.Errorf("devices %q and %q", client.DeviceName(), server.DeviceName())
		}
		if qpOf(client).getState() != provider.QPRTS || qpOf(server).getState() != provider.QPRTS {
			t.Errorf("QPs in %s and %s", qpOf(client).getState(), qpOf(server).getState())
		}
		w.active.wantIdle("an idle connection has nothing to say")
		w.server.wantIdle("an idle connection has nothing to say")
	})
}

// TestReadDepths compares what both ends agree on.
//
//rfc:6581 MPA2-9.1-02 Responder ORD not above initiator IRD
//rfc:6581 MPA2-9.1-03 Responder IRD at least initiator ORD or reject/limit
//rfc:6581 MPA2-9.1-07 Initiator lowers ORD to at most responder IRD
func TestReadDepths(t *testing.T) {
	for _, tc := range []struct {
		connect, accept           [2]int // responder resources, initiator depth
		wantActive, wantResponder [2]int
	}{
		{[2]int{0, 0}, [2]int{0, 0}, [2]int{0, 0}, [2]int{0, 0}},
		{[2]int{4, 4}, [2]int{4, 4}, [2]int{4, 4}, [2]int{4, 4}},
		{[2]int{3, 5}, [2]int{0, 3}, [2]int{4, 5}, [2]int{8, 3}},                 // IRD is a power of two, and raised to what is asked for
		{[2]int{1, 1}, [2]int{16, 16}, [2]int{1, 1}, [2]int{16, 1}},              // ORD is lowered to what is offered
		{[2]int{128, 128}, [2]int{128, 128}, [2]int{128, 128}, [2]int{128, 128}}, // the device's limits
		{[2]int{255, 255}, [2]int{255, 255}, [2]int{128, 128}, [2]int{128, 128}}, // RDMA_MAX_RESP_RES
	} {
		t.Run(fmt.Sprint(tc.connect, tc.accept), func(t *testing.T) {
			inMemory(t, Options{}, func(t *testing.T, w *cmWorld) {
				l := w.server.listen()
				client := w.active.connect(l.LocalAddr(), provider.ConnParam{ResponderResources: tc.connect[0], InitiatorDepth: tc.connect[1]})
				server, _ := w.server.wantRequest("the Request arrives", l)
				testkit.OK(t, server.Accept(provider.ConnParam{ResponderResources: tc.accept[0],
					InitiatorDepth: tc.accept[1]}))
				e := w.server.want("the Reply is sent", server, provider.CMEstablished, 0)
				testkit.Equal(t, "the responder's IRD and ORD", depthsOf(e), tc.wantResponder)
				e = w.active.want("the Reply arrives", client, provider.CMEstablished, 0)
				testkit.Equal(t, "the initiator's IRD and ORD", depthsOf(e), tc.wantActive)
			})
		})
	}
}

// privateLimits are the bytes of private data that options leave to a program.
var privateLimits = map[string]struct {
	opts  Options
	limit int
}{
	"revision 1":    {Options{Conformance: Conformance{Revision: 1}}, 512},
	"revision 2":    {Options{Conformance: Conformance{Revision: 2}}, 508},
	"manual depths": {Options{Conformance: Conformance{ManualIRD: true, ManualORD: true}}, 512},
}

// TestPrivateData sends every length around the limits, in all three directions.
//
//rfc:5044 MPA-7.1.1-18 Private data at most 512 octets
//rfc:5044 MPA-7.1.1-20 Private data handed to the ULP unchanged
//rfc:6581 MPA2-6-07 ULP private data limited to 508 when enhanced
func TestPrivateData(t *testing.T) {
	for name, tc := range privateLimits {
		t.Run(name, func(t *testing.T) {
			onNetworks(t, tc.opts, func(t *testing.T, w *cmWorld) {
				l := w.server.listen()
				for _, n := range []int{0, 1, 3, 4, 5, 251, 252, 253, 255, 256, 257, 507, 508, 511, 512} {
					if n > tc.limit {
						continue
					}
					client := w.active.connect(l.LocalAddr(), provider.ConnParam{PrivateData: octets(n)})
					server, param := w.server.wantRequest("the Request arrives", l)
					testkit.EqualBytes(t, "the Request's data", param.PrivateData, octets(n))
					testkit.OK(t, server.Accept(provider.ConnParam{PrivateData: octets(n)}))
					w.server.want("the Reply is sent", server, provider.CMEstablished, 0)
					e := w.active.want("the Reply arrives", client, provider.CMEstablished, 0)
					testkit.EqualBytes(t, "the accept's data", e.Param.PrivateData, octets(n))
					testkit.OK(t, client.Disconnect())
					w.active.want("we disconnected", client, provider.CMDisconnected, 0)
					w.server.want("the peer disconnected", server, provider.CMDisconnected, 0)

					client = w.active.connect(l.LocalAddr(), provider.ConnParam{})
					server, _ = w.server.wantRequest("the Request arrives", l)
					testkit.OK(t, server.Reject(octets(n)))
					e = w.active.want("we are rejected", client, provider.CMRejected, syscall.ECONNREFUSED)
					testkit.EqualBytes(t, "the reject's data", e.Param.PrivateData, octets(n))
				}
			})
		})
	}
}

func TestPrivateDataTooLong(t *testing.T) {
	for _, tc := range privateLimits {
		onNetworks(t, tc.opts, func(t *testing.T, w *cmWorld) {
			l := w.server.listen()
			refused := func(call string, err error) {
				t.Helper()
				if !errors.Is(err, syscall.EINVAL) ||
					!strings.Contains(err.Error(), fmt.Sprintf("%d bytes of private data are too many", tc.limit+1)) ||
					!strings.Contains(err.Error(), fmt.Sprintf("room for %d ", tc.limit)) {
					t.Errorf("%s with %d bytes: %v, want EINVAL and the limit", call, tc.limit+1, err)
				}
			}
			client := w.active.routed(l.LocalAddr())
			refused("Connect", client.Connect(provider.ConnParam{PrivateData: octets(tc.limit + 1)}))
			testkit.OK(t, client.Connect(provider.ConnParam{})) // nothing has happened yet
			server, _ := w.server.wantRequest("the Request arrives", l)
			refused("Accept", server.Accept(provider.ConnParam{PrivateData: octets(tc.limit + 1)}))
			refused("Reject", server.Reject(octets(tc.limit+1)))
			testkit.OK(t, server.Reject(nil))
			w.active.want("we are rejected", client, provider.CMRejected, syscall.ECONNREFUSED)
		})
	}
}

// TestReject rejects a request, and closes its id in every way that is left.
func TestReject(t *testing.T) {
	onNetworks(t, Options{}, func(t *testing.T, w *cmWorld) {
		l := w.server.listen()
		client := w.active.connect(l.LocalAddr(), provider.ConnParam{})
		server, _ := w.server.wantRequest("the Request arrives", l)
		w.server.closeID(server)
		w.active.want("the id was closed", client, provider.CMRejected, syscall.ECONNREFUSED)

		client = w.active.connect(l.LocalAddr(), provider.ConnParam{})
		server, _ = w.server.wantRequest("the Request arrives", l)
		testkit.OK(t, server.Reject([]byte("closed at once")))
		wantErr(t, server.Reject(nil), syscall.EINVAL)
		wantErr(t, server.Accept(provider.ConnParam{}), syscall.EINVAL)
		w.server.closeID(server)
		e := w.active.want("the id was closed after the reject", client, provider.CMRejected,
			syscall.ECONNREFUSED)
		testkit.Equal(t, "the reason", string(e.Param.PrivateData), "closed at once")
		testkit.Equal(t, "the QP's state", qpOf(client).getState(), provider.QPInit)
		testkit.OK(t, client.Disconnect()) // as with the kernel
		w.active.wantIdle("nothing after a rejection")

		client = w.active.connect(l.LocalAddr(), provider.ConnParam{})
		waitFor(t, "the request is there, and nobody fetches it",
			func() bool { return cm.Events(w.server.ch) == 1 })
		w.server.closeID(l)
		w.active.want("the listener was closed", client, provider.CMRejected, syscall.ECONNREFUSED)
		w.server.wantIdle("requests of a closed listener are not delivered")
	})
}

func TestUnreachable(t *testing.T) {
	inMemory(t, Options{}, func(t *testing.T, w *cmWorld) {
		network := w.net.(*memnet.Network)
		silent, unknown := netip.MustParseAddrPort("198.51.100.1:7471"), netip.MustParseAddrPort("198.51.100.2:7471")
		network.SetReach(silent.Addr(), memnet.Silent)
		network.SetReach(unknown.Addr(), memnet.HostUnknown)

		start := time.Now()
		client := w.active.connect(silent, provider.ConnParam{})
		w.active.want("nobody answers the SYN", client, provider.CMUnreachable, syscall.ETIMEDOUT)
		testkit.Equal(t, "time", time.Since(start), 10*time.Second)
		client = w.active.connect(unknown, provider.ConnParam{})
		w.active.want("no such host", client, provider.CMUnreachable, syscall.EHOSTUNREACH)

		id := w.active.id()
		testkit.OK(t, id.ResolveAddr(netip.AddrPort{}, netip.MustParseAddrPort("203.0.113.1:7471"),
			time.Second))
		w.active.want("no route", id, provider.CMAddrError, syscall.ENETUNREACH)
		testkit.OK(t, id.ResolveAddr(netip.AddrPort{}, silent, time.Second))
		w.active.want("another try with the same id", id, provider.CMAddrResolved, 0)
	})
}

func TestNoAnswerInTime(t *testing.T) {
	inMemory(t, Options{StartupTimeout: 3 * time.Second}, func(t *testing.T, w *cmWorld) {
		start := time.Now()
		client, peer, _ := w.toRaw(provider.ConnParam{})
		reply := rawReply(nil)
		for _, octet := range reply[:len(reply)-1] { // one byte each 100 ms does not extend the time
			if time.Since(start) > 2800*time.Millisecond {
				break
			}
			peer.send([]byte{octet})
			time.Sleep(150 * time.Millisecond)
		}
		w.active.want("the Reply did not arrive whole", client, provider.CMUnreachable, syscall.ETIMEDOUT)
		testkit.Equal(t, "time", time.Since(start), 3*time.Second)
	})
}
