package transport

import (
	"io"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// tapped numbers the ends of streams.
var tapped atomic.Uint64

// connTap turns what happens to one end of a stream into TapRecords. Its
// methods may be called on nil, which records nothing.
type connTap struct {
	tap  Tap
	ends TapRecord // with what is the same in every record

	mu       sync.Mutex
	lost     bool // a reset was recorded, in whichever direction
	finGiven bool // the peer's FIN was recorded
}

// newConnTap returns nil if there is no tap.
func newConnTap(tap Tap, local, remote netip.AddrPort, dialed bool) *connTap {
	if tap == nil {
		return nil
	}
	return &connTap{tap: tap, ends: TapRecord{Conn: tapped.Add(1), Local: local, Remote: remote, Dialed: dialed}}
}

func (t *connTap) record(at time.Time, event TapEvent, sent bool, data []byte) {
	r := t.ends
	r.Time, r.Event, r.Sent, r.Data = at, event, sent, data
	t.tap.Tap(r)
}

func (t *connTap) opened() {
	if t != nil {
		t.record(time.Now(), TapOpen, t.ends.Dialed, nil)
	}
}

// sending returns the time before octets leave: a peer in the same process
// could receive them, and have that recorded, before the call that sends them
// returns.
func (t *connTap) sending() time.Time {
	if t == nil {
		return time.Time{}
	}
	return time.Now()
}

// sent records the first n octets of bufs, whose sending began at the time
// before.
func (t *connTap) sent(before time.Time, bufs [][]byte, n int) {
	if t != nil && n > 0 {
		t.record(before, TapData, true, join(bufs, n))
	}
}

// sentEvent records a FIN or reset of ours.
func (t *connTap) sentEvent(before time.Time, event TapEvent) {
	if t == nil {
		return
	}
	t.mu.Lock()
	skip := t.lost
	t.lost = t.lost || event == TapReset
	t.mu.Unlock()
	if !skip {
		t.record(before, event, true, nil)
	}
}

// received records what a read gave: octets, the end or a loss.
func (t *connTap) received(bufs [][]byte, n int, err error) {
	if t == nil {
		return
	}
	now := time.Now()
	if err == nil {
		if n > 0 {
			t.record(now, TapData, false, join(bufs, n))
		}
		return
	}
	event := TapReset
	t.mu.Lock()
	skip := t.lost
	if err == io.EOF {
		event, skip = TapFIN, skip || t.finGiven
		t.finGiven = true
	} else {
		t.lost = true
	}
	t.mu.Unlock()
	if !skip {
		t.record(now, event, false, nil)
	}
}

// join returns the first n octets of bufs in one piece.
func join(bufs [][]byte, n int) []byte {
	if len(bufs) == 1 {
		return bufs[0][:n]
	}
	joined := slices.Concat(bufs...)
	return joined[:n]
}
