package rdmacm_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
	"github.com/govs-rdma/govs/provider/engine"
)

// TestConnShutdownNamesTheTerminate: work that the peer refuses completes with success, and the
// program polls nothing after that. Shutdown returns the Terminate.
func TestConnShutdownNamesTheTerminate(t *testing.T) {
	for name, tc := range map[string]struct {
		wr    func(server *ibverbs.MR) ibverbs.SendWR
		words []string
	}{
		"no receive": {
			func(*ibverbs.MR) ibverbs.SendWR { return ibverbs.SendWR{Opcode: ibverbs.WRSend} },
			[]string{"no buffer available", "the peer terminated the connection"},
		},
		"wrong key": {
			func(mr *ibverbs.MR) ibverbs.SendWR {
				return ibverbs.SendWR{Opcode: ibverbs.WRRDMAWrite, RemoteAddr: mr.Addr(),
					RKey: mr.RKey() ^ 0x5a5a5a00}
			},
			[]string{"invalid STag", "the peer terminated the connection"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, wait := range []bool{false, true} {
				ctx := timeout(t)
				client, server := pair(t, nil, nil)
				mr := testkit.Must(server.PD().AllocMR(64, remoteRights))(t)
				src := testkit.Must(client.PD().AllocMR(8, 0))(t)
				wr := tc.wr(mr)
				wr.SGList, wr.Flags = []ibverbs.SGE{testkit.Must(src.SGE(0, 8))(t)}, ibverbs.SendSignaled
				testkit.OK(t, client.QP().PostSend(wr))
				var wc [1]ibverbs.WC
				testkit.Must(client.SendCQ().PollWait(ctx, wc[:]))(t)
				testkit.OK(t, wc[0].Err()) // as on iWARP
				if wait {
					testkit.OK(t, client.Wait(ctx))
				}
				err := client.Shutdown(ctx)
				if onKernel() { // kernel devices do not report Terminates
					testkit.OK(t, err)
				} else {
					var term *ibverbs.TerminateError
					if !errors.As(err, &term) || !term.Remote {
						t.Fatalf("Shutdown returns %v", err)
					}
					wantErr(t, "Shutdown", err, term,
						append(tc.words, "Conn.Shutdown "+server.LocalAddr().String())...)
				}
				testkit.OK(t, mr.Close())
				testkit.OK(t, src.Close())
			}
		})
	}
}

const remoteRights = ibverbs.AccessLocalWrite | ibverbs.AccessRemoteWrite

// TestConnShutdownOfGoodWork: an orderly end, by either side, is not an error.
func TestConnShutdownOfGoodWork(t *testing.T) {
	ctx := timeout(t)
	client, server := pair(t, nil, nil)
	testkit.OK(t, client.QP().PostSend(ibverbs.SendWR{Opcode: ibverbs.WRRDMAWrite, Flags: ibverbs.SendSignaled}))
	testkit.OK(t, client.Shutdown(ctx))
	testkit.OK(t, server.Shutdown(ctx))
	testkit.OK(t, client.Shutdown(ctx))
}

