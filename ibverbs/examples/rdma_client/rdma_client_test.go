package main

import (
	"bytes"
	"net"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ibverbs/examples/internal/exampletest"
)

func TestMain(m *testing.M) { exampletest.Main(m, main, "--timeout", "1m") }

const prints = "rdma_client: start\nrdma_client: end\n"

func TestClientAndServer(t *testing.T) {
	server := exampletest.Other(t, "rdma_server").Start(t, "-s", exampletest.Host(), "-p", "0")
	host, port, err := net.SplitHostPort(server.Addr)
	if err != nil {
		t.Fatal(err)
	}
	exampletest.MustRun(t, prints, "-s", host, "-p", port)
	server.Line("rdma_server: end")
	if errs := server.Ended(); errs != "" {
		t.Error(errs)
	}
}

// TestNoServer has nobody listen.
func TestNoServer(t *testing.T) {
	_, stderr, err := exampletest.Run(t, "-s", exampletest.Host(), "-p", "1")
	if err == nil || !strings.Contains(stderr, "rdma_client: rdma_connect") {
		t.Errorf("%v, prints %q, want an error of rdma_connect", err, stderr)
	}
}

// TestCProgram has rdma-core's own program at the other end of each.
func TestCProgram(t *testing.T) {
	if !exampletest.Kernel() {
		t.Skip("the C programs need a device of the kernel: GOVS_PROVIDER=kernel GOVS_ADDR=...")
	}
	const port = "7472"
	cServer, err := exec.LookPath("rdma_server")
	if err != nil {
		t.Skip("rdma_server of rdmacm-utils is not installed")
	}
	t.Run("server", func(t *testing.T) {
		var out bytes.Buffer
		cmd := exec.CommandContext(t.Context(), cServer, "-s", exampletest.Host(), "-p", port)
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		// It does not say that it listens.
		for began := time.Now(); ; time.Sleep(100 * time.Millisecond) {
			stdout, stderr, err := exampletest.Run(t, "-s", exampletest.Host(), "-p", port)
			if err == nil && stdout == prints {
				break
			}
			if time.Since(began) > exampletest.Patience {
				t.Fatalf("%v, prints %q, want %q\n%s", err, stdout, prints, stderr)
			}
		}
		if err := cmd.Wait(); err != nil || !strings.Contains(out.String(), "rdma_server: end 0") {
			t.Errorf("%v, prints %q", err, out.String())
		}
	})
	t.Run("client", func(t *testing.T) {
		server := exampletest.Other(t, "rdma_server").Start(t, "-s", exampletest.Host(), "-p", "7473")
		out, err := exec.CommandContext(t.Context(), "rdma_client", "-s", exampletest.Host(), "-p", "7473").CombinedOutput()
		if err != nil || !strings.Contains(string(out), "rdma_client: end 0") {
			t.Errorf("%v, prints %q", err, out)
		}
		server.Line("rdma_server: end")
	})
}
