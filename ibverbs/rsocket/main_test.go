package rsocket_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/internal/ondevice"
	"github.com/govs-rdma/govs/ibverbs/rsocket"
	"github.com/govs-rdma/govs/provider/auto"
	"github.com/govs-rdma/govs/provider/engine"
)

func TestMain(m *testing.M) {
	if what := os.Getenv(serverEnv); what != "" {
		if err := serveBenchmark(what); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// patience is how long a test may wait for what has to happen. Under the race detector beside
// others on two CPUs, or in an emulated guest, an operation of a second may take half a minute.
const patience = 2 * time.Minute

// timeout ends a test that would hang.
func timeout(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

var wantErr = testkit.WantErr

// device opens the device that the tests run on: the engine, or the guest's device.
func device(t testing.TB) (*ibverbs.Context, netip.AddrPort) {
	t.Helper()
	addr := "127.0.0.1"
	if a := os.Getenv("GOVS_ADDR"); a != "" {
		addr = a
	}
	var vctx *ibverbs.Context
	if os.Getenv("GOVS_PROVIDER") == "kernel" {
		p := testkit.Must(auto.Named("kernel", nil))(t)
		vctx = testkit.Must(ibverbs.Open(p, os.Getenv("GOVS_DEVICE")))(t)
	} else {
		vctx = testkit.Must(ibverbs.Open(engine.New(&engine.Options{StartupTimeout: patience}), ""))(t)
	}
	t.Cleanup(func() { closeDevice(t, vctx) })
	return vctx, netip.AddrPortFrom(netip.MustParseAddr(addr), 0)
}

// closeDevice checks that nothing is left open on the device. net/http may still be closing its
// connections, and the kernel may still be freeing connections that were given up.
func closeDevice(t testing.TB, vctx *ibverbs.Context) {
	began, err := time.Now(), vctx.Close()
	for errors.Is(err, syscall.EBUSY) && time.Since(began) < patience {
		time.Sleep(10 * time.Millisecond)
		err = vctx.Close()
	}
	testkit.OK(t, err)
}

// pair connects two ends over one device. They are closed when the test ends, or earlier.
func pair(t testing.TB, vctx *ibverbs.Context, addr netip.AddrPort,
	client, server rsocket.Config) (c, s *rsocket.Conn) {
	t.Helper()
	ctx := timeout(t)
	lc := rsocket.ListenConfig{Config: server}
	l := testkit.Must(lc.Listen(ctx, vctx, "tcp", addr.String()))(t)
	defer l.Close()
	accepted := make(chan error, 1)
	go func() {
		var err error
		s, err = l.AcceptContext(ctx)
		accepted <- err
	}()
	d := rsocket.Dialer{Config: client}
	c = testkit.Must(d.Dial(ctx, vctx, "tcp", l.Addr().String()))(t)
	testkit.OK(t, <-accepted)
	t.Cleanup(func() {
		c.Close()
		s.Close()
	})
	return c, s
}

// onKernel is for tests whose expectations differ by device.
var onKernel = ondevice.OnKernel

// elsewhere matches the tests that also run on siw, and the examples.
const elsewhere = "^TestNetConn|^TestConn|^Example"

// TestOnSiw runs the tests of elsewhere on siw.
func TestOnSiw(t *testing.T) { ondevice.Run(t, ondevice.Siw, elsewhere, notOnSiw) }

// notOnSiw are the tests for which siw lacks features, or which do not involve siw.
var notOnSiw = map[string]string{
	"TestConnHTTP": "it is about net/http and TLS on a Conn, and TestNetConn has what they ask of one",
	"TestConnClosesUnderFlood": "siw closes its socket while the peer's bytes are in it, so that " +
		"TCP resets the connection and drops what the peer has not received",
}