// TestDeadlinesAreNamed: the error of a wait that ends with its context names the wait and the
// peer.
func TestDeadlinesAreNamed(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	client, server := pair(t, &rdmacm.ConnConfig{NoOpeningWrite: true}, nil)
	testkit.OK(t, server.QP().PostSend(ibverbs.SendWR{Opcode: ibverbs.WRRDMAWrite}))
	ch := testkit.Must(rdmacm.CreateEventChannel(client.ID().Channel().Context()))(t)
	defer ch.Close()
	peer := server.RemoteAddr().String()
	vctx := ch.Context()
	_, event := ch.GetEvent(ctx)
	_, async := vctx.AsyncEvent(ctx)
	_, dial := rdmacm.Dial(ctx, vctx, server.LocalAddr(), nil)
	_, dialName := rdmacm.DialName(ctx, vctx, "localhost:1", nil)
	_, listen := rdmacm.Listen(ctx, vctx, server.LocalAddr(), nil)
	for name, tc := range map[string]struct {
		err   error
		words []string
	}{
		"Wait": {server.Wait(ctx), []string{"Conn.Wait " + peer, "before the connection ended"}},
		"Drain": {server.QP().Drain(ctx),
			[]string{"drain qp ", "before everything that was posted",
				"sends are held until the peer's first message"}},
		"Shutdown": {server.Shutdown(ctx),
			[]string{"Conn.Shutdown " + peer, "drain qp ", "held until the peer's first message"}},
		"GetEvent":   {event, []string{"rdma_get_cm_event event channel of ", "before there was an event"}},
		"AsyncEvent": {async, []string{"ibv_get_async_event ", "before there was an event"}},
		"Dial":       {dial, []string{"rdma_connect " + server.LocalAddr().String(), "before Dial began"}},
		"DialName":   {dialName, []string{"rdma_", "before"}},
		"Listen":     {listen, []string{"rdma_listen " + server.LocalAddr().String(), "before Listen began"}},
	} {
		wantErr(t, name, tc.err, context.Canceled, append(tc.words, "the caller's context ended")...)
		var e *ibverbs.Error
		if !errors.As(tc.err, &e) {
			t.Errorf("%s: %T", name, tc.err)
		}
	}
	soon, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	wantErr(t, "Shutdown", server.Shutdown(soon), context.DeadlineExceeded, "Conn.Shutdown")
}

// slowPeer is a connection of an engine with opts to a peer that speaks TCP only and has read
// nothing since the start-up.
func slowPeer(t *testing.T, opts *engine.Options) (*rdmacm.Conn, *net.TCPConn) {
	t.Helper()
	ctx := timeout(t)
	vctx := testkit.Must(ibverbs.Open(engine.New(opts), ""))(t)
	l := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer l.Close()
	accepted := make(chan *net.TCPConn, 1)
	go func() {
		defer close(accepted)
		if c, err := l.Accept(); err == nil {
			readRequest(c)
			_, _ = c.Write([]byte(reply))
			accepted <- c.(*net.TCPConn)
		}
	}()
	at := netip.MustParseAddrPort(l.Addr().String())
	c := testkit.Must(rdmacm.Dial(ctx, vctx, at, nil))(t)
	peer := <-accepted
	t.Cleanup(func() {
		_ = peer.Close()
		testkit.OK(t, c.Close())
		testkit.OK(t, vctx.Close())
	})
	return c, peer
}

// sendTo sends a message of n bytes, which completes before the peer has read it.
func sendTo(t *testing.T, c *rdmacm.Conn, n int) {
	t.Helper()
	mr := testkit.Must(c.PD().AllocMR(n, 0))(t)
	t.Cleanup(func() { testkit.OK(t, mr.Close()) })
	testkit.OK(t, c.Send(timeout(t), testkit.Must(mr.SGE(0, n))(t)))
}

// TestConnShutdownWaitsForAPausedPeer: a peer that takes nothing for several times CloseTimeout,
// and then goes on, gets everything. Shutdown waits for it.
func TestConnShutdownWaitsForAPausedPeer(t *testing.T) {
	const size = 100_000
	c, peer := slowPeer(t, &engine.Options{CloseTimeout: 30 * time.Millisecond})
	sendTo(t, c, size)
	read := make(chan error, 1)
	go func() {
		time.Sleep(300 * time.Millisecond)
		n, err := io.Copy(io.Discard, peer)
		if err == nil && n < size {
			err = io.ErrUnexpectedEOF
		}
		_ = peer.Close()
		read <- err
	}()
	testkit.OK(t, c.Shutdown(timeout(t)))
	testkit.OK(t, <-read)
}

