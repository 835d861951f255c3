package proto

import (
	"encoding/binary"
	"fmt"
)

// MessageLen is the length of a message in bytes.
const MessageLen = 4

// MaxTransfer is how many bytes one Write has at most.
const MaxTransfer = 65536

// FirstTransfer is how many bytes the first Write of a call has at most; each that follows has
// twice as many as the one before.
const FirstTransfer = 2048

// LowWater is how many bytes of the send buffer have to be free before anything is sent.
const LowWater = 2048

// ControlSlots is how many places of the send queue are for credits and keepalive.
const ControlSlots = 4

// Message is what a Send of four bytes has: a kind in the upper three bits, and a number.
type Message uint32

// Kinds of messages. C's receivers take the reserved kinds 1 and 3 for data and drop 2; C never
// sends one of them.
const (
	KindData    = 0 // so many bytes were written
	KindCredits = 4 // a new limit of messages, and perhaps an entry of the SGL
	KindIOMap   = 6 // an entry of the iomap was written
	KindControl = 7
)

// Values of control messages.
const (
	ControlDisconnect = 0 // neither reads nor writes any more
	ControlKeepalive  = 1 // is the name of a Write of no bytes, and never sent
	ControlShutdown   = 2 // writes no more
)

const (
	kindShift = 29
	valueMask = 1<<kindShift - 1
)

// Disconnect and Shutdown are the control messages that are sent.
const (
	Disconnect Message = KindControl<<kindShift | ControlDisconnect
	Shutdown   Message = KindControl<<kindShift | ControlShutdown
)

func message(kind, value uint32) Message { return Message(kind<<kindShift | value&valueMask) }

// Kind returns the upper three bits.
func (m Message) Kind() uint32 { return uint32(m >> kindShift) }

// Value returns the lower 29 bits.
func (m Message) Value() uint32 { return uint32(m & valueMask) }

// String says what the message is.
func (m Message) String() string {
	switch m.Kind() {
	case KindData:
		return fmt.Sprintf("data of %d bytes", m.Value())
	case KindCredits:
		return fmt.Sprintf("credits up to %d", uint16(m.Value()))
	case KindIOMap:
		return fmt.Sprintf("iomap entry %d", m.Value())
	case KindControl:
		switch m.Value() {
		case ControlDisconnect:
			return "disconnect"
		case ControlShutdown:
			return "shutdown"
		}
	}
	return fmt.Sprintf("message of kind %d with %d", m.Kind(), m.Value())
}

// order returns the byte order of an end. Messages are in that of their sender, entries of an SGL
// in that of their reader.
func order(big bool) binary.ByteOrder {
	if big {
		return binary.BigEndian
	}
	return binary.LittleEndian
}

// uint32In and putUint32In are order for the hot path: no call of an interface's method.
func uint32In(big bool, b []byte) uint32 {
	if big {
		return binary.BigEndian.Uint32(b)
	}
	return binary.LittleEndian.Uint32(b)
}

func putUint32In(big bool, b []byte, v uint32) {
	if big {
		binary.BigEndian.PutUint32(b, v)
	} else {
		binary.LittleEndian.PutUint32(b, v)
	}
}

// putEntry writes r as an entry of an SGL whose owner has that byte order.
func putEntry(big bool, b []byte, r Region) {
	o := order(big)
	o.PutUint64(b, r.Addr)
	o.PutUint32(b[8:], r.Key)
	o.PutUint32(b[12:], r.Len)
}

// entry reads one.
func entry(big bool, b []byte) Region {
	o := order(big)
	return Region{Addr: o.Uint64(b), Key: o.Uint32(b[8:]), Len: o.Uint32(b[12:])}
}
