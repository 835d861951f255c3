package mutants

import (
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/govs-rdma/govs/provider/engine/transport"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
)

// wireFault is what is wrong with one stream. Every field may be zero. Its functions are
// called one at a time, so they may share state.
type wireFault struct {
	// out and in change a frame on its way out of the engine, or into it. The frames that
	// they return replace it; an empty result drops it.
	out, in func(*frame) [][]byte

	// ended gets the octets that never became a whole frame when the peer's direction
	// ends, and returns those that the engine gets. started says whether the peer's
	// start-up frame has come.
	ended func(rest []byte, started, crc bool) []byte

	// deaf hides the end of a direction from the engine unless the peer's start-up frame has come.
	deaf bool

	pieces   bool // if a read ends inside a frame, the part that it read is lost
	crowd    bool // what comes after a frame in the same read is lost
	endFirst bool // what the engine has not read when the peer's direction ends is lost

	ending ending
}

// ending says what happens when the engine closes a stream.
type ending int

const (
	endAsTold ending = iota
	endNever         // neither FIN nor RST
	endReset         // RST for FIN
)

// conn is a stream with a fault. With any fault, it keeps the contract of transport.Conn.
type conn struct {
	transport.Conn
	n     *network
	fault wireFault

	faultMu sync.Mutex // serialises the fault's functions; guards shared
	shared  struct {
		crc                bool // a start-up frame asked for it
		rxMarked, txMarked bool // there are Markers: frames can't be separated
	}

	watch atomic.Pointer[watch] // nil while no poller has the stream
	held  atomic.Bool           // rx has something that the engine has not read

	tx, rx half
}

// half is one direction.
type half struct {
	mu      sync.Mutex
	in      []byte // octets that don't make a frame yet
	out     []byte // octets that are on their way
	started bool
	reply   bool // the start-up frame is a Reply
	count   int  // FPDUs so far

	end error // tx: the socket is lost; rx: what reading ended with
	fin bool  // tx: FIN goes after out
}

func newConn(n *network, c transport.Conn, dialed bool) *conn {
	w := &conn{Conn: c, n: n}
	w.tx.reply, w.rx.reply = !dialed, dialed
	if n.mutant.wire != nil {
		w.fault = n.mutant.wire(w)
	}
	return w
}

// world is the state of the verbs' side.
func (c *conn) world() *world { return c.n.world }

func (c *conn) watchedBy(w *watch) {
	c.watch.Store(w)
	if w != nil {
		c.resume()
	}
}

// holdsBack reports whether there is something to read that the socket does not report.
func (c *conn) holdsBack() bool { return c.held.Load() }

// Writev implements transport.Conn.
func (c *conn) Writev(bufs [][]byte) (int, error) {
	t := &c.tx
	t.mu.Lock()
	defer t.mu.Unlock()
	c.flush()
	switch {
	case t.end != nil:
		return 0, t.end
	case len(t.out) > 0:
		return 0, transport.ErrWouldBlock
	}
	total := 0
	for _, b := range bufs {
		t.in = append(t.in, b...)
		total += len(b)
	}
	c.frames(t, c.fault.out, false)
	c.flush()
	if t.end != nil {
		return 0, t.end
	}
	return total, nil
}

// flush sends as much of tx.out as the socket takes. tx.mu is held.
func (c *conn) flush() {
	t := &c.tx
	for len(t.out) > 0 && t.end == nil {
		n, err := c.Conn.Writev([][]byte{t.out})
		t.out = t.out[n:]
		switch {
		case errors.Is(err, transport.ErrWouldBlock):
			if w := c.watch.Load(); w != nil {
				w.flush(true)
			}
			return
		case err != nil:
			t.end, t.out = err, nil
		}
	}
	if w := c.watch.Load(); w != nil {
		w.flush(false)
	}
	if t.fin && t.end == nil {
		t.fin = false
		t.end = c.Conn.CloseWrite()
	}
}

// resume continues where flush had to stop.
func (c *conn) resume() {
	c.tx.mu.Lock()
	defer c.tx.mu.Unlock()
	c.flush()
}

// CloseWrite implements transport.Conn. It sends the octets that never became a whole frame
// before the FIN.
func (c *conn) CloseWrite() error {
	t := &c.tx
	t.mu.Lock()
	defer t.mu.Unlock()
	switch c.fault.ending {
	case endNever:
		return nil
	case endReset:
		return c.Conn.Abort()
	}
	t.out = append(t.out, t.in...)
	t.in = nil
	t.fin = true
	c.flush()
	return t.end
}

