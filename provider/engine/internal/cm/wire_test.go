package cm

import (
	"bytes"
	"context"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider/engine/memnet"
	"github.com/govs-rdma/govs/provider/engine/transport"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
)

const patience = time.Minute

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testHost is a Host that has a poller only. It counts the calls of Woke.
type testHost struct {
	Host
	poller transport.Poller
	woke   atomic.Int32
}

func (h *testHost) Poller() transport.Poller { return h.poller }
func (h *testHost) Woke()                    { h.woke.Add(1) }

// newHost makes a Host whose poller is served until the test ends.
func newHost(t *testing.T, network transport.Network) *testHost {
	t.Helper()
	h := &testHost{poller: testkit.Must(network.NewPoller())(t)}
	ctx, cancel := context.WithCancel(context.Background())
	var tasks sync.WaitGroup
	tasks.Go(func() {
		for h.poller.Wait(ctx) == nil {
			h.poller.Serve()
		}
	})
	t.Cleanup(func() {
		cancel()
		tasks.Wait()
		testkit.OK(t, h.poller.Close())
	})
	return h
}

// onNetworks runs a test over networks in memory, with time of their own, and over TCP.
func onNetworks(
	t *testing.T, test func(t *testing.T, network transport.Network, addr netip.AddrPort),
) {
	for name, opts := range map[string]memnet.Options{
		"memory":           {},
		"memory, cut":      {Seed: 1, Cut: true},
		"memory, slow":     {Seed: 2, MinDelay: time.Millisecond, MaxDelay: 30 * time.Millisecond},
		"memory, trickled": {Seed: 3, Cut: true, MaxDelay: 30 * time.Millisecond, MSS: 7},
		"memory, narrow":   {Seed: 4, Window: 13, MaxDelay: time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				test(t, memnet.New(&opts), netip.MustParseAddrPort("192.0.2.1:0"))
			})
		})
	}
	for _, addr := range []string{"127.0.0.1:0", "[::1]:0"} {
		t.Run("TCP "+addr, func(t *testing.T) {
			test(t, transport.NewTCP(nil), netip.MustParseAddrPort(addr))
		})
	}
}

// retry calls what does not block until it does not return ErrWouldBlock, or patience is over.
func retry(do func() error) error {
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		if err := do(); err != transport.ErrWouldBlock || time.Now().After(end) {
			return err
		}
	}
}

// read reads all of b.
func read(c transport.Conn, b []byte) (err error) {
	for len(b) > 0 && err == nil {
		err = retry(func() error {
			n, err := c.Readv([][]byte{b})
			b = b[n:]
			return err
		})
	}
	return err
}

// write writes all of b.
func write(c transport.Conn, b []byte) (err error) {
	for len(b) > 0 && err == nil {
		err = retry(func() error {
			n, err := c.Writev([][]byte{b})
			b = b[n:]
			return err
		})
	}
	return err
}

// TestInitiateReadsNoFurther: what follows the Reply stays in the socket.
func TestInitiateReadsNoFurther(t *testing.T) {
	onNetworks(t, func(t *testing.T, network transport.Network, addr netip.AddrPort) {
		l := testkit.Must(network.Listen(addr, 1))(t)
		defer l.Close()
		conn := testkit.Must(network.Dial(t.Context(), netip.AddrPort{}, l.Addr()))(t)
		peer := testkit.Must(l.Accept(t.Context()))(t)
		defer peer.Close()
		w := testkit.Must(newWire(newHost(t, network), conn))(t)
		defer w.close()

		initiator := testkit.Must(mpa.NewInitiator(mpa.Config{MaxIRD: 4}, mpa.Offer{}))(t)
		reply := mpa.Frame{Kind: mpa.KindReply, CRC: true, Enhanced: true, Revision: 2,
			PrivateData: append(mpa.Enhanced{IRD: 4, ORD: 4}.AppendTo(nil), "welcome"...)}.AppendTo(nil)
		after := make([]byte, 1<<16)
		_, _ = rand.NewChaCha8([32]byte{1}).Read(after)
		sent := make(chan error, 1)
		go func() {
			err := read(peer, initiator.AppendRequest(nil))
			if err == nil {
				err = write(peer, append(bytes.Clone(reply), after...))
			}
			sent <- err
		}()
		testkit.OK(t, w.write(t.Context(), initiator.AppendRequest(nil)))
		_, got, err := w.reply(t.Context(), initiator)
		testkit.OK(t, err)
		if !bytes.Equal(got, reply) || cap(got) > pastFrame {
			t.Errorf("reply has read %x, with room for %d bytes", got, cap(got))
		}
		rest := make([]byte, len(after))
		testkit.OK(t, read(conn, rest))
		if !bytes.Equal(rest, after) {
			t.Error("what is left in the socket is not what followed the Reply")
		}
		testkit.OK(t, <-sent)
	})
}

// TestReadyWakes: the Host hears of each goroutine that a poller wakes. A program outside of Go
// lends it a P then.
func TestReadyWakes(t *testing.T) {
	h := &testHost{poller: acceptingPoller{}}
	w := testkit.Must(newWire(h, nil))(t)
	for n := int32(1); n <= 3; n++ {
		w.Ready(true, false)
		select {
		case <-w.readable:
		default:
			t.Fatal("its goroutine was not woken")
		}
		if got := h.woke.Load(); got != n {
			t.Errorf("after %d wake-ups the host has heard of %d", n, got)
		}
	}
	w.release()
	w.Ready(true, true)
	if got := h.woke.Load(); got != 3 {
		t.Error("a wire without a connection has woken its goroutine")
	}
}

// acceptingPoller watches for whatever it is told to.
type acceptingPoller struct{ transport.Poller }

func (acceptingPoller) Add(transport.Conn, transport.Handler) error { return nil }
func (acceptingPoller) Remove(transport.Conn)                       {}
func (acceptingPoller) WantRead(transport.Conn, bool) error         { return nil }
