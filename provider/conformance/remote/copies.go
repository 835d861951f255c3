package remote

import "fmt"

// guard is the value of the bytes around a copy.
const guard = 0xa5

// twin is the agent's copy of a block of the program's memory; the agent's device uses it.
type twin struct {
	pages  []byte // the whole allocation, with a page of guards before and after the copy
	now    []byte // the copy
	off    int    // offset of now in pages
	agreed []byte
	err    error // why there is no copy

	retired bool   // no region covers it any more
	cost    uint64 // bytes that count towards the client's limit
}

// newTwin makes a copy of n bytes at offset off in their page.
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

// intact returns an error that names the first changed byte beside the copy, or in the copy after
// its regions have ended.
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
