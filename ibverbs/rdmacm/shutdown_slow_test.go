package rdmacm_test

import (
	"context"
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
