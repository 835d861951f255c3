package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ibverbs/examples/internal/exampletest"
)

func TestMain(m *testing.M) { exampletest.Main(m, main, "--deadline", "1m") }

func TestRPC(t *testing.T) {
	server := exampletest.Start(t, "--listen", exampletest.Host()+":0")
	exampletest.MustRun(t, "HELLO\n", server.Addr, "upper", "hello")
	exampletest.MustRun(t, strings.Repeat("HELLO\n", 30), "--count", "30", server.Addr, "upper", "hello")
	exampletest.MustRun(t, "slept 1ms\n", server.Addr, "sleep", "1ms")
}

// TestRPCFaults checks what a client refuses, and calls that fail.
func TestRPCFaults(t *testing.T) {
	server := exampletest.Start(t, "--listen", exampletest.Host()+":0")
	for _, c := range []struct {
		want string
		args []string
	}{
		{"deadline exceeded", []string{"--deadline", "100ms", server.Addr, "sleep", "1m"}},
		{"no method \"lower\"", []string{server.Addr, "lower", "hello"}},
		{"invalid duration", []string{server.Addr, "sleep", "long"}},
		{"there is room for 1007", []string{server.Addr, "upper", strings.Repeat("x", maxMessage)}},
		{"--count -1: has to be at least 1", []string{"--count", "-1", server.Addr, "upper", "hello"}},
		{"--interval -1s: has to be", []string{"--interval", "-1s", server.Addr, "upper", "hello"}},
		{"there are 2 arguments", []string{server.Addr, "upper"}},
		{"rdma_connect", []string{"--deadline", "1s", exampletest.Host() + ":1", "upper", "hello"}},
	} {
		if stdout, stderr, err := exampletest.Run(t, c.args...); err == nil || !strings.Contains(stderr, c.want) {
			t.Errorf("%v: %v, prints %q and %q, want an error with %q", c.args, err, stdout, stderr, c.want)
		}
	}
}

// connect makes a client in this process.
func connect(t *testing.T, address string) *client {
	t.Helper()
	vctx, err := open(t.Context(), exampletest.Provider(), address, false)
	if err != nil {
		t.Fatal(err)
	}
	c := newClient(vctx, address)
	t.Cleanup(func() {
		if err := errors.Join(c.Close(), vctx.Close()); err != nil {
			t.Error(err)
		}
	})
	return c
}

// TestRPCManyCallers makes more calls at a time than there are credits, from several clients,
// and gives up some of them.
func TestRPCManyCallers(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), exampletest.Patience)
	defer cancel()
	server := exampletest.Start(t, "--listen", exampletest.Host()+":0")
	var wg sync.WaitGroup
	for range 3 {
		c := connect(t, server.Addr)
		for n := range 4 * credits {
			wg.Go(func() {
				if n%4 == 0 {
					brief, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
					defer cancel()
					if got, err := c.Call(brief, "sleep", []byte("10s")); err == nil {
						t.Errorf("call %d: %q, which was to be given up", n, got)
					}
				}
				for i := range 20 {
					text := fmt.Sprintf("x%dy%d", n, i)
					got, err := c.Call(ctx, "upper", []byte(text))
					if want := strings.ToUpper(text); err != nil || string(got) != want {
						t.Errorf("call %d: %q, %v, want %q", n, got, err, want)
						return
					}
				}
			})
		}
	}
	wg.Wait()
}

// TestRPCReconnects kills a server, stops another one, and makes calls all the time.
func TestRPCReconnects(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), exampletest.Patience)
	defer cancel()
	server := exampletest.Start(t, "--listen", exampletest.Host()+":0")
	c := connect(t, server.Addr)
	calls := func() {
		t.Helper()
		for range 3 {
			if got, err := c.Call(ctx, "upper", []byte("hello")); err != nil || string(got) != "HELLO" {
				t.Fatalf("%q, %v", got, err)
			}
		}
	}
	calls()
	for _, end := range []func(*exampletest.Server){(*exampletest.Server).Kill, (*exampletest.Server).Stop} {
		slow := make(chan error, 1)
		go func() {
			_, err := c.Call(ctx, "sleep", []byte("300ms")) // begins with one server, ends with the next
			slow <- err
		}()
		time.Sleep(100 * time.Millisecond)
		end(server)
		server = exampletest.Start(t, "--listen", server.Addr)
		calls()
		if err := <-slow; err != nil {
			t.Error(err)
		}
	}
}

// TestRPCNotServer calls a server of another protocol, which fails at once.
func TestRPCNotServer(t *testing.T) {
	server := exampletest.Other(t, "echo-all").Start(t, "--listen", exampletest.Host()+":0")
	_, stderr, err := exampletest.Run(t, server.Addr, "upper", "hello")
	if want := "rpc: upper: " + server.Addr + ": it is not a server of rpc\n"; err == nil || stderr != want {
		t.Errorf("%v, prints %q, want %q", err, stderr, want)
	}
}

// TestRPCTooManyClients runs a server for one client at a time.
func TestRPCTooManyClients(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), exampletest.Patience)
	defer cancel()
	server := exampletest.Start(t, "--listen", exampletest.Host()+":0", "--clients", "1")
	first := connect(t, server.Addr)
	if _, err := first.Call(ctx, "upper", nil); err != nil {
		t.Fatal(err)
	}
	_, stderr, err := exampletest.Run(t, "--deadline", "2s", server.Addr, "upper", "hello")
	if err == nil || !strings.Contains(stderr, "rejected") {
		t.Errorf("%v, prints %q, want a rejection", err, stderr)
	}
	if err := first.Close(); err != nil {
		t.Error(err)
	}
	exampletest.MustRun(t, "HELLO\n", server.Addr, "upper", "hello")
}

// TestGaveUp: if an attempt fails only because the deadline has passed, the error names the attempt
// before it, however the deadline's error is wrapped.
func TestGaveUp(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	refused := errors.New("refused")
	wrapped := fmt.Errorf("rdma_connect: the caller's context ended: %w", ctx.Err())
	for _, c := range []struct{ before, last, want error }{
		{nil, refused, refused},
		{refused, ctx.Err(), refused},
		{refused, wrapped, refused},
		{nil, wrapped, wrapped},
		{nil, ctx.Err(), ctx.Err()},
	} {
		if err := gaveUp(ctx, c.before, c.last); !errors.Is(err,
			context.Canceled) || !errors.Is(err, c.want) {
			t.Errorf("after %v and %v: %v, want %v in it", c.before, c.last, err, c.want)
		}
	}
}
