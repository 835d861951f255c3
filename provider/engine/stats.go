package engine

import (
	"cmp"
	"errors"
	"math"
	"slices"
	"sync/atomic"

	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/locks"
	"github.com/govs-rdma/govs/provider/engine/internal/sched"
	"github.com/govs-rdma/govs/provider/engine/transport"
)

// counts is what a QP counts. It is made when the first message is sent or received, so an idle
// connection has none. Sender and receiver write plain fields, each under the lock of its side of
// the stream; the two sides have separate cache lines.
type counts struct {
	sent provider.Traffic // guarded by tx.mu
	_    [16]byte

	received provider.Traffic // guarded by rx.mu
	lowest   uint32           // guarded by rx.mu; see QPStats.LowestRecvs; math.MaxUint32 for none
	_        [12]byte

	// These events are rare, and any goroutine counts them.
	flushedSends, flushedRecvs, crcErrors atomic.Uint64
}

// counters returns the counts of q. The first call allocates them; the compiler inlines the
// others.
func (q *qp) counters() *counts {
	if n := q.counts.Load(); n != nil {
		return n
	}
	return q.newCounters()
}

func (q *qp) newCounters() *counts {
	q.counts.CompareAndSwap(nil, &counts{lowest: math.MaxUint32})
	return q.counts.Load()
}

// countOne adds a message of n bytes.
func countOne(c *provider.OpCount, n uint32) {
	c.Messages++
	c.Octets += uint64(n)
}

// countSegment counts a segment that was placed. rx.mu is held.
func countSegment(c *provider.OpCount, octets int, last bool) {
	c.Octets += uint64(octets)
	if last {
		c.Messages++
	}
}

// countRecv notes that a message has taken a receive, and how many receives are left.
func (q *qp) countRecv(left uint32) {
	if n := q.counters(); left < n.lowest {
		n.lowest = left
	}
}

// Stats implements provider.QPStater.
func (q *qp) Stats() (provider.QPStats, error) {
	if q.isClosed() {
		return provider.QPStats{}, failClosed("stats", q.name())
	}
	return q.stats(true), nil
}

// stats reads the counts under the locks that guard them. full adds the present state.
func (q *qp) stats(full bool) (st provider.QPStats) {
	for {
		s := q.stream.Load()
		if s != nil {
			s.rx.mu.Lock()
			s.tx.mu.Lock()
			current := q.stream.Load() == s
			if current {
				q.readCounts(&st)
				if full {
					s.describe(&st)
				}
			}
			s.tx.unlock()
			s.rx.mu.Unlock()
			s.settle()
			if current {
				break
			}
			continue
		}
		q.mu.Lock() // no stream begins now
		current := q.stream.Load() == nil
		if current {
			q.readCounts(&st)
		}
		q.mu.Unlock()
		if current {
			break
		}
	}
	if full {
		q.readQueues(&st)
	}
	return st
}

func (q *qp) readCounts(st *provider.QPStats) {
	st.LowestRecvs = -1
	n := q.counts.Load()
	if n == nil {
		return
	}
	st.Sent, st.Received = n.sent, n.received
	st.FlushedSends, st.FlushedRecvs, st.CRCErrors = n.flushedSends.Load(), n.flushedRecvs.Load(),
		n.crcErrors.Load()
	if n.lowest != math.MaxUint32 {
		st.LowestRecvs = int(n.lowest)
	}
}

// describe adds the present state of the stream. rx.mu and tx.mu are held.
func (s *stream) describe(st *provider.QPStats) {
	st.SendsHeld = int(s.q.sq.tail.Load() - s.tx.next)
	st.HeldForPeer = st.SendsHeld > 0 && !s.maySend.Load()
	st.ReadsOut = s.outstanding.Len()
	st.Local, st.Remote = s.conn.LocalAddr(), s.conn.RemoteAddr()
	if t, ok := s.conn.(transport.Stater); ok {
		if tcp, err := t.TCPStats(); err == nil {
			st.TCP = (*provider.TCPStats)(&tcp)
		}
	}
}

func (q *qp) readQueues(st *provider.QPStats) {
	q.sq.done.Lock()
	st.SendsPosted = int(q.sq.tail.Load() - q.sq.head)
	q.sq.done.Unlock()
	q.rq.done.Lock()
	head := q.rq.head.Load() // first: it never passes a later tail
	st.RecvsPosted = int(q.rq.tail.Load() - head)
	q.rq.done.Unlock()
}

