package rdmacm_test

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/internal/fake"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
	"github.com/govs-rdma/govs/provider"
)

func TestDialMakesAndFreesInOrder(t *testing.T) {
	f, vctx := newFake(t, goodDial())
	c, err := rdmacm.Dial(t.Context(), vctx, somewhere, nil)
	testkit.OK(t, err)
	if string(c.PrivateData()) != "welcome" || c.RemoteAddr() != somewhere {
		t.Errorf("peer %v sent %q", c.RemoteAddr(), c.PrivateData())
	}
	want := []string{
		"open", "create event channel", "create id", "resolve addr", "resolve route",
		"alloc pd", "create comp channel", "create cq", "create comp channel", "create cq", "cm create qp", "query", "connect",
	}
	if calls := f.Calls(); !slices.Equal(calls, want) {
		t.Errorf("calls %q,\nwant %q", calls, want)
	}
	testkit.OK(t, c.Close())
	testkit.OK(t, c.Close())
	want = []string{
		"disconnect", "close qp", "close id", "close event channel",
		"close cq", "close comp channel", "close cq", "close comp channel", "close pd",
	}
	if calls := f.Calls(); !slices.Equal(calls, want) {
		t.Errorf("calls %q,\nwant %q", calls, want)
	}
	<-c.Done()
	testkit.OK(t, vctx.Close())
}

// Whatever call fails, everything that was made before is freed: the context can be closed.
func TestDialFailures(t *testing.T) {
	no := syscall.EIO
	for _, call := range []string{
		"create event channel", "create id", "resolve addr", "resolve route", "alloc pd",
		"create comp channel", "create cq", "cm create qp", "query", "connect",
	} {
		f, vctx := newFake(t, goodDial())
		f.Fail(call, no)
		_, err := rdmacm.Dial(t.Context(), vctx, somewhere, nil)
		wantErr(t, call, err, no)
		if err := vctx.Close(); err != nil {
			t.Errorf("after a failed %s: %v", call, err)
		}
	}
	for _, c := range []struct {
		call  string
		event provider.CMEvent
		errno syscall.Errno
		words []string
	}{
		{"resolve addr", provider.CMEvent{Type: provider.CMAddrError, Status: -int(syscall.ENODEV)}, syscall.ENODEV, []string{"rdma_resolve_addr 192.0.2.7:7471", "RDMA_CM_EVENT_ADDR_ERROR"}},
		{"resolve addr", provider.CMEvent{Type: provider.CMAddrError}, syscall.EHOSTUNREACH, nil},
		{"resolve route", provider.CMEvent{Type: provider.CMRouteError}, syscall.ENETUNREACH, []string{"rdma_resolve_route"}},
		{"connect", provider.CMEvent{Type: provider.CMUnreachable}, syscall.ETIMEDOUT, []string{"rdma_connect", "192.0.2.7"}},
		{"connect", provider.CMEvent{Type: provider.CMConnectError, Status: -int(syscall.EPROTO)}, syscall.EPROTO, []string{"CONNECT_ERROR"}},
		{"connect", provider.CMEvent{Type: provider.CMConnectError}, syscall.ECONNABORTED, nil},
		{"connect", provider.CMEvent{Type: provider.CMDeviceRemoval}, syscall.ENODEV, nil},
		{"connect", provider.CMEvent{Type: provider.CMDisconnected}, syscall.ECONNRESET, nil},
		{"connect", provider.CMEvent{Type: provider.CMRejected, Status: -111}, syscall.ECONNREFUSED, []string{"rejected"}},
	} {
		script := goodDial()
		script[c.call] = c.event
		_, vctx := newFake(t, script)
		_, err := rdmacm.Dial(t.Context(), vctx, somewhere, nil)
		wantErr(t, c.event.Type.String(), err, c.errno, c.words...)
		if !strings.HasSuffix(err.Error(), ": "+c.errno.Error()) {
			t.Errorf("%v: the errno is not last: %v", c.event.Type, err)
		}
		if err := vctx.Close(); err != nil {
			t.Errorf("after %v: %v", c.event.Type, err)
		}
	}
}

