package load

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/govs-rdma/govs/ibverbs"
)

// LookEvery returns the number of messages after which the clock is read, because reading it costs
// as much as posting a small message.
func LookEvery(size int) int { return min(max(1<<20/size, 1), 4096) }

// begin starts a stretch of n messages on each lane, or with a limit as many as fit into it.
func (e *end) begin(n uint64, limit time.Duration) {
	s := &e.spec
	e.run = stretch{began: time.Now(), limit: limit, hist: e.run.hist}
	e.run.peak.Least = peakDepths * uint64(s.TxDepth) * uint64(s.QPs) * uint64(s.Size)
	e.runs++
	for i := range e.lanes {
		l := &e.lanes[i]
		l.over = false
		l.target = l.posted + n
		if limit > 0 {
			l.target = math.MaxUint64
		}
	}
}

// greet does an empty run on new connections. The accepting side may not send before it has
// received something (RFC 5044 section 7.1.2), which some providers do not ensure. Then the end of
// the start-up and the first message could arrive together, and the engine would refuse them.
func (e *end) greet(ctx context.Context) error {
	if e.runs > 0 {
		return nil
	}
	e.begin(0, 0)
	return e.stream(ctx)
}

// stream posts the messages of begin, answers received ones, and returns when both ends have all
// messages.
func (e *end) stream(ctx context.Context) error {
	for i := range e.lanes {
		if err := e.feed(&e.lanes[i], i); err != nil {
			return err
		}
	}
	look := LookEvery(e.spec.Size)
	for e.run.over < len(e.lanes) {
		n, err := e.wait(ctx)
		if err != nil {
			return err
		}
		for i := range n {
			if err := e.handle(&e.wc[i]); err != nil {
				return err
			}
		}
		if e.run.unlooked >= look {
			if err := e.lookAtClock(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// handle reacts to a completion.
func (e *end) handle(wc *ibverbs.WC) error {
	if err := e.check(wc); err != nil {
		return err
	}
	l, messages := e.laneOf(wc)
	switch {
	case wc.Opcode == ibverbs.WCRecv:
		if err := e.received(l, int(wc.ByteLen)); err != nil {
			return err
		}
	case messages == 0:
		l.notes--
	default:
		l.done += messages
		e.run.unlooked += int(messages)
	}
	return e.feed(l, int(uint32(wc.WRID)))
}

// received processes what the peer sent, and reposts receives.
func (e *end) received(l *lane, octets int) error {
	switch {
	case octets == e.spec.Size && e.takes():
		l.taken++
		if l.owed++; l.owed < len(l.recvs) {
			return nil
		}
		l.owed = 0
		if err := l.qp.PostRecv(l.recvs...); err != nil {
			return because(l.qp, err)
		}
		return e.sendNote(l, creditLen(e.spec.Size))
	case octets == 0:
		l.ends++
	case octets == creditLen(e.spec.Size):
		l.granted += uint64(window(&e.spec) / 4)
	default:
		return fmt.Errorf("the peer sent %d bytes, which is neither a message nor a note", octets)
	}
	return because(l.qp, l.qp.PostRecv(l.recv...))
}

// sendNote posts a note. It has the same content as the beginning of a message, because it is
// received in the same memory.
func (e *end) sendNote(l *lane, octets int) error {
	l.note[0].SGList = l.note[0].SGList[:0]
	if octets > 0 {
		l.note[0].SGList = append(l.note[0].SGList, ibverbs.SGE{Addr: e.mem.src.Addr() + uint64(l.slot), Length: uint32(octets), LKey: e.mem.src.LKey()})
	}
	l.notes++
	return because(l.qp, l.qp.PostSend(l.note...))
}

// feed posts as much on a lane as there is room for. When no message is left, it posts the lane's
// end.
func (e *end) feed(l *lane, n int) error {
	for l.posted < l.target {
		count := min(uint64(len(l.list)), l.target-l.posted)
		if l.posted+count-l.done > uint64(e.spec.TxDepth) {
			return nil
		}
		if e.spec.Op == SendBW && l.posted+count > l.granted {
			return nil
		}
		wrs := l.list[uint64(len(l.list))-count:]
		wrs[len(wrs)-1].WRID = workID(n, count)
		if len(e.locals) > 1 {
			e.turn(l, wrs)
		}
		if err := l.qp.PostSend(wrs...); err != nil {
			return because(l.qp, err)
		}
		l.posted += count
	}
	// A client may have begun its next run before the server has handled the end of this one, so
	// ends are counted.
	ended := l.ends >= e.runs
	if l.posted == l.done && l.endsSent < e.runs && (!e.server || ended) {
		l.endsSent++
		if err := e.sendNote(l, 0); err != nil {
			return err
		}
	}
	if l.endsSent == e.runs && ended && l.notes == 0 && !l.over {
		l.over = true
		e.run.over++
	}
	return nil
}

// lookAtClock updates the peak, and ends a run that is limited by time.
func (e *end) lookAtClock(ctx context.Context) error {
	r := &e.run
	now := time.Since(r.began)
	r.peak.Add(now, r.unlooked*e.spec.Size)
	r.unlooked = 0
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if r.limit == 0 || now < r.limit {
		return nil
	}
	r.limit = 0
	for i := range e.lanes {
		l := &e.lanes[i]
		l.target = l.posted
		if err := e.feed(l, i); err != nil {
			return err
		}
	}
	return nil
}

// peakWindow is the shortest time over which the peak is an average.
const peakWindow = 10 * time.Millisecond

// peakDepths is the shortest stretch over which the peak is an average, in multiples of what may be
// outstanding. It is more than one, because completions that have waited while others were posted
// are handled all at once.
const peakDepths = 4

// A Peak finds the fastest stretch of a transfer. Its zero value is an empty transfer.
type Peak struct {
	Least  uint64 // shortest stretch, in bytes
	from   time.Duration
	octets int
	best   float64
}

// Add reports octets more bytes at time now, counted from the transfer's beginning.
func (p *Peak) Add(now time.Duration, octets int) {
	p.octets += octets
	if d := now - p.from; d >= peakWindow && uint64(p.octets) >= p.Least {
		p.best = max(p.best, float64(p.octets)/d.Seconds())
		p.from, p.octets = now, 0
	}
}

// Best returns the peak in bytes per second, or 0 if the transfer was too short.
func (p *Peak) Best() float64 { return p.best }
