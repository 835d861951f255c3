package memnet

import (
	"io"
	"net/netip"
	"os"
	"sync/atomic"
	"syscall"

	"github.com/govs-rdma/govs/provider/engine/transport"
)

// conn is one end of a link; it implements transport.Conn. link.mu guards all fields that change.
type conn struct {
	lk            *link
	side          int
	local, remote netip.AddrPort
	tap           *transport.TapEnd

	closed  bool
	gone    atomic.Bool // closed, for readers without link.mu
	finSent bool
	err     error // the connection is lost
	reg     *registration
}

// open begins the records of the end, which is not in use yet.
func (c *conn) open() {
	c.tap = transport.NewTapEnd(c.lk.n.opts.Tap, c.local, c.remote, c.side == dialed)
}

// broken reports whether the connection was lost.
func (c *conn) broken() bool {
	c.lk.mu.Lock()
	defer c.lk.mu.Unlock()
	return c.err != nil
}

func (c *conn) out() *pipe { return &c.lk.pipes[c.side] }
func (c *conn) in() *pipe  { return &c.lk.pipes[1-c.side] }

// LocalAddr implements transport.Conn.
func (c *conn) LocalAddr() netip.AddrPort { return c.local }

// RemoteAddr implements transport.Conn.
func (c *conn) RemoteAddr() netip.AddrPort { return c.remote }

// MSS implements transport.Conn.
func (c *conn) MSS() int { return c.lk.n.opts.MSS }

// Readv implements transport.Conn.
func (c *conn) Readv(bufs [][]byte) (int, error) {
	c.lk.n.yield()
	defer c.lk.n.yield()
	c.lk.mu.Lock()
	n, err := c.read(bufs)
	c.lk.mu.Unlock()
	if n > 0 {
		c.lk.n.moved.Add(1)
	}
	if err != transport.ErrWouldBlock && err != os.ErrClosed {
		c.tap.Received(bufs, n, err)
	}
	return n, err
}

func (c *conn) read(bufs [][]byte) (int, error) {
	p := c.in()
	switch {
	case c.closed:
		return 0, os.ErrClosed
	case total(bufs) == 0:
		return 0, nil
	case p.arrived > 0:
		n := p.read(bufs)
		c.lk.ends[1-c.side].wakePoller()
		return n, nil
	case c.err != nil:
		return 0, c.err
	case p.fin:
		return 0, io.EOF
	}
	return 0, transport.ErrWouldBlock
}

func total(bufs [][]byte) int {
	n := 0
	for _, b := range bufs {
		n += len(b)
	}
	return n
}

// Writev implements transport.Conn.
func (c *conn) Writev(bufs [][]byte) (int, error) { return c.WriteRecords(bufs, nil) }

// WriteRecords implements transport.RecordWriter.
func (c *conn) WriteRecords(bufs [][]byte, records []int) (int, error) {
	c.lk.n.yield()
	defer c.lk.n.yield()
	c.lk.mu.Lock()
	defer c.lk.mu.Unlock()
	p := c.out()
	want := total(bufs)
	switch {
	case c.closed:
		return 0, os.ErrClosed
	case c.err != nil, c.finSent:
		return 0, syscall.EPIPE
	case want == 0:
		return 0, nil
	}
	n := p.accepts(want, &c.lk.n.opts)
	if n == 0 {
		return 0, transport.ErrWouldBlock
	}
	c.tap.Sent(c.tap.Before(), bufs, n) // before the peer can record it
	c.lk.n.moved.Add(1)
	data := gather(bufs, n)
	for _, r := range records {
		r = min(r, len(data))
		c.sendSegments(data[:r])
		data = data[r:]
	}
	c.sendSegments(data)
	return n, nil
}

// sendSegments sends data in segments of its own. link.mu is held.
func (c *conn) sendSegments(data []byte) {
	for len(data) > 0 {
		m := c.out().segmentLen(len(data), &c.lk.n.opts)
		c.lk.send(c.side, segment{data: data[:m:m]})
		data = data[m:]
	}
}

// gather copies the first n bytes of bufs.
func gather(bufs [][]byte, n int) []byte {
	data := make([]byte, 0, n)
	for _, b := range bufs {
		data = append(data, b[:min(len(b), n-len(data))]...)
	}
	return data
}

// CloseWrite implements transport.Conn.
func (c *conn) CloseWrite() error {
	c.lk.mu.Lock()
	defer c.lk.mu.Unlock()
	switch {
	case c.closed:
		return os.ErrClosed
	case c.err != nil:
		return syscall.ENOTCONN
	}
	c.sendFIN()
	return nil
}

func (c *conn) sendFIN() {
	if c.finSent {
		return
	}
	c.finSent = true
	c.tap.SentEvent(c.tap.Before(), transport.TapFIN)
	c.lk.send(c.side, segment{kind: segFIN})
}

// Close implements transport.Conn.
func (c *conn) Close() error { return c.close(false) }

// Abort implements transport.Conn.
func (c *conn) Abort() error { return c.close(true) }

func (c *conn) close(reset bool) error {
	c.lk.mu.Lock()
	if c.closed {
		c.lk.mu.Unlock()
		return nil
	}
	c.unwatch()
	p := c.in()
	if c.err == nil {
		if reset || p.arrived > 0 {
			c.tap.SentEvent(c.tap.Before(), transport.TapReset)
			c.lk.send(c.side, segment{kind: segRST})
		} else {
			c.sendFIN()
		}
	}
	c.closed = true
	c.gone.Store(true)
	c.lk.n.moved.Add(1)
	both := c.lk.ends[1-c.side].closed
	for _, s := range p.segs[:p.arrived] {
		p.octets -= len(s.data)
	}
	p.segs, p.arrived = p.segs[p.arrived:], 0
	c.lk.ends[1-c.side].wakePoller()
	c.lk.mu.Unlock()
	if both {
		c.lk.n.forget(c.lk)
	}
	if c.side == dialed {
		c.lk.n.give(c.local)
	}
	return nil
}

// ready reports whether the end can be read and written. link.mu is held.
func (c *conn) ready() (readable, writable bool) {
	p := c.in()
	readable = p.arrived > 0 || p.fin || c.err != nil
	writable = c.err != nil || c.out().octets+c.lk.n.opts.WriteRoom <= c.lk.n.opts.Window
	return readable, writable
}

// wakePoller makes the poller look at the end. link.mu is held.
func (c *conn) wakePoller() {
	if c.reg != nil {
		c.reg.poller.queue(c.reg)
	}
}

// unwatch removes the end from its poller. link.mu is held.
func (c *conn) unwatch() {
	if c.reg != nil {
		c.reg.poller.forget(c.reg)
		c.reg = nil
	}
}
