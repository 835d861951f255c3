package proto

import (
	"encoding/binary"
	"fmt"
)

// MessageLen is the length of a message in bytes.
const MessageLen = 4

// MaxTransfer is the maximum length of a Write in bytes.
const MaxTransfer = 65536

// FirstTransfer is the maximum length of a call's first Write in bytes; each later one may be twice
// as long as the one before.
const FirstTransfer = 2048

// LowWater is how many bytes of the send buffer have to be free before anything is sent.
const LowWater = 2048

// ControlSlots is the number of places of the send queue for credits and keepalive.
const ControlSlots = 4

// Message is the content of a Send of four bytes: a kind in the upper three bits, and a number.
type Message uint32

// Kinds of messages. C's receivers treat the reserved kinds 1 and 3 as data and ignore 2; C never
// sends any of them.
const (
	KindData    = 0 // the number of bytes that were written
	KindCredits = 4 // a new limit of messages, and perhaps an entry of the SGL
	KindIOMap   = 6 // an entry of the iomap was written
	KindControl = 7
)

// Values of control messages.
const (
	ControlDisconnect = 0 // neither reads nor writes any more
	ControlKeepalive  = 1 // stands for an empty Write; never sent
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

// String describes the message.
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

// order returns the byte order of an end. Messages have their sender's byte order, entries of an
// SGL their reader's.
func order(big bool) binary.ByteOrder {
	if big {
		return binary.BigEndian
	}
	return binary.LittleEndian
}

// uint32In and putUint32In convert without the interface of order, for the hot path.
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

// putEntry writes r as an entry of an SGL. big is the byte order of the SGL's owner.
func putEntry(big bool, b []byte, r Region) {
	o := order(big)
	o.PutUint64(b, r.Addr)
	o.PutUint32(b[8:], r.Key)
	o.PutUint32(b[12:], r.Len)
}

// entry reads an entry of an SGL.
func entry(big bool, b []byte) Region {
	o := order(big)
	return Region{Addr: o.Uint64(b), Key: o.Uint32(b[8:]), Len: o.Uint32(b[12:])}
}
