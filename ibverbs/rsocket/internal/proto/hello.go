package proto

import (
	"encoding/binary"
	"math"
)

// HelloLen is the length of the private data in request and reply, in bytes.
const HelloLen = 40

// Version is the only version of the protocol.
const Version = 1

// SGLEntries is how many entries the target SGL of this end has, as in C.
const SGLEntries = 2

// EntryLen is the length of an entry of the target SGL in bytes.
const EntryLen = 16

const (
	flagBigEndian = 1 << iota // the sender's byte order, for messages and entries of the SGL
	flagIOMap                 // the field with the number of iomap entries is valid
)

// Region is memory of one end that the other end may write (struct rs_sge).
type Region struct {
	Addr uint64
	Key  uint32
	Len  uint32 // bytes, or entries of an SGL
}

// Hello is the private data of a connection (struct rs_conn_data).
type Hello struct {
	BigEndian bool   // the sender's byte order
	Credits   uint16 // receives that the sender has posted
	IOMap     byte   // entries of the iomap, scaled; this package uses none
	SGL       Region // where the sender's peer writes grants; Len is the number of entries
	Data      Region // the first half of the ring
}

// Append appends the wire form to b.
func (h *Hello) Append(b []byte) []byte {
	flags := byte(flagIOMap)
	if h.BigEndian {
		flags |= flagBigEndian
	}
	b = append(b, Version, flags)
	b = binary.BigEndian.AppendUint16(b, h.Credits)
	b = append(b, 0, 0, 0, h.IOMap)
	for _, r := range []*Region{&h.SGL, &h.Data} {
		b = binary.BigEndian.AppendUint64(b, r.Addr)
		b = binary.BigEndian.AppendUint32(b, r.Key)
		b = binary.BigEndian.AppendUint32(b, r.Len)
	}
	return b
}

// ParseHello reads and checks the peer's private data.
func ParseHello(b []byte) (Hello, error) {
	if len(b) == 0 {
		return Hello{}, broken("sent no private data; it may not be an rsocket program")
	}
	if b[0] != Version {
		return Hello{}, broken("speaks version %d; this end has only version %d", b[0], Version)
	}
	if len(b) != HelloLen {
		return Hello{}, broken("sent private data of %d bytes; rsocket's has %d", len(b), HelloLen)
	}
	region := func(at int) Region {
		return Region{
			Addr: binary.BigEndian.Uint64(b[at:]),
			Key:  binary.BigEndian.Uint32(b[at+8:]),
			Len:  binary.BigEndian.Uint32(b[at+12:]),
		}
	}
	h := Hello{
		BigEndian: b[1]&flagBigEndian != 0,
		Credits:   binary.BigEndian.Uint16(b[2:]),
		SGL:       region(8),
		Data:      region(24),
	}
	if b[1]&flagIOMap != 0 {
		h.IOMap = b[7]
	}
	return h, h.check()
}

// check returns an error if a stream cannot have these numbers.
func (h *Hello) check() error {
	switch {
	case h.Credits == 0:
		return broken("has posted no receives (credits are 0)")
	case h.SGL.Addr == 0:
		return broken("has its SGL at address 0")
	case h.SGL.Len < SGLEntries:
		// The first grant goes to entry 1, however many there are.
		return broken("has an SGL of %d entries; a ring of two halves takes %d", h.SGL.Len, SGLEntries)
	case uint64(h.SGL.Len)*EntryLen > math.MaxUint64-h.SGL.Addr:
		return broken("has an SGL of %d entries at %#x, which ends beyond the last address",
			h.SGL.Len, h.SGL.Addr)
	case h.Data.Addr == 0:
		return broken("has its ring at address 0")
	case h.Data.Len == 0:
		return broken("has a ring of no bytes")
	case h.Data.Len > maxHalf:
		return broken("has a ring of twice %d bytes; twice %d is the most", h.Data.Len, uint32(maxHalf))
	case 2*uint64(h.Data.Len) > math.MaxUint64-h.Data.Addr:
		return broken("has a ring of twice %d bytes at %#x, which ends beyond the last address",
			h.Data.Len, h.Data.Addr)
	}
	return nil
}

// maxHalf is the longest half of a ring, because the whole ring's length has 32 bits, as in C.
const maxHalf = math.MaxInt32
