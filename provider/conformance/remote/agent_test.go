package remote_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/conformance/remote"
	"github.com/govs-rdma/govs/provider/engine"
)

// log collects what an agent logs.
type log struct {
	mu    sync.Mutex
	lines []string
}

func (l *log) add(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, fmt.Sprintf(format, args...))
}

// patience limits how long a test waits for an event that must come.
const patience = 2 * time.Minute

// await waits for a line that contains part.
func (l *log) await(t *testing.T, part string) {
	t.Helper()
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		l.mu.Lock()
		all := strings.Join(l.lines, "\n")
		l.mu.Unlock()
		if strings.Contains(all, part) {
			return
		}
	}
	t.Fatalf("the agent logs no %q: %q", part, l.lines)
}

func TestSecret(t *testing.T) {
	right := []byte("0123456789abcdef")
	var l log
	addr := agent(t, &remote.Agent{Secret: right, Log: l.add})
	for what, secret := range map[string][]byte{"another": []byte("0123456789abcdeg"), "none": nil} {
		_, err := remote.Dial(t.Context(), addr, remote.Options{Secret: secret})
		if !errors.Is(err, remote.ErrSecret) || !strings.Contains(err.Error(), addr) {
			t.Errorf("%s: %v, want ErrSecret with the address", what, err)
		}
	}
	testkit.OK(t, testkit.Must(net.Dial("tcp", addr))(t).Close())
	l.await(t, "refused: it has left before it proved that it knows the secret")
	s := testkit.Must(remote.Dial(t.Context(), addr, remote.Options{Secret: right}))(t)
	testkit.OK(t, s.Close())
}

// TestFalseClient: a client that does not know the secret is not served, even if it sends ahead.
func TestFalseClient(t *testing.T) {
	var l log
	addr := agent(t, &remote.Agent{Secret: []byte("0123456789abcdef"), Log: l.add})
	c := testkit.Must(net.Dial("tcp", addr))(t)
	defer c.Close()
	hello := binary.BigEndian.AppendUint16([]byte("govsagnt"), remote.Version)
	testkit.Must(c.Write(append(append(hello, 0), make([]byte, 32+32)...)))(t) // and a proof
	l.await(t, "the two ends have different secrets")
	answer := make([]byte, 8+2+1+32+32+3)
	testkit.Must(readFull(c, answer))(t)
	if n, err := c.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Errorf("the agent says more: %d bytes, %v", n, err)
	}
}

// TestFalseAgent: the client detects an agent that does not know the secret, whatever the agent
// claims.
func TestFalseAgent(t *testing.T) {
	l := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		hello := make([]byte, 8+2+1+32)
		_, _ = c.Read(hello)
		_, _ = c.Write(hello) // the client's own hello is as good as any
		_, _ = c.Read(make([]byte, 32))
		_, _ = c.Write(make([]byte, 32+3)) // a proof of zeros: welcome
	}()
	_, err := remote.Dial(t.Context(), l.Addr().String(), remote.Options{Secret: []byte("0123456789abcdef")})
	if !errors.Is(err, remote.ErrSecret) {
		t.Errorf("%v, want ErrSecret", err)
	}
}

func TestCheckSecret(t *testing.T) {
	for _, c := range []struct {
		addr, secret string
		ok           bool
	}{
		{"127.0.0.1", "", true}, {"::1", "", true}, {"192.0.2.1", "", false}, {"0.0.0.0", "", false},
		{"127.0.0.1", "short", false}, {"192.0.2.1", "0123456789abcdef", true},
	} {
		err := remote.CheckSecret([]byte(c.secret),
			testkit.Must(net.ResolveTCPAddr("tcp",
				net.JoinHostPort(c.addr, "1")))(t).AddrPort().Addr())
		if (err == nil) != c.ok {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// elsewhere is a listener at an address that is not loopback.
type elsewhere struct{ net.Listener }

func (elsewhere) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4zero, Port: 1} }

// TestServeNeedsSecret: an agent without a secret does not serve other hosts.
func TestServeNeedsSecret(t *testing.T) {
	a := &remote.Agent{Open: func(string, []string) (provider.Provider, error) { return nil, nil }}
	l := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := a.Serve(ctx, elsewhere{l}); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("%v, want EINVAL", err)
	}
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("the listener: %v", err)
	}
}

