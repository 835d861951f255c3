package rdmacm_test

import (
	"context"
	"errors"
	"os"
	"runtime"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
)

// leaving are the ways to leave a callback without returning.
var leaving = map[string]func(){
	"panic":  func() { panic("of the program") },
	"Goexit": runtime.Goexit, // as of t.FailNow
}

// left calls f, which does not return, on its own goroutine.
func left(t *testing.T, f func()) {
	t.Helper()
	over := make(chan any)
	go func() {
		returned := false
		defer func() {
			why := recover()
			if returned {
				why = "returned"
			}
			over <- why
		}()
		f()
		returned = true
	}()
	select {
	case why := <-over:
		if why != nil && why != "of the program" {
			t.Errorf("the call ends with %v, want what the callback ended with", why)
		}
	case <-timeout(t).Done():
		t.Fatal("the call does not end")
	}
}

// TestPanicsInCallbacks: a panic in a callback of the program goes on to the caller, and the peer
// gets an answer. Nothing is left open: the cleanup of device can close the device.
func TestPanicsInCallbacks(t *testing.T) {
	for name, leave := range leaving {
		inSetup := func(*rdmacm.ID) error { leave(); return nil }
		inPrepare := func(_ context.Context, c *rdmacm.Conn, _ *rdmacm.ConnParam) error {
			c.Done() // its goroutine must not wait after the end
			leave()
			return nil
		}
		withListener := func(t *testing.T, f func(ctx context.Context, vctx *ibverbs.Context, l *rdmacm.Listener)) {
			ctx := timeout(t)
			vctx, addr := device(t)
			l := testkit.Must(rdmacm.Listen(ctx, vctx, addr, nil))(t)
			f(ctx, vctx, l)
			testkit.OK(t, l.Close())
		}
		t.Run(name+"/Setup of Listen", func(t *testing.T) {
			vctx, addr := device(t)
			left(t, func() { _, _ = rdmacm.Listen(timeout(t), vctx, addr, &rdmacm.ListenConfig{Setup: inSetup}) })
		})
		for where, cfg := range map[string]*rdmacm.ConnConfig{
			"Setup of Dial": {Setup: inSetup}, "Prepare of Dial": {Prepare: inPrepare},
		} {
			t.Run(name+"/"+where, func(t *testing.T) {
				withListener(t, func(ctx context.Context, vctx *ibverbs.Context, l *rdmacm.Listener) {
					left(t, func() { _, _ = rdmacm.Dial(ctx, vctx, l.Addr(), cfg) })
				})
			})
		}
		t.Run(name+"/Prepare of Accept", func(t *testing.T) {
			withListener(t, func(ctx context.Context, vctx *ibverbs.Context, l *rdmacm.Listener) {
				dialled := make(chan error, 1)
				go func() {
					_, err := rdmacm.Dial(ctx, vctx, l.Addr(), nil)
					dialled <- err
				}()
				req := testkit.Must(l.Accept(ctx))(t)
				left(t, func() {
					defer req.Close()
					_, _ = req.Accept(ctx, &rdmacm.ConnConfig{Prepare: inPrepare})
				})
				var refused *rdmacm.RejectedError
				if err := <-dialled; !errors.As(err, &refused) {
					t.Errorf("the peer's Dial: %v, want that it was refused", err)
				}
			})
		})
	}
}

// TestCallbacksThatClose: a callback may close what it gets. The call fails, and nothing is left
// open.
func TestCallbacksThatClose(t *testing.T) {
	ctx := timeout(t)
	closesID := func(id *rdmacm.ID) error { return id.Close() }
	closesConn := func(_ context.Context, c *rdmacm.Conn, _ *rdmacm.ConnParam) error { return c.Close() }
	vctx, addr := device(t)
	if _, err := rdmacm.Listen(ctx, vctx, addr, &rdmacm.ListenConfig{Setup: closesID}); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Listen: %v, want os.ErrClosed", err)
	}
	l := testkit.Must(rdmacm.Listen(ctx, vctx, addr, nil))(t)
	for what, cfg := range map[string]*rdmacm.ConnConfig{
		"Setup": {Setup: closesID}, "Prepare": {Prepare: closesConn},
	} {
		if _, err := rdmacm.Dial(ctx, vctx, l.Addr(), cfg); !errors.Is(err, os.ErrClosed) {
			t.Errorf("%s of Dial: %v, want os.ErrClosed", what, err)
		}
	}
	dialled := make(chan error, 1)
	go func() {
		_, err := rdmacm.Dial(ctx, vctx, l.Addr(), nil)
		dialled <- err
	}()
	req := testkit.Must(l.Accept(ctx))(t)
	if _, err := req.Accept(ctx, &rdmacm.ConnConfig{Prepare: closesConn}); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Prepare of Accept: %v, want os.ErrClosed", err)
	}
	if err := <-dialled; err == nil {
		t.Error("the peer's Dial returns no error")
	}
	testkit.OK(t, l.Close())

	var c *rdmacm.Conn
	closed := make(chan error, 1)
	c, _ = pair(t, &rdmacm.ConnConfig{OnSend: func(*ibverbs.WC) { closed <- c.Close() }}, nil)
	empty := ibverbs.SendWR{Opcode: ibverbs.WRRDMAWrite, Flags: ibverbs.SendSignaled}
	testkit.OK(t, c.QP().PostSend(empty))
	_ = c.Do(ctx, empty) // complete, or cut off by Close
	testkit.OK(t, <-closed)
	if err := c.Do(ctx, empty); !errors.Is(err, os.ErrClosed) {
		t.Errorf("Do after Close: %v, want os.ErrClosed", err)
	}
}
