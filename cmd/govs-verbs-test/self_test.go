package main

import (
	"os"
	"os/exec"
	"testing"
)

// self is the command as a process of its own, with the race detector if the test has it.
func self(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), asCommand+"=1", "REQUIRE_SIW=")
	return cmd
}
