package engine

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/cm"
	"github.com/govs-rdma/govs/provider/engine/memnet"
)

// TestListenAfterAddressError listens on an id that ResolveAddr has bound to a source address,
// before it found that the destination can't be reached from there.
func TestListenAfterAddressError(t *testing.T) {
	onNetworks(t, Options{}, func(t *testing.T, w *cmWorld) {
		other := netip.MustParseAddrPort("[::1]:9")
		if w.addr.Addr().Is6() {
			other = netip.MustParseAddrPort("127.0.0.1:9")
		}
		id := w.server.id()
		wantErr(t, id.ResolveAddr(w.addr, other, time.Second), syscall.EINVAL)
		testkit.OK(t, id.Listen(0))
		if got := id.LocalAddr(); got.Addr() != w.addr.Addr() || got.Port() == 0 {
			t.Fatalf("it listens on %s", got)
		}
		w.dialRaw(id.LocalAddr()).trySend(rawRequest(nil))
		w.server.wantRequest("it listens", id)
	})
}

func TestBindAddr(t *testing.T) {
	onNetworks(t, Options{}, func(t *testing.T, w *cmWorld) {
		h := w.active
		id := h.id()
		testkit.OK(t, id.BindAddr(w.addr))
		if a := id.LocalAddr(); a.Addr() != w.addr.Addr() || a.Port() == 0 || id.DeviceName() != DeviceName {
			t.Errorf("bound to %s of %q", a, id.DeviceName())
		}
		wantErr(t, id.BindAddr(w.addr), syscall.EINVAL) // bound already
		testkit.OK(t, id.Listen(0))

		second := h.id()
		testkit.WantErr(t, "a port that is taken", second.BindAddr(id.LocalAddr()), syscall.EADDRINUSE,
			id.LocalAddr().String())
		foreign := netip.MustParseAddrPort("198.51.100.77:0")
		wantErr(t, second.BindAddr(foreign), syscall.EADDRNOTAVAIL)
		wantErr(t, second.ResolveAddr(foreign, id.LocalAddr(), 0), syscall.EADDRNOTAVAIL)
		testkit.OK(t, second.BindAddr(w.addr)) // it can still be bound

		wild := h.id()
		testkit.OK(t, wild.BindAddr(netip.AddrPortFrom(netip.IPv4Unspecified(), 0)))
		if wild.DeviceName() != "" || wild.LocalAddr().Port() == 0 {
			t.Errorf("bound to all addresses: device %q, %s", wild.DeviceName(), wild.LocalAddr())
		}
		wantErr(t, errOf(wild.CreateQP(h.pd, provider.QPInitAttr{SendCQ: h.cq, RecvCQ: h.cq, Cap: smallQP})), syscall.EINVAL)
		if _, port := w.addr, wild.LocalAddr().Port(); w.addr.Addr().Is4() {
			testkit.OK(t, wild.ResolveAddr(netip.AddrPort{}, id.LocalAddr(), 0))
			h.want("resolved", wild, provider.CMAddrResolved, 0)
			if a := wild.LocalAddr(); a.Addr() != w.addr.Addr() || a.Port() != port || wild.DeviceName() != DeviceName {
				t.Errorf("resolved to %s of %q, the port was %d", a, wild.DeviceName(), port)
			}
		}
	})
}

func TestListen(t *testing.T) {
	onNetworks(t, Options{}, func(t *testing.T, w *cmWorld) {
		l := w.server.id()
		testkit.OK(t, l.BindAddr(netip.AddrPort{})) // every address, of both families
		testkit.OK(t, l.Listen(1))
		wantErr(t, l.Listen(1), syscall.EINVAL)
		wantErr(t, l.Disconnect(), syscall.EINVAL)
		dst := netip.AddrPortFrom(w.addr.Addr(), l.LocalAddr().Port())
		client := w.active.connect(dst, provider.ConnParam{})
		server, _ := w.server.wantRequest("the Request arrives", l)
		if server.LocalAddr() != dst || server.DeviceName() != DeviceName {
			t.Errorf("the request came to %s of %q", server.LocalAddr(), server.DeviceName())
		}
		testkit.OK(t, server.Reject(nil))
		w.active.want("rejected", client, provider.CMRejected, syscall.ECONNREFUSED)

		unbound := w.server.id()
		testkit.OK(t, unbound.Listen(0))
		if a := unbound.LocalAddr(); a.Addr() != netip.IPv4Unspecified() || a.Port() == 0 {
			t.Errorf("an id that was not bound listens on %s", a)
		}
	})
}