func TestDialRejected(t *testing.T) {
	script := goodDial()
	script["connect"] = provider.CMEvent{Type: provider.CMRejected, Status: -111, Param: provider.ConnParam{PrivateData: []byte("full")}}
	_, vctx := newFake(t, script)
	_, err := rdmacm.Dial(t.Context(), vctx, somewhere, nil)
	var r *rdmacm.RejectedError
	if !errors.As(err, &r) || string(r.PrivateData) != "full" || r.Status != -111 {
		t.Errorf("got %#v", err)
	}
}

// If the context ends in one of Dial's waits, Dial frees everything.
func TestDialGivenUp(t *testing.T) {
	for _, silent := range []string{"resolve addr", "resolve route", "connect"} {
		script := goodDial()
		delete(script, silent)
		synctest.Test(t, func(t *testing.T) {
			_, vctx := newFake(t, script)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err := rdmacm.Dial(ctx, vctx, somewhere, nil)
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("no answer to %s: %v", silent, err)
			}
			testkit.OK(t, vctx.Close())
			_, err = rdmacm.Dial(ctx, vctx, somewhere, nil)
			wantErr(t, "Dial with an ended context", err, context.DeadlineExceeded)
		})
	}
}

// A connect call that does not return, as with the kernel and an address that drops packets, ends
// when the QP is closed.
func TestDialGivenUpWithinConnect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, vctx := newFake(t, goodDial())
		answer := f.OnCM
		f.OnCM = func(id *fake.ID, call string) {
			if call != "connect" {
				answer(id, call)
				return
			}
			for f.Count("close qp") == 0 {
				time.Sleep(time.Microsecond)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if _, err := rdmacm.Dial(ctx, vctx, somewhere, nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		if f.Count("disconnect") != 0 {
			t.Error("disconnect of what was never connected: it would wait for the connect call")
		}
		time.Sleep(time.Millisecond) // for the call to return
		testkit.OK(t, vctx.Close())
	})
}

