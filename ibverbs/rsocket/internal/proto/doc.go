// Package proto is the state of one end of an rsocket stream, version 1, as librdmacm's rsocket.c
// implements it over iWARP. It does no I/O, reads no clock, starts no goroutine and has no lock.
// The caller passes in what arrived, and posts what the package returns.
//
// A stream has two directions, each with a ring of memory at the receiving end. The sending end
// places bytes in the ring by RDMA Write, and a Send of four bytes after each Write says how many
// they are. The owner of the ring grants it in halves: it writes the address of a half into an
// array in the sender's memory (the target SGL), and sends a credit message after it. The private
// data of the connection grants the first half.
//
// Every number from the peer is checked before it is used. If the peer breaks the protocol, the
// error is an [*Error], after which the state must not be used.
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