// TestListenFails has two ids bound to one port before either listens, which is for
// those that share it (TestConnSecondBind of rdmacm has the others).
func TestListenFails(t *testing.T) {
	onTCP(t, Options{}, func(t *testing.T, w *cmWorld) {
		probe := w.server.id()
		testkit.OK(t, probe.BindAddr(w.addr))
		port := probe.LocalAddr()
		w.server.closeID(probe)
		first, second := w.server.id(), w.server.id()
		testkit.OK(t, first.SetOption(provider.IDOptionReuseAddr, 1))
		testkit.OK(t, second.SetOption(provider.IDOptionReuseAddr, 1))
		testkit.OK(t, first.BindAddr(port))
		testkit.OK(t, second.BindAddr(port))
		wantErr(t, second.SetOption(provider.IDOptionReuseAddr, 0), syscall.EINVAL) // too late
		testkit.OK(t, first.Listen(0))
		wantErr(t, second.Listen(0), syscall.EADDRINUSE)
		testkit.OK(t, second.BindAddr(w.addr)) // another port
		testkit.OK(t, second.Listen(0))
	})
}

func TestResolve(t *testing.T) {
	onNetworks(t, Options{}, func(t *testing.T, w *cmWorld) {
		h := w.active
		l := w.server.listen()
		dst := l.LocalAddr()
		id := h.id()
		wantErr(t, id.ResolveRoute(0), syscall.EINVAL)
		wantErr(t, id.Connect(provider.ConnParam{}), syscall.EINVAL)
		wantErr(t, id.ResolveAddr(netip.AddrPort{}, netip.AddrPort{}, 0), syscall.EINVAL)
		wantErr(t, id.ResolveAddr(netip.AddrPort{}, netip.AddrPortFrom(netip.IPv6Unspecified(), 1), 0), syscall.EINVAL)
		testkit.OK(t, id.ResolveAddr(w.addr, dst, time.Second))
		h.want("resolved", id, provider.CMAddrResolved, 0)
		if id.LocalAddr() != w.addr || id.RemoteAddr() != dst || id.DeviceName() != DeviceName {
			t.Errorf("%s to %s on %q", id.LocalAddr(), id.RemoteAddr(), id.DeviceName())
		}
		wantErr(t, id.Connect(provider.ConnParam{}), syscall.EINVAL)
		testkit.OK(t, id.ResolveRoute(0))
		h.want("resolved", id, provider.CMRouteResolved, 0)
		testkit.WantErr(t, "Connect", id.Connect(provider.ConnParam{}), syscall.EINVAL, "no QP")

		mixed := h.id()
		testkit.OK(t, mixed.BindAddr(w.addr))
		other := netip.MustParseAddrPort("[2001:db8::1]:1")
		if w.addr.Addr().Is6() {
			other = netip.MustParseAddrPort("192.0.2.1:1")
		}
		wantErr(t, mixed.ResolveAddr(netip.AddrPort{}, other, 0), syscall.EINVAL)
	})
}

// TestSourcePort connects from a port that was chosen by BindAddr, and by
// ResolveAddr.
func TestSourcePort(t *testing.T) {
	onNetworks(t, Options{}, func(t *testing.T, w *cmWorld) {
		l := w.server.listen()
		for name, bind := range map[string]func(id *cm.ID, src netip.AddrPort) error{
			"BindAddr": func(id *cm.ID, src netip.AddrPort) error {
				return errors.Join(id.BindAddr(src), id.ResolveAddr(netip.AddrPort{}, l.LocalAddr(), 0))
			},
			"ResolveAddr": func(id *cm.ID, src netip.AddrPort) error { return id.ResolveAddr(src, l.LocalAddr(), 0) },
		} {
			probe := w.active.id()
			testkit.OK(t, probe.BindAddr(w.addr))
			src := probe.LocalAddr()
			w.active.closeID(probe)

			id := w.active.id()
			testkit.OK(t, bind(id, src))
			w.active.want(name, id, provider.CMAddrResolved, 0)
			testkit.OK(t, id.ResolveRoute(0))
			w.active.want(name, id, provider.CMRouteResolved, 0)
			w.active.qp(id)
			testkit.OK(t, id.Connect(provider.ConnParam{}))
			server, _ := w.server.wantRequest(name, l)
			if server.RemoteAddr() != src || id.LocalAddr() != src {
				t.Errorf("%s: connected from %s, bound to %s", name, server.RemoteAddr(), src)
			}
			testkit.OK(t, server.Reject(nil))
			w.active.want(name, id, provider.CMRejected, syscall.ECONNREFUSED)
		}
	})
}

