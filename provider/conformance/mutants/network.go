package mutants

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net/netip"
	"sync"
	"time"

	"github.com/govs-rdma/govs/provider/engine/transport"
	"github.com/govs-rdma/govs/provider/iwarp/ddp"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
)

// wireFault changes frames on their way out of the engine, or into it. Either
// may be nil. What they return goes on instead: nothing drops the frame.
type wireFault struct {
	out, in func(*frame) [][]byte
}

// frame is one start-up frame or FPDU.
type frame struct {
	octets  []byte // may be changed in place
	startup bool
	reply   bool // of a start-up frame
	index   int  // how many FPDUs went before it in this direction
	crc     bool // CRCs are on
	header  ddp.Header
	payload []byte // within octets
	conn    *conn
}

// same sends the frame on as it is now, its CRC repaired.
func (f *frame) same() [][]byte {
	if !f.startup && f.crc {
		mpa.SealFPDU(f.octets)
	}
	return [][]byte{f.octets}
}

// rebuilt is the FPDU with another header and payload.
func (f *frame) rebuilt(h ddp.Header, payload []byte) []byte {
	ulpdu := append(h.AppendTo(nil), payload...)
	b := append(mpa.AppendHeader(nil, uint16(len(ulpdu))), ulpdu...)
	return mpa.AppendTrailer(b, len(ulpdu), mpa.CRC(0, b), f.crc)
}

// network is a Network whose streams have a fault.
type network struct {
	transport.Network
	fault *wireFault
}

func (n *network) Dial(ctx context.Context, src, dst netip.AddrPort) (transport.Conn, error) {
	return n.wrap(n.Network.Dial(ctx, src, dst))(true)
}

func (n *network) Bind(local netip.AddrPort) (transport.Binding, error) {
	b, err := n.Network.Bind(local)
	if err != nil {
		return nil, err
	}
	return &binding{b, n}, nil
}

func (n *network) Listen(local netip.AddrPort, backlog int) (transport.Listener, error) {
	l, err := n.Network.Listen(local, backlog)
	if err != nil {
		return nil, err
	}
	return &listener{l, n}, nil
}

func (n *network) NewPoller() (transport.Poller, error) {
	p, err := n.Network.NewPoller()
	if err != nil {
		return nil, err
	}
	return &poller{p}, nil
}

// wrap puts the fault in front of a stream.
func (n *network) wrap(c transport.Conn, err error) func(dialed bool) (transport.Conn, error) {
	return func(dialed bool) (transport.Conn, error) {
		if err != nil {
			return nil, err
		}
		w := &conn{Conn: c, fault: n.fault}
		w.tx.firstIsReply, w.rx.firstIsReply = !dialed, dialed
		return w, nil
	}
}

type binding struct {
	transport.Binding
	n *network
}

func (b *binding) Dial(ctx context.Context, dst netip.AddrPort) (transport.Conn, error) {
	return b.n.wrap(b.Binding.Dial(ctx, dst))(true)
}

func (b *binding) Listen(backlog int) (transport.Listener, error) {
	l, err := b.Binding.Listen(backlog)
	if err != nil {
		return nil, err
	}
	return &listener{l, b.n}, nil
}

type listener struct {
	transport.Listener
	n *network
}

func (l *listener) Accept(ctx context.Context) (transport.Conn, error) {
	return l.n.wrap(l.Listener.Accept(ctx))(false)
}

// poller hands the network's own streams to its own poller.
type poller struct{ transport.Poller }

func inner(c transport.Conn) transport.Conn {
	if w, ok := c.(*conn); ok {
		return w.Conn
	}
	return c
}

func (p *poller) Add(c transport.Conn, h transport.Handler) error { return p.Poller.Add(inner(c), h) }
func (p *poller) Remove(c transport.Conn)                         { p.Poller.Remove(inner(c)) }
func (p *poller) WantRead(c transport.Conn, on bool) error        { return p.Poller.WantRead(inner(c), on) }
func (p *poller) WantWrite(c transport.Conn, on bool) error       { return p.Poller.WantWrite(inner(c), on) }

// conn is a stream with a fault.
type conn struct {
	transport.Conn
	fault *wireFault

	mu   sync.Mutex
	crc  bool // either start-up frame asked for it
	memo map[string]uint64

	tx, rx half
}

// half is one direction.
type half struct {
	mu           sync.Mutex
	in           []byte // octets that don't make a frame yet
	out          []byte // octets that are on their way
	started      bool
	firstIsReply bool
	count        int
	end          error // of reading
}

// remember keeps a value for a later frame of either direction.
func (c *conn) remember(key string, v uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.memo == nil {
		c.memo = make(map[string]uint64)
	}
	c.memo[key] = v
}

