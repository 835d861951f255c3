package worker

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// OnCPU makes a command that has not started run on one CPU with all its threads from the start, so
// that its Go runtime counts one CPU. The process is the command's own.
func OnCPU(cmd *exec.Cmd, cpu int) error {
	return within(cmd, "taskset", "--cpu-list", strconv.Itoa(cpu))
}

// WhenIdle makes a command run with the scheduler's lowest policy, SCHED_IDLE: it runs only when no
// other process wants the CPU.
func WhenIdle(cmd *exec.Cmd) error { return within(cmd, "chrt", "--idle", "0") }

// within makes another program start a command, which replaces the program.
func within(cmd *exec.Cmd, args ...string) error {
	path, err := exec.LookPath(args[0])
	if err = cmp.Or(cmd.Err, err); err != nil {
		return err
	}
	cmd.Args = append(append(args, cmd.Path), cmd.Args[1:]...)
	cmd.Path = path
	return nil
}

// Process is a process that calls Serve with the same types. Only one goroutine may use it.
type Process[O, A any] struct {
	cmd     *exec.Cmd
	in      io.WriteCloser
	answers chan reply[A] // closed when the process writes no more
	stderr  strings.Builder
	failed  error // why no order can be given any more
	closed  bool
}

// Start starts cmd, pinned to a CPU. It sets stdin, stdout and stderr of cmd. All processes
// stay in one session: where the kernel schedules sessions against each other
// (autogroups), a scheduling policy has an effect within its session only.
func Start[O, A any](cmd *exec.Cmd, cpu int) (*Process[O, A], error) {
	p := &Process[O, A]{cmd: cmd, answers: make(chan reply[A])}
	cmd.Stderr = &p.stderr
	cmd.WaitDelay = time.Second
	var err error
	if p.in, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := OnCPU(cmd, cpu); err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	go p.hear(out)
	return p, nil
}

func (p *Process[O, A]) hear(out io.Reader) {
	defer close(p.answers)
	for lines := scan(out); lines.Scan(); {
		var r reply[A]
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			r.Error = fmt.Sprintf("the process wrote something else than an answer: %v", err)
		}
		p.answers <- r
	}
}

// Order gives an order and waits for the answer. If there is none within patience, or the
// process or ctx has ended, this order and all further ones fail. If do returns an error for
// the order, Order returns that, and the process goes on.
func (p *Process[O, A]) Order(ctx context.Context, o O, patience time.Duration) (a A, err error) {
	if p.failed != nil {
		return a, p.failed
	}
	line, err := json.Marshal(o)
	if err != nil {
		return a, err
	}
	if _, err := p.in.Write(append(line, '\n')); err != nil {
		p.failed = fmt.Errorf("the process takes no orders: %w", err)
		return a, p.failed
	}
	late := time.NewTimer(patience)
	defer late.Stop()
	select {
	case r, ok := <-p.answers:
		switch {
		case !ok:
			p.failed = errors.New("the process has ended")
			return a, p.failed
		case r.Error != "":
			return r.Answer, errors.New(r.Error)
		}
		return r.Answer, nil
	case <-ctx.Done():
		p.failed = ctx.Err()
	case <-late.C:
		p.failed = fmt.Errorf("no answer in %v", patience)
	}
	return a, p.failed
}

// Failed reports whether no order can be given any more.
func (p *Process[O, A]) Failed() bool { return p.failed != nil }

// PID is the id of the process.
func (p *Process[O, A]) PID() int { return p.cmd.Process.Pid }

// Kill ends the process at once. Close is still to be called.
func (p *Process[O, A]) Kill() error { return p.cmd.Process.Kill() }

// Close makes the process end, waits for that, and returns how it failed, with what it
// wrote to stderr. A second call does nothing.
func (p *Process[O, A]) Close() error {
	if p.closed {
		return nil
	}
	p.closed = true
	_ = p.in.Close() // fails if it has ended
	kill := time.AfterFunc(10*time.Second, func() { _ = p.cmd.Process.Kill() })
	defer kill.Stop()
	for range p.answers { // until the process writes no more
	}
	if err := p.cmd.Wait(); err != nil {
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(p.stderr.String()))
	}
	return nil
}

// longestLine is the longest order or answer, in bytes.
const longestLine = 1 << 20

func scan(r io.Reader) *bufio.Scanner {
	s := bufio.NewScanner(r)
	s.Buffer(nil, longestLine)
	return s
}