func TestCreateQPOfAnID(t *testing.T) {
	inMemory(t, Options{}, func(t *testing.T, w *cmWorld) {
		h := w.active
		init := provider.QPInitAttr{SendCQ: h.cq, RecvCQ: h.cq, Cap: smallQP}
		id := h.id()
		wantErr(t, errOf(id.CreateQP(h.pd, init)), syscall.EINVAL) // bound to no device
		testkit.OK(t, id.BindAddr(w.addr))
		wantErr(t, errOf(id.CreateQP(w.server.pd, init)), syscall.EINVAL) // of another device
		wantErr(t, errOf(id.CreateQP(nil, init)), syscall.EINVAL)
		wantErr(t, errOf(id.CreateQP(h.pd, provider.QPInitAttr{})), syscall.EINVAL)
		q := h.qp(id)
		testkit.Equal(t, "the QP's state", q.getState(), provider.QPInit)
		wantErr(t, errOf(id.CreateQP(h.pd, init)), syscall.EINVAL)
		wantErr(t, id.Close(), syscall.EBUSY)
		testkit.OK(t, q.Close())
		h.qp(id) // another in its place
	})
}

// TestParameters calls Connect and Accept with impossible parameters. Nothing happens to the id.
func TestParameters(t *testing.T) {
	onNetworks(t, Options{MaxIRD: 16, MaxORD: 8}, func(t *testing.T, w *cmWorld) {
		l := w.server.listen()
		client := w.active.routed(l.LocalAddr())
		foreign := w.server.routed(l.LocalAddr())
		bad := []provider.ConnParam{
			{ResponderResources: -1}, {ResponderResources: 17}, {ResponderResources: 256},
			{InitiatorDepth: -1}, {InitiatorDepth: 9}, {InitiatorDepth: 0x3fff},
		}
		for _, param := range bad {
			wantErr(t, client.Connect(param), syscall.EINVAL)
		}
		testkit.OK(t, client.Connect(provider.ConnParam{ResponderResources: 16, InitiatorDepth: 8}))
		wantErr(t, client.Connect(provider.ConnParam{}), syscall.EINVAL)
		wantErr(t, client.Accept(provider.ConnParam{}), syscall.EINVAL)
		server, _ := w.server.wantRequest("the Request arrives", l)
		for _, param := range bad {
			wantErr(t, server.Accept(param), syscall.EINVAL)
		}
		testkit.OK(t, qpOf(server).Close())
		wantErr(t, server.Accept(provider.ConnParam{}), syscall.EINVAL)
		wantErr(t, server.Accept(provider.ConnParam{QP: qpOf(client)}), syscall.EINVAL) // of another device
		wantErr(t, server.Accept(provider.ConnParam{QP: qpOf(server)}), syscall.EINVAL) // closed
		testkit.OK(t, qpOf(foreign).Modify(provider.QPAttr{State: provider.QPErr}, provider.QPAttrState))
		wantErr(t, server.Accept(provider.ConnParam{QP: qpOf(foreign)}), syscall.EINVAL) // in ERR
		w.server.qp(server)
		testkit.OK(t, server.Accept(provider.ConnParam{ResponderResources: 255, InitiatorDepth: 255}))
		w.server.want("accepted", server, provider.CMEstablished, 0)
		w.active.want("accepted", client, provider.CMEstablished, 0)
	})
}

