package main

import (
	"os"
	"os/exec"
	"testing"
)

// self returns the command as a new process, with the race detector if the test has it.
func self(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), asCommand+"=1", "REQUIRE_SIW=")
	return cmd
}
