package engine

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
)

// progressState is what a device needs to move data, for all its QPs together.
type progressState struct {
	batches  stock[txBatch]
	contexts stock[rxContext]
	kept     atomic.Int64 // contexts that streams keep between turns

	turns atomic.Uint64 // of pollers

	cancel context.CancelFunc
	ended  chan struct{}

	mu        sync.Mutex
	stopping  bool
	lingering map[*stream]struct{}
}

// stockKept is how many objects a stock keeps; more are left to the garbage
// collector.
const stockKept = 64

// stock lends objects that are too large to allocate for each use and too large
// for every QP to have one.
type stock[T any] struct {
	make func() *T

	mu   sync.Mutex
	free [stockKept]*T
	n    int
	out  int // lent
}

func (k *stock[T]) get() *T {
	k.mu.Lock()
	k.out++
	if k.n > 0 {
		k.n--
		x := k.free[k.n]
		k.free[k.n] = nil
		k.mu.Unlock()
		return x
	}
	k.mu.Unlock()
	return k.make()
}

func (k *stock[T]) put(x *T) {
	k.mu.Lock()
	k.out--
	if k.n < len(k.free) {
		k.free[k.n] = x
		k.n++
	}
	k.mu.Unlock()
}

// lent is how many objects are with somebody.
func (k *stock[T]) lent() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.out
}

// pollsPerWait is how often the progress goroutine serves what is ready before it
// parks again: parking costs more than looking.
const pollsPerWait = 64

// startProgress starts the device's progress goroutine. It serves every stream
// that no poller serves: those of applications that wait for a completion event,
// and of targets of one-sided operations that don't know that there are any.
func (d *device) startProgress() {
	p := &d.prog
	p.batches.make = func() *txBatch { return &txBatch{pool: &d.chunks} }
	p.contexts.make = newRxContext
	p.lingering = make(map[*stream]struct{})
	p.ended = make(chan struct{})
	var ctx context.Context
	ctx, p.cancel = context.WithCancel(context.Background())
	go func() {
		defer close(p.ended)
		for d.poller.Wait(ctx) == nil {
			for busy := 0; busy < pollsPerWait && d.poller.Poll() > 0; busy++ {
			}
		}
	}()
}

// stopProgress ends the progress goroutine and waits until it has ended. There
// are no QPs any more; connections that linger are closed at once.
func (d *device) stopProgress() {
	p := &d.prog
	p.mu.Lock()
	p.stopping = true
	streams := p.lingering
	p.lingering = nil
	p.mu.Unlock()
	for s := range streams {
		s.cutLinger()
	}
	p.cancel()
	<-p.ended
}

// addLingering notes that s lingers. It reports false if the device is being
// closed.
func (p *progressState) addLingering(s *stream) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopping {
		return false
	}
	p.lingering[s] = struct{}{}
	return true
}

func (p *progressState) dropLingering(s *stream) {
	p.mu.Lock()
	delete(p.lingering, s)
	p.mu.Unlock()
}

// pollerTurns is how often a poller that asks its own few streams looks at all of
// the device's, too.
const pollerTurns = 16

// progress moves data on behalf of a poller that found c empty. It never waits
// and does not allocate. The streams of a CQ with few QPs are read directly,
// which spares the call that asks which of them have something; who is blocked
// or rarer is left to the poller.
func (d *device) progress(c *cq) {
	direct := *c.direct.Load()
	all := len(direct) == 0 || d.prog.turns.Add(1)%pollerTurns == 0
	for _, q := range direct {
		s := q.stream.Load()
		if s == nil {
			continue
		}
		s.pollRx()
		if s.blocked.Load() {
			all = true
		}
	}
	if all {
		d.poller.Poll()
	}
}

func isEOF(err error) bool { return errors.Is(err, io.EOF) }