// TestOneQPForTwo has two connections want the same QP: one gets it.
func TestOneQPForTwo(t *testing.T) {
	onNetworks(t, Options{}, func(t *testing.T, w *cmWorld) {
		l := w.server.listen()
		first, second := w.active.routed(l.LocalAddr()), w.active.routed(l.LocalAddr())
		testkit.OK(t, qpOf(second).Close())
		testkit.OK(t, first.Connect(provider.ConnParam{}))
		testkit.OK(t, second.Connect(provider.ConnParam{QP: qpOf(first)}))
		var heard []provider.CMEventType
		for len(heard) < 5 {
			e := w.server.next("both ask")
			heard = append(heard, e.Type)
			if e.Type == provider.CMConnectRequest {
				server := w.server.own(e.ID)
				w.server.qp(server)
				testkit.OK(t, server.Accept(provider.ConnParam{}))
			}
		}
		slices.Sort(heard)
		want := []provider.CMEventType{
			provider.CMConnectRequest, provider.CMConnectRequest,
			provider.CMEstablished, provider.CMEstablished, provider.CMDisconnected,
		}
		testkit.Equal(t, "what the responder hears", fmt.Sprint(heard), fmt.Sprint(want))
		established := 0
		for range 2 {
			switch e := w.active.next("one gets it"); {
			case e.Type == provider.CMEstablished:
				established++
			case e.Type != provider.CMConnectError || e.Status != -int(syscall.EINVAL):
				t.Errorf("event %s, status %d", e.Type, e.Status)
			}
		}
		testkit.Equal(t, "connections on one QP", established, 1)
	})
}

// TestEstablishedKeepsNoStartup: frames, contexts and channels of the start-up are
// gone with it.
func TestEstablishedKeepsNoStartup(t *testing.T) {
	inMemory(t, Options{}, func(t *testing.T, w *cmWorld) {
		client, server := w.established()
		w.moment()
		for name, id := range map[string]*cm.ID{"client": client, "server": server} {
			if what := cm.Keeps(id); len(what) > 0 {
				t.Errorf("%s keeps %v", name, what)
			}
		}
		for name, h := range map[string]*cmHost{"client": w.active, "server": w.server} {
			if n := cm.Events(h.ch); n > 0 {
				t.Errorf("%s: its channel keeps %d events", name, n)
			}
		}
	})
}

// TestManyWaitForEvents: each event goes to one of those who wait, and Close to
// all of them.
func TestManyWaitForEvents(t *testing.T) {
	inMemory(t, Options{}, func(t *testing.T, w *cmWorld) {
		const n = 5
		ch := testkit.Must(w.active.dev.CreateEventChannel())(t)
		got := make(chan error, n)
		for range n {
			go func() {
				_, err := ch.Next(t.Context())
				got <- err
			}()
		}
		synctest.Wait()
		for range n - 2 {
			cm.Push(ch.(*cm.EventChannel), provider.CMEvent{Type: provider.CMDisconnected})
		}
		for range n - 2 {
			testkit.OK(t, <-got)
		}
		testkit.OK(t, ch.Close())
		for range 2 {
			testkit.WantErr(t, "who still waited", <-got, os.ErrClosed)
		}
	})
}

func TestNextEndsWithItsContext(t *testing.T) {
	onNetworks(t, Options{}, func(t *testing.T, w *cmWorld) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		wantErr(t, errOf(w.active.ch.Next(ctx)), context.DeadlineExceeded)
	})
}

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
		if client.LocalAddr() != server.RemoteAddr() || client.RemoteAddr() != server.LocalAddr() ||
			client.LocalAddr().Port() == 0 {
			t.Errorf("addresses: %s to %s, %s to %s", client.LocalAddr(), client.RemoteAddr(),
				server.LocalAddr(), server.RemoteAddr())
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
		{[2]int{3, 5}, [2]int{0, 3}, [2]int{4, 5}, [2]int{8,
			3}}, // IRD is a power of two, and raised to what is asked for
		{[2]int{1, 1}, [2]int{16, 16}, [2]int{1, 1}, [2]int{16, 1}},              // ORD is lowered to what is offered
		{[2]int{128, 128}, [2]int{128, 128}, [2]int{128, 128}, [2]int{128, 128}}, // the device's limits
		{[2]int{255, 255}, [2]int{255, 255}, [2]int{128, 128}, [2]int{128, 128}}, // RDMA_MAX_RESP_RES
	} {
		t.Run(fmt.Sprint(tc.connect, tc.accept), func(t *testing.T) {
			inMemory(t, Options{}, func(t *testing.T, w *cmWorld) {
				l := w.server.listen()
				client := w.active.connect(l.LocalAddr(), provider.ConnParam{
					ResponderResources: tc.connect[0], InitiatorDepth: tc.connect[1]})
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
				testkit.WantErr(t, call, err, syscall.EINVAL, fmt.Sprintf("room for %d ", tc.limit),
					fmt.Sprintf("%d bytes of private data are too many", tc.limit+1))
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
