//go:build schedules && !amd64 && !arm64

package sched

import (
	"bytes"
	"runtime"
	"strconv"
)

// goroutine returns the number of the calling goroutine.
func goroutine() uintptr {
	var b [64]byte
	s := b[:runtime.Stack(b[:], false)]
	s = bytes.TrimPrefix(s, []byte("goroutine "))
	id, err := strconv.ParseUint(string(s[:bytes.IndexByte(s, ' ')]), 10, 64)
	if err != nil {
		panic("sched: the stack does not begin with the goroutine's number: " + string(s))
	}
	return uintptr(id)
}
