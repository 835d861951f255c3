//go:build linux

package transport

import (
	"sync/atomic"

	"github.com/govs-rdma/govs/provider/engine/internal/locks"
	"github.com/govs-rdma/govs/provider/engine/internal/sched"
	"github.com/govs-rdma/govs/provider/engine/internal/turns"
	"golang.org/x/sys/unix"
)

// registration is a stream that a tcpPoller watches.
type registration struct {
	poller  *tcpPoller
	conn    *tcpConn
	handler Handler
	sharer  Sharer // handler, nil if it is no Sharer
	turns   turns.State
	slot    int32
	gen     int32 // distinguishes this stream from earlier ones of the slot
	removed atomic.Bool

	// Guarded by registry.mu; queued is also read without it.
	events uint32        // what epoll watches for, 0: not in epoll; of a queued stream, for later
	next   *registration // in the queue
	queued atomic.Bool   // in the queue, or having a turn from it (see turnQueue)
}

// event returns the registration as epoll carries it, watched for events.
func (r *registration) event(events uint32) *unix.EpollEvent {
	return &unix.EpollEvent{Events: events, Fd: r.slot, Pad: r.gen}
}

// registry finds registrations by what epoll reports, without a lock, because Poll runs on every
// core at once.
type registry struct {
	slots atomic.Pointer[[]atomic.Pointer[registration]]

	mu   sched.Mutex[locks.Registry] // for all changes, even of epoll's set
	free []int32
	gens []int32
}

// lookup returns nil if the stream was removed since.
func (r *registry) lookup(ev *unix.EpollEvent) *registration {
	slots := r.slots.Load()
	if slots == nil || ev.Fd < 0 || int(ev.Fd) >= len(*slots) {
		return nil
	}
	reg := (*slots)[ev.Fd].Load()
	if reg == nil || reg.gen != ev.Pad || reg.removed.Load() {
		return nil
	}
	return reg
}

// insert gives reg a slot. r.mu is held.
func (r *registry) insert(reg *registration) {
	if len(r.free) == 0 {
		r.grow()
	}
	last := len(r.free) - 1
	reg.slot = r.free[last]
	r.free = r.free[:last]
	r.gens[reg.slot]++
	reg.gen = r.gens[reg.slot]
	(*r.slots.Load())[reg.slot].Store(reg)
}

// remove frees reg's slot. r.mu is held.
func (r *registry) remove(reg *registration) {
	reg.removed.Store(true)
	(*r.slots.Load())[reg.slot].Store(nil)
	r.free = append(r.free, reg.slot)
}

// grow doubles the slots. A Poll in progress continues with the old ones; the mark in a
// registration shows it which streams were removed since.
func (r *registry) grow() {
	var old []atomic.Pointer[registration]
	if p := r.slots.Load(); p != nil {
		old = *p
	}
	slots := make([]atomic.Pointer[registration], max(16, 2*len(old)))
	for i := range old {
		slots[i].Store(old[i].Load())
	}
	for i := len(slots) - 1; i >= len(old); i-- {
		r.free = append(r.free, int32(i))
	}
	r.gens = append(r.gens, make([]int32, len(slots)-len(old))...)
	r.slots.Store(&slots)
}

// removeAll empties the registry and returns what was in it. r.mu is held.
func (r *registry) removeAll() []*registration {
	var all []*registration
	if slots := r.slots.Load(); slots != nil {
		for i := range *slots {
			if reg := (*slots)[i].Load(); reg != nil {
				all = append(all, reg)
			}
		}
	}
	for _, reg := range all {
		r.remove(reg)
	}
	return all
}
