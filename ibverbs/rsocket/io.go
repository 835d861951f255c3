package rsocket

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/rsocket/internal/proto"
)

// copyLocked is the longest copy in bytes that is made with the lock held, because releasing the
// lock would take longer.
const copyLocked = 1024

// Read reads the data that has arrived, and waits if there is none. It returns io.EOF after the
// peer's CloseWrite or Close, ECONNRESET if the connection has ended without either, and EPROTO if
// the peer broke the protocol.
func (c *Conn) Read(p []byte) (int, error) {
	if err := c.ok(); err != nil {
		return 0, c.opError("read", err)
	}
	if len(p) == 0 {
		return 0, c.emptyRead()
	}
	err := c.acquire(&c.rd)
	if err != nil {
		return 0, c.opError("read", err)
	}
	n, err := c.read(p)
	c.rd.release()
	if err != nil && err != io.EOF {
		err = c.opError("read", err)
	}
	return n, err
}

// emptyRead implements Read into an empty slice.
func (c *Conn) emptyRead() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return c.opError("read", net.ErrClosed)
	}
	return nil
}

func (c *Conn) read(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.begin(); err != nil {
		return 0, err
	}
	defer c.end()
	if err := c.await(&c.rd); err != nil {
		return 0, err
	}
	ring := c.parts.ring.Bytes()
	total := 0
	for total < len(p) {
		off, n := c.st.Readable()
		n = min(n, len(p)-total)
		if n == 0 {
			break
		}
		if n <= copyLocked {
			copy(p[total:], ring[off:off+n])
		} else {
			c.mu.Unlock()
			copy(p[total:], ring[off:off+n])
			c.mu.Lock()
		}
		total += n
		c.consume(n)
	}
	if total == 0 {
		return 0, c.readEnd()
	}
	return total, nil
}

// consume returns n bytes of the ring to the peer. The caller holds mu.
func (c *Conn) consume(n int) {
	c.st.Consume(n)
	if c.st.GrantDue() {
		c.look()
	}
	c.grant()
}

// canRead reports whether a read can go on (side.ready).
func (c *Conn) canRead() bool {
	return c.st.Unread() > 0 || c.readClosed || c.st.PeerEnd() != 0 || c.failed != nil
}

// readEnd returns why there is nothing to read, nil if more may come. The caller holds mu.
func (c *Conn) readEnd() error {
	if c.readClosed || c.st.PeerEnd() != 0 {
		return io.EOF
	}
	return c.failed
}

// WriteTo writes received data to w, until the end of the stream. It passes w the memory that the
// peer wrote into, and returns the memory to the peer when w.Write returns. Until then a peer that
// breaks the protocol can change the memory. Read waits until WriteTo has returned.
func (c *Conn) WriteTo(w io.Writer) (int64, error) {
	const op = "writeto"
	if err := c.ok(); err != nil {
		return 0, c.opError(op, err)
	}
	if err := c.acquire(&c.rd); err != nil {
		return 0, c.opError(op, err)
	}
	defer c.rd.release()
	n, err := c.writeTo(w)
	if err != nil {
		err = c.opError(op, err)
	}
	return n, err
}

func (c *Conn) writeTo(w io.Writer) (total int64, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.begin(); err != nil {
		return 0, err
	}
	defer c.end()
	ring := c.parts.ring.Bytes()
	for {
		if err := c.await(&c.rd); err != nil {
			return total, err
		}
		off, n := c.st.Readable()
		if n == 0 {
			if err := c.readEnd(); err != io.EOF {
				return total, err
			}
			return total, nil
		}
		m, err := c.unlocked(func() (int, error) { return w.Write(ring[off : off+n]) })
		if m < 0 || m > n {
			return total, fmt.Errorf("%T.Write returned %d for %d bytes", w, m, n)
		}
		total += int64(m)
		c.consume(m)
		if err == nil && m < n {
			err = io.ErrShortWrite
		}
		if err != nil {
			return total, err
		}
	}
}

// unlocked calls f without the lock, and locks again even if f panics.
func (c *Conn) unlocked(f func() (int, error)) (int, error) {
	c.mu.Unlock()
	defer c.mu.Lock()
	return f()
}

// mostAtOnce is how many transfers are posted in one list: from FirstTransfer to MaxTransfer, each
// twice as long as the one before. All of them go to TCP in one system call.
const mostAtOnce = 6

// writing is the memory for posting transfers.
type writing struct {
	n      int // transfers
	octets int
	wrs    [2 * mostAtOnce]ibverbs.SendWR // for each transfer the Write, and the message
	sges   [2 * mostAtOnce]ibverbs.SGE
	msgs   [mostAtOnce][proto.MessageLen]byte
	copies [mostAtOnce]copying
}

// copying says which bytes of a Write to copy where in the send buffer.
type copying struct {
	p   []byte
	off int
}

func (w *writing) init() {
	for i := range w.msgs {
		w.wrs[2*i] = ibverbs.SendWR{WRID: idWrite, Opcode: ibverbs.WRRDMAWrite}
		w.wrs[2*i+1] = ibverbs.SendWR{Opcode: ibverbs.WRSend, Inline: w.msgs[i][:],
			Flags: ibverbs.SendSignaled | ibverbs.SendInline}
	}
}

// Write sends p. It returns when all of it is in the send buffer or posted. It returns EPIPE after
// CloseWrite and after the peer's Close, and ECONNRESET if the connection has ended without these.
func (c *Conn) Write(p []byte) (int, error) {
	if err := c.ok(); err != nil {
		return 0, c.opError("write", err)
	}
	err := c.acquire(&c.wr)
	if err != nil {
		return 0, c.opError("write", err)
	}
	n, err := c.write(p)
	c.wr.release()
	if err != nil {
		err = c.opError("write", err)
	}
	return n, err
}

