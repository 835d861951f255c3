//go:build linux && amd64

package tracer

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"
	"syscall"
	"unsafe"

	"github.com/govs-rdma/govs/provider/bridge/abi"
	"github.com/govs-rdma/govs/provider/bridge/recording"
	"golang.org/x/sys/unix"
)

// call is a system call that has been entered.
type call struct {
	number uint64
	args   [6]uint64
	file   string // the kind of its descriptor's file
	refuse bool   // it fails with ENOTTY instead of being executed

	request []byte
	addr    uint64 // of the answer
	before  []byte // the previous bytes there
}

// syscallInfo is struct ptrace_syscall_info of the kernel.
type syscallInfo struct {
	op     uint8
	_      [3]uint8
	arch   uint32
	ip, sp uint64
	// For an entry, the call's number and arguments; for an exit, the result and a byte that says
	// whether it is an errno.
	values [8]uint64
}

const (
	ptraceGetSyscallInfo = 0x420e // PTRACE_GET_SYSCALL_INFO
	infoEntry            = 1      // PTRACE_SYSCALL_INFO_ENTRY
	infoExit             = 2

	rdmaVerbsIoctl = 0xc0181b01 // RDMA_VERBS_IOCTL
)

// syscall handles the entry to a system call, or the exit from it.
func (l *loop) syscall(t *thread) error {
	var info syscallInfo
	_, _, errno := unix.Syscall6(unix.SYS_PTRACE, ptraceGetSyscallInfo, uintptr(t.id),
		unsafe.Sizeof(info), uintptr(unsafe.Pointer(&info)), 0, 0)
	if errno != 0 {
		return fmt.Errorf("PTRACE_GET_SYSCALL_INFO: %w", errno)
	}
	switch info.op {
	case infoEntry:
		c := &call{number: info.values[0], args: [6]uint64(info.values[1:7])}
		counts, err := l.enter(t, c)
		if counts {
			t.call = c
		}
		return err
	case infoExit:
		c := t.call
		t.call = nil
		if c == nil {
			return nil
		}
		return l.exit(t, c, int64(info.values[0]))
	}
	return nil
}

// fd returns the first argument, which is a descriptor in most calls.
func (c *call) fd() int { return int(int32(c.args[0])) }

// enter reports whether a call is recorded, and prepares for its exit.
func (l *loop) enter(t *thread, c *call) (counts bool, err error) {
	c.file = l.files[c.fd()]
	switch c.number {
	case unix.SYS_OPENAT, unix.SYS_SOCKET:
		return true, nil
	case unix.SYS_CLOSE:
		return c.file != "", nil
	case unix.SYS_IOCTL:
		if c.file != recording.Uverbs {
			return false, nil
		}
		if c.refuse = uint32(c.args[1]) == rdmaVerbsIoctl; c.refuse {
			err = setRegisters(t.id, func(r *unix.PtraceRegs) { r.Orig_rax = ^uint64(0) })
		}
		return true, err
	case unix.SYS_WRITE:
		switch c.file {
		case recording.Uverbs, recording.CM:
			return true, l.command(c)
		case recording.Netlink:
			c.request, _ = l.memory(c.args[1], c.args[2])
			return true, nil
		}
	case unix.SYS_SENDTO:
		c.request, _ = l.memory(c.args[1], c.args[2])
		return c.file == recording.Netlink, nil
	case unix.SYS_SENDMSG:
		if c.file == recording.Netlink {
			c.request, err = l.message(c.args[1], 1<<20)
			return true, err
		}
	case unix.SYS_RECVFROM, unix.SYS_RECVMSG:
		flags := c.args[2]
		if c.number == unix.SYS_RECVFROM {
			flags = c.args[3]
		}
		return c.file == recording.Netlink && flags&unix.MSG_PEEK == 0, nil
	}
	return false, nil
}

// command reads a command, and fills the place of its answer with marks.
func (l *loop) command(c *call) error {
	var err error
	if c.request, err = l.memory(c.args[1], c.args[2]); err != nil {
		return nil // the kernel will find the same fault
	}
	addr, n := recording.Place(c.file, c.request)
	before, err := l.memory(addr, uint64(n))
	if n == 0 || err != nil {
		return nil
	}
	c.addr, c.before = addr, before
	return l.store(addr, recording.Marked(n))
}

