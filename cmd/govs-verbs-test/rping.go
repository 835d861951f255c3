package main

import (
	"encoding/binary"
	"fmt"

	"github.com/govs-rdma/govs/ibverbs"
)

// pingInfo is the only message of rping's protocol; it gives the sender's memory. Its wire form is
// rping's, not ibverbs.RemoteRegion's.
type pingInfo struct {
	Addr uint64
	Key  uint32
	Size uint32
}

// pingInfoLen is the length of a pingInfo in bytes.
const pingInfoLen = 16

func infoOf(mr *ibverbs.MR) pingInfo {
	return pingInfo{Addr: mr.Addr(), Key: mr.RKey(), Size: uint32(mr.Len())}
}

func (p pingInfo) put(b []byte) {
	binary.BigEndian.PutUint64(b, p.Addr)
	binary.BigEndian.PutUint32(b[8:], p.Key)
	binary.BigEndian.PutUint32(b[12:], p.Size)
}

func parsePingInfo(b []byte) pingInfo {
	return pingInfo{binary.BigEndian.Uint64(b), binary.BigEndian.Uint32(b[8:]), binary.BigEndian.Uint32(b[12:])}
}

// fillPing writes the text of ping n, as rping does: a head, then letters that begin one further
// each time, and a NUL at the end. The server prints the text. The C server writes back the text up
// to and including the NUL. b has at least minPing bytes.
func fillPing(b []byte, n int) {
	head := fmt.Appendf(nil, "rdma-ping-%d: ", n)
	copy(b, head)
	const first, last = 'A', 'z'
	letter := first + n%(last-first+1)
	for i := min(len(head), len(b)); i < len(b); i++ {
		b[i] = byte(letter)
		if letter++; letter > last {
			letter = first
		}
	}
	b[len(b)-1] = 0
}
