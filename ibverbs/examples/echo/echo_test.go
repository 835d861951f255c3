package main

import (
	"strings"
	"testing"

	"github.com/govs-rdma/govs/ibverbs/examples/internal/exampletest"
)

func TestMain(m *testing.M) { exampletest.Main(m, main) }

// TestEchoShort sends a message that is longer than the server's receives. The client learns only
// that the connection ended, and the server goes on.
func TestEchoShort(t *testing.T) {
	server := exampletest.Start(t, "--listen", exampletest.Host()+":0")
	exampletest.MustRun(t, "hello\n", server.Addr, "hello")
	stdout, stderr, err := exampletest.Run(t, server.Addr, strings.Repeat("x", 65))
	if err == nil || stdout != "" {
		t.Errorf("a message of 65 bytes: %v, prints %q and %q, want an error", err, stdout, stderr)
	}
	longest := strings.Repeat("x", 64)
	exampletest.MustRun(t, longest+"\n", server.Addr, longest)
	server.Kill()
}
