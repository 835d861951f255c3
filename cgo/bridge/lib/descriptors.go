//go:build linux && cgo

package main

/*
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>

static inline int govs_same_library(uintptr_t a, uintptr_t b)
{
	Dl_info x, y;
	return dladdr((void *)a, &x) && dladdr((void *)b, &y) && x.dli_fbase == y.dli_fbase;
}
*/
import "C"

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"unsafe"
)

// ownRuntime marks the descriptors of Go's netpoller, which the engine has started, as the
// library's own. The runtime stops the process if a program closes them, and some programs close
// all descriptors. If the program's main thread has ended, /proc/self shows nothing.
func (p *process) ownRuntime() error {
	entries, err := os.ReadDir("/proc/thread-self/fd")
	if err != nil {
		return err
	}
	for _, e := range entries {
		fd, err := strconv.Atoi(e.Name())
		if err != nil {
			return err
		}
		if link, _ := os.Readlink("/proc/thread-self/fd/" + e.Name()); link != "anon_inode:[eventpoll]" {
			continue
		}
		wake, err := netpoller(fd)
		if err != nil {
			return err
		}
		if wake >= 0 {
			p.Own(fd, true)
			p.Own(wake, true)
			return nil
		}
	}
	return errors.New("the descriptors of Go's netpoller are not in /proc/thread-self/fdinfo")
}

// netpoller returns the descriptor that wakes Go's netpoller if fd is the netpoller's, otherwise
// -1. The netpoller stores the address of a runtime variable with that descriptor.
func netpoller(fd int) (wake int, err error) {
	f, err := os.Open(fmt.Sprintf("/proc/thread-self/fdinfo/%d", fd))
	if errors.Is(err, fs.ErrNotExist) {
		return -1, nil // a thread of the program has closed it
	}
	if err != nil {
		return -1, err
	}
	defer func() { _ = f.Close() }()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		// tfd:        5 events:       19 data:     7f0102030405  pos:0 ino:9 sdev:e
		words := strings.Fields(lines.Text())
		if len(words) < 6 || words[0] != "tfd:" || words[4] != "data:" {
			continue
		}
		target, err := strconv.Atoi(words[1])
		data, err2 := strconv.ParseUint(words[5], 16, 64)
		if err := errors.Join(err, err2); err != nil {
			return -1, err
		}
		own := C.uintptr_t(uintptr(unsafe.Pointer(&self)))
		if C.govs_same_library(C.uintptr_t(data), own) != 0 {
			return target, nil
		}
	}
	return -1, nil
}
