package engine

import (
	"cmp"
	"math"
	"slices"

	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/transport"
)

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

// Stats implements provider.DeviceStater.
func (d *device) Stats() (provider.DeviceStats, error) {
	if d.refs.Closed() {
		return provider.DeviceStats{}, failClosed("stats", d.Name())
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
