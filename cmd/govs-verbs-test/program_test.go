package main

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ci/vm/vmtest"
	"github.com/govs-rdma/govs/provider/kernel"
)

// program is a running process.
type program struct {
	cmd            *exec.Cmd
	stdout, stderr transcript
	done           chan struct{} // closed when it has ended
	err            error         // of Wait, then
}

// startProgram starts a C program.
func startProgram(t *testing.T, args ...string) *program {
	t.Helper()
	return startCmd(t, exec.Command(args[0], args[1:]...))
}

// startCmd starts a process, and ends it with the test.
func startCmd(t *testing.T, cmd *exec.Cmd) *program {
	t.Helper()
	p := &program{cmd: cmd, done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = &p.stdout, &p.stderr
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	t.Cleanup(p.kill)
	return p
}

// wait waits for the program's end and returns its status.
func (p *program) wait(t *testing.T) int {
	t.Helper()
	select {
	case <-p.done:
		var exit *exec.ExitError
		if p.err != nil && !errors.As(p.err, &exit) {
			t.Fatalf("%s: %v", p, p.err)
		}
	case <-time.After(patience):
		t.Fatalf("%s does not end\nstdout:\n%s\nstderr:\n%s", p, clip(p.stdout.String()), clip(p.stderr.String()))
	}
	return p.cmd.ProcessState.ExitCode()
}

// kill ends the program, and waits until it has ended.
func (p *program) kill() {
	_ = p.cmd.Process.Kill() // it may have ended
	<-p.done
}

// want waits for the program's end and checks its status and its output.
func (p *program) want(t *testing.T, status int, stdout ...string) {
	t.Helper()
	if got := p.wait(t); got != status {
		t.Errorf("%s: status %d, want %d\nstdout:\n%s\nstderr:\n%s", p, got, status, clip(p.stdout.String()), clip(p.stderr.String()))
	}
	wantText(t, p.String()+": stdout", p.stdout.String(), stdout)
}

// String returns the command line, shortened so that a report of a failure remains readable.
func (p *program) String() string { return cut(strings.Join(p.cmd.Args, " "), 160) }

// process runs the command as a process to its end, and checks its status and its output.
func process(t *testing.T, args []string, status int, stdout, stderr []string) *program {
	t.Helper()
	p := startCommand(t, nil, args...)
	p.want(t, status, stdout...)
	wantText(t, p.String()+": stderr", p.stderr.String(), stderr)
	return p
}

// words splits a command line without quotes.
func words(line string) []string { return strings.Fields(line) }

// Ports for listeners of tests are below the ports that Linux gives to connecting sockets, and
// above the ports that the suite uses.
const (
	firstPort = 26000
	ports     = 6000
)

// reserved has the sockets that reserve ports for this process, and how many were tried.
var reserved struct {
	sync.Mutex
	next  int
	socks []net.Listener
}

// freePort returns a port for a listener of the test. Nothing listens on it, and freePort does not
// return it again, in any process, as long as this process runs, because connections that a kernel
// listener has accepted keep its port for a while. C programs can't use port 0, because they don't
// print the port that they got.
func freePort() uint16 {
	reserved.Lock()
	defer reserved.Unlock()
	for range ports {
		port := uint16(firstPort + (os.Getpid()*61+reserved.next)%ports)
		reserved.next++
		if sock, ok := reserve(port); ok {
			reserved.socks = append(reserved.socks, sock)
			return port
		}
	}
	panic(fmt.Sprintf("all ports from %d on are in use: %d, of which this process has %d",
		firstPort, ports, len(reserved.socks)))
}

// reserve reserves a port if nobody has it. A socket reserves it with a name in Linux's abstract
// namespace that has the port in it: a name exists once in a network namespace, and ends with the
// process.
func reserve(port uint16) (sock net.Listener, ok bool) {
	sock, err := net.Listen("unix", fmt.Sprintf("@govs-test-port-%d", port))
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, false
	}
	if err != nil {
		panic(err)
	}
	tcp, err := net.Listen("tcp", fmt.Sprintf(":%d", port))
	if err != nil {
		_ = sock.Close()
		return nil, false
	}
	_ = tcp.Close()
	return sock, true
}

// TestFreePort tries ports that others have reserved, and ports that others listen on.
func TestFreePort(t *testing.T) {
	port := freePort()
	if _, ok := reserve(port); ok {
		t.Errorf("port %d is reserved twice", port)
	}
	other := freePort()
	if other == port {
		t.Errorf("port %d is returned twice", port)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, ok := reserve(uint16(l.Addr().(*net.TCPAddr).Port)); ok {
		t.Errorf("%v is reserved while somebody listens on it", l.Addr())
	}
}

// siwAddr is the guest's address on the interface under siw0.
const siwAddr = "192.0.2.1"

// providers are the providers with which the guest's tests run our programs.
var providers = []string{"engine", "kernel"}

// inGuest reports whether the test runs in the guest. If not, it runs the test in a guest with the
// options and returns false. The C programs of
// rdmacm-utils and perftest are needed.
func inGuest(t *testing.T, o vmtest.Options) bool {
	t.Helper()
	if vmtest.Inside() {
		return true
	}
	vmtest.NeedKernelProvider(t, kernel.Available)
	vmtest.Need(t, "witnesses")
	o.Timeout = cmp.Or(o.Timeout, 8*time.Minute)
	vmtest.Self(t, o)
	return false
}

// addrOf returns siwAddr with a port.
func addrOf(port uint16) string {
	return netip.AddrPortFrom(netip.MustParseAddr(siwAddr), port).String()
}

// startServer starts a C program that listens on a port, and waits until it listens.
func startServer(t *testing.T, port uint16, args ...string) *program {
	t.Helper()
	p := startProgram(t, args...)
	awaitListener(t, p, port)
	return p
}

// awaitListener waits until a program listens on a port.
func awaitListener(t *testing.T, p *program, port uint16) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !testkit.Listens(t, port) {
		select {
		case <-p.done:
			t.Fatalf("%s ended before it listened: %v\nstdout:\n%s\nstderr:\n%s", p, p.err, &p.stdout, &p.stderr)
		case <-time.After(10 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s does not listen on port %d", p, port)
		}
	}
}
