package memory

import (
	"crypto/rand"
	"encoding/binary"
	"sync/atomic"

	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/locks"
	"github.com/govs-rdma/govs/provider/engine/internal/refs"
	"github.com/govs-rdma/govs/provider/engine/internal/sched"
)

const (
	slotsLeast = 64 // a power of two

	// retiredSTags is how many later deregistrations an STag stays unused for after its own,
	// because a peer that still has it must not reach another region.
	retiredSTags = 1 << 16
)

// Table finds memory regions by STag. lookup takes no lock and may run concurrently with
// everything. STags are drawn from crypto/rand over all 32 bits, so a peer that was given one
// learns nothing about others. Few of the 2^32 are in use, so guessing ends the guesser's
// connection long before it hits (RFC 5040 section 8.1.1, RFC 5042 section 6.3.1).
//
// Entries are compared in full, and each registration has its own Region, which is never used
// again. So no stale STag ever finds another region.
//
// Windows, and regions that work requests register, differ. The lowest byte of their STags, the
// key, changes from one registration to the next, and the program chooses it (RFC 5040 calls an
// STag an index and a key). They are in a separate table by the index, which is random as well, and
// which no other STag has.
//
//rfc:5040 RDMAP-8.1.1-8-01 STags hard to predict
//rfc:5040 RDMAP-8.1.1-8-02 STags sparse over the range
type Table struct {
	stagSlots           // of regions with one STag
	byIndex   stagSlots // of regions with an owner, by index

	grants   provider.Access // the rights that a region can have
	MRs, MWs refs.Limit      // regions and windows of the device

	mu             sched.Mutex[locks.STags] // guards the fields below, and writing to the slots
	retired        retiredKeys
	retiredIndexes retiredKeys
	Random         func([]byte) // crypto/rand.Read unless a test replaces it
}

// stagOwner owns a region whose STags change: a window, or a region that work requests register.
type stagOwner interface {
	// invalidate ends what stag names, on behalf of the queue pair of p or, with remote, of its
	// peer. The caller must not be using it. The errors are those of rdmap.CheckInvalidate.
	invalidate(p *Peer, stag uint32, remote bool) error
	domain() *Domain
}

// stagSlots is a hash table of regions with open addressing. The keys are random, so their low bits
// are the hash.
type stagSlots struct {
	slots atomic.Pointer[[]atomic.Pointer[Region]] // never full; replaced when it grows or shrinks
	live  int                                      // entries
	dead  int                                      // slots that hold stagTombstone
}

// stagTombstone fills the slot of a removed entry; a probe continues after it. Its key is 0, which
// no entry has and no lookup asks for.
var stagTombstone = new(Region)

// Config is what a device permits.
type Config struct {
	Extensions   bool  // atomic operations
	MaxMR, MaxMW int64 // regions and windows at a time
}

// NewTable makes the table of a device.
func NewTable(c Config) *Table {
	t := &Table{
		grants: mrRights,
		Random: func(b []byte) { rand.Read(b) }, // never fails: it ends the program instead
	}
	if c.Extensions {
		// Without atomic operations a right to them would mean nothing.
		t.grants |= provider.AccessRemoteAtomic
	}
	t.MRs.Max, t.MWs.Max = c.MaxMR, c.MaxMW
	t.stagSlots.init()
	t.byIndex.init()
	return t
}

// stagIndex returns the part of an STag that stays while its key changes.
func stagIndex(stag uint32) uint32 { return stag >> 8 }

// lookup returns the region that stag names, nil if there is none. The region may be closed by the
// time lookup returns; acquire reports that. If it has an owner, its STag may be another of the
// same index, so the two must be compared after acquire.
func (t *Table) lookup(stag uint32) *Region {
	if stagIndex(stag) == 0 {
		return nil
	}
	slots := *t.slots.Load()
	mask := uint32(len(slots) - 1)
	for i := stag & mask; ; i = (i + 1) & mask {
		m := slots[i].Load()
		if m == nil {
			return t.byIndex.find(stagIndex(stag))
		}
		if m.key == stag {
			return m
		}
	}
}

// Local begins a use of the region that stag names, by a work request of ours. m.Release ends the
// use. If there is no such region, Local returns nil, and nothing is in use.
func (t *Table) Local(stag uint32) *Region {
	m := t.lookup(stag)
	if m == nil || !m.acquire() {
		return nil
	}
	if m.stag != stag {
		m.Release()
		return nil
	}
	return m
}

// insert gives m an STag and enters it. m must not be shared yet.
func (t *Table) insert(m *Region) {
	t.mu.Lock()
	defer t.mu.Unlock()
	m.stag = t.draw()
	m.key = m.stag
	t.add(m)
}

