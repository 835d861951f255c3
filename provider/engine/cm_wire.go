package engine

import (
	"context"

	"github.com/govs-rdma/govs/provider/engine/internal/locks"
	"github.com/govs-rdma/govs/provider/engine/internal/sched"
	"github.com/govs-rdma/govs/provider/engine/transport"
)

// wire is a connection that exchanges start-up frames: blocking reads and writes
// for one goroutine. An idle one has that goroutine and nothing else.
type wire struct {
	conn               transport.Conn
	poller             transport.Poller
	readable, writable chan struct{} // capacity 1
	waits              func() error  // if not nil, read calls it once, before it waits

	mu       sched.Mutex[locks.Wire]
	released bool
}

// newWire takes over conn, also when it fails.
func newWire(d *device, conn transport.Conn) (*wire, error) {
	w := &wire{conn: conn, poller: d.poller, readable: make(chan struct{}, 1), writable: make(chan struct{}, 1)}
	if err := d.poller.Add(conn, w); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return w, nil
}

// Ready implements transport.Handler. What it has told it tells again only when
// the goroutine asks: octets that nobody reads must not keep the poller busy.
func (w *wire) Ready(readable, writable bool) {
	if readable && w.want(w.poller.WantRead, false) {
		notify(w.readable)
	}
	if writable && w.want(w.poller.WantWrite, false) {
		notify(w.writable)
	}
}

func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// want changes what the poller watches for, unless conn has gone to somebody
// else: Ready may come late.
func (w *wire) want(set func(transport.Conn, bool) error, on bool) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.released {
		return false
	}
	_ = set(w.conn, on) // it is watched until released, or the poller is closed
	return true
}

// release gives conn up without closing it.
func (w *wire) release() {
	w.mu.Lock()
	w.released = true
	w.mu.Unlock()
	w.poller.Remove(w.conn)
}

func (w *wire) close() {
	w.release()
	_ = w.conn.Close()
}

// abort is close with a reset, which leaves nothing behind of the addresses.
func (w *wire) abort() {
	w.release()
	_ = w.conn.Abort()
}

// read waits until there is something to read, and reads it.
func (w *wire) read(ctx context.Context, b []byte) (int, error) {
	bufs := [1][]byte{b}
	for {
		n, err := w.conn.Readv(bufs[:])
		if err != transport.ErrWouldBlock {
			return n, err
		}
		if waits := w.waits; waits != nil {
			w.waits = nil
			if err := waits(); err != nil {
				return 0, err
			}
		}
		w.want(w.poller.WantRead, true)
		select {
		case <-w.readable:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
}

// write writes all of b, a start-up frame. What comes behind it is the first FPDU,
// which begins a segment.
func (w *wire) write(ctx context.Context, b []byte) error {
	for len(b) > 0 {
		n, err := writeRecords(w.conn, [][]byte{b}, []int{len(b)})
		b = b[n:]
		switch err {
		case nil:
			continue
		case transport.ErrWouldBlock:
		default:
			return err
		}
		w.want(w.poller.WantWrite, true)
		select {
		case <-w.writable:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}