// Stats implements provider.CQStater.
func (c *cq) Stats() (provider.CQStats, error) {
	if c.refs.Closed() {
		return provider.CQStats{}, failClosed("stats", "cq")
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return provider.CQStats{
		Completions: c.pushed, Errors: c.errors, Lost: c.losses,
		CQE: c.capacity(), Waiting: c.count, MostWaiting: c.most,
	}, nil
}

// maxTermCodes is how many codes of Terminates a device counts singly. It is bounded, because peers
// choose the codes that they send.
const maxTermCodes = 64

// tally is what a device counts of itself and of closed QPs. All of it is rare.
type tally struct {
	connections, failures, lost atomic.Uint64

	mu         sched.Mutex[locks.Tally]
	closed     provider.QPStats // sums
	refused    map[string]uint64
	terminates map[provider.TerminateCount]uint64 // Count is 0 in the keys
	others     uint64
}

// refuse counts something that a limit refused or ended.
func (t *tally) refuse(limit string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.refused == nil {
		t.refused = make(map[string]uint64)
	}
	t.refused[limit]++
}

func (t *tally) terminate(e *provider.TerminateError) {
	key := provider.TerminateCount{Remote: e.Remote, Layer: e.Layer, EType: e.EType, Code: e.ECode}
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, known := t.terminates[key]; !known && len(t.terminates) >= maxTermCodes {
		t.others++
		return
	}
	if t.terminates == nil {
		t.terminates = make(map[provider.TerminateCount]uint64)
	}
	t.terminates[key]++
}

// add adds st to the sums of closed QPs.
func (t *tally) add(q *qp, st *provider.QPStats) {
	t.mu.Lock()
	defer t.mu.Unlock()
	sum(&t.closed, st)
	q.summed = true
}

func sum(to, st *provider.QPStats) {
	to.Sent.Add(&st.Sent)
	to.Received.Add(&st.Received)
	to.FlushedSends += st.FlushedSends
	to.FlushedRecvs += st.FlushedRecvs
	to.CRCErrors += st.CRCErrors
}

// countEnd counts why a stream has ended. sent says that there was something to send at the end.
// rx.mu and tx.mu are held.
func (d *device) countEnd(s *stream, e *ending, sent bool) {
	var t *provider.TerminateError
	if errors.As(e.cause, &t) && (t.Remote || sent && e.terminate != nil) {
		d.tally.terminate(t)
		d.log.terminate(s, t)
	}
	for _, limit := range endLimits {
		if errors.Is(e.cause, limit.err) {
			d.tally.refuse(limit.name)
			d.log.limit(limit.name, s.conn.RemoteAddr())
			break
		}
	}
}

// endLimits are the limits that end connections.
var endLimits = []struct {
	err  error
	name string
}{
	{errFPDUMemory, "FPDUMemory"},
	{errFPDUTimeout, "FPDUTimeout"},
	{errSendTimeout, "SendTimeout"},
	{errCloseTimeout, "CloseTimeout"},
}

// Stats implements provider.DeviceStater.
func (d *device) Stats() (provider.DeviceStats, error) {
	if d.refs.Closed() {
		return provider.DeviceStats{}, failClosed("stats", DeviceName)
	}
	d.qpnMu.Lock()
	qps := make([]*qp, 0, len(d.qpns))
	for _, q := range d.qpns {
		if q != nil {
			qps = append(qps, q)
		}
	}
	d.qpnMu.Unlock()
	open, connected := make([]provider.QPStats, len(qps)), 0
	for i, q := range qps {
		open[i] = q.stats(false)
		if q.stream.Load() != nil {
			connected++
		}
	}
	accepted, closing := d.cm.Accepted(), d.closing.len()
	t := &d.tally
	t.mu.Lock()
	defer t.mu.Unlock()
	all := t.closed
	for i, q := range qps {
		if !q.summed { // the sums of closed QPs include the others
			sum(&all, &open[i])
		}
	}
	st := provider.DeviceStats{
		Sent: all.Sent, Received: all.Received,
		FlushedSends: all.FlushedSends, FlushedRecvs: all.FlushedRecvs, CRCErrors: all.CRCErrors,
		CQLost: t.lost.Load(), Connections: t.connections.Load(), Failures: t.failures.Load(),
		OtherTerminates: t.others, Refused: make(map[string]uint64, len(t.refused)),
		QPs: d.qps.Len(), CQs: d.cqs.Len(), MRs: d.memory.MRs.Len(),
		MWs: d.memory.MWs.Len(), PDs: d.pds.Len(), SRQs: d.srqs.Len(),
		Connected: connected, Accepted: accepted, Closing: closing,
	}
	for name, n := range t.refused {
		st.Refused[name] = n
	}
	for key, n := range t.terminates {
		key.Count = n
		st.Terminates = append(st.Terminates, key)
	}
	slices.SortFunc(st.Terminates, func(a, b provider.TerminateCount) int {
		return cmp.Compare(termOrder(a), termOrder(b))
	})
	return st, nil
}

func termOrder(t provider.TerminateCount) uint32 {
	n := uint32(t.Layer)<<16 | uint32(t.EType)<<8 | uint32(t.Code)
	if t.Remote {
		n |= 1 << 31
	}
	return n
}
