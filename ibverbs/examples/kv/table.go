package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"hash/fnv"
	"math/rand/v2"
	"time"
)

// The table is an array of slots, one for each key. A slot is a word and two bodies:
//
//	word     version (48 bits), owner (16 bits)
//	bodies   each a CRC (4), length of key (1), length of value (1), key, value
//
// The body that counts is the first if the version is even and the second if it is odd. A
// slot of version 0 is empty.
//
// A writer makes itself the owner by compare-and-swap of the word, writes the other body,
// and then swaps in the next version without an owner: from then on the other body counts.
// A writer that dies in between has changed nothing that counts.
//
// A reader reads the whole slot and needs no lock. If two writers change the slot during the
// read, the copy mixes versions. The CRC, which covers the version and the body, is then
// wrong, and the reader reads again.
const (
	wordSize = 8
	bodySize = 124
	slotSize = wordSize + 2*bodySize
	headSize = 6 // of a body, before key and value
	maxData  = bodySize - headSize

	maxProbe = 16 // slots in which a key may be, from that of its hash on
)

var (
	errNotFound = errors.New("no such key")
	errFull     = errors.New("no free place for the key in the table")
	errTorn     = errors.New("the slot was changed while it was read")
)

// memory holds the table: the client's memory is the server's, over RDMA.
type memory interface {
	// read returns a copy of slot i, valid until the next call.
	read(ctx context.Context, i int) ([]byte, error)
	// swap changes the word of slot i from old to new, and reports whether the word was old.
	swap(ctx context.Context, i int, old, new uint64) (bool, error)
	// publish writes a body of slot i, and after that changes the word from old to new.
	publish(ctx context.Context, i, body int, content []byte, old, new uint64) error
}

// table is the algorithm, over either memory. owner marks what it writes, and is not 0.
type table struct {
	memory
	slots int
	owner uint64
}

// slot is what a slot holds.
type slot struct {
	word       uint64
	key, value string
}

func (s slot) version() uint64 { return s.word >> 16 }
func (s slot) owner() uint64   { return s.word & 0xffff }

// get returns the value of a key, or errNotFound.
func (t *table) get(ctx context.Context, key string) (string, error) {
	for n := range min(maxProbe, t.slots) {
		s, err := t.look(ctx, t.place(key, n))
		switch {
		case err != nil:
			return "", err
		case s.version() == 0:
			return "", fmt.Errorf("%s: %w", key, errNotFound)
		case s.key == key:
			return s.value, nil
		}
	}
	return "", fmt.Errorf("%s: %w", key, errNotFound)
}

// put gives a key a value.
func (t *table) put(ctx context.Context, key, value string) error {
	if len(key) == 0 || len(key)+len(value) > maxData {
		return fmt.Errorf("key and value have %d bytes together, there is room for %d, and the key needs one", len(key)+len(value), maxData)
	}
	for {
		i, s, err := t.find(ctx, key)
		if err != nil {
			return err
		}
		// If this succeeds, the slot is as we have read it, and no other writer changes it.
		mine, err := t.swap(ctx, i, s.word, s.word|t.owner)
		if err != nil {
			return err
		}
		if mine {
			next := s.version() + 1
			return t.publish(ctx, i, int(next%2), encode(next, key, value), s.word|t.owner, next<<16)
		}
	}
}

// find returns the slot of the key, or the first empty slot, once it has no owner.
func (t *table) find(ctx context.Context, key string) (int, slot, error) {
	for n := range min(maxProbe, t.slots) {
		for i := t.place(key, n); ; {
			s, err := t.look(ctx, i)
			if err != nil {
				return 0, s, err
			}
			if s.version() != 0 && s.key != key {
				break // to the next slot
			}
			if s.owner() == 0 {
				return i, s, nil
			}
			// Somebody is writing there, maybe this very key.
			if err := pause(ctx); err != nil {
				return 0, s, fmt.Errorf("waiting for the writer of slot %d: %w", i, err)
			}
		}
	}
	return 0, slot{}, fmt.Errorf("%s: %w", key, errFull)
}

// look reads a slot until it is whole.
func (t *table) look(ctx context.Context, i int) (slot, error) {
	for {
		b, err := t.read(ctx, i)
		if err != nil {
			return slot{}, err
		}
		s, err := decode(b)
		if err == nil {
			return s, nil
		}
		if err := pause(ctx); err != nil {
			return s, fmt.Errorf("slot %d: %w", i, errors.Join(errTorn, err))
		}
	}
}

// place returns the slot in which a key may be as the n-th.
func (t *table) place(key string, n int) int {
	h := fnv.New32a()
	_, _ = h.Write([]byte(key))
	return (int(h.Sum32()) + n) % t.slots
}

// pause waits for up to a millisecond, so that two who wait do not meet again.
func pause(ctx context.Context) error {
	select {
	case <-time.After(rand.N(time.Millisecond)):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// encode returns a body.
func encode(version uint64, key, value string) []byte {
	b := make([]byte, 4, bodySize)
	b = append(b, byte(len(key)), byte(len(value)))
	b = append(b, key...)
	b = append(b, value...)
	binary.BigEndian.PutUint32(b, sum(version, b[4:]))
	return b
}

// decode returns what a slot holds, or errTorn. The word is in the order of the server's
// processor, as compare-and-swap has it.
func decode(b []byte) (slot, error) {
	s := slot{word: binary.NativeEndian.Uint64(b)}
	if s.version() == 0 {
		return s, nil
	}
	body := b[wordSize+int(s.version()%2)*bodySize:][:bodySize]
	key, value := int(body[4]), int(body[5])
	if key+value > maxData {
		return s, errTorn
	}
	body = body[:headSize+key+value]
	if binary.BigEndian.Uint32(body) != sum(s.version(), body[4:]) {
		return s, errTorn
	}
	s.key, s.value = string(body[headSize:][:key]), string(body[headSize+key:])
	return s, nil
}

func sum(version uint64, b []byte) uint32 {
	castagnoli := crc32.MakeTable(crc32.Castagnoli)
	return crc32.Update(crc32.Checksum(binary.BigEndian.AppendUint64(nil, version), castagnoli), castagnoli, b)
}