// TestOneAtATime: while there is a run, a second one is refused; after it, the second one is
// served.
func TestOneAtATime(t *testing.T) {
	var l log
	addr := agent(t, &remote.Agent{Log: l.add})
	first := dial(t, addr)
	_, err := remote.Dial(t.Context(), addr, remote.Options{})
	if !errors.Is(err, remote.ErrBusy) || !strings.Contains(err.Error(), "serves a run of 127.0.0.1:") {
		t.Errorf("%v, want ErrBusy and whom", err)
	}
	testkit.OK(t, first.Close())
	l.await(t, "the run has ended")
	dial(t, addr)
}

// TestVersion: either end reports a peer with another version as such.
func TestVersion(t *testing.T) {
	var l log
	addr := agent(t, &remote.Agent{Log: l.add, Host: remote.Host{Build: "agent's build"}})
	c := testkit.Must(net.Dial("tcp", addr))(t)
	defer c.Close()
	hello := binary.BigEndian.AppendUint16([]byte("govsagnt"), remote.Version+1)
	testkit.Must(c.Write(append(hello, 3, 'n', 'e', 'w')))(t)
	answer := make([]byte, 8+2+1+13)
	testkit.Must(readFull(c, answer))(t)
	if !bytes.Contains(answer, []byte("agent's build")) {
		t.Errorf("the agent answers %q", answer)
	}
	l.await(t, fmt.Sprintf(`%d (build "new") there, %d here; use the same release`,
		remote.Version+1, remote.Version))

	old := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer old.Close()
	go func() {
		c, err := old.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		_, _ = c.Write(append(binary.BigEndian.AppendUint16([]byte("govsagnt"), 0), 3, 'o', 'l', 'd'))
		_, _ = c.Read(make([]byte, 64))
	}()
	_, err := remote.Dial(t.Context(), old.Addr().String(), remote.Options{})
	if want := fmt.Sprintf(`0 (build "old") there, %d here`, remote.Version); !errors.Is(err, remote.ErrVersion) ||
		!strings.Contains(err.Error(), want) {
		t.Errorf("%v, want ErrVersion", err)
	}
}

func readFull(c net.Conn, b []byte) (n int, err error) {
	for n < len(b) && err == nil {
		var k int
		k, err = c.Read(b[n:])
		n += k
	}
	return n, err
}

// TestGarbage: a connection that does not send a hello is closed, and a run can still begin.
func TestGarbage(t *testing.T) {
	var l log
	addr := agent(t, &remote.Agent{Log: l.add})
	for _, octets := range []string{"GET / HTTP/1.1\r\n\r\n", "govsagnt", strings.Repeat("\xff", 300)} {
		c := testkit.Must(net.Dial("tcp", addr))(t)
		testkit.Must(c.Write([]byte(octets)))(t)
		_ = c.(*net.TCPConn).CloseWrite() // the agent may already have closed it
		_ = c.SetReadDeadline(time.Now().Add(patience))
		if n, err := c.Read(make([]byte, 1)); n != 0 || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%q: %d bytes, %v", octets, n, err)
		}
		testkit.OK(t, c.Close())
	}
	l.await(t, "it does not begin as one")
	dial(t, addr)
}

// TestSilentClients: silent connections that take all places for newcomers do not delay a client
// that is being served.
func TestSilentClients(t *testing.T) {
	addr := agent(t, &remote.Agent{})
	s := dial(t, addr)
	for range 20 {
		c := testkit.Must(net.Dial("tcp", addr))(t)
		defer c.Close()
	}
	vctx, _ := open(t, s)
	testkit.OK(t, vctx.Close())
}

