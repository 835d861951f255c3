package remote

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/govs-rdma/govs/provider"
)

// take applies the program's changes to the copies.
func (s *served) take(body []byte) error {
	s.mem.Lock()
	defer s.mem.Unlock()
	for len(body) > 0 {
		r, rest, err := nextRecord(body)
		if err != nil {
			return err
		}
		body = rest
		t := s.twins[r.block]
		switch {
		case !s.slots[uint16(r.block>>16)]: // its device was closed, and the client did not know yet
		case r.what == recordBlock && t == nil && len(s.twins) < maxBlocks:
			s.twins[r.block] = s.newTwin(r.at, r.n)
		case r.what == recordBlock:
			return fmt.Errorf("%w: another block %#x, with %d", errFrame, r.block, len(s.twins))
		case t == nil:
			return fmt.Errorf("%w: record %d of no block", errFrame, r.what)
		case t.err != nil: // the region over it was refused
		case r.what == recordRetire:
			t.retired = true
		case r.at > uint64(len(t.now)) || uint64(r.n) > uint64(len(t.now))-r.at:
			return fmt.Errorf("%w: bytes beyond a block", errFrame)
		default:
			copy(t.agreed[r.at:], r.data)
			store(t.now[r.at:], r.data)
		}
	}
	return nil
}

// newTwin makes a copy if the client's limit permits it. Otherwise it returns a twin that all such
// blocks share, because they do not count towards the limit.
func (s *served) newTwin(n uint64, off uint32) *twin {
	cost := uint64(math.MaxUint64) // refused, as is any n whose cost would overflow
	if n <= math.MaxInt64/4 {
		cost = 2*n + 4*pageBytes // pages and agreed
	}
	err := s.charge(cost)
	if err == nil {
		t := newTwin(n, off)
		if t.err == nil {
			t.cost = cost
			return t
		}
		s.refund(cost)
		err = t.err
	}
	s.refused.err = err
	return &s.refused
}

// changes returns the bytes that a slot's device has changed in its copies from a position on. If
// they do not all fit into a message, the others begin at next.
func (s *served) changes(slot uint16, from position) (body []byte, next *position) {
	s.mem.Lock()
	defer s.mem.Unlock()
	var numbers []uint32
	for number, t := range s.twins {
		if uint16(number>>16) == slot && !t.retired {
			numbers = append(numbers, number)
		}
	}
	slices.Sort(numbers)
	for _, number := range numbers {
		t := s.twins[number]
		at := from.in(number, len(t.now))
		body, at = appendDifferences(body, number, t.now, t.agreed, at, maxChanges)
		if at < len(t.now) {
			return body, &position{number, uint64(at)}
		}
	}
	return body, nil
}

// buffer returns the memory that a span names, for object h. It must belong to h's device, because
// it is freed with that device. A device without a slot has no memory yet.
func (s *served) buffer(op string, h uint32, at span) ([]byte, error) {
	if at.Len == 0 {
		if at.Nil {
			return nil, nil
		}
		return []byte{}, nil
	}
	slot := s.slotOf(h)
	s.mem.Lock()
	defer s.mem.Unlock()
	t := s.twins[at.Block]
	switch {
	case t == nil || t.retired || slot == 0 || uint16(at.Block>>16) != slot:
		return nil, &provider.Error{Op: op, Err: fmt.Errorf("%w: no block %#x", errFrame, at.Block)}
	case t.err != nil:
		return nil, &provider.Error{Op: op, Err: t.err}
	case at.Off > uint64(len(t.now)) || at.Len > uint64(len(t.now))-at.Off:
		return nil, &provider.Error{Op: op, Err: fmt.Errorf("%w: a span beyond its block", errFrame)}
	}
	end := at.Off + at.Len
	return t.now[at.Off:end:end], nil
}

// intact returns an error that names the first changed byte outside of regions, in any of a
// device's copies.
func (s *served) intact(slot uint16) error {
	s.mem.Lock()
	defer s.mem.Unlock()
	for number, t := range s.twins {
		if uint16(number>>16) != slot || t.err != nil {
			continue
		}
		if err := t.intact(); err != nil {
			return err
		}
	}
	return nil
}

