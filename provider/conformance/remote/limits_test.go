package remote

import (
	"errors"
	"strings"
	"syscall"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
)

// TestCallIsTooLong: a call whose arguments do not fit into a message fails, and the session does
// not end.
func TestCallIsTooLong(t *testing.T) {
	c := session(t, engines(0))
	_, err := c.Provider("engine", []string{strings.Repeat("x", maxHead)}).Devices()
	if !errors.Is(err, syscall.EMSGSIZE) {
		t.Errorf("%v, want EMSGSIZE", err)
	}
	testkit.Must(c.Provider("engine", nil).Devices())(t)
}

// TestCallsAreBounded: a call fails while as many calls wait as the agent permits, and the session
// does not end.
func TestCallsAreBounded(t *testing.T) {
	c := session(t, engines(0))
	c.mu.Lock()
	for i := range uint64(maxUnderWay) {
		c.waiting[1<<32+i] = nil // calls that the agent does not answer
	}
	c.mu.Unlock()
	if _, err := c.Provider("engine", nil).Devices(); !errors.Is(err, syscall.EAGAIN) {
		t.Errorf("%v, want EAGAIN", err)
	}
	c.mu.Lock()
	clear(c.waiting)
	c.mu.Unlock()
	testkit.Must(c.Provider("engine", nil).Devices())(t)
}
