package ibverbs_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
	"github.com/govs-rdma/govs/provider/engine"
	"github.com/govs-rdma/govs/provider/engine/memnet"
	"github.com/govs-rdma/govs/provider/kernel"
)

const ownTCP = "siw has its TCP connections in the kernel, where a plain listener of this host at siw's address is not reached"

const badReply = "siw's connection manager can stop over such an answer"

// openNamed opens the device of that name.
func openNamed(name string) (*ibverbs.Context, error) {
	if onKernel() {
		return ibverbs.Open(kernel.New(), name)
	}
	return ibverbs.Open(engine.New(&engine.Options{StartupTimeout: patience}), name)
}

// wrongConnections are wrong uses of Dial, Listen and Accept.
var wrongConnections = []wrongUse{
	{name: "Dial: nobody listens", do: func(t *testing.T) []seen { return dialFree(t, nil) }},
	{name: "Dial: no way to the address", do: dialUnreachable, not: "it depends on the routes of the machine"},
	{name: "Dial: no address", do: func(t *testing.T) []seen { return dialTo(t, open, netip.AddrPort{}, nil) }},
	{name: "Dial: the unspecified address", do: func(t *testing.T) []seen {
		return dialTo(t, open, netip.MustParseAddrPort("0.0.0.0:7471"), nil)
	}, not: "the kernel takes it for this host"},
	{name: "Dial: port 0", do: dialPort0},
	{name: "Dial: from an address of another machine", do: func(t *testing.T) []seen {
		return dialFree(t, &rdmacm.ConnConfig{LocalAddr: netip.MustParseAddrPort("198.51.100.7:0")})
	}},
	{name: "Dial: from an address of another family", do: func(t *testing.T) []seen {
		return dialFree(t, &rdmacm.ConnConfig{LocalAddr: netip.MustParseAddrPort("[::1]:0")})
	}},
	{name: "Dial: siw at 127.0.0.1", do: dialLoopback},
	{name: "Dial: the peer says nothing until the deadline", do: dialSilent, waits: true},
	{name: "Dial: the peer says nothing until the engine's limit", do: dialSilentForLong, not: "it is an option of the engine"},
	{name: "Dial: cancelled", do: dialCancelled, waits: true},
	{name: "Dial: the peer hangs up", do: func(t *testing.T) []seen { return dialPlain(t, "") }},
	{name: "Dial: the peer is an HTTP server", do: func(t *testing.T) []seen {
		return dialPlain(t, "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n400 Bad Request")
	}, not: badReply},
	{name: "Dial: the peer is a TLS server",
		do:  func(t *testing.T) []seen { return dialPlain(t, "\x15\x03\x01\x00\x02\x02\x46") },
		not: badReply},
	{name: "Dial: the peer is an SSH server",
		do:  func(t *testing.T) []seen { return dialPlain(t, "SSH-2.0-OpenSSH_9.2p1\r\n") },
		not: badReply},
	{name: "Dial: the program at the peer rejects", do: dialRejected},
	{name: "Dial: private data too long", do: func(t *testing.T) []seen {
		return dialFree(t, &rdmacm.ConnConfig{PrivateData: make([]byte, 1000)})
	}},
	{name: "Dial: IRD too large", do: func(t *testing.T) []seen { return dialFree(t, &rdmacm.ConnConfig{ResponderResources: 10000}) }, not: "librdmacm has eight bits for it"},
	{name: "Dial: ORD too large", do: func(t *testing.T) []seen { return dialFree(t, &rdmacm.ConnConfig{InitiatorDepth: 10000}) }, not: "librdmacm has eight bits for it"},
	{name: "Dial: MaxSendWR too large", do: func(t *testing.T) []seen {
		return dialFree(t, &rdmacm.ConnConfig{Cap: ibverbs.QPCap{MaxSendWR: 1 << 24}})
	}},
	{name: "DialName: no port", do: func(t *testing.T) []seen { return dialName(t, "localhost") }},
	{name: "DialName: unknown service", do: func(t *testing.T) []seen { return dialName(t, "127.0.0.1:no-such-service") }},
	{name: "Listen: the port is in use", do: listenTwice},
	{name: "Listen: an address of another machine", do: func(t *testing.T) []seen { return listenAt(t, "198.51.100.7:7471") }},
	{name: "Listen: no address", do: listenNowhere},
	{name: "Accept: an HTTP client dials", do: acceptHTTP, not: ownTCP},
	{name: "Accept: private data too long", do: acceptLong},
	{name: "Accept: the request has been answered", do: acceptTwice},
	{name: "Accept: the peer has gone", do: acceptGone, not: "siw answers a peer that has gone"},
	{name: "ID.Connect: no route was resolved", do: connectIdle},
	{name: "ID.Connect: no QP", do: connectWithoutQP},
}

