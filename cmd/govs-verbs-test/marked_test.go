package main

import (
	"fmt"
	"os"
	"testing"
	"time"
)

// markProcesses sets an environment variable for the processes that this test starts, and returns
// it as NAME=VALUE.
func markProcesses(t *testing.T) string {
	value := fmt.Sprintf("%d-%d", os.Getpid(), time.Now().UnixNano())
	t.Setenv("GOVS_TEST_MARK", value)
	return "GOVS_TEST_MARK=" + value
}
