package main

import (
	"strings"
	"testing"

	"github.com/govs-rdma/govs/ibverbs/examples/internal/exampletest"
)

func TestMain(m *testing.M) { exampletest.Main(m, main, "--timeout", "1m") }

func TestEcho(t *testing.T) {
	server := exampletest.Start(t, "--listen", exampletest.Host()+":0")
	exampletest.MustRun(t, "hello\n", server.Addr, "hello")
	server.Line(": echoed 5 bytes")
	longest := strings.Repeat("x", maxMessage)
	exampletest.MustRun(t, longest+"\n", server.Addr, longest)
}

// TestEchoFails runs clients that fail; the server must go on.
func TestEchoFails(t *testing.T) {
	server := exampletest.Start(t, "--listen", exampletest.Host()+":0")
	for _, c := range []struct {
		name string
		want string // in stderr
		args []string
	}{
		{"message too long", "the server takes 4096", []string{server.Addr, strings.Repeat("x", maxMessage+1)}},
		{"nobody listens", "rdma_connect", []string{exampletest.Host() + ":1", "hello"}},
		{"no time", "deadline exceeded", []string{"--timeout", "1ns", server.Addr, "hello"}},
		{"another provider", "there are engine, kernel and auto", []string{"--provider", "tcp", server.Addr, "hello"}},
		{"no message", "echo-all: 1 arguments after the flags: ", []string{server.Addr}},
		{"flags after the address", "both after all flags\nusage: echo-all",
			[]string{server.Addr, "--timeout", "1s", "hi"}},
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
