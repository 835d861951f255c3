package main

import (
	"encoding/binary"
	"errors"

	"github.com/govs-rdma/govs/ibverbs"
)

// hello is what the server's private data says: where the table is, and how the client may
// use it.
type hello struct {
	region  ibverbs.RemoteRegion
	owner   uint16 // the number that marks what the client writes
	atomics bool   // the client may write by compare-and-swap
}

// helloMagic begins the private data, in the byte order of the server's processor. A client of
// another order refuses it, because the words of the table have that order, too.
const (
	helloMagic = 0x676f6b76
	helloSize  = 4 + ibverbs.RemoteRegionSize + 2 + 1
)

func (h hello) marshal() ([]byte, error) {
	b := binary.NativeEndian.AppendUint32(nil, helloMagic)
	b, err := h.region.AppendBinary(b)
	b = binary.BigEndian.AppendUint16(b, h.owner)
	return append(b, flag1(h.atomics)), err
}

func (h *hello) unmarshal(b []byte) error {
	if len(b) < helloSize || binary.NativeEndian.Uint32(b) != helloMagic { // RoCE adds zeros
		return errors.New("it is not a server of kv, or on a processor of another byte order")
	}
	b = b[4:]
	h.owner = binary.BigEndian.Uint16(b[ibverbs.RemoteRegionSize:])
	h.atomics = b[ibverbs.RemoteRegionSize+2] == 1
	return h.region.UnmarshalBinary(b[:ibverbs.RemoteRegionSize])
}

func flag1(set bool) byte {
	if set {
		return 1
	}
	return 0
}

// request asks the server to put a value for a client without atomic operations. The answer is a
// text, empty for a success.
type request struct{ key, value string }

const maxRequest = 256

func (r request) marshal() []byte {
	return append(append([]byte{byte(len(r.key))}, r.key...), r.value...)
}

func (r *request) unmarshal(b []byte) error {
	if len(b) == 0 || len(b) < 1+int(b[0]) {
		return errors.New("a request that is cut short")
	}
	r.key, r.value = string(b[1:1+b[0]]), string(b[1+int(b[0]):])
	return nil
}