// The kernel keeps an id whose connection the peer has not answered. Dial still returns, and
// eventually leaves nothing behind.
func TestDialGivenUpWithAnIDThatIsHeld(t *testing.T) {
	script := goodDial()
	delete(script, "connect")
	synctest.Test(t, func(t *testing.T) {
		f, vctx := newFake(t, script)
		answer := f.OnCM
		f.OnCM = func(id *fake.ID, call string) {
			if call == "close id" {
				time.Sleep(10 * time.Second)
			}
			answer(id, call)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start := time.Now()
		if _, err := rdmacm.Dial(ctx, vctx, somewhere, nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		if d := time.Since(start); d > 2*time.Second {
			t.Errorf("Dial took %v", d)
		}
		wantErr(t, "closing meanwhile", vctx.Close(), syscall.EBUSY, "1 Conn")
		time.Sleep(10 * time.Second)
		synctest.Wait()
		testkit.OK(t, vctx.Close())
	})
}

func TestDialOverAnotherDevice(t *testing.T) {
	f, vctx := newFake(t, goodDial())
	f.BoundTo = "other0"
	_, err := rdmacm.Dial(t.Context(), vctx, somewhere, nil)
	wantErr(t, "Dial", err, syscall.EINVAL, "192.0.2.7:7471", "other0", "fake0")
	_, err = rdmacm.Listen(t.Context(), vctx, somewhere, nil)
	wantErr(t, "Listen", err, syscall.EINVAL, "other0", "fake0")
	testkit.OK(t, vctx.Close())
}

func TestPrepare(t *testing.T) {
	f, vctx := newFake(t, goodDial())
	var sent *fake.ID
	answer := f.OnCM
	f.OnCM = func(id *fake.ID, call string) { sent = id; answer(id, call) }
	pd := testkit.Must(vctx.AllocPD())(t)
	c, err := rdmacm.Dial(t.Context(), vctx, somewhere, &rdmacm.ConnConfig{
		PD: pd, PrivateData: []byte("before"), InitiatorDepth: -1,
		Prepare: func(_ context.Context, c *rdmacm.Conn, p *rdmacm.ConnParam) error {
			if string(p.PrivateData) != "before" || p.ResponderResources != 8 || p.InitiatorDepth != 0 {
				t.Errorf("Prepare got %+v", p)
			}
			if f.Count("connect") != 0 || c.QP() == nil || c.PD() != pd {
				t.Error("Prepare is called too late, or too early")
			}
			p.PrivateData = []byte("after")
			return nil
		},
	})
	testkit.OK(t, err)
	if string(sent.Param.PrivateData) != "after" || sent.Param.ResponderResources != 8 {
		t.Errorf("connect got %+v", sent.Param)
	}
	testkit.OK(t, c.Close())
	if f.Count("close pd") != 0 {
		t.Error("Close closed a PD that isn't its own")
	}
	no := errors.New("no memory for you")
	_, err = rdmacm.Dial(t.Context(), vctx, somewhere, &rdmacm.ConnConfig{
		Prepare: func(context.Context, *rdmacm.Conn, *rdmacm.ConnParam) error { return no },
	})
	wantErr(t, "Prepare that fails", err, no)
	testkit.OK(t, pd.Close())
	testkit.OK(t, vctx.Close())
}

// A region may outlive its connection, even one that was not established. The PD that only the Conn
// knows is freed with the last region.
func TestRegionsOutliveTheConnection(t *testing.T) {
	for _, fails := range []bool{false, true} {
		f, vctx := newFake(t, goodDial())
		if fails {
			f.Fail("connect", syscall.EIO)
		}
		var mrs [2]*ibverbs.MR
		var pd *ibverbs.PD
		c, err := rdmacm.Dial(t.Context(), vctx, somewhere, &rdmacm.ConnConfig{
			Prepare: func(_ context.Context, c *rdmacm.Conn, _ *rdmacm.ConnParam) (err error) {
				pd = c.PD()
				for i := range mrs {
					mrs[i] = testkit.Must(pd.AllocMR(1, 0))(t)
				}
				return nil
			},
		})
		if fails {
			wantErr(t, "Dial", err, syscall.EIO)
		}
		testkit.OK(t, c.Close())
		testkit.OK(t, c.Close())
		if f.Count("close qp") != 1 || f.Count("close event channel") != 1 || f.Count("close cq") != 2 {
			t.Error("the rest is not closed")
		}
		_, err = pd.AllocMR(1, 0)
		wantErr(t, "another region", err, os.ErrClosed)
		wantErr(t, "Close of the PD", pd.Close(), syscall.EBUSY, "2 MR")
		testkit.OK(t, mrs[0].Close())
		wantErr(t, "Close of the context", vctx.Close(), syscall.EBUSY, "1 PD")
		testkit.OK(t, mrs[1].Close())
		if f.Count("close pd") != 1 {
			t.Error("the PD is still there")
		}
		testkit.OK(t, pd.Close())
		testkit.OK(t, vctx.Close())
	}
}

// listen returns a listener over a fake, and the fake's id of it.
func listen(t *testing.T) (*fake.Provider, *ibverbs.Context, *rdmacm.Listener, *fake.ID) {
	t.Helper()
	f, vctx := newFake(t, goodDial())
	answer := f.OnCM
	var id *fake.ID
	f.OnCM = func(x *fake.ID, call string) {
		if call == "listen" {
			id = x
		}
		answer(x, call)
	}
	l := testkit.Must(rdmacm.Listen(t.Context(), vctx, somewhere, nil))(t)
	return f, vctx, l, id
}

func TestAcceptTakesTwoSteps(t *testing.T) {
	f, vctx, l, lid := listen(t)
	nid := lid.Request(provider.ConnParam{PrivateData: []byte("please"), ResponderResources: 2, InitiatorDepth: 3})
	req, err := l.Accept(t.Context())
	testkit.OK(t, err)
	if string(req.PrivateData()) != "please" || req.RemoteAddr() != netip.MustParseAddrPort("192.0.2.9:9") ||
		req.ResponderResources() != 2 || req.InitiatorDepth() != 3 || req.LocalAddr() != l.Addr() {
		t.Errorf("request %+v", req)
	}
	if f.Count("accept")+f.Count("reject") != 0 {
		t.Error("the request was answered by receiving it")
	}
	c, err := req.Accept(t.Context(), &rdmacm.ConnConfig{PrivateData: []byte("welcome")})
	testkit.OK(t, err)
	if p := nid.Param; string(p.PrivateData) != "welcome" || p.ResponderResources != 2 || p.InitiatorDepth != 3 {
		t.Errorf("accept got %+v, want depths as offered", p)
	}
	if string(c.PrivateData()) != "please" {
		t.Errorf("the connection knows private data %q", c.PrivateData())
	}
	_, err = req.Accept(t.Context(), nil)
	wantErr(t, "second answer", err, syscall.EINVAL, "answered")
	wantErr(t, "second answer", req.Reject(nil), syscall.EINVAL, "answered")
	testkit.OK(t, req.Close())
	testkit.OK(t, l.Close()) // the connection outlives its listener
	nid.Event(provider.CMDisconnected, 0, nil)
	testkit.OK(t, c.Wait(t.Context()))
	testkit.OK(t, c.Close())
	testkit.OK(t, vctx.Close())
}

func TestRejectAndClose(t *testing.T) {
	f, vctx, l, lid := listen(t)
	nid := lid.Request(provider.ConnParam{})
	req := testkit.Must(l.Accept(t.Context()))(t)
	testkit.OK(t, req.Reject([]byte("full")))
	if string(nid.Private) != "full" {
		t.Errorf("the peer got %q", nid.Private)
	}
	lid.Request(provider.ConnParam{})
	req = testkit.Must(l.Accept(t.Context()))(t)
	testkit.OK(t, req.Close())
	testkit.OK(t, req.Close())
	if n := f.Count("reject"); n != 2 {
		t.Errorf("%d rejects, want 2", n)
	}
	testkit.OK(t, l.Close())
	testkit.OK(t, l.Close())
	testkit.OK(t, vctx.Close())
}

// A request that cannot be accepted is rejected, so that the peer does not wait, and everything is
// freed.
func TestAcceptFailures(t *testing.T) {
	no := syscall.EIO
	for _, call := range []string{"alloc pd", "create cq", "cm create qp", "query", "prepare", "accept", "event"} {
		f, vctx, l, lid := listen(t)
		nid := lid.Request(provider.ConnParam{})
		req := testkit.Must(l.Accept(t.Context()))(t)
		f.Fail(call, no)
		if call == "event" {
			answer := f.OnCM
			f.OnCM = func(id *fake.ID, c string) {
				if c == "accept" {
					nid.Event(provider.CMConnectError, -int(no), nil)
					return
				}
				answer(id, c)
			}
		}
		_, err := req.Accept(t.Context(), &rdmacm.ConnConfig{
			Prepare: func(context.Context, *rdmacm.Conn, *rdmacm.ConnParam) error {
				if call == "prepare" {
					return no
				}
				return nil
			},
		})
		wantErr(t, call, err, no)
		rejects := 1
		if call == "event" { // the reply has been sent
			rejects = 0
			wantErr(t, call, err, no, "rdma_accept 192.0.2.9:9")
		}
		if n := f.Count("reject"); n != rejects {
			t.Errorf("%s fails: %d rejects, want %d", call, n, rejects)
		}
		testkit.OK(t, l.Close())
		if err := vctx.Close(); err != nil {
			t.Errorf("%s fails: %v", call, err)
		}
	}
	for _, call := range []string{"create event channel", "migrate"} {
		f, vctx, l, lid := listen(t)
		f.Fail(call, no)
		lid.Request(provider.ConnParam{})
		_, err := l.Accept(t.Context())
		wantErr(t, call, err, no)
		if f.Count("reject") != 1 {
			t.Errorf("%s fails: the request was not rejected", call)
		}
		f.Fail(call, nil)
		lid.Request(provider.ConnParam{})
		req, err := l.Accept(t.Context())
		testkit.OK(t, err)
		testkit.OK(t, req.Close())
		testkit.OK(t, l.Close())
		testkit.OK(t, vctx.Close())
	}
}

// The kernel finds out late that the local port it chose is taken.
func TestDialTriesAnotherPort(t *testing.T) {
	for _, c := range []struct {
		errno syscall.Errno
		local netip.AddrPort
		tries int
	}{
		{syscall.EADDRINUSE, netip.AddrPort{}, 8},
		{syscall.EADDRNOTAVAIL, netip.AddrPort{}, 8},
		{syscall.ECONNREFUSED, netip.AddrPort{}, 1},
		{syscall.EADDRINUSE, netip.MustParseAddrPort("192.0.2.9:4000"), 1},
	} {
		f, vctx := newFake(t, goodDial())
		f.Fail("connect", c.errno)
		tries := 0
		_, err := rdmacm.Dial(t.Context(), vctx, somewhere, &rdmacm.ConnConfig{
			LocalAddr: c.local,
			Prepare: func(context.Context, *rdmacm.Conn, *rdmacm.ConnParam) error {
				tries++
				return nil
			},
		})
		wantErr(t, c.errno.Error(), err, c.errno)
		if tries != c.tries {
			t.Errorf("%v from %v: %d tries, want %d", c.errno, c.local, tries, c.tries)
		}
		testkit.OK(t, vctx.Close())
	}
}

// TestListenTriesAnotherPort: the kernel finds out only when it listens that TCP has the port that
// it chose for port 0.
func TestListenTriesAnotherPort(t *testing.T) {
	for _, c := range []struct {
		call  string
		errno syscall.Errno
		addr  string
		tries int
	}{
		{"listen", syscall.EADDRINUSE, "192.0.2.9:0", 8},
		{"listen", syscall.EADDRINUSE, "192.0.2.9:4000", 1},
		{"listen", syscall.ENOMEM, "192.0.2.9:0", 1},
		{"bind addr", syscall.EADDRINUSE, "192.0.2.9:0", 1}, // no id may have any port
	} {
		f, vctx := newFake(t, nil)
		f.Fail(c.call, c.errno)
		tries := 0
		_, err := rdmacm.Listen(t.Context(), vctx, netip.MustParseAddrPort(c.addr), &rdmacm.ListenConfig{
			Setup: func(*rdmacm.ID) error {
				tries++
				return nil
			},
		})
		wantErr(t, c.call, err, c.errno)
		if tries != c.tries {
			t.Errorf("%s at %s: %v: %d tries, want %d", c.call, c.addr, c.errno, tries, c.tries)
		}
		testkit.OK(t, vctx.Close())
	}
}

func TestListenFailures(t *testing.T) {
	for _, call := range []string{"create event channel", "create id", "bind addr", "listen"} {
		f, vctx := newFake(t, nil)
		f.Fail(call, syscall.EADDRINUSE)
		_, err := rdmacm.Listen(t.Context(), vctx, somewhere, nil)
		wantErr(t, call, err, syscall.EADDRINUSE)
		testkit.OK(t, vctx.Close())
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, vctx := newFake(t, nil)
	_, err := rdmacm.Listen(ended, vctx, somewhere, nil)
	wantErr(t, "ended context", err, context.Canceled)
}

func TestListenerCloseWakesAccept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, vctx, l, _ := listen(t)
		errs := make(chan error, 3)
		for range cap(errs) {
			go func() {
				_, err := l.Accept(t.Context())
				errs <- err
			}()
		}
		given, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := l.Accept(given); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Accept given up: %v", err)
		}
		testkit.OK(t, l.Close())
		for range cap(errs) {
			wantErr(t, "Accept of a closed listener", <-errs, os.ErrClosed)
		}
		_, err := l.Accept(t.Context())
		wantErr(t, "Accept after Close", err, os.ErrClosed)
		testkit.OK(t, vctx.Close())
	})
}

