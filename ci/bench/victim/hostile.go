package victim

import (
	"context"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// hostile is a group of peers of one kind, each a goroutine.
type hostile struct {
	addr addrPort

	counts counts
	cancel context.CancelFunc
	tasks  sync.WaitGroup

	atWork sync.WaitGroup // done once by each peer, when it has begun
	first  atomic.Pointer[error]
}

// counts counts the actions of peers.
type counts struct {
	tcp, connections, cut  atomic.Uint64
	writes, sent, received atomic.Uint64 // calls, bytes, bytes
	fpdus, requests, reads atomic.Uint64
	termSent, termSeen     atomic.Uint64
}

// Counts are the total actions of hostile peers.
type Counts struct {
	TCP         uint64
	Connections uint64 // that got a Reply
	Cut         uint64 // ended by the server, or unanswered
	Writes      uint64 // system calls
	Sent        uint64
	Received    uint64
	FPDUs       uint64
	Requests    uint64
	Reads       uint64
	TermSent    uint64
	TermSeen    uint64
}

func (c *counts) now() Counts {
	return Counts{
		TCP: c.tcp.Load(), Connections: c.connections.Load(), Cut: c.cut.Load(),
		Writes: c.writes.Load(), Sent: c.sent.Load(), Received: c.received.Load(),
		FPDUs: c.fpdus.Load(), Requests: c.requests.Load(), Reads: c.reads.Load(),
		TermSent: c.termSent.Load(), TermSeen: c.termSeen.Load(),
	}
}

// fields returns all fields.
func (c *Counts) fields() []*uint64 {
	return []*uint64{
		&c.TCP, &c.Connections, &c.Cut, &c.Writes, &c.Sent, &c.Received,
		&c.FPDUs, &c.Requests, &c.Reads, &c.TermSent, &c.TermSeen,
	}
}

// since returns the actions since an earlier count.
func (c Counts) since(before Counts) Counts {
	then := before.fields()
	for i, f := range c.fields() {
		*f -= *then[i]
	}
	return c
}

// plus returns the sum.
func (c Counts) plus(other Counts) Counts {
	more := other.fields()
	for i, f := range c.fields() {
		*f += *more[i]
	}
	return c
}

// begin starts peers of a kind and returns when all of them are at work.
func begin(ctx context.Context, addr addrPort, kind Kind, peers int) (*hostile, error) {
	h := &hostile{addr: addr}
	ctx, h.cancel = context.WithCancel(ctx)
	h.atWork.Add(peers)
	for i := range peers {
		h.tasks.Go(func() { h.peer(ctx, kind, i) })
	}
	began := make(chan struct{})
	go func() {
		h.atWork.Wait()
		close(began)
	}()
	select {
	case <-began:
		return h, nil
	case <-time.After(patience):
	case <-ctx.Done():
	}
	err := fmt.Errorf("not all of %d peers (%s) were at work after %v", peers, kind, patience)
	if first := h.first.Load(); first != nil {
		err = fmt.Errorf("%w; the first error: %w", err, *first)
	}
	h.end()
	<-began
	return nil, err
}

// end ends all peers of h.
func (h *hostile) end() {
	h.cancel()
	h.tasks.Wait()
}

// again is how long a peer waits after the server has refused or ended its connection.
const again = 5 * time.Millisecond

// peer runs one peer: it acts as its kind until ctx ends, on one connection after another.
func (h *hostile) peer(ctx context.Context, kind Kind, index int) {
	begun := sync.OnceFunc(h.atWork.Done)
	defer begun()
	for turn := index; ctx.Err() == nil; turn++ {
		var err error
		switch kind {
		case Connect:
			err = h.flood(ctx, turn)
		case Terminate:
			err = h.terminate(ctx, turn)
		default:
			err = h.stay(ctx, kind, index, begun)
		}
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			begun()
			continue
		}
		h.counts.cut.Add(1)
		h.first.CompareAndSwap(nil, &err)
		pause(ctx, again)
	}
}

// socketOf returns how the sockets of a kind are made.
func socketOf(kind Kind) socket {
	switch kind {
	case Slow:
		return socket{receive: slowBuffer}
	case Zero:
		return socket{send: zeroBuffer}
	case Tiny:
		return socket{mss: tinyMSS}
	}
	return socket{}
}

// stay runs a peer on one connection, which lasts until ctx or the server ends it.
func (h *hostile) stay(ctx context.Context, kind Kind, index int, begun func()) error {
	l, err := h.open(ctx, socketOf(kind))
	if err != nil {
		return err
	}
	defer l.until(ctx)()
	l.place = l.grant.sink + uint64(index)*dribbleSize%sinkSize
	begun()
	switch kind {
	case Reader:
		return h.read(l)
	case Slow:
		return h.slow(ctx, l, index)
	case Dribble:
		return h.dribble(l)
	case Zero:
		return h.zero(l)
	case Tiny:
		return h.tiny(ctx, l)
	}
	return h.idle(l)
}

// idle sends nothing, and the server sends nothing to it either.
func (h *hostile) idle(l *link) error {
	var b [1]byte
	_, err := l.Read(b[:])
	return err
}

// write sends bytes. fpdus says how many FPDUs end in them.
func (h *hostile) write(l io.Writer, octets []byte, fpdus int) error {
	n, err := l.Write(octets)
	h.counts.writes.Add(1)
	h.counts.sent.Add(uint64(n))
	if err == nil {
		h.counts.fpdus.Add(uint64(fpdus))
	}
	return err
}
