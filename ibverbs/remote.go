package ibverbs

import (
	"encoding/binary"
	"fmt"
	"math"
	"syscall"

	"github.com/govs-rdma/govs/ibverbs/internal/object"
)

// RemoteRegion names memory of the peer, or our own memory for the peer, for an RDMA Write or Read.
// MR.Remote makes one, and the program sends it to the other side, in private data or a Send.
//
// The wire form is govs' own: RemoteRegionSize bytes, in network order Addr (8), Len (8) and RKey
// (4). Other programs have other forms: rping sends address, key and length in this order, with a
// length of four bytes.
type RemoteRegion struct {
	Addr uint64 // for SendWR.RemoteAddr
	Len  uint64 // bytes
	RKey uint32 // for SendWR.RKey
}

// RemoteRegionSize is the length of a RemoteRegion's wire form in bytes.
const RemoteRegionSize = 20

// Part returns n bytes of the region from offset off. Bytes outside the region are EINVAL.
func (r RemoteRegion) Part(off, n int) (RemoteRegion, error) {
	if off < 0 || n < 0 || uint64(off) > r.Len || uint64(n) > r.Len-uint64(off) {
		return RemoteRegion{}, object.Errorf("RemoteRegion.Part", r.String(), syscall.EINVAL,
			"%d bytes from offset %d are not within the region, which has %d", n, off, r.Len)
	}
	return RemoteRegion{Addr: r.Addr + uint64(off), Len: uint64(n), RKey: r.RKey}, nil
}

// String returns the region's length, address and key, with the key formatted as in errors: "4096
// bytes at 0x7f0000001000, rkey 0x41fd52e1".
func (r RemoteRegion) String() string {
	return fmt.Sprintf("%d bytes at %#x, rkey %#x", r.Len, r.Addr, r.RKey)
}

// AppendBinary appends the wire form to b (encoding.BinaryAppender). It never
// fails.
func (r RemoteRegion) AppendBinary(b []byte) ([]byte, error) {
	b = binary.BigEndian.AppendUint64(b, r.Addr)
	b = binary.BigEndian.AppendUint64(b, r.Len)
	return binary.BigEndian.AppendUint32(b, r.RKey), nil
}

// MarshalBinary returns the wire form (encoding.BinaryMarshaler). It never
// fails.
func (r RemoteRegion) MarshalBinary() ([]byte, error) {
	return r.AppendBinary(make([]byte, 0, RemoteRegionSize))
}

// UnmarshalBinary reads the wire form (encoding.BinaryUnmarshaler). After RemoteRegionSize bytes b
// may contain only zeros, because InfiniBand and RoCE pad private data. The region must not reach
// beyond the last address. UnmarshalBinary does not keep b.
func (r *RemoteRegion) UnmarshalBinary(b []byte) error {
	const op = "RemoteRegion.UnmarshalBinary"
	if r == nil {
		return errNil(op, "RemoteRegion")
	}
	if len(b) < RemoteRegionSize {
		return object.Errorf(op, "", syscall.EINVAL,
			"the %d bytes are too few for a RemoteRegion, which has %d; the peer sent another form, "+
				"or none", len(b), RemoteRegionSize)
	}
	for i, octet := range b[RemoteRegionSize:] {
		if octet != 0 {
			return object.Errorf(op, "", syscall.EINVAL,
				"byte %d of %d is %#02x, and after the first %d there may be only zeros; the peer sent "+
					"another form",
				RemoteRegionSize+i, len(b), octet, RemoteRegionSize)
		}
	}
	addr, n := binary.BigEndian.Uint64(b), binary.BigEndian.Uint64(b[8:])
	if n > math.MaxUint64-addr {
		return object.Errorf(op, "", syscall.EINVAL, "%d bytes from address %#x "+
			"reach beyond 2^64; the peer sent another form", n, addr)
	}
	*r = RemoteRegion{Addr: addr, Len: n, RKey: binary.BigEndian.Uint32(b[16:])}
	return nil
}