// device opens a device for a use.
func device(t *testing.T) (*ibverbs.Context, netip.AddrPort) {
	vctx, addr := open()
	t.Cleanup(func() { testkit.OK(t, vctx.Close()) })
	return vctx, addr
}

// freePort returns an address of the device at which no program listens.
func freePort(t *testing.T, addr netip.AddrPort) netip.AddrPort {
	t.Helper()
	l := testkit.Must(net.Listen("tcp", netip.AddrPortFrom(addr.Addr(), 0).String()))(t)
	defer l.Close()
	return l.Addr().(*net.TCPAddr).AddrPort()
}

func dialFree(t *testing.T, cfg *rdmacm.ConnConfig) []seen {
	vctx, addr := device(t)
	_, err := rdmacm.Dial(timeout(t), vctx, freePort(t, addr), cfg)
	return saw("Dial", err)
}

func dialTo(t *testing.T, open func() (*ibverbs.Context, netip.AddrPort), addr netip.AddrPort, cfg *rdmacm.ConnConfig) []seen {
	vctx, _ := open()
	defer vctx.Close()
	_, err := rdmacm.Dial(timeout(t), vctx, addr, cfg)
	return saw("Dial", err)
}

func dialPort0(t *testing.T) []seen {
	vctx, addr := device(t)
	_, err := rdmacm.Dial(timeout(t), vctx, netip.AddrPortFrom(addr.Addr(), 0), nil)
	return saw("Dial", err)
}

func dialLoopback(t *testing.T) []seen {
	if !onKernel() {
		return []seen{{"(not tried)", "the engine takes 127.0.0.1 as it takes others"}}
	}
	return dialTo(t, open, netip.MustParseAddrPort("127.0.0.1:7471"), nil)
}

// onSimulated opens an engine with a simulated network that has one host.
func onSimulated() (*ibverbs.Context, netip.AddrPort) {
	vctx, err := ibverbs.Open(engine.New(&engine.Options{Network: memnet.New(nil)}), "")
	check(err)
	return vctx, netip.AddrPort{}
}

func dialUnreachable(t *testing.T) []seen {
	return dialTo(t, onSimulated, netip.MustParseAddrPort("203.0.113.9:7471"), nil)
}

// plainServer is a TCP server that does not speak iWARP: it reads the first bytes, and then writes
// answer and hangs up. With a nil answer it does nothing.
func plainServer(t *testing.T, answer []byte) netip.AddrPort {
	t.Helper()
	_, addr := device(t)
	l := testkit.Must(net.Listen("tcp", netip.AddrPortFrom(addr.Addr(), 0).String()))(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		_, _ = c.Read(make([]byte, 4096))
		if answer != nil {
			_, _ = c.Write(answer)
			return
		}
		_, _ = c.Read(make([]byte, 1)) // until the client hangs up
	}()
	t.Cleanup(func() { l.Close(); <-done })
	return l.Addr().(*net.TCPAddr).AddrPort()
}

func dialPlain(t *testing.T, answer string) []seen {
	return dialTo(t, open, plainServer(t, []byte(answer)), nil)
}

func dialSilent(t *testing.T) []seen {
	vctx, _ := device(t)
	_, err := rdmacm.Dial(soon(t), vctx, plainServer(t, nil), nil)
	waitForIDs(vctx)
	return saw("Dial", err)
}

// waitForIDs waits as long as the kernel needs to give up connections.
func waitForIDs(vctx *ibverbs.Context) {
	for began := time.Now(); onKernel() && time.Since(began) < patience && vctx.Close() != nil; {
		time.Sleep(10 * time.Millisecond)
	}
}

func dialSilentForLong(t *testing.T) []seen {
	impatient := func() (*ibverbs.Context, netip.AddrPort) {
		vctx, err := ibverbs.Open(engine.New(&engine.Options{StartupTimeout: 100 * time.Millisecond}), "")
		check(err)
		return vctx, netip.AddrPort{}
	}
	return dialTo(t, impatient, plainServer(t, nil), nil)
}

func dialCancelled(t *testing.T) []seen {
	vctx, _ := device(t)
	ctx, cancel := context.WithCancel(context.Background())
	addr := plainServer(t, nil)
	time.AfterFunc(100*time.Millisecond, cancel)
	_, err := rdmacm.Dial(ctx, vctx, addr, nil)
	waitForIDs(vctx)
	return saw("Dial", err)
}

// dialled dials the listener with cfg, and returns the request and the result of that Dial.
func dialled(t *testing.T, cfg *rdmacm.ConnConfig) (*rdmacm.Request, func() error) {
	t.Helper()
	ctx := timeout(t)
	vctx, addr := device(t)
	l := testkit.Must(rdmacm.Listen(ctx, vctx, addr, nil))(t)
	t.Cleanup(func() { testkit.OK(t, l.Close()) })
	result := make(chan error, 1)
	go func() {
		c, err := rdmacm.Dial(ctx, vctx, l.Addr(), cfg)
		_ = c.Close()
		result <- err
	}()
	req := testkit.Must(l.Accept(ctx))(t)
	return req, func() error { return <-result }
}