// insertByIndex gives m, which has an owner, an STag and enters it by its index. m must not be
// shared yet.
func (t *Table) insertByIndex(m *Region) {
	t.mu.Lock()
	defer t.mu.Unlock()
	m.stag = t.drawIndex()
	m.key = stagIndex(m.stag)
	t.byIndex.add(m)
}

// remove removes m. Its STag, or its index, is retired for retiredSTags deregistrations.
func (t *Table) remove(m *Region) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if m.owner != nil {
		t.byIndex.remove(m)
		t.retiredIndexes.add(m.key)
		return
	}
	t.stagSlots.remove(m)
	t.retired.add(m.key)
}

// draw returns an STag that is not in use and not retired. Neither is its index, which is not 0.
func (t *Table) draw() uint32 {
	for {
		stag := t.drawAny()
		index := stagIndex(stag)
		if index != 0 && !t.retired.has(stag) && !t.retiredIndexes.has(index) && t.lookup(stag) == nil {
			return stag
		}
	}
}

// drawIndex returns an STag with an index that is not 0, not in use and not retired. No STag with
// that index is in use or retired either, because all of them become m's.
func (t *Table) drawIndex() uint32 {
	for {
		stag := t.drawAny()
		if index := stagIndex(stag); index != 0 && !t.retiredIndexes.has(index) && t.byIndex.find(index) == nil &&
			!t.usesIndex(index) {
			return stag
		}
	}
}

// usesIndex reports whether an STag with that index is in use or retired.
func (t *Table) usesIndex(index uint32) bool {
	for key := range uint32(256) {
		stag := index<<8 | key
		if t.retired.has(stag) || t.find(stag) != nil {
			return true
		}
	}
	return false
}

func (t *Table) drawAny() uint32 {
	var b [4]byte
	t.Random(b[:])
	return binary.LittleEndian.Uint32(b[:])
}

func (t *stagSlots) init() {
	slots := make([]atomic.Pointer[Region], slotsLeast)
	t.slots.Store(&slots)
}

// find returns the entry with that key, nil if there is none.
func (t *stagSlots) find(key uint32) *Region {
	slots := *t.slots.Load()
	mask := uint32(len(slots) - 1)
	for i := key & mask; ; i = (i + 1) & mask {
		if m := slots[i].Load(); m == nil || m.key == key {
			return m
		}
	}
}

func (t *stagSlots) add(m *Region) {
	if slots := *t.slots.Load(); 2*(t.live+t.dead+1) > len(slots) {
		t.rebuild()
	}
	t.put(*t.slots.Load(), m)
	t.live++
}

func (t *stagSlots) remove(m *Region) {
	slots := *t.slots.Load()
	mask := uint32(len(slots) - 1)
	i := m.key & mask
	for slots[i].Load() != m {
		if slots[i].Load() == nil {
			panic("engine: a memory region is not in the STag table")
		}
		i = (i + 1) & mask
	}
	slots[i].Store(stagTombstone)
	t.live--
	t.dead++
}

// rebuild replaces the slots by new ones without tombstones, at most a quarter full. Concurrent
// lookups finish on the old slots, which do not change.
func (t *stagSlots) rebuild() {
	size := slotsLeast
	for size < 4*(t.live+1) {
		size *= 2
	}
	slots := make([]atomic.Pointer[Region], size)
	for i, old := 0, *t.slots.Load(); i < len(old); i++ {
		if m := old[i].Load(); m != nil && m != stagTombstone {
			t.put(slots, m)
		}
	}
	t.dead = 0
	t.slots.Store(&slots)
}

func (t *stagSlots) put(slots []atomic.Pointer[Region], m *Region) {
	mask := uint32(len(slots) - 1)
	i := m.key & mask
	for slots[i].Load() != nil {
		i = (i + 1) & mask
	}
	slots[i].Store(m)
}

// retiredKeys are the last retiredSTags keys that were removed.
type retiredKeys struct {
	set   map[uint32]struct{}
	order []uint32 // ring of the keys in the set, the oldest at next
	next  int
}

func (r *retiredKeys) has(key uint32) bool {
	_, retired := r.set[key]
	return retired
}

func (r *retiredKeys) add(key uint32) {
	if r.set == nil {
		r.set = make(map[uint32]struct{})
	}
	r.set[key] = struct{}{}
	if len(r.order) < retiredSTags {
		r.order = append(r.order, key)
		return
	}
	delete(r.set, r.order[r.next])
	r.order[r.next] = key
	r.next = (r.next + 1) % retiredSTags
}

// owner returns the owner of the index of stag, nil if there is none.
func (t *Table) owner(stag uint32) stagOwner {
	if m := t.byIndex.find(stagIndex(stag)); m != nil && stag != 0 {
		return m.owner
	}
	return nil
}

// wasRetired reports whether stag belonged to a region that was closed lately.
func (t *Table) wasRetired(stag uint32) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.retired.has(stag) || t.retiredIndexes.has(stagIndex(stag))
}
