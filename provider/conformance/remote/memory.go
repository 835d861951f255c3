package remote

import (
	"fmt"
	"os"
	"slices"
	"syscall"
	"unsafe"
)

// block is memory of the program that has a copy at the agent while a region covers it. After that
// the agent keeps the copy until the device is closed, and [Device.Intact] reports whether it has
// changed.
type block struct {
	number  uint32
	now     []byte // the program's bytes
	agreed  []byte // the bytes that both ends agreed on last
	made    bool   // the agent has been informed of it
	regions int    // number of regions that cover it
}

// memory is all memory that a device's regions cover. A lock guards the exchange of its bytes; it
// is never held while something is sent.
type memory struct {
	device uint32 // the device's number
	slot   uint16 // the upper half of its blocks' numbers
	last   int    // number of blocks made so far
	blocks []*block
	closed bool // the device is closed, and another one may have the slot
}

// base returns the address of a slice.
func base(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

// place returns the block that contains buf, which is not empty, and buf's offset in it, for a new
// region. The region's end calls release. A buf that is only partly in another block gets its own
// block. Changes in one reach the other, because both cover the same memory here.
func (c *Session) place(m *memory, buf []byte) (b *block, off uint64, err error) {
	c.mem.Lock()
	defer c.mem.Unlock()
	at := base(buf)
	for _, b := range m.blocks {
		if from := base(b.now); at >= from && at-from+uintptr(len(buf)) <= uintptr(len(b.now)) {
			b.regions++
			return b, uint64(at - from), nil
		}
	}
	if m.closed {
		return nil, 0, os.ErrClosed
	}
	if m.last > 0xffff {
		return nil, 0, fmt.Errorf("more than 65536 pieces of memory: %w", syscall.ENOMEM)
	}
	b = &block{number: uint32(m.slot)<<16 | uint32(m.last), now: buf,
		agreed: make([]byte, len(buf)), regions: 1}
	m.last++
	m.blocks = append(m.blocks, b)
	c.blocks[b.number] = b
	return b, 0, nil
}

// release records that a region does not cover a block any more. b may be nil.
func (c *Session) release(m *memory, b *block) {
	if b == nil {
		return
	}
	c.mem.Lock()
	defer c.mem.Unlock()
	if b.regions--; b.regions > 0 {
		return
	}
	if c.blocks[b.number] != b {
		return // its device is closed, and another device may have the number
	}
	m.blocks = slices.DeleteFunc(m.blocks, func(o *block) bool { return o == b })
	delete(c.blocks, b.number)
	if b.made {
		c.pending = append(c.pending, record{what: recordRetire, block: b.number})
	}
}

// forget frees a device's blocks and their numbers.
func (c *Session) forget(d *Device) {
	c.mu.Lock()
	for h, o := range c.objects {
		if o.(interface{ memoryOf() *memory }).memoryOf() == d.mem {
			delete(c.objects, h)
		}
	}
	c.mu.Unlock()
	c.mem.Lock()
	defer c.mem.Unlock()
	m := d.mem
	delete(c.devices, d)
	for _, b := range m.blocks {
		delete(c.blocks, b.number)
	}
	m.blocks, m.closed = nil, true
}

// maxChanges is the approximate limit for changes in a message, in bytes.
const maxChanges = 8 << 20

// changes returns what the program has changed in the memory m, unless m is nil, from a position
// on. number is the request that carries the changes. If they do not all fit into a message, the
// others begin at next.
func (c *Session) changes(m *memory, number uint64, from position) (body []byte, next *position) {
	c.mem.Lock()
	defer c.mem.Unlock()
	defer func() {
		if len(body) > 0 {
			c.carried = number
		}
	}()
	for _, r := range c.pending {
		body = appendRecord(body, r)
	}
	c.pending = nil
	if m == nil {
		return body, nil
	}
	for _, b := range m.blocks { // in the order of their numbers
		at := from.in(b.number, len(b.now))
		if at == len(b.now) {
			continue
		}
		if !b.made {
			b.made = true
			body = appendRecord(body, record{what: recordBlock, block: b.number,
				at: uint64(len(b.now)), n: uint32(base(b.now) % pageBytes)})
		}
		body, at = appendDifferences(body, b.number, b.now, b.agreed, at, maxChanges)
		if at < len(b.now) {
			return body, &position{b.number, uint64(at)}
		}
	}
	return body, nil
}

// take applies the changes of the agent's devices to the program's memory.
func (c *Session) take(body []byte) error {
	c.mem.Lock()
	defer c.mem.Unlock()
	for len(body) > 0 {
		r, rest, err := nextRecord(body)
		if err != nil {
			return err
		}
		body = rest
		b := c.blocks[r.block]
		switch {
		case r.what != recordOctets:
			return fmt.Errorf("%w: record %d from the agent", errFrame, r.what)
		case b == nil: // its device has been closed on this side
			continue
		case r.at > uint64(len(b.now)) || uint64(r.n) > uint64(len(b.now))-r.at:
			return fmt.Errorf("%w: bytes beyond a block", errFrame)
		}
		copy(b.agreed[r.at:], r.data)
		store(b.now[r.at:], r.data)
	}
	return nil
}

func (f *far) memoryOf() *memory { return f.mem }
