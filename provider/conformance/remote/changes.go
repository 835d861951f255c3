package remote

import (
	"encoding/binary"
	"fmt"
)

// Changes of memory cross the control connection as a list of records. A record makes a block of
// memory, or has bytes of a block. Only the client makes blocks; both ends send bytes.
const (
	recordBlock  = 1 // block, length, offset in a page
	recordOctets = 2 // block, offset, length, and then the bytes
	recordRetire = 3 // block; no region covers it any more, and nothing may change there

	recordHeader = 1 + 4 + 8 + 4
)

// record is a decoded record.
type record struct {
	what  byte
	block uint32
	at    uint64 // recordBlock: the length of the block
	n     uint32 // recordBlock: the offset in a page
	data  []byte // recordOctets
}

func appendRecord(b []byte, r record) []byte {
	b = append(b, r.what)
	b = binary.BigEndian.AppendUint32(b, r.block)
	b = binary.BigEndian.AppendUint64(b, r.at)
	b = binary.BigEndian.AppendUint32(b, r.n)
	return append(b, r.data...)
}

// nextRecord takes the first record off a list.
func nextRecord(b []byte) (r record, rest []byte, err error) {
	if len(b) < recordHeader {
		return r, nil, fmt.Errorf("%w: a record of changes is cut short", errFrame)
	}
	r.what, r.block = b[0], binary.BigEndian.Uint32(b[1:])
	r.at, r.n = binary.BigEndian.Uint64(b[5:]), binary.BigEndian.Uint32(b[13:])
	rest = b[recordHeader:]
	switch r.what {
	case recordBlock:
		if r.n >= pageBytes {
			return r, nil, fmt.Errorf("%w: offset %d in a page", errFrame, r.n)
		}
	case recordRetire:
	case recordOctets:
		if uint64(r.n) > uint64(len(rest)) {
			return r, nil, fmt.Errorf("%w: %d bytes of %d", errFrame, r.n, len(rest))
		}
		r.data, rest = rest[:r.n:r.n], rest[r.n:]
	default:
		return r, nil, fmt.Errorf("%w: record %d", errFrame, r.what)
	}
	return r, rest, nil
}

// pageBytes is the page size for offsets that copies preserve, and the length of the guard on each
// side of a copy.
const pageBytes = 4096

// chunk is the number of bytes that are compared at a time.
const chunk = 4096

// position is a byte of a device's blocks. If the changes of a device do not fit into a message,
// the next message begins where the message before it ended. So all messages together compare each
// byte once, and end, however fast the memory changes.
type position struct {
	Block uint32 `json:"block,omitempty"` // number
	Off   uint64 `json:"off,omitempty"`   // in bytes
}

// in returns the offset of the first byte of a block that is not before p, at most n.
func (p position) in(block uint32, n int) int {
	switch {
	case block < p.Block:
		return n
	case block == p.Block:
		return int(min(p.Off, uint64(n)))
	}
	return 0
}

// appendDifferences appends records for the bytes of a block from offset at on in which now differs
// from agreed, and updates agreed. A record contains no byte that is the same in both, because the
// other end may have changed that byte. It stops when b has grown to limit, and returns the offset
// of the first byte that it has not compared.
func appendDifferences(b []byte, block uint32, now, agreed []byte, at, limit int) ([]byte, int) {
	var buf [chunk]byte
	for ; at < len(now); at += chunk {
		n := min(chunk, len(now)-at)
		old := agreed[at : at+n]
		if same(now[at:at+n], old) {
			continue
		}
		if len(b) >= limit {
			return b, at
		}
		// The memory may change during the comparison. The snapshot gives agreed and the record the
		// same bytes.
		snapshot(buf[:n], now[at:at+n])
		for i := 0; i < n; {
			if buf[i] == old[i] {
				i++
				continue
			}
			from := i
			for i < n && buf[i] != old[i] {
				i++
			}
			b = appendRecord(b, record{recordOctets, block, uint64(at + from), uint32(i - from),
				buf[from:i]})
			copy(old[from:i], buf[from:i])
		}
	}
	return b, len(now)
}

// same, snapshot and store access memory that the program or a device may be using at the same
// time. That is intended, because a later comparison finds what they miss. They call no copy or
// comparison functions of the library, because the race detector would check those accesses.
//
//go:norace
func same(a, b []byte) bool {
	i := 0
	for ; i+8 <= len(a); i += 8 {
		if binary.NativeEndian.Uint64(a[i:]) != binary.NativeEndian.Uint64(b[i:]) {
			return false
		}
	}
	for ; i < len(a); i++ {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

//go:norace
func snapshot(to, from []byte) {
	for i := range to {
		to[i] = from[i]
	}
}

//go:norace
func store(to, from []byte) { snapshot(to[:len(from)], from) }
