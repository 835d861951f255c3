package remote

import "fmt"

// guard is the byte that stands beside a copy.
const guard = 0xa5

// twin is the agent's copy of a block of the program's memory: what its device uses.
type twin struct {
	pages  []byte // all of it, with a page of guards before and after
	now    []byte // the copy
	off    int    // of now in pages
	agreed []byte
	err    error // why there is no copy

	retired bool   // no region is over it any more
	cost    uint64 // what it counts for
}

// newTwin makes the copy of n bytes that begin at off in their page.
func newTwin(n uint64, off uint32) *twin {
	t := &twin{off: pageBytes + int(off)}
	size := (t.off + int(n) + 2*pageBytes - 1) / pageBytes * pageBytes
	if t.pages, t.err = mapPages(size); t.err != nil {
		return t
	}
	for i := range t.pages {
		t.pages[i] = guard
	}
	t.now = t.pages[t.off : t.off+int(n) : t.off+int(n)]
	clear(t.now)
	t.agreed = make([]byte, n)
	return t
}

// intact returns an error that says which byte beside the copy has changed, or in the copy after
// the end of its regions.
func (t *twin) intact() error {
	for i := range t.now {
		if t.retired && t.now[i] != t.agreed[i] {
			return fmt.Errorf("byte %d of %d that were a region was %#02x when that was deregistered, "+
				"and is %#02x: it was written to", i, len(t.now), t.agreed[i], t.now[i])
		}
	}
	for _, side := range []struct {
		octets []byte
		from   int
		where  string
	}{{t.pages[:t.off], t.off, "before the start"},
		{t.pages[t.off+len(t.now):], 0, "after the end"}} {
		for i, octet := range side.octets {
			if octet == guard {
				continue
			}
			distance := i + 1
			if side.from > 0 {
				distance = side.from - i
			}
			return fmt.Errorf("byte %d %s of a region of %d bytes is %#02x: it was written to",
				distance, side.where, len(t.now), octet)
		}
	}
	return nil
}

func (t *twin) free() {
	if t.pages != nil {
		_ = unmapPages(t.pages)
		t.pages, t.now = nil, nil
	}
}
