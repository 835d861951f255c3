// Package proto is the state of one end of an rsocket stream, version 1, as librdmacm's rsocket.c
// speaks it over iWARP. It does no I/O, reads no clock, starts no goroutine and has no lock: the
// caller gives it what arrived, and posts what it returns.
//
// A stream has two directions with a ring of memory each, at the end that receives. The peer of a
// ring places bytes in it by RDMA Write, and a Send of four bytes after each Write says how many
// they are. The owner of the ring grants it in halves: it writes the address of a half into an
// array in the memory of the peer (the target SGL), and sends a credit message after it. The first
// half is granted in the private data of the connection.
//
// Every number of the peer is checked before it is used. What a peer may not do is an [*Error],
// after which the state is of no use.
package proto

import (
	"fmt"
	"syscall"
)

// Error says what the peer did that rsocket's protocol does not permit.
type Error struct{ Text string }

// Error implements error.
func (e *Error) Error() string { return "rsocket protocol: the peer " + e.Text }

// Unwrap returns EPROTO.
func (e *Error) Unwrap() error { return syscall.EPROTO }

func broken(format string, args ...any) error { return &Error{fmt.Sprintf(format, args...)} }
