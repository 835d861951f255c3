package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs/examples/grpc/echopb"
	"github.com/govs-rdma/govs/ibverbs/examples/internal/exampletest"
)

func TestMain(m *testing.M) { exampletest.Main(m, main, "--timeout", "1m") }

// TestCommand runs server and client as the command line does.
func TestCommand(t *testing.T) {
	server := exampletest.Start(t, "--listen", exampletest.Host()+":0")
	exampletest.MustRun(t, "hello\nRDMA\n", server.Addr, "hello", "RDMA")
	exampletest.MustRun(t, "hello\nRDMA\n", "--stream", server.Addr, "hello", "RDMA")
	for _, c := range []struct {
		name string
		want string // in stderr
		args []string
	}{
		{"deadline", "DeadlineExceeded", []string{"--wait", "1m", "--timeout", "100ms", server.Addr, "hello"}},
		{"deadline of a stream", "DeadlineExceeded",
			[]string{"--stream", "--wait", "1m", "--timeout", "100ms", server.Addr, "hello"}},
		{"nobody listens", "Unavailable", []string{exampletest.Host() + ":1", "hello"}},
		{"another provider", "there are engine, kernel and auto", []string{"--provider", "tcp", server.Addr, "hello"}},
		{"no message", "grpc: 1 arguments after the flags: ", []string{server.Addr}},
		{"no port", "missing port in address", []string{exampletest.Host(), "hello"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			stdout, stderr, err := exampletest.Run(t, c.args...)
			if err == nil || stdout != "" || !strings.Contains(stderr, c.want) {
				t.Errorf("%v, prints %q and %q, want an error with %q", err, stdout, stderr, c.want)
			}
		})
	}
	exampletest.MustRun(t, "hello\n", server.Addr, "hello")
}

// TestParallel makes calls of both kinds concurrently over one connection and over several. Its
// messages are longer than rsocket's rings and than HTTP/2's windows.
func TestParallel(t *testing.T) {
	server := exampletest.Start(t, "--listen", exampletest.Host()+":0")
	var wg sync.WaitGroup
	defer wg.Wait()
	for range 3 {
		client := newClient(t, server.Addr)
		for i := range 20 {
			wg.Go(func() {
				text := strings.Repeat("x", 1<<i)
				answer, err := client.Say(t.Context(), &echopb.Message{Text: text})
				if err != nil || answer.GetText() != text {
					t.Errorf("Say of %d bytes: %d bytes, %v", len(text), len(answer.GetText()), err)
				}
			})
			wg.Go(func() {
				if err := talkMuch(t.Context(), client, i); err != nil {
					t.Errorf("Talk %d: %v", i, err)
				}
			})
		}
	}
}

// talkMuch sends 50 messages of up to 20 KB, and receives the answers at the same time.
func talkMuch(ctx context.Context, client echopb.EchoClient, seed int) error {
	stream, err := client.Talk(ctx)
	if err != nil {
		return err
	}
	text := func(i int) string { return fmt.Sprintf("%d/%d%*s", seed, i, i*20*seed, "") }
	const messages = 50
	sent := make(chan error, 1)
	go func() {
		for i := range messages {
			if err := stream.Send(&echopb.Message{Text: text(i)}); err != nil {
				sent <- err
				return
			}
		}
		sent <- stream.CloseSend()
	}()
	for i := range messages {
		answer, err := stream.Recv()
		if err != nil {
			return fmt.Errorf("answer %d: %w", i, err)
		}
		if answer.GetText() != text(i) {
			return fmt.Errorf("answer %d: %.40q..., want %.40q...", i, answer.GetText(), text(i))
		}
	}
	return <-sent
}

// TestCancelled cancels calls: the server ends them, and other calls keep the connection.
func TestCancelled(t *testing.T) {
	server := exampletest.Start(t, "--listen", exampletest.Host()+":0")
	client := newClient(t, server.Addr)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stream, err := client.Talk(ctx)
	testkit.OK(t, err)
	testkit.OK(t, stream.Send(&echopb.Message{Text: "before"}))
	answer, err := stream.Recv()
	testkit.OK(t, err)
	said := make(chan error, 1)
	go func() {
		_, err := client.Say(ctx, &echopb.Message{Text: "never", WaitMs: time.Minute.Milliseconds()})
		said <- err
	}()
	if answer.GetText() != "before" {
		t.Errorf("the answer is %q", answer.GetText())
	}
	cancel()
	if _, err := stream.Recv(); status.Code(err) != codes.Canceled {
		t.Errorf("Talk: %v, want it cancelled", err)
	}
	if err := <-said; status.Code(err) != codes.Canceled {
		t.Errorf("Say: %v, want it cancelled", err)
	}
	server.Line("Talk of " + exampletest.Host())
	if _, err := client.Say(t.Context(), &echopb.Message{Text: "after"}); err != nil {
		t.Errorf("after that: %v", err)
	}
	testkit.OK(t, talkMuch(t.Context(), client, 1))
}

// TestServerGone kills the server in the middle of calls and starts another one at its address,
// which calls of the same client reach.
func TestServerGone(t *testing.T) {
	server := exampletest.Start(t, "--listen", exampletest.Host()+":0")
	client := newClient(t, server.Addr)
	stream, err := client.Talk(t.Context())
	testkit.OK(t, err)
	testkit.OK(t, stream.Send(&echopb.Message{Text: "before"}))
	_, err = stream.Recv()
	testkit.OK(t, err)
	server.Kill()
	if _, err := stream.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("Talk: %v, want %v", err, codes.Unavailable)
	}
	if _, err := client.Say(t.Context(), &echopb.Message{Text: "nobody"}); status.Code(err) != codes.Unavailable {
		t.Errorf("Say: %v, want %v", err, codes.Unavailable)
	}
	exampletest.Start(t, "--listen", server.Addr)
	ctx, cancel := context.WithTimeout(t.Context(), exampletest.Patience)
	defer cancel()
	if _, err := client.Say(ctx, &echopb.Message{Text: "again"}, grpc.WaitForReady(true)); err != nil {
		t.Errorf("after the server has come back: %v", err)
	}
}

// TestServerStops interrupts a server during a call, which has a second to end.
func TestServerStops(t *testing.T) {
	server := exampletest.Start(t, "--listen", exampletest.Host()+":0")
	client := newClient(t, server.Addr)
	stream, err := client.Talk(t.Context())
	testkit.OK(t, err)
	testkit.OK(t, stream.Send(&echopb.Message{Text: "before"}))
	_, err = stream.Recv()
	testkit.OK(t, err)
	server.Signal(os.Interrupt)
	if _, err := stream.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("Talk: %v, want %v", err, codes.Unavailable)
	}
	if stderr := server.Ended(); stderr != "" {
		t.Errorf("the server writes %q", stderr)
	}
}

// newClient returns a client that is connected to the server at address on its first call.
func newClient(t *testing.T, address string) echopb.EchoClient {
	t.Helper()
	vctx, err := open(t.Context(), exampletest.Provider(), address, false)
	testkit.OK(t, err)
	t.Cleanup(func() { testkit.OK(t, closeDevice(vctx)) })
	conn, err := connect(vctx, address)
	testkit.OK(t, err)
	t.Cleanup(func() { testkit.OK(t, conn.Close()) })
	return echopb.NewEchoClient(conn)
}
