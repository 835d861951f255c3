package engine

import (
	"slices"
	"time"

	"github.com/govs-rdma/govs/provider/engine/internal/locks"
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"github.com/govs-rdma/govs/provider/engine/internal/sched"
)

// A stream that a goroutine polls directly, again and again, needs no report of arrivals. As
// long as epoll watches its socket, each arrival is reported all the same, through both epoll
// instances, which costs the call that delivers it 0.15 us: 5 % of a round trip over loopback.
// Such a stream is muted: its socket is no longer watched. It is watched again as soon as a
// goroutine is about to sleep, or when no goroutine has looked at it for a while.
//
// The first muted streams also keep the receive context and the batch that they would
// otherwise borrow and give back for each message.

// muting keeps the muted streams of a device.
type muting struct {
	attends sched.Uint32 // how often a goroutine was about to sleep
	any     sched.Bool   // whether there are muted streams

	mu      sched.Mutex[locks.Muting]
	streams []*stream
	timer   *time.Timer
}

// mute takes s out of what is watched. No lock of s is held.
func (m *muting) mute(s *stream) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s.unwatched&readMuted != 0 || s.hasFinished() {
		return
	}
	if s.unwatchLocked(readMuted, true) != nil {
		s.unwatched &^= readMuted
		return // it is still watched, or the socket is closed
	}
	m.streams = append(m.streams, s)
	s.keeps.Store(len(m.streams) <= policy.ContextsKept)
	m.any.Store(true)
	if m.timer == nil {
		m.timer = time.AfterFunc(policy.LookEvery, m.watch)
	} else if len(m.streams) == 1 {
		m.timer.Reset(policy.LookEvery)
	}
}

// watch ends the muting of the streams that no goroutine has looked at since the last time.
func (m *muting) watch() {
	m.unmute(func(s *stream) bool {
		if !s.rxMu.TryLock() {
			return false // another goroutine is looking
		}
		looks := s.rx.looks
		s.rxMu.Unlock()
		idle := looks == s.mutedAt
		s.mutedAt = looks
		return idle
	})
	m.mu.Lock()
	if len(m.streams) > 0 {
		m.timer.Reset(policy.LookEvery)
	}
	m.mu.Unlock()
}

// unmute ends the muting of the streams that match returns true for. It calls match with mu held.
// No lock of a stream is held.
func (m *muting) unmute(match func(*stream) bool) {
	var room [policy.ContextsKept]*stream
	keepers := room[:0]
	m.mu.Lock()
	m.streams = slices.DeleteFunc(m.streams, func(s *stream) bool {
		if !match(s) {
			return false
		}
		err := s.unwatchLocked(readMuted, false)
		if err != nil {
			s.cannotWatch(err)
		}
		if s.keeps.Swap(false) || err != nil {
			keepers = append(keepers, s)
		}
		return true
	})
	m.any.Store(len(m.streams) > 0)
	m.mu.Unlock()
	for _, s := range keepers {
		s.giveBack()
	}
}

// end is for a stream that has finished: from now on it is served by the device's
// poller only.
func (m *muting) end(s *stream) {
	m.mu.Lock()
	muted := s.unwatched&readMuted != 0
	m.mu.Unlock()
	if muted {
		m.unmute(func(x *stream) bool { return x == s })
	}
}

// attend is called by a goroutine that is about to sleep until something arrives: all streams
// are watched from now on, and the device's progress goroutine serves them without delay.
func (d *device) attend() {
	m := &d.muting
	m.attends.Add(1)
	if m.any.Load() {
		m.unmute(func(*stream) bool { return true })
	}
	d.poller.Attend()
}
