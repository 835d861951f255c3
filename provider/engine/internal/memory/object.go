package memory

import (
	"fmt"
	"io"
	"math"
	"syscall"

	"github.com/govs-rdma/govs/provider"
)

// A region need not be memory: it may be anything whose bytes can be read and written by their
// offset, for example a file (provider.PD.RegObject). The object may take long. So a separate
// goroutine waits for it, never one that holds a lock of a stream or serves other streams. Until
// the object returns, one side of that stream stops: the receive side reads no further, so that TCP
// holds the peer back, or the transmit side sends no further. Everything else goes on.
//
// The region of an object has no bytes in memory (Region.buf is empty), so Slice finds nothing in
// it. The paths for memory, above all the short ones, fail at Slice. They leave the segment or work
// request to the general path, which finds the object.

// objectRights are the rights that the region of an object can have. An invalidation by the peer
// would have to wait for the object, and an object has no atomic operations.
const objectRights = provider.AccessLocalWrite | provider.AccessRemoteWrite |
	provider.AccessRemoteRead | provider.AccessZeroBased

// RegObject implements provider.PD.
func (p *Domain) RegObject(o io.ReaderAt, size uint64, access provider.Access) (provider.MR, error) {
	const op = "ibv_reg_mr"
	name := fmt.Sprintf("object of %d bytes", size)
	writable := access&provider.AccessLocalWrite != 0
	switch {
	case o == nil:
		return nil, fail(op, name, fmt.Errorf("the object is nil; pass one: %w", syscall.EINVAL))
	case size == 0 || size > math.MaxInt64:
		return nil, fail(op, name, fmt.Errorf("the size must be from 1 to 2^63-1 bytes: %w",
			syscall.EINVAL))
	case !writable && access&provider.AccessRemoteWrite != 0:
		return nil, fail(op, name, fmt.Errorf("AccessRemoteWrite needs AccessLocalWrite, too: %w",
			syscall.EINVAL))
	case access&^objectRights != 0:
		return nil, fail(op, name, fmt.Errorf("the rights are %s, and an object's region can "+
			"only have %s: %w", access, objectRights, syscall.EINVAL))
	}
	m := &Region{pd: p, src: o, length: size, access: access}
	if m.dst, _ = o.(io.WriterAt); writable && m.dst == nil {
		return nil, fail(op, name, fmt.Errorf("the rights ask for writing, and the object has "+
			"no WriteAt; leave AccessLocalWrite out: %w", syscall.EACCES))
	}
	if access&provider.AccessZeroBased == 0 {
		m.base = randomBase()
	}
	if m.base > math.MaxUint64-size {
		return nil, fail(op, name, fmt.Errorf("from its address, %#x, it reaches beyond 2^64; "+
			"use AccessZeroBased, or register it in parts: %w", m.base, syscall.EINVAL))
	}
	if err := p.enter(op, name, m); err != nil {
		return nil, err
	}
	return m, nil
}
