//go:build !linux

package rsocket_test

import "syscall"

func control(_, _ string, _ syscall.RawConn) error { return nil }

func hasCongestion() bool { return false }