func TestShutdown(t *testing.T) {
	einval := &provider.Error{Op: "rdma_disconnect", Err: syscall.EINVAL}
	for _, c := range []struct {
		name  string
		setup func(f *fake.Provider, id *fake.ID)
		want  error
	}{
		{"in order", func(*fake.Provider, *fake.ID) {}, nil},
		{"peer ended first", func(f *fake.Provider, id *fake.ID) {
			f.Fail("disconnect", einval)
			id.Event(provider.CMDisconnected, 0, nil)
		}, nil},
		{"peer ends during the drain", func(f *fake.Provider, id *fake.ID) {
			f.Fail("disconnect", einval)
			f.PostSend = func(_ *fake.QP, wrs []provider.SendWR) (int, error) {
				return len(wrs), nil // never completes
			}
			time.AfterFunc(time.Second, func() { id.Event(provider.CMDisconnected, 0, nil) })
		}, nil},
		{"disconnect knows before the event", func(f *fake.Provider, id *fake.ID) {
			f.Fail("disconnect", einval)
			time.AfterFunc(time.Second, func() { id.Event(provider.CMDisconnected, 0, nil) })
		}, nil},
		{"disconnect fails", func(f *fake.Provider, id *fake.ID) { f.Fail("disconnect", syscall.EIO) }, syscall.EIO},
		{"nothing ever completes", func(f *fake.Provider, id *fake.ID) {
			f.PostSend = func(_ *fake.QP, wrs []provider.SendWR) (int, error) { return len(wrs), nil }
		}, context.DeadlineExceeded},
		{"the queue is full for ever", func(f *fake.Provider, id *fake.ID) {
			f.PostSend = func(*fake.QP, []provider.SendWR) (int, error) { return 0, provider.ErrNoneSignaled }
		}, ibverbs.ErrNoneSignaled},
		{"no event comes", func(f *fake.Provider, id *fake.ID) { f.OnCM = nil }, context.DeadlineExceeded},
	} {
		synctest.Test(t, func(t *testing.T) {
			f, vctx := newFake(t, goodDial())
			var id *fake.ID
			answer := f.OnCM
			f.OnCM = func(x *fake.ID, call string) { id = x; answer(x, call) }
			conn := testkit.Must(rdmacm.Dial(t.Context(), vctx, somewhere, nil))(t)
			testkit.OK(t, conn.QP().PostSend(ibverbs.SendWR{WRID: 1, Flags: ibverbs.SendSignaled}))
			f.Calls()
			c.setup(f, id)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			err := conn.Shutdown(ctx)
			if !errors.Is(err, c.want) {
				t.Errorf("%s: got %v, want %v", c.name, err, c.want)
			}
			wc := make([]ibverbs.WC, 2)
			if n, err := conn.SendCQ().Poll(wc); n != 1 || err != nil || wc[0].WRID != 1 {
				t.Errorf("%s: the program's completion is lost: %d, %v", c.name, n, err)
			}
			testkit.OK(t, conn.Close())
			testkit.OK(t, vctx.Close())
		})
	}
}

func TestWaitGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, vctx := newFake(t, goodDial())
		c := testkit.Must(rdmacm.Dial(t.Context(), vctx, somewhere, nil))(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := c.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		testkit.OK(t, c.Close()) // ends the goroutine that Wait started
		testkit.OK(t, c.Wait(ctx))
		testkit.OK(t, vctx.Close())
	})
}

// If the program has to answer a disconnect, the event is taken without any call. On other
// transports an idle connection has no goroutine.
func TestDisconnectUnasked(t *testing.T) {
	for transport, want := range map[provider.TransportType]int{provider.TransportIB: 0, provider.TransportIWARP: 1} {
		synctest.Test(t, func(t *testing.T) {
			f, vctx := newFake(t, goodDial())
			f.Transport = transport
			var last *fake.ID
			answer := f.OnCM
			f.OnCM = func(id *fake.ID, call string) { last = id; answer(id, call) }
			c, err := rdmacm.Dial(t.Context(), vctx, somewhere, nil)
			testkit.OK(t, err)
			last.Event(provider.CMDisconnected, 0, nil)
			synctest.Wait()
			if got := last.Waiting(); got != want {
				t.Errorf("%v: %d events that nobody took, want %d", transport, got, want)
			}
			testkit.OK(t, c.Wait(t.Context()))
			testkit.OK(t, c.Close())
			testkit.OK(t, vctx.Close())
		})
	}
}