// forget frees the copies of a closed device and its slot.
func (s *served) forget(slot uint16) {
	s.mem.Lock()
	defer s.mem.Unlock()
	delete(s.slots, slot)
	for number, t := range s.twins {
		if uint16(number>>16) == slot {
			s.refund(t.cost)
			t.free()
			delete(s.twins, number)
		}
	}
}

// Ranks: the order in which objects are closed when a session ends. Dependent objects come first.
const (
	rankQP = iota
	rankID
	rankEventChannel
	rankMW
	rankMR
	rankSRQ
	rankCQ
	rankCompChannel
	rankPD
	rankDevice
	ranks
)

// disconnect closes QPs and ids, which ends calls that are connecting to a host that does not
// answer. Some cannot be closed while calls are running; free closes these. disconnect also ends
// the recordings, because they must not continue if a call does not return.
func (s *served) disconnect() (left []error) {
	_, _ = s.closeObjects(rankEventChannel)
	return s.endRecordings()
}

// endRecordings ends all captures. It returns an error for each that panics; other errors concern
// only the files, which nobody wants.
func (s *served) endRecordings() (left []error) {
	s.mu.Lock()
	recordings := maps.Clone(s.recordings)
	clear(s.recordings)
	s.mu.Unlock()
	for port, stop := range recordings {
		what := fmt.Sprintf("ending the capture of port %d: the agent's capture", port)
		if err := safely(what, func() error { _, _ = stop(); return nil }); err != nil {
			left = append(left, err)
		}
	}
	return left
}

// free closes everything that a client has left, and returns an error for each object that could
// not be closed.
func (s *served) free() (left []error) {
	left = s.endRecordings() // recordings of calls that were still running
	open, safe := s.closeObjects(ranks)
	s.mem.Lock()
	defer s.mem.Unlock()
	for _, t := range s.twins {
		if safe { // otherwise a device may still write to the copies
			t.free()
		}
	}
	clear(s.twins)
	return append(left, open...)
}

// closeObjects closes the objects whose rank is less than end, and returns an error for each that
// could not be closed. It removes only the others, so that a later call tries again. safe reports
// that no device may write to the copies of memory any more.
func (s *served) closeObjects(end int) (left []error, safe bool) {
	s.mu.Lock()
	objects := maps.Clone(s.objects)
	s.mu.Unlock()
	safe = true
	for rank := range end {
		for h, t := range objects {
			if t.rank != rank {
				continue
			}
			what := fmt.Sprintf("closing a %T: the agent's provider", t.object)
			if err := safely(what, t.object.(interface{ Close() error }).Close); err != nil {
				left = append(left, err)
				safe = safe && t.rank != rankMR && t.rank != rankDevice
				continue
			}
			s.mu.Lock()
			delete(s.objects, h)
			s.mu.Unlock()
		}
	}
	return left, safe
}

// safely calls f and returns its error, or its panic, which must not end the agent. what is what
// panics.
func safely(what string, f func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%s panics: %v", what, p)
		}
	}()
	return f()
}

// add registers an object of a device and returns its number. It charges cost bytes until the
// object is closed. create makes the object with that number as its cookie.
func (s *served) add(device uint32, rank int, cost uint64,
	create func(h uint32) (any, error)) (h uint32, err error) {
	err = s.paying(cost, func() error {
		s.mu.Lock()
		s.last++
		h = s.last
		s.mu.Unlock()
		o, err := create(h)
		if err != nil {
			return err
		}
		if device == 0 {
			device = h
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.objects[h] = &thing{device: device, rank: rank, object: o, cost: cost}
		return nil
	})
	return h, err
}

// drop removes a closed device and everything that it had. If two calls close a device at the same
// time, only the first one does this, because another device may have the slot by the time of the
// second.
func (s *served) drop(device uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	d := s.objects[device]
	if d == nil {
		return
	}
	if d.slot != 0 {
		s.forget(d.slot)
	}
	for h, t := range s.objects {
		if t.device == device {
			s.refund(t.cost)
			delete(s.objects, h)
		}
	}
}

// occupy gives slot to device h. It fails if another device has the slot, if the slot is invalid,
// or if the device is closed.
func (s *served) occupy(slot uint16, h uint32) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mem.Lock()
	defer s.mem.Unlock()
	t := s.objects[h]
	if t == nil || slot == 0 || s.slots[slot] {
		return false
	}
	t.slot, s.slots[slot] = slot, true
	return true
}