func (c *conn) recall(key string) (uint64, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	v, ok := c.memo[key]
	return v, ok
}

// frames takes whole frames from in, changes them, and appends them to out.
func (h *half) frames(c *conn, change func(*frame) [][]byte) {
	for {
		f, n := h.next(c)
		if n == 0 {
			return
		}
		h.in = h.in[n:]
		if change == nil {
			h.out = append(h.out, f.octets...)
			continue
		}
		for _, b := range change(f) {
			h.out = append(h.out, b...)
		}
	}
}

func (h *half) next(c *conn) (*frame, int) {
	if !h.started {
		kind := mpa.KindRequest
		if h.firstIsReply {
			kind = mpa.KindReply
		}
		m, n, err := mpa.ParseFrame(h.in, kind)
		if err != nil {
			return nil, 0
		}
		h.started = true
		c.mu.Lock()
		c.crc = c.crc || m.CRC
		c.mu.Unlock()
		return &frame{octets: append([]byte(nil), h.in[:n]...), startup: true, reply: h.firstIsReply, conn: c}, n
	}
	ulpduLen, n, ok := mpa.ParseHeader(h.in)
	if !ok || len(h.in) < n {
		return nil, 0
	}
	f := &frame{octets: append([]byte(nil), h.in[:n]...), index: h.count, conn: c}
	c.mu.Lock()
	f.crc = c.crc
	c.mu.Unlock()
	f.header, f.payload, _ = ddp.Parse(f.octets[mpa.HeaderLen : mpa.HeaderLen+ulpduLen])
	h.count++
	return f, n
}

// Writev takes everything and sends what has become whole frames.
func (c *conn) Writev(bufs [][]byte) (int, error) {
	c.tx.mu.Lock()
	defer c.tx.mu.Unlock()
	total := 0
	for _, b := range bufs {
		c.tx.in = append(c.tx.in, b...)
		total += len(b)
	}
	c.tx.frames(c, c.fault.out)
	return total, c.flush()
}

// flush sends what is on its way. A full socket is waited for: the engine was
// told that all was taken, and won't come back for it.
func (c *conn) flush() error {
	for limit := time.Now().Add(5 * time.Second); len(c.tx.out) > 0; {
		n, err := c.Conn.Writev([][]byte{c.tx.out})
		c.tx.out = c.tx.out[n:]
		switch {
		case errors.Is(err, transport.ErrWouldBlock) && time.Now().Before(limit):
			time.Sleep(100 * time.Microsecond)
		case err != nil:
			return err
		}
	}
	return nil
}

// Readv gives what has become whole frames.
func (c *conn) Readv(bufs [][]byte) (int, error) {
	c.rx.mu.Lock()
	defer c.rx.mu.Unlock()
	room := make([]byte, 64<<10)
	for len(c.rx.out) == 0 && c.rx.end == nil {
		n, err := c.Conn.Readv([][]byte{room})
		if err != nil {
			if errors.Is(err, transport.ErrWouldBlock) {
				return 0, err
			}
			c.rx.end = err
			c.rx.out = append(c.rx.out, c.rx.in...) // what never became whole
			c.rx.in = nil
			break
		}
		c.rx.in = append(c.rx.in, room[:n]...)
		c.rx.frames(c, c.fault.in)
	}
	total := 0
	for _, b := range bufs {
		n := copy(b, c.rx.out)
		c.rx.out = c.rx.out[n:]
		total += n
	}
	if total == 0 && len(bufs) > 0 && c.rx.end != nil {
		return 0, c.rx.end
	}
	return total, nil
}

// CloseWrite sends what never became whole first.
func (c *conn) CloseWrite() error {
	c.tx.mu.Lock()
	c.tx.out = append(c.tx.out, c.tx.in...)
	c.tx.in = nil
	err := c.flush()
	c.tx.mu.Unlock()
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	return c.Conn.CloseWrite()
}

// startupWords returns the flags and the RFC 6581 words of a start-up frame, to
// be changed in place; words is nil if there are none.
func (f *frame) startupWords() (flags, words []byte) {
	flags = f.octets[mpa.KeyLen : mpa.KeyLen+2]
	if len(f.octets) >= mpa.FrameHeaderLen+mpa.EnhancedLen {
		words = f.octets[mpa.FrameHeaderLen : mpa.FrameHeaderLen+mpa.EnhancedLen]
	}
	return flags, words
}

// patch changes a 32-bit field of the DDP header of an untagged segment, or the
// STag of a tagged one, at an offset in octets from the start of the ULPDU.
func (f *frame) patch(off int, change func(uint32) uint32) {
	b := f.octets[mpa.HeaderLen+off:]
	binary.BigEndian.PutUint32(b, change(binary.BigEndian.Uint32(b)))
}
