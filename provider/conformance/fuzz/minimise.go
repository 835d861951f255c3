package fuzz

import (
	"encoding/binary"
	"slices"

	"github.com/govs-rdma/govs/provider/iwarp/mpa"
)

// Minimise returns a smaller sequence for which differs is still true: without cuts, Reads and
// frames that are not needed.
func Minimise(s *Sequence, differs func(*Sequence) bool) *Sequence {
	try := func(c *Sequence) bool {
		if !differs(c) {
			return false
		}
		s = c
		return true
	}
	if len(s.Cuts) > 0 && !try(s.Whole()) {
		for i := len(s.Cuts) - 1; i >= 0; i-- {
			c := s.clone()
			c.Cuts = slices.Delete(c.Cuts, i, i+1)
			try(c)
		}
	}
	for again := true; again; {
		again = false
		for i := len(s.Frames) - 1; i >= 0; i-- {
			again = try(s.without(i)) || again
		}
	}
	if s.Reads > 0 {
		c := s.clone()
		c.Reads = 0
		try(c)
	}
	return s
}

// without returns s without a frame. Later messages of its untagged queue get the MSNs that they
// would have had without it, and cuts stay at the same places of the other frames.
func (s *Sequence) without(i int) *Sequence {
	c := s.clone()
	gone := c.Frames[i]
	c.Frames = slices.Delete(c.Frames, i, i+1)
	begin, length := 0, len(gone.Bytes)+mpa.CRCLen
	for k := range i {
		begin += len(c.Frames[k].Bytes) + mpa.CRCLen
	}
	for k, cut := range c.Cuts {
		if cut > begin {
			c.Cuts[k] = max(begin, cut-length)
		}
	}
	c.Barrier = c.Barrier && i < len(c.Frames)
	const tagged, last = 0x80, 0x40
	control := gone.Bytes[min(atControl, len(gone.Bytes)-1)]
	if len(gone.Bytes) < atPayload || control&tagged != 0 || control&last == 0 {
		return c
	}
	for k := i; k < len(c.Frames); k++ {
		b := c.Frames[k].Bytes
		if len(b) < atPayload || b[atControl]&tagged != 0 ||
			c.Frames[k].get(atQN, 4) != gone.get(atQN, 4) {
			continue
		}
		if msn := binary.BigEndian.Uint32(b[atMSN:]); msn > 1 {
			binary.BigEndian.PutUint32(b[atMSN:], msn-1)
		}
	}
	return c
}
