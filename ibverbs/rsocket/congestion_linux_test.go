package rsocket_test

import (
	"errors"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// control sets the congestion control of a socket of package net.
func control(_, _ string, c syscall.RawConn) (err error) {
	if !hasCongestion() {
		return nil
	}
	failed := c.Control(func(fd uintptr) {
		err = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, congestion)
	})
	return errors.Join(failed, err)
}

func hasCongestion() bool {
	b, _ := os.ReadFile("/proc/sys/net/ipv4/tcp_available_congestion_control")
	return strings.Contains(string(b), congestion)
}