// TestSilentStrangers: silent connections do not keep a run from beginning, even if many come from
// one address and more keep coming.
func TestSilentStrangers(t *testing.T) {
	addr := agent(t, &remote.Agent{})
	for range 3 {
		for range 100 {
			c := testkit.Must(net.Dial("tcp", addr))(t)
			defer c.Close()
		}
		s := dial(t, addr)
		testkit.OK(t, s.Close())
		<-s.Done()
		for { // until the agent has noticed too
			again, err := remote.Dial(t.Context(), addr, remote.Options{})
			if err == nil {
				testkit.OK(t, again.Close())
				break
			}
			if !errors.Is(err, remote.ErrBusy) {
				t.Fatal(err)
			}
			time.Sleep(time.Millisecond)
		}
	}
}

// outOfFiles is a listener whose next Accepts fail.
type outOfFiles struct {
	net.Listener
	failures chan error
}

func (f *outOfFiles) Accept() (net.Conn, error) {
	select {
	case err := <-f.failures:
		return nil, err
	default:
		return f.Listener.Accept()
	}
}

// TestAcceptFails: an agent that is out of descriptors continues when some are free.
func TestAcceptFails(t *testing.T) {
	l := &outOfFiles{testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t), make(chan error, 3)}
	for range cap(l.failures) {
		l.failures <- &net.OpError{Op: "accept", Err: os.NewSyscallError("accept4", syscall.EMFILE)}
	}
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() {
		served <- (&remote.Agent{Open: func(string, []string) (provider.Provider, error) { return engine.New(nil), nil }}).Serve(ctx, l)
	}()
	s := dial(t, l.Addr().String())
	testkit.OK(t, s.Close())
	stop()
	testkit.OK(t, <-served)
}

// TestServeEndsTheRun: if accepting fails, Serve ends the run and returns the error.
func TestServeEndsTheRun(t *testing.T) {
	l := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	served := make(chan error, 1)
	go func() {
		served <- (&remote.Agent{Open: func(string, []string) (provider.Provider, error) {
			return engine.New(nil), nil
		}}).Serve(ctx, l)
	}()
	s := dial(t, l.Addr().String())
	testkit.OK(t, l.Close())
	select {
	case err := <-served:
		if !errors.Is(err, net.ErrClosed) {
			t.Errorf("Serve: %v", err)
		}
	case <-time.After(patience):
		t.Error("Serve has not returned")
		stop()
	}
	<-s.Done()
}

