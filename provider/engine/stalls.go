package engine

import (
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/govs-rdma/govs/provider/engine/internal/locks"
	"github.com/govs-rdma/govs/provider/engine/internal/policy"
	"github.com/govs-rdma/govs/provider/engine/internal/sched"
)

const stallsLeast = 64 // capacity that a list of streams keeps at least

// A peer may stop in the middle of an FPDU that it sends, or stop taking what it is sent. Its
// connection, which otherwise holds very little, then holds part of an FPDU, or bytes that the
// socket didn't take. That ends after a time, even if a few bytes move occasionally. An FPDU has
// FPDUTimeout from its first byte to its last. The bytes that were left over when the socket was
// full have SendTimeout until they are taken. So a peer must keep an absolute rate. A slow peer
// that keeps it is never cut, because each FPDU has the whole time.
//
// One timer checks all streams of a device that may be stalled, and runs only while there are any.
// A stream joins when it begins to wait for its peer in one of these ways. That sets one flag,
// which stays set most of the time that the stream is busy. Counters that the stream has anyway
// show whether it has moved since the last check.

// stalls watches the streams of a device that may be stalled.
type stalls struct {
	mu      sched.Mutex[locks.Stalls]
	fresh   []*stream // joined since the last check
	prune   int       // the length of fresh at which ended streams are removed
	timer   *time.Timer
	due     time.Time // when the timer was to expire
	armed   bool
	stopped bool
	checks  sync.WaitGroup // the armed timer, and what it calls

	known []stall // used only by check, which never runs twice at a time
}

// stall is a stream that is watched.
type stall struct {
	s      *stream
	rx, tx stallSide
}

// stallSide is where one side of a stream was at the check that first found it waiting for the peer
// to finish an FPDU or to take bytes. It is valid as long as the side waits for the same.
type stallSide struct {
	on     bool // it waits for the peer
	filled bool // the socket has as much as it takes
	since  time.Time
	at     uint64 // FPDUs taken, or bytes sent, by then
	owed   uint64 // how many more bytes the peer has to take
}

func (w *stalls) join(s *stream) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.stopped {
		return
	}
	if len(w.fresh) >= w.prune {
		w.fresh = slices.DeleteFunc(w.fresh, (*stream).hasFinished)
		w.prune = max(stallsLeast, 2*len(w.fresh))
	}
	w.fresh = append(w.fresh, s)
	w.arm(s.dev)
}

// arm sets the timer if it is not set. mu is held.
func (w *stalls) arm(d *device) {
	if w.armed {
		return
	}
	w.armed = true
	w.checks.Add(1)
	period := d.opts.stallPeriod()
	w.due = time.Now().Add(period)
	if w.timer == nil {
		w.timer = time.AfterFunc(period, func() { w.check(d) })
		return
	}
	w.timer.Reset(period)
}

// stallPeriod returns the time between two checks of stalled streams.
func (o *Options) stallPeriod() time.Duration {
	period := policy.StallPeriod
	for _, limit := range []time.Duration{o.FPDUTimeout, o.SendTimeout} {
		if limit > 0 {
			period = min(period, limit/policy.ChecksPerLimit)
		}
	}
	return max(period, time.Millisecond)
}

// check checks all streams that are watched. If it runs late, this process or the machine has stood
// still. Bytes that came in that time may still be in the sockets, so the delay does not count
// against the peers.
func (w *stalls) check(d *device) {
	defer w.checks.Done()
	w.mu.Lock()
	for _, s := range w.fresh {
		w.known = append(w.known, stall{s: s})
	}
	clear(w.fresh)
	w.fresh = trimmed(w.fresh)[:0]
	w.prune = 0
	now := time.Now()
	late := max(0, now.Sub(w.due))
	w.mu.Unlock()

	stay := w.known[:0]
	for i := range w.known {
		st := &w.known[i]
		st.rx.since, st.tx.since = st.rx.since.Add(late), st.tx.since.Add(late)
		if st.check(now) {
			stay = append(stay, *st)
		}
	}
	clear(w.known[len(stay):])
	w.known = trimmed(stay)
	w.shrink(d, now)

	w.mu.Lock()
	defer w.mu.Unlock()
	w.armed = false
	if !w.stopped && len(w.known)+len(w.fresh) > 0 {
		w.arm(d)
	}
}

// trimmed returns s, copied to less memory if its capacity is much more than its length.
func trimmed[T any](s []T) []T {
	if cap(s) <= 4*max(len(s), stallsLeast) {
		return s
	}
	return append(make([]T, 0, 2*max(len(s), stallsLeast)), s...)
}

