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

// copyLocked is how many octets are copied with the lock held, which is then the shorter way.
const copyLocked = 1024

// Read reads what has come, and waits if that is nothing. It is io.EOF after the peer's CloseWrite
// or Close, ECONNRESET if the connection has ended without either, EPROTO if the peer broke the
// protocol.
func (c *Conn) Read(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
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

// consume gives n octets of the ring back to the peer. mu is held.
func (c *Conn) consume(n int) {
	c.st.Consume(n)
	if c.st.GrantDue() {
		c.look()
	}
	c.grant()
}

// canRead is side.ready of reading.
func (c *Conn) canRead() bool {
	return c.st.Unread() > 0 || c.readClosed || c.st.PeerEnd() != 0 || c.failed != nil
}

// readEnd returns why there is nothing to read. mu is held.
func (c *Conn) readEnd() error {
	if c.readClosed || c.st.PeerEnd() != 0 {
		return io.EOF
	}
	return c.failed
}

// WriteTo writes what comes to w, until the end of the stream. It passes w the memory that the
// peer wrote into, and gives the peer that back when w.Write returns; until then a peer that breaks
// the protocol can change it. Read waits until WriteTo has returned.
func (c *Conn) WriteTo(w io.Writer) (int64, error) {
	const op = "writeto"
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
			return total, fmt.Errorf("%T.Write returned %d for %d octets", w, m, n)
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

// unlocked calls f without the lock, and has it again also if f panics.
func (c *Conn) unlocked(f func() (int, error)) (int, error) {
	c.mu.Unlock()
	defer c.mu.Lock()
	return f()
}

// writing is what transfers are posted with.
type writing struct {
	wrs  [2]ibverbs.SendWR // the Write, and the message
	sges [2]ibverbs.SGE
	msg  [proto.MessageLen]byte
}

func (w *writing) init() {
	w.wrs[0] = ibverbs.SendWR{WRID: idWrite, Opcode: ibverbs.WRRDMAWrite}
	w.wrs[1] = ibverbs.SendWR{Opcode: ibverbs.WRSend, Inline: w.msg[:],
		Flags: ibverbs.SendSignaled | ibverbs.SendInline}
}

// Write sends p. It returns when all of it is in the send buffer, or on its way. It is EPIPE after
// CloseWrite, and after the peer's Close; ECONNRESET if the connection has ended without that.
func (c *Conn) Write(p []byte) (int, error) {
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
		n := min(len(p)-total, size, c.st.CanSend())
		if size < proto.MaxTransfer {
			size *= 2
		}
		if err := c.transfer(p[total:total+n], n); err != nil {
			return total, err
		}
		total += n
	}
	return total, nil
}

// canWrite is side.ready of writing.
func (c *Conn) canWrite() bool { return c.st.CanSend() > 0 || c.writeEnd() != nil }

// writeEnd returns why nothing can be written any more, nil if it can. mu is held.
func (c *Conn) writeEnd() error {
	switch {
	case c.closed:
		return net.ErrClosed
	case c.writeClosed, c.st.PeerEnd() == proto.Disconnect:
		return syscall.EPIPE
	}
	return c.failed
}

// transfer posts one Write of n octets and its message. The octets are those of p, or if that is
// nil in the send buffer already. mu is held, but not while it posts.
func (c *Conn) transfer(p []byte, n int) error {
	w := &c.writing
	inline := p != nil && n <= c.parts.inline
	t := c.st.Send(n, inline)
	c.st.PutMessage(w.msg[:], t.Msg)
	c.posting = true
	c.posted++
	c.out.Octets += uint64(n)
	c.out.Transfers++
	c.mu.Unlock()
	write := &w.wrs[0]
	write.RemoteAddr, write.RKey = t.Addr, t.Key
	if inline {
		write.Flags, write.Inline, write.SGList = ibverbs.SendInline, p, nil
		w.wrs[1].WRID = idData
	} else {
		first := min(n, c.parts.cfg.SendBuffer-t.Offset)
		w.sges[0] = c.parts.ownSGE(t.Offset, first)
		write.Flags, write.Inline, write.SGList = 0, nil, w.sges[:1]
		if p != nil {
			own := c.parts.own.Bytes()
			copy(own[t.Offset:], p[:first])
			copy(own, p[first:])
		}
		if first < n {
			w.sges[1] = c.parts.ownSGE(0, n-first)
			write.SGList = w.sges[:2]
		}
		w.wrs[1].WRID = idData | uint64(n)
	}
	err := c.parts.conn.QP().PostSend(w.wrs[:]...)
	write.Inline = nil // it is the caller's
	c.mu.Lock()
	c.posting = false
	if err != nil {
		c.lost(err)
		return c.writeEnd()
	}
	c.sendEnd()
	return nil
}

// ReadFrom sends what r has, until its end. r reads into the send buffer. Write waits until
// ReadFrom has returned; a deadline and Close don't end a Read of r that is under way.
func (c *Conn) ReadFrom(r io.Reader) (int64, error) {
	const op = "readfrom"
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
			return total, fmt.Errorf("%T.Read returned %d for %d octets", r, m, n)
		}
		if m > 0 {
			if err := c.writeEnd(); err != nil {
				return total, err
			}
			if err := c.transfer(nil, m); err != nil {
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
