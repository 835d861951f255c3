package main

import (
	"fmt"
	"os"
	"testing"
	"time"
)

// markProcesses gives the processes that this test starts a variable, and returns it with its
// value.
func markProcesses(t *testing.T) string {
	value := fmt.Sprintf("%d-%d", os.Getpid(), time.Now().UnixNano())
	t.Setenv("GOVS_TEST_MARK", value)
	return "GOVS_TEST_MARK=" + value
}
