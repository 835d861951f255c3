package load

import (
	"context"
	"time"

	"github.com/govs-rdma/govs/ibverbs"
)

// pingSignal: one in pingSignal messages of a ping-pong is signalled.
const pingSignal = 8

// pings does n round trips, or with a limit as many as fit into it, and returns their number. Each
// is measured from the end of the previous one.
func (e *end) pings(ctx context.Context, n uint64, limit time.Duration) (uint64, error) {
	e.begin(0, 0)
	var last time.Duration
	for i := uint64(0); limit > 0 || i < n; i++ {
		// If the peer answers at once, no wait ever checks the context.
		if i%(1<<10) == 0 && ctx.Err() != nil {
			return i, ctx.Err()
		}
		if err := e.ping(ctx, i); err != nil {
			return i, err
		}
		now := time.Since(e.run.began)
		e.run.hist.Add(now - last)
		last = now
		if limit > 0 && now >= limit {
			n = i + 1
			break
		}
	}
	return n, e.stream(ctx)
}

// ping does one round trip.
func (e *end) ping(ctx context.Context, i uint64) error {
	l := &e.lanes[0]
	switch e.spec.Op {
	case ReadLat:
		l.list[0].WRID = workID(0, 1)
		if err := l.qp.PostSend(l.list...); err != nil {
			return because(l.qp, err)
		}
		l.posted++
		for l.done < l.posted {
			if err := e.waitAndHandle(ctx); err != nil {
				return err
			}
		}
		l.target = l.posted
		return nil
	case WriteLat:
		e.seq++
		if err := e.throw(l, i); err != nil {
			return err
		}
		return e.watch(ctx, l)
	}
	if err := e.throw(l, i); err != nil {
		return err
	}
	return e.catch(ctx, l)
}

// pongs answers the client's messages until its end. It returns the number of messages.
func (e *end) pongs(ctx context.Context) (uint64, error) {
	e.begin(0, 0)
	l := &e.lanes[0]
	for i := uint64(0); ; i++ {
		var err error
		if e.spec.Op == WriteLat {
			e.seq++
			if err = e.watch(ctx, l); l.ends >= e.runs {
				e.seq--
			}
		} else {
			err = e.catch(ctx, l)
		}
		if err != nil {
			return i, err
		}
		if l.ends >= e.runs {
			return i, e.stream(ctx)
		}
		if err := e.throw(l, i); err != nil {
			return i, err
		}
	}
}

// throw posts one message, and then the receives that have to be reposted. Enough receives are
// posted already, so the peer need not wait for them. Few messages are signalled, because the
// answer to a message shows that it is done.
func (e *end) throw(l *lane, i uint64) error {
	wr := &l.list[0]
	wr.WRID = workID(0, 0)
	wr.Flags &^= ibverbs.SendSignaled
	if i%pingSignal == pingSignal-1 {
		wr.Flags |= ibverbs.SendSignaled
		l.notes++
	}
	if e.spec.Op == WriteLat {
		// The previous Write has been answered, so its source is free.
		e.mem.src.Bytes()[e.spec.Size-1] = turnOctet(e.seq)
	}
	if err := l.qp.PostSend(l.list...); err != nil {
		return because(l.qp, err)
	}
	for ; l.owed > 0; l.owed-- {
		if err := l.qp.PostRecv(l.recv...); err != nil {
			return because(l.qp, err)
		}
	}
	return nil
}

// catch waits for a message, or for the peer's end.
func (e *end) catch(ctx context.Context, l *lane) error {
	for l.taken == l.answered && l.ends < e.runs {
		if err := e.waitAndHandle(ctx); err != nil {
			return err
		}
	}
	l.answered = l.taken
	return nil
}

// watch waits until the peer's Write has arrived, or the peer's end. It polls for completions even
// if it needs none, because the engine transmits and receives while it is polled.
func (e *end) watch(ctx context.Context, l *lane) error {
	octet := &e.mem.dst.Bytes()[e.spec.Size-1]
	want := turnOctet(e.seq)
	for polls := 1; look(octet) != want && l.ends < e.runs; polls++ {
		n, err := e.cq.Poll(e.wc[:])
		if err != nil {
			return err
		}
		for i := range n {
			if err := e.tick(&e.wc[i]); err != nil {
				return err
			}
		}
		if polls%(1<<14) == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return nil
}

// turnOctet returns the last byte of the n-th Write, from 1 on. It is never 0, the value in a
// cleared sink, and never that byte of the previous Write.
func turnOctet(n uint64) byte { return byte((n-1)%255) + 1 }

// waitAndHandle waits for completions.
func (e *end) waitAndHandle(ctx context.Context) error {
	n, err := e.wait(ctx)
	if err != nil {
		return err
	}
	for i := range n {
		if err := e.tick(&e.wc[i]); err != nil {
			return err
		}
	}
	return nil
}

// tick handles a completion of a ping-pong. It posts nothing.
func (e *end) tick(wc *ibverbs.WC) error {
	if err := e.check(wc); err != nil {
		return err
	}
	l, messages := e.laneOf(wc)
	switch {
	case wc.Opcode != ibverbs.WCRecv && messages == 0:
		l.notes--
	case wc.Opcode != ibverbs.WCRecv:
		l.done += messages
	case wc.ByteLen == 0:
		l.ends++
		l.owed++
	default:
		l.taken++
		l.owed++
	}
	return nil
}

// look reads a byte that a device may be writing: the last one of a Write's target. Nothing in the
// verbs orders this read with the Write, so the race detector would report a race; the function is
// excluded from it. It is not inlined, because the compiler could then read only once for a whole
// loop.
//
//go:norace
//go:noinline
func look(b *byte) byte { return *b }
