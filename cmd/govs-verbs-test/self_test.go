package main

import (
	"os"
	"os/exec"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
)

// self is the command as a process of its own, with the race detector if the test has it.
func self(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), asCommand+"=1", "REQUIRE_SIW=")
	return cmd
}

// plain is self without the race detector, for runs with an agent: what orders their two sides goes
// through another process.
func plain(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	if !raceEnabled {
		return self(t, args...)
	}
	cmd := exec.Command(testkit.Must(bridgedCommand())(t), args...)
	cmd.Env = append(os.Environ(), "REQUIRE_SIW=")
	return cmd
}
