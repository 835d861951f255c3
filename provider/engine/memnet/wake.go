package memnet

import (
	"sync"
	"time"
)

// choose copies the ends that a Poll looks at from the front of p.ready to batch, and returns how
// many there are. p.mu is held.
func (p *poller) choose(batch []*registration) int {
	n := min(len(batch), len(p.ready))
	if p.n.opts.Shuffle && n > 1 {
		p.rnd.Shuffle(len(p.ready), func(i, j int) { p.ready[i], p.ready[j] = p.ready[j], p.ready[i] })
		if p.rnd.IntN(2) == 0 {
			n = 1 + p.rnd.IntN(n)
		}
	}
	return copy(batch[:n], p.ready)
}

// holdUp delays one in four calls of Ready.
func (p *poller) holdUp() {
	if p.n.opts.MaxWake <= 0 {
		return
	}
	p.mu.Lock()
	var d time.Duration
	if p.rnd.IntN(4) == 0 {
		d = time.Duration(p.rnd.Int64N(int64(p.n.opts.MaxWake) + 1))
	}
	p.mu.Unlock()
	if d > 0 {
		time.Sleep(d)
	}
}

// spurious occasionally calls a handler, and reports a readiness that need not be true.
func (p *poller) spurious() {
	if p.n.opts.Spurious <= 0 {
		return
	}
	p.mu.Lock()
	var reg *registration
	what := 0
	if len(p.listed) > 0 && p.rnd.IntN(p.n.opts.Spurious) == 0 {
		reg, what = p.listed[p.rnd.IntN(len(p.listed))], 1+p.rnd.IntN(3)
	}
	p.mu.Unlock()
	if reg != nil {
		reg.handler.Ready(what&1 != 0, what&2 != 0)
	}
}

// spinCalls is how many calls without an effect make Options.OnSpin suspicious, and spinRounds how
// many consecutive times.
const (
	spinCalls  = 2000
	spinRounds = 3
)

// spinning counts the calls of a poller's handlers since a byte last moved.
type spinning struct {
	mu     sync.Mutex
	moved  uint64 // of the network, at the first of them
	calls  int
	rounds int
}

// count notes that the handler of reg was called. Every so often it sleeps, so that other
// goroutines finish what they were about to do before a handler is called again.
func (s *spinning) count(n *Network, reg *registration) {
	if n.opts.OnSpin == nil {
		return
	}
	s.mu.Lock()
	if moved := n.moved.Load(); moved != s.moved {
		s.moved, s.calls, s.rounds = moved, 0, 0
	}
	s.calls++
	round := s.calls >= spinCalls
	tell := false
	if round {
		s.calls = 0
		s.rounds++
		if tell = s.rounds == spinRounds; tell {
			s.rounds = 0
		}
	}
	s.mu.Unlock()
	if tell {
		n.opts.OnSpin(reg.conn.lk.serial)
	}
	if round {
		time.Sleep(time.Microsecond)
	}
}
