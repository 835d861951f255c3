// Package worker starts processes that carry out orders, one at a time. An order is a line
// of JSON on the stdin of the process, its answer a line of JSON on its stdout.
package worker

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// reply is an answer in transit.
type reply[A any] struct {
	Error  string `json:",omitempty"`
	Answer A
}

// Stdin is os.Stdin, from which a goroutine reads without holding a thread and a P while it
// waits. A read of os.Stdin that waits keeps its P until the runtime notices, up to 10 ms
// later: with GOMAXPROCS=1 nothing else of the process runs until then.
func Stdin() (*os.File, error) {
	fd, err := unix.FcntlInt(os.Stdin.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("duplicating stdin: %w", err)
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("stdin: %w", err)
	}
	return os.NewFile(uintptr(fd), "stdin"), nil // os.NewFile notices that the descriptor does not block
}

// Serve makes do carry out the orders from in until in ends, and writes the answers to out.
// An error of do is part of the answer. Serve returns an error if it does not understand an
// order, or if reading or writing fails.
func Serve[O, A any](in io.Reader, out io.Writer, do func(O) (A, error)) error {
	answers := json.NewEncoder(out)
	lines := scan(in)
	for lines.Scan() {
		var o O
		if err := json.Unmarshal(lines.Bytes(), &o); err != nil {
			return fmt.Errorf("reading an order: %w", err)
		}
		var r reply[A]
		var err error
		if r.Answer, err = do(o); err != nil {
			r.Error = err.Error()
		}
		if err := answers.Encode(r); err != nil {
			return err
		}
	}
	return lines.Err()
}

// CPUs are the CPUs that this process may run on, in ascending order.
func CPUs() (list []int, err error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, fmt.Errorf("reading the CPU affinity: %w", err)
	}
	for cpu := range len(set) * strconv.IntSize {
		if set.IsSet(cpu) {
			list = append(list, cpu)
		}
	}
	return list, nil
}
