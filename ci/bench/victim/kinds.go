package victim

import (
	"bytes"
	"context"
	"io"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/govs-rdma/govs/provider/conformance/rawpeer"
	"github.com/govs-rdma/govs/provider/iwarp"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// zeroBuffer is the send buffer of a peer that sends FPDUs without payload. A system call that
// sends returns, and counts, when its bytes are in that buffer. Linux lets a socket's buffer grow
// to 4 MiB, which is 200,000 such FPDUs. Beside many peers no call would then return within a
// measurement, however many FPDUs the server takes.
const zeroBuffer = 128 << 10

// zero sends Writes without payload, as many in one system call as fit into drainSize.
func (h *hostile) zero(l *link) error {
	f := rawpeer.WriteMessage(l.grant.sinkKey, l.place, nil)
	one := f.Octets(true)
	n := drainSize / len(one)
	for many := bytes.Repeat(one, n); ; {
		if err := h.write(l, many, n); err != nil {
			return err
		}
	}
}

// Tiny segments: the lowest TCP_MAXSEG that Linux takes, and the size of a Write whose FPDU
// fits into one such segment beside TCP's time stamps.
const (
	tinyMSS  = 88
	tinySize = 40
)

// tiny reads as the fast reader does, and at the same time sends short Writes, each in its own
// segment. The Writes stop while there is no room for them.
func (h *hostile) tiny(ctx context.Context, l *link) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer l.until(ctx)() // if reading or writing fails, the other ends, too
	a := &asker{l, ddp.FirstMSN}
	var owed atomic.Int64
	owed.Store(int64(l.ird))
	over := make(chan struct{})
	go func() {
		defer close(over)
		cancel(h.drain(l, func(answered int) error {
			owed.Add(int64(answered))
			return nil
		}))
	}()
	defer func() { <-over }()
	f := rawpeer.WriteMessage(l.grant.sinkKey, l.place, make([]byte, tinySize))
	short := f.Octets(true)
	for ctx.Err() == nil {
		err := h.ask(a, int(owed.Swap(0)))
		if err == nil {
			err = h.write(l, short, 1)
		}
		if err != nil {
			cancel(err)
			break
		}
		runtime.Gosched() // the segments of all peers take turns
	}
	_ = l.Close()
	return context.Cause(ctx)
}

// The length of a Write, and the part of its FPDU that comes one byte at a time. At each of these
// bytes the server must keep or copy the bytes before it.
const (
	dribbleSize = 32 << 10
	dribbleTail = 4 << 10
)

// dribble sends an FPDU one byte at a time.
func (h *hostile) dribble(l *link) error {
	f := rawpeer.WriteMessage(l.grant.sinkKey, l.place, make([]byte, dribbleSize))
	fpdu := f.Octets(true)
	for {
		if err := h.write(l, fpdu[:len(fpdu)-dribbleTail], 0); err != nil {
			return err
		}
		for rest := fpdu[len(fpdu)-dribbleTail:]; len(rest) > 0; rest = rest[1:] {
			if err := h.write(l, rest[:1], 0); err != nil {
				return err
			}
			runtime.Gosched() // the bytes of all peers take turns
		}
		h.counts.fpdus.Add(1)
	}
}

// The receive buffer of a slow link, how much a peer reads from it at a time, and how often.
const (
	slowBuffer = 4096
	slowBite   = 1024
	slowPause  = 20 * time.Millisecond
)

// slow keeps as many Reads under way as it may. Peers with an even index read the answers slowly,
// the others read nothing.
func (h *hostile) slow(ctx context.Context, l *link, index int) error {
	a := &asker{l, ddp.FirstMSN}
	if err := h.ask(a, l.ird); err != nil {
		return err
	}
	for buf := make([]byte, slowBite); ctx.Err() == nil; pause(ctx, slowPause) {
		if index%2 == 1 {
			continue
		}
		n, err := l.Read(buf)
		h.counts.received.Add(uint64(n))
		if err != nil {
			return err
		}
	}
	return ctx.Err()
}

// flood makes a connection that ends with a reset: before its Request, after it, or
// after the Reply.
func (h *hostile) flood(ctx context.Context, turn int) error {
	if turn%3 == 0 {
		c, err := h.connect(ctx, socket{})
		if err != nil {
			return err
		}
		return c.Close()
	}
	if turn%3 == 1 {
		c, err := h.connect(ctx, socket{})
		if err != nil {
			return err
		}
		defer func() { _ = c.Close() }()
		l := &link{TCPConn: c}
		return l.request()
	}
	l, err := h.open(ctx, socket{})
	if err != nil {
		return err
	}
	return l.Close()
}

// terminate makes a connection that ends with a Terminate, from us or from the server. The server
// sends one after a Write to a region that does not exist.
func (h *hostile) terminate(ctx context.Context, turn int) error {
	l, err := h.open(ctx, socket{})
	if err != nil {
		return err
	}
	defer l.until(ctx)()
	f := rawpeer.WriteMessage(^l.grant.sinkKey, 0, make([]byte, 64))
	if turn%2 == 1 {
		f = rawpeer.TerminateMessage(rdmap.Terminate{
			Layer: iwarp.LayerRDMAP, EType: iwarp.RDMAPRemoteOperation, Code: iwarp.RDMAPUnspecified,
		})
	}
	if err := h.write(l, f.Octets(true), 1); err != nil {
		return err
	}
	if turn%2 == 1 {
		h.counts.termSent.Add(1)
	}
	return h.toTheEnd(l)
}

// toTheEnd reads until the server ends the connection.
func (h *hostile) toTheEnd(l *link) error {
	_ = l.SetReadDeadline(time.Now().Add(patience))
	var s skimmer
	s.skim(l.in)
	for buf := make([]byte, 4096); ; {
		n, err := l.Read(buf)
		h.counts.received.Add(uint64(n))
		s.skim(buf[:n])
		if err == nil {
			continue
		}
		if s.terminated {
			h.counts.termSeen.Add(1)
		}
		if err == io.EOF {
			return nil
		}
		return err
	}
}
