//go:build linux && amd64

package tracer

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"

	"github.com/govs-rdma/govs/provider/bridge/recording"
	"golang.org/x/sys/unix"
)

// A Tracee is a program that is being recorded.
type Tracee struct {
	pid  int
	done chan struct{}

	// Set at the end.
	rec    recording.Recording
	status unix.WaitStatus
	err    error
}

// Start starts a program. Stdin, Stdout and Stderr of cmd must be files or nil, because the caller
// waits with the Tracee's Wait instead of cmd's.
func Start(cmd *exec.Cmd) (*Tracee, error) {
	for _, stream := range []any{cmd.Stdin, cmd.Stdout, cmd.Stderr} {
		if _, ok := stream.(*os.File); stream != nil && !ok {
			return nil, errors.New("tracer: a stream of the program is not a file")
		}
	}
	t := &Tracee{done: make(chan struct{})}
	started := make(chan error)
	go func() {
		defer close(t.done)
		// All calls of ptrace must come from the thread that has started the program. The thread
		// ends with this goroutine.
		runtime.LockOSThread()
		cmd.SysProcAttr = &unix.SysProcAttr{Ptrace: true}
		if err := cmd.Start(); err != nil {
			started <- err
			return
		}
		t.pid = cmd.Process.Pid
		started <- nil
		l := &loop{tracee: t, threads: map[int]*thread{}, files: map[int]string{}}
		if t.err = l.run(); t.err != nil {
			_ = unix.Kill(t.pid, unix.SIGKILL)
		}
		_ = cmd.Process.Release()
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("tracer: %s: %w", cmd.Path, err)
	}
	return t, nil
}

// Kill ends the program.
func (t *Tracee) Kill() {
	select {
	case <-t.done:
	default:
		_ = unix.Kill(t.pid, unix.SIGKILL)
	}
}

// Done returns a channel that is closed when the program has ended.
func (t *Tracee) Done() <-chan struct{} { return t.done }

// Wait waits until the program ends. It returns the recording and the exit status, which is -1
// after a signal.
func (t *Tracee) Wait() (*recording.Recording, int, error) {
	<-t.done
	if t.err != nil {
		return nil, -1, fmt.Errorf("tracer: %w", t.err)
	}
	return &t.rec, t.status.ExitStatus(), nil
}

// loop handles the stops of the program's threads. Only the goroutine that runs it uses its maps.
type loop struct {
	tracee  *Tracee
	threads map[int]*thread
	files   map[int]string // kinds of files by descriptor, from package recording
	sockets map[int]int    // by descriptor of a netlink socket, the index of its last request
}

// thread is a traced thread.
type thread struct {
	id   int
	call *call // the call that it has entered, nil if that is not recorded
}

const options = unix.PTRACE_O_TRACESYSGOOD | unix.PTRACE_O_TRACECLONE | unix.PTRACE_O_EXITKILL

// run runs the program until it ends.
func (l *loop) run() error {
	l.sockets = map[int]int{}
	pid := l.tracee.pid
	var status unix.WaitStatus
	if _, err := wait(pid, &status); err != nil {
		return err
	}
	if !status.Stopped() {
		return fmt.Errorf("the program ended before it began: status %#x", uint32(status))
	}
	if err := unix.PtraceSetOptions(pid, options); err != nil {
		return fmt.Errorf("PTRACE_SETOPTIONS: %w", err)
	}
	l.threads[pid] = &thread{id: pid}
	if err := unix.PtraceSyscall(pid, 0); err != nil {
		return fmt.Errorf("PTRACE_SYSCALL: %w", err)
	}
	for len(l.threads) > 0 {
		id, err := wait(-1, &status)
		if err != nil {
			return err
		}
		if err := l.stopped(id, status); err != nil {
			return err
		}
	}
	return nil
}

// wait waits for a child of this thread, or for a process that it traces.
func wait(pid int, status *unix.WaitStatus) (int, error) {
	for {
		id, err := unix.Wait4(pid, status, unix.WALL|unix.WNOTHREAD, nil)
		if err == nil {
			return id, nil
		}
		if !errors.Is(err, unix.EINTR) {
			return 0, fmt.Errorf("wait4: %w", err)
		}
	}
}

// stopped handles a thread's stop or end, and makes it continue.
func (l *loop) stopped(id int, status unix.WaitStatus) error {
	if !status.Stopped() {
		delete(l.threads, id)
		if id == l.tracee.pid {
			l.tracee.status = status
		}
		return nil
	}
	t, known := l.threads[id]
	if !known {
		t = &thread{id: id}
		l.threads[id] = t
	}
	signal := 0
	switch s := status.StopSignal(); {
	case s == unix.SIGTRAP|0x80:
		if err := l.syscall(t); err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
	case s == unix.SIGTRAP: // a clone
	case s == unix.SIGSTOP && !known: // a new thread begins with this
	default:
		signal = int(s)
	}
	if err := unix.PtraceSyscall(id, signal); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("PTRACE_SYSCALL: %w", err)
	}
	return nil // ESRCH: the thread has ended, and wait will report it
}
