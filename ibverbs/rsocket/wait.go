package rsocket

import (
	"context"
	"net"
	"os"
	"time"
)

// side is a direction of a Conn, or its Close or hear: the call that uses it, and whether that call
// waits. One call waits at a time.
//
// A waiting call takes completions from the CQ for all calls. The first one polls (it leads). The
// others wait for a token of wake, which they get when they can go on or have to lead. A lost
// wake-up would need a waiting call while no call leads. That cannot happen, because every call
// that stops leading calls appoint.
type side struct {
	ready func() bool // whether a call here can go on; called with Conn.mu held

	use  chan struct{} // has a token while a call uses the direction
	wake chan struct{}

	// Under Conn.mu.
	waiting bool // for a token of wake
	leads   bool
	limit   deadline
}

func (s *side) init(ready func() bool) {
	s.ready = ready
	s.use = make(chan struct{}, 1)
	s.wake = make(chan struct{}, 1)
	s.limit.done = make(chan struct{})
}

// acquire waits until no other call uses the direction.
func (c *Conn) acquire(s *side) error {
	select {
	case s.use <- struct{}{}:
		return nil
	default:
	}
	c.mu.Lock()
	done := s.limit.done
	c.mu.Unlock()
	select {
	case s.use <- struct{}{}:
		return nil
	case <-done:
		return os.ErrDeadlineExceeded
	case <-c.closing:
		return net.ErrClosed
	}
}

func (s *side) release() { <-s.use }

// await waits until s is ready or its deadline has passed. The caller holds mu; await unlocks it
// while it waits.
func (c *Conn) await(s *side) (err error) {
	for {
		switch {
		case c.closed && s != &c.cl:
			err = net.ErrClosed
		case s.limit.passed:
			err = os.ErrDeadlineExceeded
		case s.ready():
		case c.leading:
			c.follow(s)
			continue
		default:
			c.lead(s)
			continue
		}
		c.appoint()
		return err
	}
}

// lead waits for completions and handles them. The caller holds mu; lead unlocks it while it waits.
func (c *Conn) lead(s *side) {
	if c.polling == nil || c.polling.Err() != nil {
		c.polling, c.stop = context.WithCancel(context.Background())
	}
	ctx := c.polling
	c.leading, s.leads = true, true
	c.mu.Unlock()
	n, err := c.parts.cq.PollWait(ctx, c.wcs[:])
	c.mu.Lock()
	c.leading, s.leads = false, false
	if err != nil && ctx.Err() == nil {
		c.lost(err)
	}
	c.handle(c.wcs[:n])
}

// follow waits until another call wakes s or its deadline passes. The caller holds mu; follow
// unlocks it while it waits.
func (c *Conn) follow(s *side) {
	s.waiting = true
	done := s.limit.done
	c.mu.Unlock()
	select {
	case <-s.wake:
	case <-done:
	}
	c.mu.Lock()
	s.waiting = false
	select {
	case <-s.wake: // came together with done
	default:
	}
}

// look handles the completions that are in the CQ, unless another call polls. The caller holds mu.
func (c *Conn) look() {
	if c.leading || c.gone {
		return
	}
	n, err := c.parts.cq.Poll(c.wcs[:])
	if err != nil {
		c.lost(err)
	}
	c.handle(c.wcs[:n])
}

// appoint makes a waiting call lead, if no call does. The caller holds mu.
func (c *Conn) appoint() {
	if c.leading {
		return
	}
	for _, s := range c.sides() {
		if s.waiting {
			s.rouse()
			return
		}
	}
}

// wakeReady wakes the waiting calls that can go on. The caller holds mu.
func (c *Conn) wakeReady() {
	for _, s := range c.sides() {
		if s.waiting && s.ready() {
			s.rouse()
		}
	}
}

func (c *Conn) sides() [4]*side { return [4]*side{&c.rd, &c.wr, &c.cl, &c.hr} }

// rouse gives a token to the waiting call. The caller holds mu.
func (s *side) rouse() {
	select {
	case s.wake <- struct{}{}:
	default: // it has one
	}
}

// kick makes the waiting call of s check its condition again. The caller holds mu.
func (c *Conn) kick(s *side) {
	switch {
	case s.leads:
		c.stop()
	case s.waiting:
		s.rouse()
	}
}

// deadline is the deadline of a side. Conn.mu guards it.
type deadline struct {
	done   chan struct{} // closed when the deadline has passed
	passed bool
	timer  *time.Timer
	turn   int // counts calls of setDeadline
}

// setDeadline sets the deadline of s. Zero means none. The caller holds mu.
func (c *Conn) setDeadline(s *side, t time.Time) {
	d := &s.limit
	d.turn++
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
	if d.passed {
		d.passed, d.done = false, make(chan struct{})
	}
	if t.IsZero() {
		return
	}
	left := time.Until(t)
	if left <= 0 {
		c.pass(s)
		return
	}
	turn := d.turn
	d.timer = time.AfterFunc(left, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if d.turn == turn && !d.passed {
			c.pass(s)
		}
	})
}

// pass ends the waiting of s because its deadline has passed. The caller holds mu.
func (c *Conn) pass(s *side) {
	s.limit.passed = true
	close(s.limit.done)
	if s.leads {
		c.stop()
	}
}

// SetDeadline sets the deadlines of reading and writing. When the deadline passes, waiting and
// later calls fail with os.ErrDeadlineExceeded. Zero means none.
func (c *Conn) SetDeadline(t time.Time) error { return c.setDeadlines(t, bothSides) }

// SetReadDeadline sets the deadline of Read and WriteTo.
func (c *Conn) SetReadDeadline(t time.Time) error { return c.setDeadlines(t, readSide) }

// SetWriteDeadline sets the deadline of Write and ReadFrom. Data that was written before it passes
// is counted in their results, and is sent.
func (c *Conn) SetWriteDeadline(t time.Time) error { return c.setDeadlines(t, writeSide) }

func bothSides(c *Conn) []*side { return []*side{&c.rd, &c.wr} }
func readSide(c *Conn) []*side  { return []*side{&c.rd} }
func writeSide(c *Conn) []*side { return []*side{&c.wr} }

func (c *Conn) setDeadlines(t time.Time, of func(*Conn) []*side) error {
	if err := c.ok(); err != nil {
		return c.opError("set", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return c.opError("set", net.ErrClosed)
	}
	for _, s := range of(c) {
		c.setDeadline(s, t)
	}
	return nil
}
