package memnet

import (
	"math/rand/v2"
	"net/netip"
	"syscall"
	"time"

	"github.com/govs-rdma/govs/provider/engine/internal/locks"
	"github.com/govs-rdma/govs/provider/engine/internal/sched"
)

// The two ends of a link.
const (
	dialed = iota
	accepted
)

// link is a connection: two ends and a pipe from each to the other.
type link struct {
	n      *Network
	serial uint64

	mu      sched.Mutex[locks.Conn] // taken before a poller's
	ends    [2]conn
	pipes   [2]pipe // pipes[i] is what ends[i] sends
	stalled bool
}

// pipe is one direction of a link. link.mu guards all of it.
type pipe struct {
	rnd     *rand.Rand
	segs    []segment // sent and not read; the first arrived of them have arrived
	arrived int
	octets  int   // in segs
	offset  int64 // of the next byte sent
	last    time.Time
	timed   bool // a timer runs for segs[arrived]
	fin     bool // FIN has arrived
	broken  bool // RST was sent: nothing follows
}

type segment struct {
	kind   segmentKind
	data   []byte
	offset int64
	at     time.Time // of arrival
}

type segmentKind uint8

const (
	segData segmentKind = iota
	segFIN
	segRST
)

func newLink(n *Network, serial uint64, src, dst netip.AddrPort) *link {
	lk := &link{n: n, serial: serial}
	for i := range lk.ends {
		lk.ends[i].lk, lk.ends[i].side = lk, i
		lk.pipes[i].rnd = rand.New(rand.NewPCG(n.opts.Seed, serial<<1|uint64(i)))
	}
	lk.ends[dialed].local, lk.ends[dialed].remote = src, dst
	lk.ends[accepted].local, lk.ends[accepted].remote = dst, src
	return lk
}

// accepts returns how many of want bytes the pipe takes now.
func (p *pipe) accepts(want int, opts *Options) int {
	n := min(want, opts.Window-p.octets)
	if n > 1 && opts.Cut && p.rnd.IntN(2) == 0 {
		n = 1 + p.rnd.IntN(n)
	}
	return max(n, 0)
}

// segmentLen returns how long the next segment of left bytes is.
func (p *pipe) segmentLen(left int, opts *Options) int {
	n := opts.MSS
	if opts.Cut {
		n = 1 + p.rnd.IntN(1<<p.rnd.IntN(12))
	}
	return min(n, left, opts.MSS)
}

// send puts a segment on its way from an end. lk.mu is held, here and in all methods below.
func (lk *link) send(from int, s segment) {
	p := &lk.pipes[from]
	if p.broken {
		return
	}
	p.broken = s.kind == segRST
	s.offset = p.offset
	p.offset += int64(len(s.data))
	p.octets += len(s.data)
	p.segs = append(p.segs, s)

	opts := &lk.n.opts
	delay := opts.MinDelay
	if spread := opts.MaxDelay - opts.MinDelay; spread > 0 {
		delay += time.Duration(p.rnd.Int64N(int64(spread) + 1))
	}
	if delay == 0 && !p.timed {
		lk.arrive(from)
		return
	}
	at := time.Now().Add(delay)
	if at.Before(p.last) {
		at = p.last
	}
	p.last = at
	p.segs[len(p.segs)-1].at = at
	lk.schedule(from)
}

// schedule starts the timer of the next segment to arrive.
func (lk *link) schedule(from int) {
	p := &lk.pipes[from]
	if p.timed || p.arrived == len(p.segs) {
		return
	}
	p.timed = true
	time.AfterFunc(time.Until(p.segs[p.arrived].at), func() {
		lk.mu.Lock()
		defer lk.mu.Unlock()
		p.timed = false
		now := time.Now()
		for p.arrived < len(p.segs) && !p.segs[p.arrived].at.After(now) && !lk.stalled {
			lk.arrive(from)
		}
		if !lk.stalled {
			lk.schedule(from)
		}
	})
}

// arrive lets the next segment of a pipe arrive at the other end.
func (lk *link) arrive(from int) {
	if lk.stalled {
		return
	}
	lk.n.moved.Add(1)
	p, to := &lk.pipes[from], &lk.ends[1-from]
	s := &p.segs[p.arrived]
	switch {
	case s.kind == segData && !lk.filter(from, s):
		return
	case to.closed:
		lk.drop(p, s)
	case s.kind == segData:
		p.arrived++
	case s.kind == segFIN:
		p.segs = p.segs[:copy(p.segs[p.arrived:], p.segs[p.arrived+1:])+p.arrived]
		p.fin = true
	case s.kind == segRST:
		p.segs = p.segs[:p.arrived]
		to.err = syscall.ECONNRESET
	}
	to.wakePoller()
	lk.ends[from].wakePoller() // dropping may have made room
}

// drop removes a segment that reached a closed end, which answers data with a reset.
func (lk *link) drop(p *pipe, s *segment) {
	kind := s.kind
	p.octets -= len(s.data)
	p.segs = p.segs[:copy(p.segs[p.arrived:], p.segs[p.arrived+1:])+p.arrived]
	if kind == segData {
		for side := range lk.pipes {
			if &lk.pipes[side] == p {
				lk.send(1-side, segment{kind: segRST})
			}
		}
	}
}

// filter asks the filter about a segment, and returns false if the segment does not arrive.
func (lk *link) filter(from int, s *segment) bool {
	if lk.n.opts.Filter == nil {
		return true
	}
	end := &lk.ends[from]
	seg := Segment{
		Conn: lk.serial, FromDialer: from == dialed, From: end.local, To: end.remote,
		Offset: s.offset, Data: s.data,
	}
	switch lk.n.opts.Filter(&seg) {
	case Reset:
		lk.resetBoth()
		return false
	case Stall:
		lk.stalled = true
		return false
	}
	return true
}

// resetBoth resets both ends; what has arrived can still be read.
func (lk *link) resetBoth() {
	for i := range lk.ends {
		p := &lk.pipes[i]
		p.broken = true
		clear(p.segs[p.arrived:])
		p.segs = p.segs[:p.arrived]
		lk.ends[i].err = syscall.ECONNRESET
	}
	for i := range lk.ends {
		lk.ends[i].wakePoller()
	}
}

// read reads from the first segment that has arrived at the far end.
func (p *pipe) read(bufs [][]byte) int {
	s := &p.segs[0]
	n := 0
	for _, b := range bufs {
		n += copy(b, s.data[n:])
	}
	s.data = s.data[n:]
	s.offset += int64(n)
	p.octets -= n
	if len(s.data) == 0 {
		p.segs[0] = segment{}
		p.segs = p.segs[1:]
		p.arrived--
	}
	return n
}
