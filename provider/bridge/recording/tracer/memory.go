//go:build linux && amd64

package tracer

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"
)

// most is the maximum number of bytes read for a call: more than any command has.
const most = 1 << 22

// memory returns n bytes of the program's memory.
func (l *loop) memory(addr, n uint64) ([]byte, error) {
	if n == 0 {
		return nil, nil
	}
	b := make([]byte, min(n, most))
	local := []unix.Iovec{{Base: &b[0], Len: uint64(len(b))}}
	remote := []unix.RemoteIovec{{Base: uintptr(addr), Len: len(b)}}
	got, err := unix.ProcessVMReadv(l.tracee.pid, local, remote, 0)
	if err == nil && got != len(b) {
		err = unix.EFAULT
	}
	if err != nil {
		return nil, fmt.Errorf("reading %d bytes at %#x: %w", n, addr, err)
	}
	return b, nil
}

// store writes bytes to the program's memory.
func (l *loop) store(addr uint64, b []byte) error {
	if len(b) == 0 {
		return nil
	}
	local := []unix.Iovec{{Base: &b[0], Len: uint64(len(b))}}
	remote := []unix.RemoteIovec{{Base: uintptr(addr), Len: len(b)}}
	got, err := unix.ProcessVMWritev(l.tracee.pid, local, remote, 0)
	if err == nil && got != len(b) {
		err = unix.EFAULT
	}
	if err != nil {
		return fmt.Errorf("writing %d bytes at %#x: %w", len(b), addr, err)
	}
	return nil
}

// text returns the string at an address, cut off where it is too long for a device's path.
func (l *loop) text(addr uint64) string {
	const page, longest = 4096, 64
	b, err := l.memory(addr, min(longest, page-addr%page)) // the next page may not be mapped
	if err != nil {
		return ""
	}
	if !bytes.Contains(b, []byte{0}) && len(b) < longest {
		rest, err := l.memory(addr+uint64(len(b)), longest)
		if err != nil {
			return ""
		}
		b = append(b, rest...)
	}
	text, _, _ := bytes.Cut(b, []byte{0})
	return string(text)
}

// message returns the bytes of a message of sendmsg or recvmsg, at most n.
func (l *loop) message(addr, n uint64) ([]byte, error) {
	// struct msghdr has the address of the vector at 16 and its length at 24.
	const header, vectorAt, element = 56, 16, 16
	b, err := l.memory(addr, header)
	if err != nil {
		return nil, err
	}
	at, length := word(b[vectorAt:]), word(b[vectorAt+8:])
	vector, err := l.memory(at, min(length, 1024)*element)
	if err != nil {
		return nil, err
	}
	var octets []byte
	for ; len(vector) > 0 && n > 0; vector = vector[element:] {
		part, err := l.memory(word(vector), min(word(vector[8:]), n))
		if err != nil {
			return nil, err
		}
		octets = append(octets, part...)
		n -= uint64(len(part))
	}
	return octets, nil
}

// word returns a 64-bit number of the program's memory.
func word(b []byte) uint64 { return binary.NativeEndian.Uint64(b) }
