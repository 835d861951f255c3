package main

import (
	"bufio"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/vm/vmtest"
	"github.com/govs-rdma/govs/provider/kernel"
)

// siwAddr is the guest's address on the interface under siw0.
const siwAddr = "192.0.2.1"

// providers are those that a program of ours is tried with in the guest.
var providers = []string{"engine", "kernel"}

// inGuest reports whether the test is in the guest, with siw0 of a variant. If it
// is not, it runs the test there and returns false. The C programs of
// rdmacm-utils and perftest are needed.
func inGuest(t *testing.T, siw string) bool {
	t.Helper()
	if vmtest.Inside() {
		return true
	}
	if !kernel.Available {
		if os.Getenv("REQUIRE_SIW") == "1" {
			t.Fatal("REQUIRE_SIW=1, but the kernel provider was not built in: ci/deps kernel installs what it needs")
		}
		t.Skip("the kernel provider was not built in")
	}
	vmtest.Need(t, "witnesses")
	vmtest.Self(t, vmtest.Options{Siw: siw, Timeout: 8 * time.Minute})
	return false
}

// nextPort gives each listener of the test a port of its own: what a kernel
// listener leaves behind keeps its port for a while.
var nextPort uint16 = 21000

func freePort() uint16 {
	nextPort++
	return nextPort
}

// addrOf is siwAddr with a port.
func addrOf(port uint16) string {
	return netip.AddrPortFrom(netip.MustParseAddr(siwAddr), port).String()
}

// program is a C program that runs.
type program struct {
	cmd            *exec.Cmd
	stdout, stderr transcript
	done           chan error
}

// startProgram starts a C program, and sees that it is gone when the test is.
func startProgram(t *testing.T, args ...string) *program {
	t.Helper()
	p := &program{cmd: exec.Command(args[0], args[1:]...), done: make(chan error, 1)}
	p.cmd.Stdout, p.cmd.Stderr = &p.stdout, &p.stderr
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { p.done <- p.cmd.Wait() }()
	t.Cleanup(func() {
		if p.cmd.ProcessState == nil {
			_ = p.cmd.Process.Kill()
			<-p.done
		}
	})
	return p
}

// startServer starts a C program that listens on a port, and waits until it
// does.
func startServer(t *testing.T, port uint16, args ...string) *program {
	t.Helper()
	p := startProgram(t, args...)
	deadline := time.Now().Add(patience)
	for !listens(t, port) {
		select {
		case err := <-p.done:
			p.done <- err
			t.Fatalf("%s ended before it listened: %v\nstdout:\n%s\nstderr:\n%s", p, err, &p.stdout, &p.stderr)
		case <-time.After(10 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s does not listen on port %d", p, port)
		}
	}
	return p
}

// listens tells whether a socket, siw's own included, listens on a port of
// IPv4. Connecting to find out would cost the server its one client.
func listens(t *testing.T, port uint16) bool {
	t.Helper()
	f, err := os.Open("/proc/net/tcp")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	const listen = "0A"
	suffix := fmt.Sprintf(":%04X", port)
	for sc := bufio.NewScanner(f); sc.Scan(); {
		if cells := strings.Fields(sc.Text()); len(cells) > 3 && strings.HasSuffix(cells[1], suffix) && cells[3] == listen {
			return true
		}
	}
	return false
}

// want waits for the program's end and checks its status, and what it printed.
func (p *program) want(t *testing.T, status int, stdout ...string) {
	t.Helper()
	select {
	case err := <-p.done:
		p.done <- err
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			t.Fatalf("%s: %v", p, err)
		}
	case <-time.After(patience):
		t.Fatalf("%s does not end\nstdout:\n%s\nstderr:\n%s", p, clip(p.stdout.String()), clip(p.stderr.String()))
	}
	if got := p.cmd.ProcessState.ExitCode(); got != status {
		t.Errorf("%s: status %d, want %d\nstdout:\n%s\nstderr:\n%s", p, got, status, clip(p.stdout.String()), clip(p.stderr.String()))
	}
	wantText(t, p.String()+": stdout", p.stdout.String(), stdout)
}

func (p *program) String() string { return strings.Join(p.cmd.Args, " ") }
