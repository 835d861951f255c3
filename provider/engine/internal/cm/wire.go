package cm

import (
	"context"
	"errors"

	"github.com/govs-rdma/govs/provider/engine/internal/locks"
	"github.com/govs-rdma/govs/provider/engine/internal/sched"
	"github.com/govs-rdma/govs/provider/engine/transport"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
)

// wire is a connection that exchanges start-up frames, with blocking reads and writes for one
// goroutine. While idle, it has that goroutine and nothing else.
type wire struct {
	host               Host
	conn               transport.Conn
	poller             transport.Poller
	readable, writable chan struct{} // capacity 1

	mu       sched.Mutex[locks.Wire]
	released bool
}

// newWire takes over conn, even when it fails.
func newWire(host Host, conn transport.Conn) (*wire, error) {
	w := &wire{host: host, conn: conn, poller: host.Poller(), readable: make(chan struct{}, 1),
		writable: make(chan struct{}, 1)}
	if err := w.poller.Add(conn, w); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return w, nil
}

// Ready implements transport.Handler. It reports each kind of readiness once, and again only when
// the goroutine asks for it, because unread bytes must not keep the poller busy.
func (w *wire) Ready(readable, writable bool) {
	if readable && w.want(w.poller.WantRead, false) {
		w.notify(w.readable)
	}
	if writable && w.want(w.poller.WantWrite, false) {
		w.notify(w.writable)
	}
}

func (w *wire) notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
	w.host.Woke() // after it is runnable
}

// want changes what the poller watches for, unless conn has another handler by then, because Ready
// may come late.
func (w *wire) want(set func(transport.Conn, bool) error, on bool) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.released {
		return false
	}
	_ = set(w.conn, on) // it is watched until released, or the poller is closed
	return true
}

// release gives up conn without closing it.
func (w *wire) release() {
	w.mu.Lock()
	w.released = true
	w.mu.Unlock()
	w.poller.Remove(w.conn)
}

// closeAfter sends last and ends the connection, without waiting.
func (w *wire) closeAfter(last []byte) {
	w.release()
	w.host.CloseAfter(w.conn, last)
}

func (w *wire) close() {
	w.release()
	_ = w.conn.Close()
}

// abort closes conn with a reset, so that the addresses can be used again at once.
func (w *wire) abort() {
	w.release()
	_ = w.conn.Abort()
}

// awaitRead waits until there is something to read.
func (w *wire) awaitRead(ctx context.Context) error {
	w.want(w.poller.WantRead, true)
	select {
	case <-w.readable:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// write writes all of b, a start-up frame.
func (w *wire) write(ctx context.Context, b []byte) error {
	for {
		rest, err := w.writeNow(b)
		if err != nil || len(rest) == 0 {
			return err
		}
		b = rest
		w.want(w.poller.WantWrite, true)
		select {
		case <-w.writable:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// writeNow writes as much as there is room for, and returns the rest. The first FPDU follows a
// start-up frame, and begins a segment.
func (w *wire) writeNow(b []byte) (rest []byte, err error) {
	for len(b) > 0 {
		n, err := writeRecord(w.conn, b)
		b = b[n:]
		switch err {
		case nil:
		case transport.ErrWouldBlock:
			return b, nil
		default:
			return b, err
		}
	}
	return nil, nil
}

// writeRecord writes b to conn, as a record if conn can keep its limits.
func writeRecord(conn transport.Conn, b []byte) (int, error) {
	if w, ok := conn.(transport.RecordWriter); ok {
		return w.WriteRecords([][]byte{b}, []int{len(b)})
	}
	return conn.Writev([][]byte{b})
}

// reply waits for the Reply to a Request that was sent, and also returns the bytes of the Reply. It
// reads nothing after the Reply. FPDUs may follow at once, although the responder has to wait for
// this end's first one, and the stream reads them from conn like all later ones.
//
//rfc:5044 MPA-7.1.2-3-01 Initiator validates the Reply
//rfc:5044 MPA-7.1.2-3-04 Good Reply: enter Full Operation
func (w *wire) reply(ctx context.Context, initiator mpa.Initiator) (p mpa.Params, reply []byte,
	err error) {
	reply, err = w.frame(ctx, mpa.FrameHeaderLen, func(b []byte) (n int, err error) {
		p, n, err = initiator.Receive(b)
		return n, err
	})
	return p, reply, err
}

// pastFrame makes a frameReader read more than the longest frame.
const pastFrame = mpa.MaxFrameLen + 4

// frameReader reads a start-up frame without waiting.
type frameReader struct {
	got   []byte // what has come
	limit int    // how many bytes it reads
}

// newFrameReader returns a frameReader that reads up to first bytes at once, and then only what
// accept asks for. With FrameHeaderLen it reads the frame and no more. With pastFrame it reads
// bytes after the frame as well, so that accept can refuse them.
func newFrameReader(first int) frameReader {
	return frameReader{got: make([]byte, 0, pastFrame), limit: first}
}

// read reads what has come. accept judges it; if it returns ErrShort, n is how many bytes there
// must be, as with mpa.ParseFrame. The error is ErrWouldBlock if more has to come, otherwise that
// of accept or of the connection.
//
//rfc:5044 MPA-7.1.2-9-01 PD_Length validated against buffer; excess is malformed
//rfc:5044 MPA-7.1.5-01 Enable MPA only when no streaming data is expected
func (f *frameReader) read(conn transport.Conn, accept func(b []byte) (n int, err error)) error {
	for {
		n, err := conn.Readv([][]byte{f.got[len(f.got):f.limit]})
		if err != nil {
			return err
		}
		f.got = f.got[:len(f.got)+n]
		n, err = accept(f.got)
		if !errors.Is(err, mpa.ErrShort) {
			return err
		}
		f.limit = max(f.limit, n)
	}
}

// frame waits for a start-up frame and returns the bytes that came. first and accept are as for a
// frameReader.
func (w *wire) frame(
	ctx context.Context, first int, accept func(b []byte) (n int, err error),
) ([]byte, error) {
	f := newFrameReader(first)
	for {
		err := f.read(w.conn, accept)
		if err == transport.ErrWouldBlock {
			if err = w.awaitRead(ctx); err == nil {
				continue
			}
		}
		return f.got, err
	}
}

// discard reads what has come after a Reply that ends the start-up, at most a frame's length. TCP
// resets a connection that is closed with unread bytes, and the peer should see a FIN.
func (w *wire) discard() {
	var b [pastFrame]byte
	_, _ = w.conn.Readv([][]byte{b[:]})
}

// intrusion returns an error if the peer has hung up, or has sent what it may not send before it
// has the Reply. It makes the poller watch for both.
func (w *wire) intrusion() error {
	var b [1]byte
	switch n, err := w.conn.Readv([][]byte{b[:]}); {
	case n > 0:
		return mpa.ErrTrailing
	case err != transport.ErrWouldBlock:
		return err
	}
	w.want(w.poller.WantRead, true)
	return nil
}
