package rdmacm_test

import (
	"context"
	"errors"
	"net/netip"
	"runtime/debug"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
	"github.com/govs-rdma/govs/provider/engine"
)

// TestIdleCostsNoCPU: a device without connections, 1,000 idle connections, and goroutines that
// wait for completions use no CPU time: nothing polls, and no timer ticks.
func TestIdleCostsNoCPU(t *testing.T) {
	ctx := timeout(t)
	vctx := testkit.Must(ibverbs.Open(engine.New(nil), ""))(t)
	defer func() { testkit.OK(t, vctx.Close()) }()
	l := testkit.Must(rdmacm.Listen(ctx, vctx, netip.MustParseAddrPort("127.0.0.1:0"), nil))(t)
	defer func() { testkit.OK(t, l.Close()) }()
	wantNoCPU(t, "a device that listens")

	var conns []*rdmacm.Conn
	defer func() {
		for _, c := range conns {
			testkit.OK(t, c.Close())
		}
	}()
	small := ibverbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1}
	for len(conns) < 1000 { // both ends
		a, b, err := connectIdle(ctx, vctx, l, &rdmacm.ConnConfig{Cap: small})
		testkit.OK(t, err)
		conns = append(conns, a, b)
	}
	wantNoCPU(t, "1,000 idle connections")

	waiting, stop := context.WithCancel(ctx)
	done := make(chan error)
	const waiters = 4
	for _, c := range conns[:waiters] {
		go func() {
			_, err := c.RecvCQ().PollWait(waiting, make([]ibverbs.WC, 1))
			done <- err
		}()
	}
	wantNoCPU(t, "waiters")
	stop()
	for range waiters {
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("a waiter: %v, want %v", err, context.Canceled)
		}
	}
}

// connectIdle connects two Conns of a device.
func connectIdle(ctx context.Context, vctx *ibverbs.Context, l *rdmacm.Listener,
	cfg *rdmacm.ConnConfig) (dialled, accepted *rdmacm.Conn, err error) {
	done := make(chan error, 1)
	go func() {
		req, err := l.Accept(ctx)
		if err == nil {
			accepted, err = req.Accept(ctx, cfg)
		}
		done <- err
	}()
	dialled, err = rdmacm.Dial(ctx, vctx, l.Addr(), cfg)
	return dialled, accepted, errors.Join(err, <-done)
}

// wantNoCPU fails the test unless this process does nothing for half a second. Some time may pass
// before that, because the runtime and the engine free what is no longer needed.
func wantNoCPU(t *testing.T, what string) {
	t.Helper()
	const (
		while, tries = time.Second / 2, 120
		// The limit allows for the runtime's own work, and for the sleep of this function: under
		// the race detector on a slow machine 1.8 ms were seen, with 4 switches. A timer costs up
		// to five switches, and a goroutine that polls takes all of the time.
		mostCPU, mostSwitches = 5 * time.Millisecond, 15
	)
	debug.FreeOSMemory() // so that the scavenger has nothing to do
	for range tries {
		before := usage(t)
		time.Sleep(while)
		after := usage(t)
		used := time.Duration(after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() -
			before.Stime.Nano())
		switches := after.Nvcsw - before.Nvcsw
		t.Logf("%s: %v of CPU time in %v, and %d switches", what, used, while, switches)
		if used <= mostCPU && switches <= mostSwitches {
			return
		}
	}
	t.Errorf("%s: each time more than %v of CPU time in %v, or %d switches of threads",
		what, mostCPU, while, mostSwitches)
}

// usage returns the resource usage of this process.
func usage(t *testing.T) (u unix.Rusage) {
	t.Helper()
	testkit.OK(t, unix.Getrusage(unix.RUSAGE_SELF, &u))
	return u
}
