package victim

import (
	"bytes"
	"context"
	"runtime"
	"sync/atomic"

	"github.com/govs-rdma/govs/provider/conformance/rawpeer"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
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
