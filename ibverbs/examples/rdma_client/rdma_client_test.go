package main

import (
	"bytes"
	"net"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ci/vm/siwhang"
	"github.com/govs-rdma/govs/ibverbs/examples/internal/exampletest"
)

func TestMain(m *testing.M) { exampletest.Main(m, main, "--timeout", "1m") }

const prints = "rdma_client: start\nrdma_client: end\n"

func TestClientAndServer(t *testing.T) {
	for {
		server := exampletest.Other(t, "rdma_server").Start(t, "--timeout", "90s", "-s", exampletest.Host(), "-p", "0")
		if _, port, err := net.SplitHostPort(server.Addr); err != nil {
			t.Fatal(err)
		} else if !runs(t, port) {
			server.Kill()
			continue
		}
		server.Line("rdma_server: end")
		if errs := server.Ended(); errs != "" {
			t.Error(errs)
		}
		return
	}
}

// runs runs the example with the server at a port, where it must succeed. It returns false if siw
// is the server's end and has not read the example's message.
func runs(t *testing.T, port string) bool {
	t.Helper()
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	var stdout, stderr string
	go func() {
		defer close(done)
		stdout, stderr, err = exampletest.Run(t, "-s", exampletest.Host(), "-p", port)
	}()
	hung := exampletest.Kernel() && siwhang.Hung(t, uint16(n), done)
	<-done
	if !hung && (err != nil || stdout != prints) {
		t.Fatalf("%v, prints %q, want %q\n%s", err, stdout, prints, stderr)
	}
	return !hung
}

// TestNoServer dials where nobody listens.
func TestNoServer(t *testing.T) {
	_, stderr, err := exampletest.Run(t, "-s", exampletest.Host(), "-p", "1")
	if err == nil || !strings.Contains(stderr, "rdma_client: rdma_connect") {
		t.Errorf("%v, prints %q, want an error of rdma_connect", err, stderr)
	}
}

// TestCProgram runs each example against rdma-core's own program.
func TestCProgram(t *testing.T) {
	if !exampletest.Kernel() {
		t.Skip("the C programs need a device of the kernel: GOVS_PROVIDER=kernel GOVS_ADDR=...")
	}
	cServer, err := exec.LookPath("rdma_server")
	if err != nil {
		t.Skip("rdma_server of rdmacm-utils is not installed")
	}
	t.Run("server", func(t *testing.T) {
		const port = "7472"
		for {
			server := startC(t, cServer, "-s", exampletest.Host(), "-p", port)
			awaitListener(t, port)
			if runs(t, port) {
				server.want(t, "rdma_server: end 0")
				return
			}
			server.kill()
		}
	})
	t.Run("client", func(t *testing.T) {
		for {
			server := exampletest.Other(t, "rdma_server").Start(t, "--timeout", "90s", "-s", exampletest.Host(), "-p", "7473")
			client := startC(t, "rdma_client", "-s", exampletest.Host(), "-p", "7473")
			if !siwhang.Hung(t, 7473, client.done) {
				client.want(t, "rdma_client: end 0")
				server.Line("rdma_server: end")
				return
			}
			client.kill()
			server.Kill()
		}
	})
}

// awaitListener waits until somebody listens at a port, which C's server does not print.
func awaitListener(t *testing.T, port string) {
	t.Helper()
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		t.Fatal(err)
	}
	for began := time.Now(); !testkit.Listens(t, uint16(n)); time.Sleep(50 * time.Millisecond) {
		if time.Since(began) > exampletest.Patience {
			t.Fatalf("nobody listens at port %s", port)
		}
	}
}

// process is a C program that runs.
type process struct {
	cmd  *exec.Cmd
	out  bytes.Buffer
	done chan struct{} // closed when it has ended
	err  error         // of Wait, then
}

// startC starts a C program, which ends with the test.
func startC(t *testing.T, name string, args ...string) *process {
	t.Helper()
	p := &process{cmd: exec.Command(name, args...), done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = &p.out, &p.out
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.done)
		p.err = p.cmd.Wait()
	}()
	t.Cleanup(p.kill)
	return p
}

// kill ends the program, and waits until it has ended.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it may have ended
	<-p.done
}

// want waits for the program's success, and checks what it prints.
func (p *process) want(t *testing.T, text string) {
	t.Helper()
	select {
	case <-p.done:
	case <-time.After(time.Minute):
		p.kill()
	}
	if p.err != nil || !strings.Contains(p.out.String(), text) {
		t.Errorf("%s: %v, prints %q", p.cmd, p.err, &p.out)
	}
}
