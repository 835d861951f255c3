//go:build linux && cgo

package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"

	"github.com/govs-rdma/govs/provider/bridge"
	"github.com/govs-rdma/govs/provider/bridge/abi"
	"golang.org/x/sys/unix"
)

// tracer returns a function that writes a line for each command, as strace would.
func tracer(to io.Writer) func(bridge.Call) {
	var mu sync.Mutex
	return func(c bridge.Call) {
		var b strings.Builder
		fmt.Fprintf(&b, "[%d] %s(", os.Getpid(), c.Name)
		list(&b, c.Request)
		b.WriteString(") = ")
		if c.Err != nil {
			fmt.Fprintf(&b, "-1 %s (%v)", unix.ErrnoName(asErrno(c.Err)), c.Err)
		} else {
			b.WriteString("0")
		}
		if len(c.Response) > 0 {
			b.WriteString(" ")
			list(&b, c.Response)
		}
		b.WriteByte('\n')
		mu.Lock()
		defer mu.Unlock()
		_, _ = io.WriteString(to, b.String())
	}
}

func list(b *strings.Builder, messages []any) {
	for i, m := range messages {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(abi.Format(m))
	}
}

func asErrno(err error) unix.Errno {
	if e, ok := err.(unix.Errno); ok {
		return e
	}
	return unix.EINVAL
}