// exit adds an entry for a call that has returned.
func (l *loop) exit(t *thread, c *call, result int64) error {
	if c.refuse {
		result = -int64(unix.ENOTTY)
		if err := setRegisters(t.id, func(r *unix.PtraceRegs) {
			r.Rax = uint64(result)
		}); err != nil {
			return err
		}
	}
	e := recording.Entry{Thread: t.id, File: c.file, Request: c.request}
	if result < 0 {
		e.Errno = syscall.Errno(-result)
	}
	switch c.number {
	case unix.SYS_OPENAT:
		if e.File = deviceFile(l.text(c.args[1])); e.File == "" {
			return nil
		}
		e.Op = recording.Open
		if result >= 0 {
			l.files[int(result)] = e.File
		}
	case unix.SYS_SOCKET:
		if c.args[0] == unix.AF_NETLINK && c.args[2] == unix.NETLINK_RDMA && result >= 0 {
			l.files[int(result)] = recording.Netlink
		}
		return nil
	case unix.SYS_CLOSE:
		delete(l.files, c.fd())
		delete(l.sockets, c.fd())
		if c.file == recording.Netlink {
			return nil
		}
		e.Op = recording.Close
	case unix.SYS_IOCTL:
		e.Op = recording.Ioctl
	case unix.SYS_RECVFROM, unix.SYS_RECVMSG:
		return l.received(c, result)
	default:
		e.Op = recording.Write
		var err error
		if e.Answer, err = l.answer(c, e.Errno); err != nil {
			return err
		}
		l.channels(&e)
		if c.file == recording.Netlink {
			l.sockets[c.fd()] = len(l.tracee.rec.Entries)
		}
	}
	l.tracee.rec.Entries = append(l.tracee.rec.Entries, e)
	return nil
}

// answer returns what the device has written, and restores the bytes that it has not written.
func (l *loop) answer(c *call, errno syscall.Errno) ([]byte, error) {
	if c.before == nil {
		return nil, nil
	}
	now, err := l.memory(c.addr, uint64(len(c.before)))
	if err != nil {
		return nil, err
	}
	written := recording.Written(now)
	if errno != 0 {
		written = nil
	}
	n := len(written)
	return bytes.Clone(written), l.store(c.addr+uint64(n), c.before[n:])
}

// channels records the descriptors that a command has made.
func (l *loop) channels(e *recording.Entry) {
	if e.File != recording.Uverbs || len(e.Answer) < 4 {
		return
	}
	switch binary.NativeEndian.Uint32(e.Request) {
	case abi.UverbsGetContext, abi.UverbsCreateCompChannel: // the answers begin with a descriptor
		l.files[int(binary.NativeEndian.Uint32(e.Answer))] = recording.Events
	}
}

// received adds messages to the answer of the socket's last request.
func (l *loop) received(c *call, n int64) error {
	at, ok := l.sockets[c.fd()]
	if !ok || n <= 0 {
		return nil
	}
	var octets []byte
	var err error
	if c.number == unix.SYS_RECVFROM {
		octets, err = l.memory(c.args[1], uint64(n))
	} else {
		octets, err = l.message(c.args[1], uint64(n))
	}
	e := &l.tracee.rec.Entries[at]
	e.Answer = append(e.Answer, octets...)
	return err
}

// deviceFile returns the kind of device of a path, or "" if it is not a device.
func deviceFile(path string) string {
	name, ok := strings.CutPrefix(path, "/dev/infiniband/")
	switch {
	case ok && strings.HasPrefix(name, "uverbs"):
		return recording.Uverbs
	case ok && name == "rdma_cm":
		return recording.CM
	}
	return ""
}

func setRegisters(id int, set func(*unix.PtraceRegs)) error {
	var r unix.PtraceRegs
	if err := unix.PtraceGetRegs(id, &r); err != nil {
		return fmt.Errorf("PTRACE_GETREGS: %w", err)
	}
	set(&r)
	if err := unix.PtraceSetRegs(id, &r); err != nil {
		return fmt.Errorf("PTRACE_SETREGS: %w", err)
	}
	return nil
}