func dialRejected(t *testing.T) []seen {
	req, result := dialled(t, nil)
	testkit.OK(t, req.Reject([]byte("go away")))
	return saw("Dial", result())
}

func dialName(t *testing.T, name string) []seen {
	vctx, _ := device(t)
	_, err := rdmacm.DialName(timeout(t), vctx, name, nil)
	return saw("DialName", err)
}

func listenTwice(t *testing.T) []seen {
	vctx, addr := device(t)
	l := testkit.Must(rdmacm.Listen(timeout(t), vctx, addr, nil))(t)
	defer l.Close()
	_, err := rdmacm.Listen(timeout(t), vctx, l.Addr(), nil)
	return saw("Listen", err)
}

func listenAt(t *testing.T, addr string) []seen {
	vctx, _ := device(t)
	_, err := rdmacm.Listen(timeout(t), vctx, netip.MustParseAddrPort(addr), nil)
	return saw("Listen", err)
}

func listenNowhere(t *testing.T) []seen {
	vctx, _ := device(t)
	_, err := rdmacm.Listen(timeout(t), vctx, netip.AddrPort{}, nil)
	return saw("Listen", err)
}

func acceptHTTP(t *testing.T) []seen {
	vctx, addr := device(t)
	l := testkit.Must(rdmacm.Listen(timeout(t), vctx, addr, nil))(t)
	defer l.Close()
	c := testkit.Must(net.Dial("tcp", l.Addr().String()))(t)
	defer c.Close()
	testkit.Must(io.WriteString(c, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"))(t)
	_, err := l.Accept(soon(t))
	rows := saw("Accept", err)
	n, err := c.Read(make([]byte, 100))
	if n == 0 && err != nil {
		return append(rows, seen{"HTTP client", "the engine hangs up"})
	}
	return append(rows, saw("HTTP client", err)...)
}

func acceptLong(t *testing.T) []seen {
	req, result := dialled(t, nil)
	_, err := req.Accept(timeout(t), &rdmacm.ConnConfig{PrivateData: make([]byte, 1000)})
	return append(saw("Accept", err), saw("peer's Dial", result())...)
}

func acceptTwice(t *testing.T) []seen {
	req, result := dialled(t, nil)
	testkit.OK(t, req.Reject(nil))
	_ = result()
	_, err := req.Accept(timeout(t), nil)
	return saw("Accept", err)
}

func acceptGone(t *testing.T) (saw []seen) {
	testkit.Scaled(t, 20*time.Millisecond, func(pause time.Duration) (err error) {
		saw, err = acceptGoneFor(t, pause)
		return err
	})
	return saw
}

// acceptGoneFor accepts a peer that has been gone for some time, so that the engine may have
// noticed.
func acceptGoneFor(t *testing.T, pause time.Duration) ([]seen, error) {
	ctx, cancel := context.WithCancel(timeout(t))
	vctx, addr := device(t)
	l := testkit.Must(rdmacm.Listen(timeout(t), vctx, addr, nil))(t)
	defer l.Close()
	result := make(chan error, 1)
	go func() {
		_, err := rdmacm.Dial(ctx, vctx, l.Addr(), nil)
		result <- err
	}()
	req := testkit.Must(l.Accept(timeout(t)))(t)
	cancel()
	<-result
	time.Sleep(pause)
	c, err := req.Accept(timeout(t), nil)
	if err == nil {
		return nil, errors.Join(errors.New("accepted, although the peer is gone"), c.Close())
	}
	return saw("Accept", err), nil
}

// newID makes an id on its own channel.
func newID(t *testing.T) (*rdmacm.EventChannel, *rdmacm.ID, netip.AddrPort) {
	t.Helper()
	vctx, addr := device(t)
	ch := testkit.Must(rdmacm.CreateEventChannel(vctx))(t)
	t.Cleanup(func() { testkit.OK(t, ch.Close()) })
	id := testkit.Must(ch.CreateID(nil))(t)
	t.Cleanup(func() { testkit.OK(t, id.Close()) })
	return ch, id, addr
}

func connectIdle(t *testing.T) []seen {
	_, id, _ := newID(t)
	return saw("ID.Connect", id.Connect(nil))
}

func connectWithoutQP(t *testing.T) []seen {
	ch, id, addr := newID(t)
	testkit.OK(t, id.ResolveAddr(netip.AddrPort{}, freePort(t, addr), time.Second))
	testkit.Must(ch.GetEvent(timeout(t)))(t)
	testkit.OK(t, id.ResolveRoute(time.Second))
	testkit.Must(ch.GetEvent(timeout(t)))(t)
	return saw("ID.Connect", id.Connect(nil))
}

// wrongWaits are waits for things that do not happen.
var wrongWaits = []wrongUse{
	{name: "Accept: nobody dials until the deadline", do: acceptNobody},
	{name: "PollWait: nothing completes until the deadline", do: pollNothing},
	{name: "CompChannel.Next: no event until the deadline", do: nextNothing},
	{name: "GetEvent: no event until the deadline", do: getNoEvent},
	{name: "AsyncEvent: no event until the deadline", do: asyncNothing},
	{name: "Wait: the connection lasts beyond the deadline", do: waitForever},
	{name: "Drain: the peer has not sent anything", do: drainHeld, not: "siw sends before the peer"},
	{name: "Send: the peer has not sent anything", do: sendHeld, not: "siw sends before the peer"},
	{name: "Shutdown: the peer has not sent anything", do: shutdownHeld, not: "siw sends before the peer"},
	{name: "Shutdown: the peer had no receive", do: shutdownUnread},
	{name: "Shutdown: a Write had a wrong rkey", do: shutdownWrongKey},
	{name: "PollWait: the CQ has no channel", do: pollWithoutChannel},
	{name: "PollWait: for no completions", do: pollForNone},
}

func acceptNobody(t *testing.T) []seen {
	vctx, addr := device(t)
	l := testkit.Must(rdmacm.Listen(timeout(t), vctx, addr, nil))(t)
	defer l.Close()
	_, err := l.Accept(soon(t))
	return saw("Accept", err)
}

func pollNothing(t *testing.T) []seen {
	c := newLab(t, labConfig{})
	_, err := c.client.RecvCQ().PollWait(soon(t), make([]ibverbs.WC, 1))
	return saw("PollWait", err)
}

func nextNothing(t *testing.T) []seen {
	vctx, _ := device(t)
	ch := testkit.Must(vctx.CreateCompChannel())(t)
	defer ch.Close()
	_, err := ch.Next(soon(t))
	return saw("Next", err)
}

func getNoEvent(t *testing.T) []seen {
	ch, _, _ := newID(t)
	_, err := ch.GetEvent(soon(t))
	return saw("GetEvent", err)
}

func asyncNothing(t *testing.T) []seen {
	vctx, _ := device(t)
	_, err := vctx.AsyncEvent(soon(t))
	return saw("AsyncEvent", err)
}

func waitForever(t *testing.T) []seen {
	c := newLab(t, labConfig{})
	return saw("Conn.Wait", c.client.Wait(soon(t)))
}

// held returns a lab whose server has posted before the client has sent.
func held(t *testing.T) *lab {
	c := newLab(t, labConfig{dial: rdmacm.ConnConfig{NoOpeningWrite: true}})
	testkit.OK(t, c.server.QP().PostSend(ibverbs.SendWR{Opcode: ibverbs.WRSend}))
	return c
}

func drainHeld(t *testing.T) []seen { return saw("Drain", held(t).server.QP().Drain(soon(t))) }

func sendHeld(t *testing.T) []seen {
	c := newLab(t, labConfig{dial: rdmacm.ConnConfig{NoOpeningWrite: true}})
	return saw("Conn.Send", c.server.Send(soon(t), ibverbs.SGE{}))
}

func shutdownHeld(t *testing.T) []seen { return saw("Conn.Shutdown", held(t).server.Shutdown(soon(t))) }

func shutdownUnread(t *testing.T) []seen {
	c := newLab(t, labConfig{})
	testkit.OK(t, c.client.QP().PostSend(ibverbs.SendWR{Opcode: ibverbs.WRSend}))
	return saw("Conn.Shutdown", c.client.Shutdown(c.ctx))
}

func shutdownWrongKey(t *testing.T) []seen {
	c := newLab(t, labConfig{})
	wr := c.remote(ibverbs.WRRDMAWrite, []ibverbs.SGE{c.sge(t, 8)})
	wr.RKey ^= 0x5a5a5a00
	testkit.OK(t, c.client.QP().PostSend(wr))
	return saw("Conn.Shutdown", c.client.Shutdown(c.ctx))
}

func pollWithoutChannel(t *testing.T) []seen {
	vctx, _ := device(t)
	cq := testkit.Must(vctx.CreateCQ(4, nil))(t)
	defer cq.Close()
	_, err := cq.PollWait(timeout(t), make([]ibverbs.WC, 1))
	return saw("PollWait", err)
}

func pollForNone(t *testing.T) []seen {
	c := newLab(t, labConfig{})
	_, err := c.client.RecvCQ().PollWait(soon(t), nil)
	return saw("PollWait", err)
}
