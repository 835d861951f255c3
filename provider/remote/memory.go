package remote

import (
	"fmt"
	"slices"
	"syscall"
	"unsafe"
)

// block is memory of the program that has a copy at the agent, for as long as a region is over it.
// After that the agent keeps the copy until the device is closed, and [Device.Intact] says if it
// has changed.
type block struct {
	number  uint32
	now     []byte // the program's
	agreed  []byte // what both ends had last
	made    bool   // the agent knows it
	regions int    // how many are over it
}

// memory is what a device's regions are over. Its bytes are exchanged under a lock, which is never
// held while something is sent.
type memory struct {
	slot   uint16 // the upper half of the numbers of its blocks
	last   int    // number of blocks that there have been
	blocks []*block
}

// base is where a slice is.
func base(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

// place returns the block that buf, which is not empty, lies in, and where in it, for a region that
// is to be over buf; release is for its end. Memory that is partly in another block gets one of its
// own: what changes in one is carried to the other, as both are over the same memory here.
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

// release says that a region is not over a block any more. b may be nil.
func (c *Session) release(m *memory, b *block) {
	if b == nil {
		return
	}
	c.mem.Lock()
	defer c.mem.Unlock()
	if b.regions--; b.regions > 0 {
		return
	}
	m.blocks = slices.DeleteFunc(m.blocks, func(o *block) bool { return o == b })
	delete(c.blocks, b.number)
	if b.made {
		c.pending = append(c.pending, record{what: recordRetire, block: b.number})
	}
}

// forget gives a device's blocks and numbers back.
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
	m.blocks = nil
}

// changes appends what a program has changed in the memory of a device, of all devices if m is
// nil, for the request of that number. more says that there are more than fit into a message.
func (c *Session) changes(m *memory, number uint64) (body []byte, more bool) {
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
	if m != nil {
		return c.changesOf(body, m)
	}
	for d := range c.devices {
		if body, more = c.changesOf(body, d.mem); more {
			break
		}
	}
	return body, more
}

// maxChanges is how many bytes of changes are put into a message, about.
const maxChanges = 8 << 20

func (c *Session) changesOf(body []byte, m *memory) ([]byte, bool) {
	for _, b := range m.blocks {
		if !b.made {
			b.made = true
			body = appendRecord(body, record{what: recordBlock, block: b.number,
				at: uint64(len(b.now)), n: uint32(base(b.now) % pageBytes)})
		}
		through := false
		if body, through = appendDifferences(body, b.number, b.now, b.agreed, maxChanges); !through {
			return body, true
		}
	}
	return body, false
}

// take puts what the agent's devices have changed into the program's memory.
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
		case b == nil: // its device has been closed here
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