// Readv implements transport.Conn.
func (c *conn) Readv(bufs [][]byte) (int, error) {
	r := &c.rx
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(bufs) == 0 {
		return 0, nil
	}
	room := make([]byte, 64<<10)
	for len(r.out) == 0 && r.end == nil {
		n, err := c.Conn.Readv([][]byte{room})
		if errors.Is(err, transport.ErrWouldBlock) {
			return 0, err
		}
		octets := room[:n]
		if c.fault.endFirst && r.started && err == nil {
			octets, err = c.readOn(octets)
		}
		c.arrived(octets, err)
	}
	total := 0
	for _, b := range bufs {
		n := copy(b, r.out)
		r.out = r.out[n:]
		total += n
	}
	c.held.Store(len(r.out) > 0)
	if len(r.out) > 0 {
		if w := c.watch.Load(); w != nil {
			w.p.Wake()
		}
	}
	if total == 0 {
		return 0, r.end
	}
	return total, nil
}

// endWait is how long a conn with endFirst waits for the end of the peer's direction before
// the engine gets what has arrived.
const endWait = 10 * time.Millisecond

// readOn reads for endWait, and appends to octets. If the end comes in this time, it returns only
// the end: what came before it is lost. rx.mu is held.
func (c *conn) readOn(octets []byte) ([]byte, error) {
	more := make([]byte, 64<<10)
	for start := time.Now(); time.Since(start) < endWait; {
		n, err := c.Conn.Readv([][]byte{more})
		switch {
		case errors.Is(err, transport.ErrWouldBlock):
			time.Sleep(time.Millisecond)
		case err != nil:
			c.rx.in = nil
			return nil, err
		default:
			octets = append(octets, more[:n]...)
		}
	}
	return octets, nil
}

// arrived takes what a read has brought, octets or an end. rx.mu is held.
func (c *conn) arrived(octets []byte, err error) {
	r := &c.rx
	if err != nil {
		r.end = err
		rest := r.in
		if f := c.fault.ended; f != nil {
			c.faultMu.Lock()
			rest = f(rest, r.started, c.shared.crc)
			c.faultMu.Unlock()
		}
		if c.fault.deaf && !r.started {
			r.end = transport.ErrWouldBlock
		}
		r.out = append(r.out, rest...)
		r.in = nil
		return
	}
	r.in = append(r.in, octets...)
	c.frames(r, c.fault.in, c.fault.crowd)
	if c.fault.pieces || c.fault.crowd {
		r.in = nil
	}
}

// frames takes whole frames from in, applies the fault to them, and appends them to out. If first
// is set, it takes only one.
func (c *conn) frames(h *half, change func(*frame) [][]byte, first bool) {
	c.faultMu.Lock()
	defer c.faultMu.Unlock()
	for {
		if h.started && c.marked(h) {
			h.out = append(h.out, h.in...)
			h.in = nil
			return
		}
		f, n := c.next(h)
		if n == 0 {
			return
		}
		h.in = h.in[n:]
		crc := f.startup && f.good && f.start.CRC
		out := [][]byte{f.octets}
		if change != nil {
			out = change(f)
		}
		for _, b := range out {
			h.out = append(h.out, b...)
		}
		if f.startup {
			c.learn(h, crc, out)
		}
		if first {
			return
		}
	}
}

// marked reports whether the FPDUs of a direction have Markers. faultMu is held.
func (c *conn) marked(h *half) bool {
	if h == &c.rx {
		return c.shared.rxMarked
	}
	return c.shared.txMarked
}

// learn records what a start-up frame means for the FPDUs, as the engine sees it. Of a frame going
// out it takes the one that the engine wrote, and of a frame coming in the one that the engine
// gets. faultMu is held.
func (c *conn) learn(h *half, crc bool, given [][]byte) {
	if h == &c.tx {
		c.shared.crc = c.shared.crc || crc
		return
	}
	for _, b := range given {
		if f, ok := parseStartup(b, h.reply); ok {
			c.shared.crc = c.shared.crc || f.CRC
			c.shared.txMarked = c.shared.txMarked || f.Markers
			c.shared.rxMarked = c.shared.rxMarked || speaksRDMAC(f)
			return
		}
	}
}

// speaksRDMAC reports whether a Reply turns Markers on in both directions, regardless of the
// Request.
func speaksRDMAC(f mpa.Frame) bool { return f.Kind == mpa.KindReply && f.Revision == 0 && f.Markers }

// Close implements transport.Conn.
func (c *conn) Close() error { return c.close(c.Conn.Close) }

// Abort implements transport.Conn.
func (c *conn) Abort() error { return c.close(c.Conn.Abort) }

func (c *conn) close(how func() error) error {
	if c.fault.ending == endNever {
		if w := c.watch.Load(); w != nil {
			w.p.Remove(c)
		}
		c.n.keep(c.Conn)
		return nil
	}
	c.resume()
	if w := c.watch.Load(); w != nil {
		w.p.forget(c)
	}
	if c.fault.ending == endReset {
		how = c.Conn.Abort
	}
	return how()
}