// shrink ends streams if all parts of FPDUs together take more memory than they may. It ends only
// streams that are still in the FPDU in which an earlier check found them, of the peers that have
// most bytes of such parts. Otherwise one peer could make the engine end the streams of all slow
// peers.
func (w *stalls) shrink(d *device, now time.Time) {
	over := d.prog.partOctets.Load() - d.prog.partsMost
	if over <= 0 {
		return
	}
	peers := make(map[netip.Addr]int64)
	w.eachPart(now, func(s *stream, n int64) {
		if s.over() {
			over -= n // it is about to end
		} else {
			peers[s.peer()] += n
		}
	})
	level := excess(slices.Collect(maps.Values(peers)), over)
	w.eachPart(now, func(s *stream, n int64) {
		if peer := s.peer(); over > 0 && peers[peer] > level && !s.over() {
			peers[peer] -= n
			over -= n
			s.rx.recv.End()
			s.fail(endTerminate(errHalfFPDU, nil, 0, nil).because(errFPDUMemory))
		}
	})
}

// eachPart calls f, with rx.mu held, for each stream with a long part of an FPDU in which an
// earlier check found it. n is how many bytes the part has.
func (w *stalls) eachPart(now time.Time, f func(s *stream, n int64)) {
	for i := range w.known {
		st := &w.known[i]
		s := st.s
		if !st.rx.on || !st.rx.since.Before(now) || !s.rx.mu.TryLock() {
			continue
		}
		if n := s.rx.longPart(); n > 0 && uint64(s.rx.received) == st.rx.at {
			f(s, n)
		}
		s.rx.mu.Unlock()
		if s.over() {
			s.dev.spawn(s.settle)
		}
	}
}

// excess returns the greatest number that the counts together exceed by at least over; 0 if none.
func excess(counts []int64, over int64) int64 {
	slices.Sort(counts)
	above := int64(0)
	for n := int64(1); len(counts) > 0; n++ {
		last := len(counts) - 1
		above += counts[last]
		counts = counts[:last]
		if level := (above - over) / n; level >= 0 && (last == 0 || level >= counts[last-1]) {
			return level
		}
	}
	return 0
}

// stop ends the watch, and waits for a check that is in progress. There are no streams any more.
func (w *stalls) stop() {
	w.mu.Lock()
	w.stopped = true
	if w.armed && w.timer.Stop() {
		w.checks.Done()
	}
	w.mu.Unlock()
	w.checks.Wait()
}

// check checks the stream, and reports whether the next check must check it, too. It also reports
// true if another goroutine has one of the stream's locks now.
func (st *stall) check(now time.Time) bool {
	s := st.s
	if s.hasFinished() {
		return false
	}
	if s.over() || !s.rx.mu.TryLock() {
		return true
	}
	stay := st.checkLocked(now)
	s.rx.park() // for a goroutine that may have tried to, and did not get the lock
	s.rx.mu.Unlock()
	if s.over() {
		s.dev.spawn(s.settle) // settle calls the program's onDown, which may block
	}
	return stay
}

// checkLocked checks the stream with rx.mu held.
func (st *stall) checkLocked(now time.Time) bool {
	s := st.s
	if !s.tx.mu.TryLock() {
		return true
	}
	defer s.tx.unlock()
	st.checkRx(now)
	st.checkTx(now)
	if s.tx.b != nil && s.tx.b.Built() == 0 {
		s.tx.putBatch()
	}
	if st.rx.on || st.tx.on {
		return true
	}
	s.watched.Store(false) // with both locks held, so that the next holder sees it
	return false
}

// checkRx ends the stream if it has been inside one FPDU for too long.
func (st *stall) checkRx(now time.Time) {
	s := st.s
	r := &s.rx
	at := uint64(r.received)
	switch {
	case !r.midFPDU():
		st.rx.on = false
	case !st.rx.on || st.rx.at != at:
		st.rx = stallSide{on: true, since: now, at: at}
	default:
		s.rx.unkeep()
		if hasPassed(now, st.rx.since, s.dev.opts.FPDUTimeout) {
			r.recv.End()
			s.fail(endTerminate(errHalfFPDU, nil, 0, nil).because(errFPDUTimeout))
		}
	}
}

// checkTx ends the stream if the peer has taken too little for too long while the socket was full.
// It sends no Terminate, because the socket has no room for one.
func (st *stall) checkTx(now time.Time) {
	s := st.s
	at, owed := s.tx.moved.Load(), s.tx.owed()
	switch {
	case owed == 0:
		st.tx.on = false
	case !st.tx.on, at-st.tx.at >= st.tx.owed:
		st.tx = stallSide{on: true, since: now, at: at, owed: owed}
	case !st.tx.filled:
		// The transmit side may have been put off, although the socket has room. A stream that has
		// moved since then is left to its turns, because a check of many busy streams would send
		// more than all their turns.
		s.tx.fillSocket()
		st.tx.filled = true
		if moved := s.tx.moved.Load(); moved != at { // what is owed now is owed since now
			st.tx = stallSide{on: true, filled: true, since: now, at: moved, owed: s.tx.owed()}
		}
		s.tx.holdBatch()
	case !hasPassed(now, st.tx.since, s.dev.opts.SendTimeout):
		s.tx.holdBatch()
	default:
		s.tx.fillSocket()
		if at = s.tx.moved.Load(); at-st.tx.at < st.tx.owed && !s.over() {
			s.fail(&ending{cause: errSendTimeout, reset: true})
		}
		st.tx = stallSide{on: true, since: now, at: at, owed: s.tx.owed()}
	}
}
