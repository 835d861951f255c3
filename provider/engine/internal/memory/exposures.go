package memory

import (
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/intervals"
	"github.com/govs-rdma/govs/provider/engine/internal/locks"
	"github.com/govs-rdma/govs/provider/engine/internal/sched"
)

// The payload of a Send or Write goes out from the region, and its CRC is calculated
// before that. If a peer could write the octets in between, it would end a connection
// that is not its own, because the receiver finds a bad CRC. So memory that peers write is
// sent from a copy, which is made together with the CRC. Peers write memory by the rights of
// the region that is sent, through a window, or by another region over the same octets, of
// whatever protection domain or device.
//
// A right alone does not change the octets, and many programs register all their memory with
// it, also what no peer ever writes. So a region that has the right all its life (RegMR)
// exposes its memory when the first octet that a peer writes is about to be placed. It remains
// exposed until the region is closed. A window, or a region that a work request registers,
// exposes its memory for as long as it is bound or registered: peers are given one in order to
// use it.
//
// A region of RegMR has a gate for this, Region.still, which is open while nothing exposes its
// octets. A send that makes no copy enters that gate in place of Region.local, which costs no
// more. Before memory is exposed the gate is shut, which waits for the sends that are inside:
// each of them ends after a write that does not block. A goroutine that is inside takes locks under
// which nothing is waited for, and enters other gates, but waits for none: whoever is inside
// Region.remote may wait for Region.still, never the other way round.
//
// This goes by addresses. It does not cover pages that are mapped more than once, in this process
// or in several: a peer that writes them by a region over the other mapping can end the connection
// over which they are being sent. A program that sends to a peer should not let another peer write
// the same pages by another mapping.

// remoteWriting are the rights with which a peer changes memory.
const remoteWriting = provider.AccessRemoteWrite | provider.AccessRemoteAtomic

// exposed is of the process, as its memory is.
var exposed exposures

// exposures are the memory that peers write or may write, and the regions that are sent from
// without a copy unless that is their memory. Both change only when something is registered,
// bound, invalidated or closed, or written for the first time.
//
// Nothing is waited for with mu held: it is one lock for all devices of the process, and what is
// being sent may take as long as the system has no CPU for the thread that sends it.
type exposures struct {
	mu       sched.Mutex[locks.Exposed]
	writable intervals.Set[noted]
	sources  intervals.Set[noted]
}

// noted is what an interval of exposures is noted for.
type noted struct {
	m       *Region   // of sources
	sending []*Region // of writable: what drain waits for
}

// interval is the interval of a slice in exposures. A window or region that comes and goes by
// work requests has one for all its life, so that it allocates none.
type interval = intervals.Interval[noted]

// expose notes that peers can write v from now on, until cover, and returns v. It waits
// until nothing of v is being sent without a copy.
func (x *exposures) expose(v *interval) *interval {
	x.mu.Lock()
	sending := x.exposeLocked(v)
	x.mu.Unlock()
	x.drain(v, sending)
	return v
}

// exposeLocked is the part of expose with mu held. It returns the regions of which something is
// being sent, for drain. Where peers can write exactly the octets of v already, only what their
// exposure still waits for is being sent: so of any number of regions over the same memory only the
// first that is written visits the others.
func (x *exposures) exposeLocked(v *interval) (sending []*Region) {
	if same := x.writable.Find(v); same != nil {
		same.Join(v)
		return same.Value.sending
	}
	x.writable.Insert(v)
	x.sources.Overlapping(v, func(s *interval) {
		m := s.Value.m
		m.exposures++
		m.still.Prepare()
		m.still.Bar()
		if m.still.Uses() > 0 {
			v.Value.sending = append(v.Value.sending, m)
		}
	})
	return v.Value.sending
}

// drain waits until nothing of the regions is being sent that exposeLocked has returned for v.
func (x *exposures) drain(v *interval, sending []*Region) {
	if len(sending) == 0 {
		return
	}
	for _, m := range sending {
		m.still.Drain()
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	v.Value.sending = nil
}

// cover undoes expose, after the last peer has lost the right. There may be nothing to
// undo.
func (x *exposures) cover(v *interval) {
	if v == nil {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.coverLocked(v)
}

// coverLocked is cover with mu held.
func (x *exposures) coverLocked(v *interval) {
	if same := v.Leave(); same != nil {
		x.writable.Replace(v, same)
		return
	}
	x.writable.Remove(v)
	x.sources.Overlapping(v, func(s *interval) {
		m := s.Value.m
		if m.exposures--; m.exposures == 0 && !m.windows.Closed() { // leave may be waiting
			m.still.Open()
		}
	})
}

// enter notes the memory of m before anybody can use it.
func (x *exposures) enter(m *Region) {
	if len(m.buf) == 0 { // an object, or nothing that could be sent
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	m.gated = true
	m.unwritten.Store(m.access&remoteWriting != 0)
	m.interval = intervals.New(m.buf, noted{m: m})
	x.writable.Overlapping(m.interval, func(*interval) { m.exposures++ })
	if m.exposures > 0 {
		m.still.InitShut()
	}
	x.sources.Insert(m.interval)
}

// willWrite exposes the memory of m before the first octet that a peer writes by the rights of
// m is placed. The caller is inside m.remote, so that m is not closed meanwhile, and uses no other
// region: no goroutine that places anything is sending at the same time.
func (x *exposures) willWrite(m *Region) {
	x.mu.Lock()
	var sending []*Region
	if m.written == nil {
		m.written = intervals.New(m.buf, noted{})
		sending = x.exposeLocked(m.written)
	} else { // by another stream, which may be waiting
		sending = x.writable.Find(m.written).Value.sending
	}
	x.mu.Unlock()
	x.drain(m.written, sending)
	m.unwritten.Store(false) // last: a stream that sees it places at once
}

// leave undoes enter and willWrite when m can't be used any more. It waits until nothing of m
// is being sent, and may be called several times, also concurrently.
func (x *exposures) leave(m *Region) {
	if !m.gated {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	m.still.Prepare()
	m.still.Bar()
	if m.still.Uses() > 0 {
		// While it is being sent it stays among the sources, for a peer that writes to its memory
		// by way of another region.
		x.mu.Unlock()
		m.still.Drain()
		x.mu.Lock()
	}
	if v := m.interval; v != nil {
		m.interval = nil
		x.sources.Remove(v)
	}
	if v := m.written; v != nil {
		m.written = nil
		x.coverLocked(v)
	}
}