// TestAgentStops: the run learns at once that the agent stops, and every call fails with the
// reason.
func TestAgentStops(t *testing.T) {
	addr, stop := stoppable(t, &remote.Agent{})
	s := dial(t, addr)
	vctx, _ := open(t, s)
	waiting := make(chan error, 1)
	go func() {
		_, err := vctx.AsyncEvent(context.Background())
		waiting <- err
	}()
	stop()
	<-s.Done()
	var gone *remote.GoneError
	for what, err := range map[string]error{
		"Err": s.Err(), "AsyncEvent": <-waiting, "AllocPD": second(vctx.AllocPD())} {
		if !errors.As(err, &gone) || !strings.Contains(err.Error(), "the agent at "+addr+" has gone: it was stopped") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestSilentAgent: an agent that sends nothing for Patience counts as gone.
func TestSilentAgent(t *testing.T) {
	addr := agent(t, &remote.Agent{Patience: time.Hour})
	var s *remote.Session
	testkit.Scaled(t, 50*time.Millisecond, func(short time.Duration) (err error) {
		s, err = remote.Dial(t.Context(), addr, remote.Options{Patience: short})
		return err
	})
	defer s.Close()
	select {
	case <-s.Done():
	case <-time.After(patience):
		t.Fatal("nothing is noticed")
	}
	if err := s.Err(); !strings.Contains(err.Error(), "nothing has come from it for too long") {
		t.Error(err)
	}
}

// closing is a provider that reports what is closed at the agent.
type closing struct {
	provider.Provider
	devices chan string
}

func (c *closing) Open(name string) (provider.Device, error) {
	d, err := c.Provider.Open(name)
	return &closingDevice{d, c}, err
}

type closingDevice struct {
	provider.Device
	c *closing
}

func (d *closingDevice) Close() error {
	err := d.Device.Close()
	d.c.devices <- fmt.Sprint(err)
	return err
}

// TestEndFrees: everything that a run leaves is freed when its connection ends, in an order in
// which the device can be closed.
func TestEndFrees(t *testing.T) {
	p := &closing{engine.New(nil), make(chan string, 4)}
	var l log
	addr := agent(t, &remote.Agent{Log: l.add, Open: func(string, []string) (provider.Provider, error) { return p, nil }})
	s := dial(t, addr)
	vctx, _ := open(t, s)
	pd := testkit.Must(vctx.AllocPD())(t)
	ch := testkit.Must(vctx.CreateCompChannel())(t)
	cq := testkit.Must(vctx.CreateCQ(4, &ibverbs.CQOptions{Channel: ch}))(t)
	srq := testkit.Must(pd.CreateSRQ(&ibverbs.SRQInitAttr{Attr: ibverbs.SRQAttr{MaxWR: 4, MaxSGE: 1}}))(t)
	testkit.Must(pd.CreateQP(&ibverbs.QPInitAttr{SendCQ: cq, RecvCQ: cq, SRQ: srq, Cap: ibverbs.QPCap{MaxSendWR: 1}}))(t)
	testkit.Must(pd.RegMR(make([]byte, 10), ibverbs.AccessLocalWrite|ibverbs.AccessMWBind))(t)
	testkit.Must(pd.AllocMW(ibverbs.MWType2))(t)
	testkit.OK(t, s.Close())
	select {
	case got := <-p.devices:
		if got != "<nil>" {
			t.Errorf("the device is closed with %s", got)
		}
	case <-time.After(patience):
		t.Fatal("the device is not closed")
	}
	l.await(t, "the run has ended")
	for _, line := range l.lines {
		if strings.Contains(line, "not freed") {
			t.Error(line)
		}
	}
}

// TestMemoryIsBounded: the agent does not hold more for a client than MaxMemory, and what the
// client has continues to work.
func TestMemoryIsBounded(t *testing.T) {
	s := dial(t, agent(t, &remote.Agent{MaxMemory: 1 << 20}))
	vctx, _ := open(t, s)
	pd := testkit.Must(vctx.AllocPD())(t)
	_, err := pd.RegMR(make([]byte, 1<<20), ibverbs.AccessLocalWrite)
	if ibverbs.Errno(err) != syscall.ENOMEM || !strings.Contains(err.Error(), "its limit of 1048576") {
		t.Errorf("%v, want ENOMEM", err)
	}
	mr := testkit.Must(pd.RegMR(make([]byte, 1<<18), ibverbs.AccessLocalWrite))(t)
	testkit.OK(t, mr.Close())
	testkit.OK(t, pd.Close())
	testkit.OK(t, vctx.Close())
}

// scribbler is a provider that writes outside of regions.
type scribbler struct {
	provider.Provider
	scribble func(region []byte)
}

func (p *scribbler) Open(name string) (provider.Device, error) {
	d, err := p.Provider.Open(name)
	return &scribblingDevice{d, p}, err
}

type scribblingDevice struct {
	provider.Device
	p *scribbler
}

func (d *scribblingDevice) AllocPD() (provider.PD, error) {
	pd, err := d.Device.AllocPD()
	return &scribblingPD{pd, d.p}, err
}

type scribblingPD struct {
	provider.PD
	p *scribbler
}

func (pd *scribblingPD) RegMR(buf []byte, access provider.Access) (provider.MR, error) {
	m, err := pd.PD.RegMR(buf, access)
	pd.p.scribble(buf)
	return m, err
}
