package transport

import (
	"io"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/govs-rdma/govs/provider/engine/internal/locks"
	"github.com/govs-rdma/govs/provider/engine/internal/sched"
)

// tapped numbers the ends of streams.
var tapped atomic.Uint64

// TapEnd turns the events of one end of a stream into TapRecords, for implementations of Conn. Its
// methods may be called on nil, which records nothing. Sent and SentEvent are for the one writer
// and the closer, Received is for the one reader.
type TapEnd struct {
	tap  Tap
	ends TapRecord // the fields that are the same in every record

	mu       sched.Mutex[locks.Tap]
	lost     bool // a reset was recorded, in either direction
	finGiven bool // the peer's FIN was recorded
}

// NewTapEnd begins the records of an end. It returns nil if there is no tap.
func NewTapEnd(tap Tap, local, remote netip.AddrPort, dialed bool) *TapEnd {
	if tap == nil {
		return nil
	}
	t := &TapEnd{tap: tap, ends: TapRecord{Conn: tapped.Add(1), Local: local, Remote: remote, Dialed: dialed}}
	t.record(time.Now(), TapOpen, dialed, nil)
	return t
}

func (t *TapEnd) record(at time.Time, event TapEvent, sent bool, data []byte) {
	r := t.ends
	r.Time, r.Event, r.Sent, r.Data = at, event, sent, data
	t.tap.Tap(r)
}

// Before returns the time. It must be called before bytes are sent, because a peer in the same
// process could receive them, and record that, before the call that sends them returns.
func (t *TapEnd) Before() time.Time {
	if t == nil {
		return time.Time{}
	}
	return time.Now()
}

// Sent records the first n bytes of bufs, which were sent from the time before on.
func (t *TapEnd) Sent(before time.Time, bufs [][]byte, n int) {
	if t != nil && n > 0 {
		t.record(before, TapData, true, join(bufs, n))
	}
}

// SentEvent records our own FIN or reset. Nothing follows a reset.
func (t *TapEnd) SentEvent(before time.Time, event TapEvent) {
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

// Received records the result of a read: the first n bytes of bufs, io.EOF once, or another error
// as a loss, once.
func (t *TapEnd) Received(bufs [][]byte, n int, err error) {
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

// join returns the first n bytes of bufs in one slice.
func join(bufs [][]byte, n int) []byte {
	if len(bufs) == 1 {
		return bufs[0][:n]
	}
	joined := slices.Concat(bufs...)
	return joined[:n]
}
