package remote_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/conformance/remote"
	"github.com/govs-rdma/govs/provider/engine"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// agent runs an agent, with the engine if it has no other provider, and returns its address.
func agent(t *testing.T, a *remote.Agent) string {
	t.Helper()
	addr, _ := stoppable(t, a)
	return addr
}

// stoppable runs an agent and returns its address and a function that stops it.
func stoppable(t *testing.T, a *remote.Agent) (addr string, stop func()) {
	t.Helper()
	l := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	if a.Open == nil {
		a.Open = func(name string, _ []string) (provider.Provider, error) {
			if name != "engine" {
				return nil, &provider.UnsupportedError{Feature: name, Reason: "the test has none"}
			}
			return engine.New(nil), nil
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- a.Serve(ctx, l); close(done) }()
	stop = func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(stop)
	return l.Addr().String(), stop
}

func dial(t *testing.T, addr string) *remote.Session {
	t.Helper()
	s := testkit.Must(remote.Dial(t.Context(), addr, remote.Options{}))(t)
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// keeping is a provider that keeps the device that it has opened.
type keeping struct {
	provider.Provider
	device *remote.Device
}

func (k *keeping) Open(name string) (provider.Device, error) {
	d, err := k.Provider.Open(name)
	if err == nil {
		k.device = d.(*remote.Device)
	}
	return d, err
}

// open opens the agent's engine.
func open(t *testing.T, s *remote.Session) (*ibverbs.Context, *remote.Device) {
	t.Helper()
	k := &keeping{Provider: s.Provider("engine", nil)}
	vctx := testkit.Must(ibverbs.Open(k, ""))(t)
	return vctx, k.device
}

func TestErrorsCross(t *testing.T) {
	s := dial(t, agent(t, &remote.Agent{}))
	vctx, _ := open(t, s)
	_, err := vctx.QueryPkey(1, 0)
	var lacks *provider.UnsupportedError
	if !errors.Is(err, errors.ErrUnsupported) || !errors.Is(err, syscall.EOPNOTSUPP) && !errors.As(err, &lacks) {
		t.Errorf("QueryPkey: %v", err)
	}
	near := testkit.Must(ibverbs.Open(engine.New(nil), ""))(t)
	_, want := near.CreateCQ(-1, nil)
	_, err = vctx.CreateCQ(-1, nil)
	if err == nil || err.Error() != want.Error() || ibverbs.Errno(err) != syscall.EINVAL {
		t.Errorf("CreateCQ: %v, want %v", err, want)
	}
	testkit.OK(t, near.Close())
	testkit.OK(t, vctx.Close())
	_, err = ibverbs.Open(s.Provider("kernel", nil), "")
	if !errors.As(err, &lacks) || lacks.Reason != "the test has none" {
		t.Errorf("kernel: %v", err)
	}
}

// TestWaitsEnd: a call that waits ends with its context, and delays no other.
func TestWaitsEnd(t *testing.T) {
	s := dial(t, agent(t, &remote.Agent{}))
	vctx, _ := open(t, s)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	waited := make(chan error, 1)
	go func() {
		_, err := vctx.AsyncEvent(ctx)
		waited <- err
	}()
	testkit.Must(vctx.Query())(t)
	if err := <-waited; !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("AsyncEvent: %v, want the context's error", err)
	}
	ch := testkit.Must(vctx.CreateCompChannel())(t)
	ctx, cancel = context.WithCancel(t.Context())
	go func() {
		_, err := ch.Next(ctx)
		waited <- err
	}()
	cancel()
	if err := <-waited; !errors.Is(err, context.Canceled) {
		t.Errorf("CompChannel.Next: %v, want the context's error", err)
	}
	testkit.OK(t, ch.Close())
	testkit.OK(t, vctx.Close())
}

// connected returns a connection between an engine here and one at the agent. Its far end uses the
// device's memory.
func connected(t *testing.T, s *remote.Session) (here, there *rdmacm.Conn, far *remote.Device) {
	t.Helper()
	vfar, far := open(t, s)
	near := testkit.Must(ibverbs.Open(s.Beside(engine.New(nil)), ""))(t)
	l := testkit.Must(rdmacm.Listen(t.Context(), vfar, netip.MustParseAddrPort("127.0.0.1:0"), nil))(t)
	accepted := make(chan error, 1)
	go func() {
		req, err := l.Accept(t.Context())
		if err == nil {
			there, err = req.Accept(t.Context(), nil)
		}
		accepted <- err
	}()
	here = testkit.Must(rdmacm.Dial(t.Context(), near, l.Addr(), nil))(t)
	testkit.OK(t, <-accepted)
	t.Cleanup(func() {
		for _, o := range []io.Closer{here, there, l, near, vfar} {
			testkit.OK(t, o.Close())
		}
	})
	return here, there, far
}

// TestMemory: the bytes that a Write from here places at the agent are in the program's memory when
// a completion reports them. A Read returns the program's latest bytes.
func TestMemory(t *testing.T) {
	s := dial(t, agent(t, &remote.Agent{}))
	here, there, far := connected(t, s)
	room := make([]byte, 9000)
	target := testkit.Must(there.PD().RegMR(room,
		ibverbs.AccessLocalWrite|ibverbs.AccessRemoteWrite|ibverbs.AccessRemoteRead))(t)
	at := testkit.Must(target.Remote(0, len(room)))(t)
	src := testkit.Must(here.PD().RegMR([]byte("written by the near side"), ibverbs.AccessLocalWrite))(t)
	testkit.OK(t, here.Write(t.Context(), at, testkit.Must(src.SGE(0, 24))(t)))
	sink := testkit.Must(here.PD().RegMR(make([]byte, len(room)), ibverbs.AccessLocalWrite|ibverbs.AccessRemoteWrite))(t)
	copy(room[8000:], "put there by the program") // after the bytes that the agent has
	testkit.OK(t, here.Read(t.Context(), testkit.Must(sink.SGE(0, len(room)))(t), at))
	if got := string(sink.Bytes()[8000:8024]); got != "put there by the program" {
		t.Errorf("the Read brought %q", got)
	}
	if got := string(room[:24]); got != "written by the near side" {
		t.Errorf("the program's memory has %q after the Read", got)
	}
	copy(src.Bytes(), "and a second time")
	testkit.OK(t, here.Write(t.Context(), at, testkit.Must(src.SGE(0, 17))(t)))
	testkit.OK(t, here.Read(t.Context(), testkit.Must(sink.SGE(0, len(room)))(t), at))
	if got := string(room[:17]); got != "and a second time" {
		t.Errorf("the program's memory has %q after another Read", got)
	}
	testkit.OK(t, far.Intact())
	for _, mr := range []*ibverbs.MR{target, src, sink} {
		testkit.OK(t, mr.Close())
	}
}

// TestForeign: objects of another device are refused, as by any provider.
func TestForeign(t *testing.T) {
	s := dial(t, agent(t, &remote.Agent{}))
	far := testkit.Must(s.Provider("engine", nil).Open(""))(t)
	near := testkit.Must(engine.New(nil).Open(""))(t)
	cq := testkit.Must(near.CreateCQ(provider.CQInitAttr{CQE: 4}))(t)
	pd := testkit.Must(far.AllocPD())(t)
	_, err := pd.CreateQP(provider.QPInitAttr{SendCQ: cq, RecvCQ: cq, Cap: provider.QPCap{MaxSendWR: 1}})
	if provider.Errno(err) != syscall.EINVAL {
		t.Errorf("%v, want EINVAL", err)
	}
	for what, err := range map[string]error{
		"RegObject": second(pd.RegObject(strings.NewReader("x"), 1, 0)),
		"Sink":      second(far.CreateCQ(provider.CQInitAttr{CQE: 1, Sink: nowhere{}})),
	} {
		if !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("%s: %v", what, err)
		}
	}
	testkit.OK(t, cq.Close())
	testkit.OK(t, near.Close())
	testkit.OK(t, pd.Close())
	testkit.OK(t, far.Close())
	testkit.OK(t, errors.Join(pd.Close(), far.Close())) // a second time
	if _, err := pd.AllocMW(provider.MWType2); !errors.Is(err, os.ErrClosed) {
		t.Errorf("after the device: %v", err)
	}
}

func second[V any](_ V, err error) error { return err }

type nowhere struct{}

func (nowhere) Complete(*provider.WC, bool) (stored, due bool) { return true, false }
func (nowhere) Notify()                                        {}
