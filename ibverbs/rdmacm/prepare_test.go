package rdmacm_test

import (
	"context"
	"errors"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
)

// waiters are the calls that wait for the end of a connection or for a message. Each returns when
// the connection has ended.
var waiters = map[string]func(ctx context.Context, c *rdmacm.Conn) error{
	"Receive": func(ctx context.Context, c *rdmacm.Conn) error {
		_, err := c.Receive(ctx)
		if errors.Is(err, ibverbs.ErrFlushed) || errors.Is(err, syscall.ENOTCONN) {
			return nil
		}
		return err
	},
	"Done": func(ctx context.Context, c *rdmacm.Conn) error {
		select {
		case <-c.Done():
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	},
	"Wait": func(ctx context.Context, c *rdmacm.Conn) error { return c.Wait(ctx) },
	"UntilEnd": func(ctx context.Context, c *rdmacm.Conn) error {
		until, cancel := c.UntilEnd(ctx)
		defer cancel()
		<-until.Done()
		return ctx.Err()
	},
}

// TestConnWaitsFromPrepare: calls that wait for the end of a connection may be started in Prepare.
// They do not take the ESTABLISHED event from Dial or Accept.
func TestConnWaitsFromPrepare(t *testing.T) {
	rounds := 25
	if onKernel() {
		rounds = 3
	}
	for name, wait := range waiters {
		t.Run(name, func(t *testing.T) {
			for i := range rounds {
				var waiting sync.WaitGroup
				ctx, cancel := context.WithTimeout(context.Background(), patience)
				t.Cleanup(func() { cancel(); waiting.Wait() }) // even if there is no connection
				prepare := func(_ context.Context, c *rdmacm.Conn, _ *rdmacm.ConnParam) error {
					if i == 0 {
						c.Done() // so that the order of goroutines does not matter
					}
					waiting.Go(func() {
						if err := wait(ctx, c); err != nil {
							t.Errorf("round %d: %v", i, err)
						}
					})
					if i == 0 {
						time.Sleep(20 * time.Millisecond)
					}
					return nil
				}
				cfg := messages(1, 16)
				cfg.Prepare = prepare
				client, server := pairOf(t, ctx, cfg, cfg)
				testkit.OK(t, client.Disconnect())
				waiting.Wait()
				testkit.OK(t, client.Close())
				testkit.OK(t, server.Close())
			}
		})
	}
}

// TestConnFailsWhileWaitedFor: a Dial or Accept that fails ends calls that have waited since
// Prepare.
func TestConnFailsWhileWaitedFor(t *testing.T) {
	ctx := timeout(t)
	refused := errors.New("refused by Prepare")
	var waiting sync.WaitGroup
	prepare := func(_ context.Context, c *rdmacm.Conn, _ *rdmacm.ConnParam) error {
		done := c.Done()
		waiting.Go(func() { <-done })
		return refused
	}
	vctx, addr := device(t)
	l := testkit.Must(rdmacm.Listen(ctx, vctx, addr, nil))(t)
	defer l.Close()
	_, err := rdmacm.Dial(ctx, vctx, l.Addr(), &rdmacm.ConnConfig{Prepare: prepare})
	wantErr(t, "Dial", err, refused)
	waiting.Go(func() {
		if _, err := rdmacm.Dial(ctx, vctx, l.Addr(), nil); err == nil {
			t.Error("Dial succeeds, though Accept has failed")
		}
	})
	req := testkit.Must(l.Accept(ctx))(t)
	_, err = req.Accept(ctx, &rdmacm.ConnConfig{Prepare: prepare})
	wantErr(t, "Accept", err, refused)
	waiting.Wait()
}

// TestConnShutdownInPrepare: there is no connection yet, and Shutdown returns that error at once.
func TestConnShutdownInPrepare(t *testing.T) {
	ctx := timeout(t)
	var inPrepare error
	client, _ := pair(t, &rdmacm.ConnConfig{
		Prepare: func(ctx context.Context, c *rdmacm.Conn, _ *rdmacm.ConnParam) error {
			inPrepare = c.Shutdown(ctx)
			return nil
		},
	}, nil)
	wantErr(t, "Shutdown in Prepare", inPrepare, syscall.ENOTCONN, "Conn.Shutdown", "not established")
	testkit.OK(t, client.Shutdown(ctx))
}
