// Package exampletest runs an example as two processes: the test binary calls the
// example's main function when it finds itself started that way. So the race detector, if
// the tests run under it, covers the processes, and a machine without a compiler (the guest
// of ci/vm) can run the tests.
//
// With GOVS_PROVIDER=kernel and GOVS_ADDR set to an address of the interface under a kernel
// device, the processes use that; otherwise the engine and 127.0.0.1.
package exampletest

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/vm/siwhang"
	"go.uber.org/goleak"
)

const (
	asExample = "GOVS_RUN_EXAMPLE"
	listening = "listening on "
)

// Patience is how long a test waits for what must happen. A second's work can take half a minute
// under the race detector beside other tests on two CPUs, or in an emulated guest.
const Patience = 2 * time.Minute

// always are the flags that precede the arguments of each process of the example under test.
var always []string

// Main is for TestMain. In a process that Start or Run has started it calls the example's
// main function, and reports goroutines that are left when that returns. flags precede the
// arguments of each process of the example under test, for example to make it wait longer.
func Main(m *testing.M, main func(), flags ...string) {
	always = flags
	if os.Getenv(asExample) == "" {
		os.Exit(m.Run())
	}
	main()
	if err := goleak.Find(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(3)
	}
	os.Exit(0)
}

// Kernel reports whether the examples run on a device of the kernel.
func Kernel() bool { return os.Getenv("GOVS_PROVIDER") == "kernel" }

// Host returns the address to listen on.
func Host() string {
	if Kernel() {
		return os.Getenv("GOVS_ADDR")
	}
	return "127.0.0.1"
}

// Provider returns what the --provider flag is given.
func Provider() string {
	if Kernel() {
		return "kernel"
	}
	return "engine"
}

// Program is an example that runs as a process: the one under test, or another.
type Program struct {
	Limit time.Duration // how long a process may run; 0 means Patience

	path  string
	flags []string // before the arguments
	env   []string
}

// Self returns the example under test.
func Self(t testing.TB) Program {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	// The race detector would sleep for a second before the end of each process.
	return Program{path: exe, flags: always, env: append(os.Environ(), asExample+"=1", "GORACE=atexit_sleep_ms=0")}
}

// Other returns the example in the folder of that name. It is built, unless GOVS_EXAMPLES
// names a directory that has it.
func Other(t testing.TB, name string) Program {
	t.Helper()
	if dir := os.Getenv("GOVS_EXAMPLES"); dir != "" {
		return Program{path: filepath.Join(dir, name), env: os.Environ()}
	}
	path := filepath.Join(t.TempDir(), name)
	if out, err := exec.Command("go", "build", "-o", path, "../"+name).CombinedOutput(); err != nil {
		t.Fatalf("go build %s: %v\n%s", name, err, out)
	}
	return Program{path: path, env: os.Environ()}
}

// command makes a process with the --provider flag before args. It ends with the test, and
// after p.Limit at the latest.
func (p Program) command(t testing.TB, args ...string) *exec.Cmd {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), cmp.Or(p.Limit, Patience))
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, p.path, slices.Concat([]string{"--provider", Provider()}, p.flags, args)...)
	cmd.Env = p.env
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// Run runs a process of the example to its end and returns the error of exec.Cmd.Run. If siw has
// let its connection hang, Run runs another.
func Run(t testing.TB, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	for {
		cmd := Self(t).command(t, args...)
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		if err := cmd.Start(); err != nil {
			return "", "", err
		}
		done := make(chan struct{})
		go func() { err = cmd.Wait(); close(done) }()
		hung := Kernel() && siwhang.Hung(t, 0, done)
		if hung {
			_ = cmd.Process.Kill()
		}
		if <-done; !hung {
			return out.String(), errs.String(), err
		}
	}
}

// MustRun runs a process, which must succeed and print want.
func MustRun(t testing.TB, want string, args ...string) {
	t.Helper()
	stdout, stderr, err := Run(t, args...)
	if err != nil || stdout != want {
		t.Errorf("%v: %v, prints %q, want %q\n%s", args, err, stdout, want, stderr)
	}
}

// Server is a process of the example that listens.
type Server struct {
	Addr string // from its line "listening on ADDRESS"

	t      testing.TB
	cmd    *exec.Cmd
	stderr bytes.Buffer // to be read when the process has ended
	lines  chan string
	ended  sync.Once
	err    error // valid once ended is done
}

// Start starts a server of the example under test, as Program.Start does.
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	return Self(t).Start(t, args...)
}

// Start starts a server and waits until it says that it listens. The end of the test stops it
// as Stop does.
func (p Program) Start(t testing.TB, args ...string) *Server {
	t.Helper()
	s := &Server{t: t, cmd: p.command(t, args...), lines: make(chan string, 1000)}
	s.cmd.Stderr = &s.stderr
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go s.read(out)
	_, s.Addr, _ = strings.Cut(s.Line(listening), listening)
	t.Cleanup(s.Stop)
	return s
}

// read passes on the lines of the server's output, and drops lines while s.lines is full.
func (s *Server) read(out io.Reader) {
	defer close(s.lines)
	for scan := bufio.NewScanner(out); scan.Scan(); {
		select {
		case s.lines <- scan.Text():
		default:
		}
	}
}

// Line returns the next line of the server's output that contains text.
func (s *Server) Line(text string) string {
	s.t.Helper()
	patience := time.After(Patience)
	for {
		select {
		case line, more := <-s.lines:
			if !more {
				err := s.wait()
				s.t.Fatalf("the server has ended (%v) without a line with %q:\n%s", err, text, s.stderr.String())
			}
			if strings.Contains(line, text) {
				return line
			}
		case <-patience:
			s.t.Fatalf("the server does not print a line with %q", text)
		}
	}
}

// Stop interrupts the server, which must end cleanly: status 0, no goroutines left.
func (s *Server) Stop() {
	s.t.Helper()
	_ = s.cmd.Process.Signal(os.Interrupt)
	if err := s.wait(); err != nil {
		s.t.Errorf("the server ended with %v:\n%s", err, s.stderr.String())
	}
}

// Signal sends a signal to the server.
func (s *Server) Signal(signal os.Signal) {
	s.t.Helper()
	if err := s.cmd.Process.Signal(signal); err != nil {
		s.t.Error(err)
	}
}

// Kill ends the server as a crash does.
func (s *Server) Kill() {
	s.t.Helper()
	_ = s.cmd.Process.Kill()
	var exit *exec.ExitError
	if err := s.wait(); !errors.As(err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		s.t.Errorf("the server was killed and ended with %v:\n%s", err, s.stderr.String())
	}
	s.err = nil
}

// Ended waits until the server has ended by itself, and returns what it wrote to stderr.
func (s *Server) Ended() string {
	s.t.Helper()
	if err := s.wait(); err != nil {
		s.t.Errorf("the server ended with %v", err)
	}
	return s.stderr.String()
}

// wait reaps the process when its output is read.
func (s *Server) wait() error {
	s.ended.Do(func() {
		for range s.lines { // until read closes it
		}
		s.err = s.cmd.Wait()
	})
	return s.err
}
