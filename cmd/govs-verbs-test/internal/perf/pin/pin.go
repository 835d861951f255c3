// Package pin keeps processes on CPUs.
package pin

import (
	"errors"
	"os/exec"
)

// Self pins every thread of this process to one CPU, and so those to come.
func Self(cpu int) error { return errors.ErrUnsupported }

// Start starts cmd pinned to one CPU: with all its threads, from the start, so
// that its Go runtime counts one CPU.
func Start(cmd *exec.Cmd, cpu int) error { return errors.ErrUnsupported }

// CPUs are the CPUs that this process may run on, in ascending order.
func CPUs() ([]int, error) { return nil, errors.ErrUnsupported }