func (c *Conn) write(p []byte) (total int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.begin(); err != nil {
		return 0, err
	}
	defer c.end()
	if len(p) == 0 {
		if c.wr.limit.passed {
			return 0, os.ErrDeadlineExceeded
		}
		return 0, c.writeEnd()
	}
	for size := proto.FirstTransfer; total < len(p); {
		if err := c.await(&c.wr); err != nil {
			return total, err
		}
		if err := c.writeEnd(); err != nil {
			return total, err
		}
		for c.mayAdd() && total+c.writing.octets < len(p) {
			rest := p[total+c.writing.octets:]
			n := min(len(rest), size, c.st.CanSend())
			if size < proto.MaxTransfer {
				size *= 2
			}
			c.add(rest[:n], n)
		}
		n := c.writing.octets
		if err := c.post(); err != nil {
			return total, err
		}
		total += n
	}
	return total, nil
}

// canWrite reports whether a write can go on (side.ready).
func (c *Conn) canWrite() bool { return c.st.CanSend() > 0 || c.writeEnd() != nil }

// writeEnd returns why nothing can be written any more, nil if writing is possible. The caller
// holds mu.
func (c *Conn) writeEnd() error {
	switch {
	case c.closed:
		return net.ErrClosed
	case c.writeClosed, c.st.PeerEnd() == proto.Disconnect:
		return syscall.EPIPE
	}
	return c.failed
}

// mayAdd reports whether another transfer can go into the list. The caller holds mu.
func (c *Conn) mayAdd() bool {
	w := &c.writing
	return w.n < mostAtOnce && w.octets < proto.MaxTransfer && c.st.CanSend() > 0
}

// add adds a transfer of n bytes, at most CanSend, to the list for post: a Write and its message. p
// has the bytes; if p is nil, they are already in the send buffer. The caller holds mu.
func (c *Conn) add(p []byte, n int) {
	w := &c.writing
	i := w.n
	w.n++
	w.octets += n
	inline := p != nil && n <= c.parts.inline
	t := c.st.Send(n, inline)
	c.st.PutMessage(w.msgs[i][:], t.Msg)
	c.posted++
	c.out.Octets += uint64(n)
	c.out.Transfers++
	write, message := &w.wrs[2*i], &w.wrs[2*i+1]
	write.RemoteAddr, write.RKey = t.Addr, t.Key
	if inline {
		write.Flags, write.Inline, write.SGList = ibverbs.SendInline, p, nil
		message.WRID = idData
		return
	}
	first := min(n, c.parts.cfg.SendBuffer-t.Offset)
	sges := w.sges[2*i : 2*i+1]
	sges[0] = c.parts.ownSGE(t.Offset, first)
	if first < n {
		sges = w.sges[2*i : 2*i+2]
		sges[1] = c.parts.ownSGE(0, n-first)
	}
	write.Flags, write.Inline, write.SGList = 0, nil, sges
	message.WRID = idData | uint64(n)
	w.copies[i] = copying{p, t.Offset}
}

// post posts the transfers of the list. The caller holds mu; post unlocks it while it copies and
// posts.
func (c *Conn) post() error {
	w := &c.writing
	c.posting = true
	c.mu.Unlock()
	own := c.parts.own.Bytes()[:c.parts.cfg.SendBuffer]
	for i := range w.copies[:w.n] {
		at := &w.copies[i]
		first := copy(own[at.off:], at.p)
		copy(own, at.p[first:])
		at.p = nil
	}
	err := c.parts.conn.QP().PostSend(w.wrs[:2*w.n]...)
	for i := range w.n {
		w.wrs[2*i].Inline = nil // do not keep the caller's slice
	}
	w.n, w.octets = 0, 0
	c.mu.Lock()
	c.posting = false
	if err != nil {
		c.lost(err)
		return c.writeEnd()
	}
	c.sendEnd()
	return nil
}

// ReadFrom sends the data of r, until its end. r reads into the send buffer. Write waits until
// ReadFrom has returned. A deadline and Close do not end a running Read of r.
func (c *Conn) ReadFrom(r io.Reader) (int64, error) {
	const op = "readfrom"
	if err := c.ok(); err != nil {
		return 0, c.opError(op, err)
	}
	if err := c.acquire(&c.wr); err != nil {
		return 0, c.opError(op, err)
	}
	defer c.wr.release()
	n, err := c.readFrom(r)
	if err != nil {
		err = c.opError(op, err)
	}
	return n, err
}

func (c *Conn) readFrom(r io.Reader) (total int64, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.begin(); err != nil {
		return 0, err
	}
	defer c.end()
	own := c.parts.own.Bytes()
	size := proto.FirstTransfer
	for {
		if err := c.await(&c.wr); err != nil {
			return total, err
		}
		if err := c.writeEnd(); err != nil {
			return total, err
		}
		off, n := c.st.Contiguous()
		n = min(n, size, c.st.CanSend())
		m, failed := c.unlocked(func() (int, error) { return r.Read(own[off : off+n]) })
		if m < 0 || m > n {
			return total, fmt.Errorf("%T.Read returned %d for %d bytes", r, m, n)
		}
		if m > 0 {
			if err := c.writeEnd(); err != nil {
				return total, err
			}
			c.add(nil, m)
			if err := c.post(); err != nil {
				return total, err
			}
			total += int64(m)
		}
		switch {
		case errors.Is(failed, io.EOF):
			return total, nil
		case failed != nil:
			return total, failed
		case m == n && size < proto.MaxTransfer:
			size *= 2
		}
	}
}
