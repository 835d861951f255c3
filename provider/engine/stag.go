package engine

import (
	"crypto/rand"
	"encoding/binary"
	"sync"
	"sync/atomic"
)

// retiredSTags is how many deregistrations an STag stays unused for after its
// own: a peer that still holds it must not reach the region of somebody else.
const retiredSTags = 1 << 16

// minSTagSlots is the size of an empty table, a power of two.
const minSTagSlots = 64

// stagTable finds memory regions by STag. lookup takes no lock and may run
// concurrently with everything. STags are drawn from crypto/rand over all 32
// bits, so that a peer that was given one learns nothing about others, and
// live ones are few among 2^32, so that guessing ends the guesser's connection
// long before it hits (RFC 5040 section 8.1.1, RFC 5042 section 6.3.1).
//
// The table is a hash table with open addressing. As the STags are random
// their low bits are the hash. Entries are compared in full, and each
// registration has an mr of its own that is never used again, so that no stale
// STag ever finds another region.
//
//rfc:5040 RDMAP-8.1.1-8-01
//rfc:5040 RDMAP-8.1.1-8-02
type stagTable struct {
	slots atomic.Pointer[[]atomic.Pointer[mr]] // never full; replaced when it grows or shrinks

	mu      sync.Mutex // what follows, and writing to the slots
	live    int        // entries
	dead    int        // slots that hold stagTombstone
	retired map[uint32]struct{}
	order   []uint32 // ring of the keys of retired, oldest at next
	next    int
	random  func([]byte) // crypto/rand.Read unless a test replaces it
}

// stagTombstone fills the slot of a removed entry, which a probe passes. No
// STag is 0, so that no lookup matches it.
var stagTombstone = new(mr)

func newSTagTable() *stagTable {
	t := &stagTable{
		retired: make(map[uint32]struct{}),
		random:  func(b []byte) { rand.Read(b) }, // never fails: it ends the program instead
	}
	slots := make([]atomic.Pointer[mr], minSTagSlots)
	t.slots.Store(&slots)
	return t
}

// lookup returns the region that stag names, nil if there is none. The region
// may be closed by the time it is returned: acquire tells.
func (t *stagTable) lookup(stag uint32) *mr {
	if stag == 0 {
		return nil
	}
	slots := *t.slots.Load()
	mask := uint32(len(slots) - 1)
	for i := stag & mask; ; i = (i + 1) & mask {
		m := slots[i].Load()
		if m == nil || m.stag == stag {
			return m
		}
	}
}

// insert gives m an STag and enters it. m must not be shared yet.
func (t *stagTable) insert(m *mr) {
	t.mu.Lock()
	defer t.mu.Unlock()
	m.stag = t.draw()
	if slots := *t.slots.Load(); 2*(t.live+t.dead+1) > len(slots) {
		t.rebuild()
	}
	t.put(*t.slots.Load(), m)
	t.live++
}

// remove takes m out; its STag rests for retiredSTags deregistrations.
func (t *stagTable) remove(m *mr) {
	t.mu.Lock()
	defer t.mu.Unlock()
	slots := *t.slots.Load()
	mask := uint32(len(slots) - 1)
	i := m.stag & mask
	for slots[i].Load() != m {
		if slots[i].Load() == nil {
			panic("engine: a memory region is not in the STag table")
		}
		i = (i + 1) & mask
	}
	slots[i].Store(stagTombstone)
	t.live--
	t.dead++
	t.retire(m.stag)
}

// draw returns an STag that is not 0, not in use and not retired.
func (t *stagTable) draw() uint32 {
	var b [4]byte
	for {
		t.random(b[:])
		stag := binary.LittleEndian.Uint32(b[:])
		if _, resting := t.retired[stag]; !resting && stag != 0 && t.lookup(stag) == nil {
			return stag
		}
	}
}

func (t *stagTable) retire(stag uint32) {
	t.retired[stag] = struct{}{}
	if len(t.order) < retiredSTags {
		t.order = append(t.order, stag)
		return
	}
	delete(t.retired, t.order[t.next])
	t.order[t.next] = stag
	t.next = (t.next + 1) % retiredSTags
}

// rebuild replaces the slots by new ones without tombstones, a quarter full at
// most. Concurrent lookups finish on the old ones, which stay as they are.
func (t *stagTable) rebuild() {
	size := minSTagSlots
	for size < 4*(t.live+1) {
		size *= 2
	}
	slots := make([]atomic.Pointer[mr], size)
	for i, old := 0, *t.slots.Load(); i < len(old); i++ {
		if m := old[i].Load(); m != nil && m != stagTombstone {
			t.put(slots, m)
		}
	}
	t.dead = 0
	t.slots.Store(&slots)
}

func (t *stagTable) put(slots []atomic.Pointer[mr], m *mr) {
	mask := uint32(len(slots) - 1)
	i := m.stag & mask
	for slots[i].Load() != nil {
		i = (i + 1) & mask
	}
	slots[i].Store(m)
}
