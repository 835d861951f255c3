package main

import (
	"errors"
	"os/exec"
	"strings"
	"testing"
	"time"
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
