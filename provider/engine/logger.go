package engine

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/locks"
	"github.com/govs-rdma/govs/provider/engine/internal/memory"
	"github.com/govs-rdma/govs/provider/engine/internal/sched"
)

// Bounds on what a device logs. Without them a peer, which can cause records, could fill the log's
// disk.
const (
	logPerSecond = 10 // records of a level in any one second, whoever causes them
	logKept      = logPerSecond
)

// logger hands records to Options.Logger. Records are made where locks are held and the program
// must not be called, so a goroutine, which exists only while there are records, calls the program.
// A slow Handler delays only that goroutine.
//
// Records beyond logPerSecond, or while logKept records of the level wait, are dropped, and the
// next record of the level says how many. Each level has its own budget, so that warnings, which
// peers cause, don't displace errors, and records of a level that the Handler ignores don't
// displace others.
type logger struct {
	to    *slog.Logger // nil: nothing is logged
	debug bool         // its Handler took records of slog.LevelDebug when the device was opened

	mu       sched.Mutex[locks.Log]
	began    time.Time // of the second
	details  logBudget // of the levels below slog.LevelWarn
	warnings logBudget
	errors   logBudget
	queue    []slog.Record
	running  bool
	draining sync.WaitGroup

	sinkLogged atomic.Bool // readSink has logged
}

// logBudget is the state of one level's budget.
type logBudget struct {
	n       int // records in the second
	waiting int // in the queue
	dropped uint64
}

// open sets where records go. No lock is held, because it asks the Handler.
func (l *logger) open(to *slog.Logger) {
	l.to = to
	l.debug = to != nil && to.Enabled(context.Background(), slog.LevelDebug)
}

// add logs a record, or drops it. It never blocks, and may be called with any lock held.
func (l *logger) add(level slog.Level, text string, attrs ...slog.Attr) {
	if l.to == nil {
		return
	}
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	if now.Sub(l.began) >= time.Second {
		l.began, l.details.n, l.warnings.n, l.errors.n = now, 0, 0, 0
	}
	b := &l.warnings
	switch {
	case level >= slog.LevelError:
		b = &l.errors
	case level < slog.LevelWarn:
		b = &l.details
	}
	if b.n >= logPerSecond || b.waiting >= logKept {
		b.dropped++
		return
	}
	b.n++
	b.waiting++
	r := slog.NewRecord(now, level, text, 0)
	r.AddAttrs(attrs...)
	if b.dropped > 0 {
		r.AddAttrs(slog.Uint64("dropped", b.dropped))
		b.dropped = 0
	}
	l.queue = append(l.queue, r)
	if !l.running {
		l.running = true
		l.draining.Add(1)
		go l.drain()
	}
}

// drain writes what is queued, without a lock.
func (l *logger) drain() {
	defer l.draining.Done()
	ctx := context.Background()
	for {
		l.mu.Lock()
		queue := l.queue
		l.queue = nil
		l.details.waiting, l.warnings.waiting, l.errors.waiting = 0, 0, 0
		l.running = len(queue) > 0
		l.mu.Unlock()
		if len(queue) == 0 {
			return
		}
		for _, r := range queue {
			if h := l.to.Handler(); h.Enabled(ctx, r.Level) {
				_ = h.Handle(ctx, r) // an error of the log can't be logged
			}
		}
	}
}

// held logs that a stream sends nothing until the peer has sent something. For a server that speaks
// first, that is so for a moment on every connection; a server whose peer never speaks waits
// forever.
func (l *logger) held(qpn uint32, peer netip.AddrPort, sends uint32) {
	if l.debug {
		l.add(slog.LevelDebug, "sends are held until the peer's first message: the side that dialled has to send first",
			slog.Uint64("qp", uint64(qpn)), slog.String("peer", peer.String()),
			slog.Uint64("sends", uint64(sends)))
	}
}

// terminate logs a Terminate.
func (l *logger) terminate(qpn uint32, peer netip.AddrPort, e *provider.TerminateError) {
	if l.to == nil {
		return
	}
	text := "Terminate sent"
	if e.Remote {
		text = "Terminate received"
	}
	l.add(slog.LevelWarn, text, slog.Uint64("qp", uint64(qpn)),
		slog.String("peer", peer.String()), slog.String("cause", withoutWRID(e).Error()))
}

// withoutWRID returns e without the WRID of the work request at fault. The WRID may belong to a
// package that posts for the program (rdmacm.Conn.Do), so the program would not know it.
func withoutWRID(e *provider.TerminateError) *provider.TerminateError {
	work, ok := e.Err.(*provider.WorkError)
	if !ok {
		return e
	}
	named, unnamed := *e, *work
	unnamed.Unknown = true
	named.Err = &unnamed
	return &named
}

// readSink logs, once for a device, that a Read is answered into a region without
// AccessRemoteWrite. The engine does not need that right, because it places the answer by the work
// request. RNICs place it by the STag on the wire, like a Write (RFC 5040 section 5.2). The spans
// are in use.
func (l *logger) readSink(qpn uint32, spans []memory.Span) {
	if l.sinkLogged.Load() {
		return
	}
	for i := range spans {
		m := spans[i].Region
		if m.Access()&provider.AccessRemoteWrite == 0 && !l.sinkLogged.Swap(true) {
			l.add(slog.LevelWarn, "a Read's sink lacks AccessRemoteWrite: iWARP hardware "+
				"refuses the answer; "+
				"register it with ibverbs.AccessReadSink", slog.Uint64("qp", uint64(qpn)),
				slog.String("lkey", fmt.Sprintf("%#x", m.STag())))
		}
	}
}

// limit logs that a limit was reached.
func (l *logger) limit(name string, peer netip.AddrPort) {
	if l.to == nil {
		return
	}
	l.add(slog.LevelWarn, "limit reached", slog.String("limit", name), slog.String("peer", peer.String()))
}

// startup logs that a connection could not be made.
func (l *logger) startup(side string, peer netip.AddrPort, err error) {
	if l.to == nil {
		return
	}
	l.add(slog.LevelWarn, "start-up failed", slog.String("side", side),
		slog.String("peer", peer.String()), slog.String("cause", err.Error()))
}

// overflow logs that a CQ was full. It may be called with locks held.
func (l *logger) overflow(cqe int) {
	l.add(slog.LevelError, "CQ overflow: completions are lost until it is polled", slog.Int("cqe", cqe))
}