// TestConnShutdownNamesALoss: if the engine or the peer has reset the connection, Shutdown returns
// an error.
func TestConnShutdownNamesALoss(t *testing.T) {
	for name, tc := range map[string]struct {
		peer  func(*net.TCPConn)
		want  error
		words string
	}{
		"the peer hangs":  {func(*net.TCPConn) {}, os.ErrDeadlineExceeded, "did not close its side in time"},
		"the peer resets": {func(c *net.TCPConn) { reset(c) }, syscall.ECONNRESET, "reset by peer"},
	} {
		t.Run(name, func(t *testing.T) {
			c, peer := slowPeer(t, &engine.Options{
				CloseTimeout: 30 * time.Millisecond, SendTimeout: 200 * time.Millisecond})
			sendTo(t, c, 1000)
			tc.peer(peer)
			err := c.Shutdown(timeout(t))
			wantErr(t, "Shutdown", err, tc.want, "Conn.Shutdown "+c.RemoteAddr().String(), tc.words,
				"may not have reached the peer")
		})
	}
}

// TestConnShutdownGivesUp: if ctx ends before the peer has closed its side, nothing is lost yet,
// and another Shutdown goes on. Without another Shutdown the peer has only CloseTimeout.
func TestConnShutdownGivesUp(t *testing.T) {
	t.Parallel()
	testkit.Scaled(t, 500*time.Millisecond, func(closeTimeout time.Duration) error {
		c, peer := slowPeer(t, &engine.Options{CloseTimeout: closeTimeout})
		sendTo(t, c, 1000)
		short, cancel := context.WithTimeout(context.Background(), closeTimeout*7/5)
		defer cancel()
		wantErr(t, "Shutdown", c.Shutdown(short), context.DeadlineExceeded,
			"Conn.Shutdown "+c.RemoteAddr().String(), "the peer may not have taken everything")
		go func() {
			_, _ = io.Copy(io.Discard, peer)
			_ = peer.Close()
		}()
		return c.Shutdown(timeout(t))
	})

	c, _ := slowPeer(t, &engine.Options{CloseTimeout: 100 * time.Millisecond})
	sendTo(t, c, 1000)
	short, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	wantErr(t, "Shutdown", c.Shutdown(short), context.DeadlineExceeded)
	testkit.OK(t, c.Wait(timeout(t)))
	wantErr(t, "Cause", c.QP().Cause(), os.ErrDeadlineExceeded)
}

// TestConnDisconnectsSlowly: a peer that takes several times CloseTimeout to read the data in the
// socket at Close gets everything. A peer that takes nothing more after that, and does not close
// its side, has CloseTimeout.
func TestConnDisconnectsSlowly(t *testing.T) {
	t.Parallel()
	for name, hangs := range map[string]bool{"closes": false, "hangs at the end": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			testkit.Scaled(t, time.Second, func(closeTimeout time.Duration) error {
				return disconnectSlowly(t, closeTimeout, hangs)
			})
		})
	}
}

func disconnectSlowly(t *testing.T, closeTimeout time.Duration, hangs bool) error {
	const size = 480 << 10
	opts := &engine.Options{CloseTimeout: closeTimeout}
	opts.TCP.SendBuffer = 2 * size
	c, peer := slowPeer(t, opts)
	testkit.OK(t, peer.SetReadBuffer(32<<10))
	sendTo(t, c, size)
	began := time.Now()
	testkit.OK(t, c.ID().Disconnect())
	buf := make([]byte, size/12)
	for got := 0; got < size; {
		n, err := io.ReadFull(peer, buf[:min(len(buf), size-got)])
		if got += n; err != nil {
			return fmt.Errorf("after %d bytes and %v: %w", got, time.Since(began), err)
		}
		time.Sleep(closeTimeout / 4)
	}
	if took := time.Since(began); took < 2*closeTimeout {
		t.Fatalf("the peer has taken everything in %v, which shows nothing", took)
	}
	if !hangs {
		if _, err := io.Copy(io.Discard, peer); err != nil {
			return fmt.Errorf("the FIN has not come: %w", err)
		}
		testkit.OK(t, peer.Close())
		testkit.OK(t, c.Wait(timeout(t)))
		return nil
	}
	last := time.Now()
	testkit.OK(t, c.Wait(timeout(t)))
	if took := time.Since(last); took > 5*closeTimeout {
		return fmt.Errorf("a peer that hangs was reset after %v", took)
	}
	wantErr(t, "Cause", c.QP().Cause(), os.ErrDeadlineExceeded)
	return nil
}
