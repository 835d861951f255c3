package rsocket

import (
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"github.com/govs-rdma/govs/ibverbs/rsocket/internal/proto"
)

// CloseRead makes Read return io.EOF after the data that has already arrived. The peer does not
// notice it, and can write while there is room in the ring. If CloseWrite was called before, the
// stream ends, and the peer learns of that.
func (c *Conn) CloseRead() error {
	if err := c.ok(); err != nil {
		return c.opError("close", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return c.opError("close", net.ErrClosed)
	}
	c.readClosed = true
	c.kick(&c.rd)
	if c.writeClosed {
		c.finish(proto.Disconnect)
	}
	return nil
}

// CloseWrite sends the end of this direction of the stream: the peer reads io.EOF after the data
// that was written. A waiting Write fails with EPIPE. CloseWrite does not wait. On an end that has
// accepted and has received nothing from its peer, a goroutine waits until it may send the end.
func (c *Conn) CloseWrite() error {
	if err := c.ok(); err != nil {
		return c.opError("close", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return c.opError("close", net.ErrClosed)
	}
	if c.writeClosed {
		return nil
	}
	c.writeClosed = true
	c.kick(&c.wr)
	if c.readClosed || c.st.PeerEnd() == proto.Shutdown {
		c.finish(proto.Disconnect)
	} else {
		c.finish(proto.Shutdown)
	}
	return nil
}

// finish sends m as soon as possible. The caller holds mu.
func (c *Conn) finish(m proto.Message) {
	if c.ending == proto.Disconnect {
		return
	}
	c.ending = m
	if c.st.Silent() {
		c.look()
	}
	c.sendEnd()
	if c.st.Silent() && c.failed == nil && !c.closed && !c.hearing {
		c.hearing = true
		go c.hear()
	}
}

// hear waits for the peer's first message, before which this end may not send the end of the
// stream. It needs a goroutine because the program may make no other call, and the peer may be
// waiting in Read.
func (c *Conn) hear() {
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = c.await(&c.hr) // the program's next call reports an error
}

// canSendEnd reports whether hear can go on (side.ready).
func (c *Conn) canSendEnd() bool { return !c.st.Silent() || c.failed != nil }

// Close ends the connection. It first sends the written data: it waits until TCP has all of it, for
// at most Config.Linger, and otherwise returns an error that says how much is lost. Unread data is
// lost. An end that has accepted waits up to 200 ms for the first message of its peer, because it
// may not send the end before. Running calls fail with net.ErrClosed. If the reader of a ReadFrom,
// or the writer of a WriteTo, does not return, the memory of the connection is kept until it does.
func (c *Conn) Close() error {
	if err := c.ok(); err != nil {
		return c.opError("close", err)
	}
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return c.opError("close", net.ErrClosed)
	}
	c.closed = true
	close(c.closing)
	for _, timer := range []*time.Timer{c.keepalive, c.nudges} {
		if timer != nil {
			timer.Stop()
		}
	}
	c.setDeadline(&c.rd, time.Time{})
	c.setDeadline(&c.wr, time.Time{})
	c.kick(&c.rd)
	c.kick(&c.wr)
	c.kick(&c.hr)
	err := c.linger()
	c.gone = true
	for c.leading {
		c.follow(&c.cl)
	}
	c.mu.Unlock()

	err = errors.Join(err, c.parts.conn.Close(), c.parts.freeQueue())
	c.mu.Lock()
	if c.ops == 0 {
		err = errors.Join(err, c.parts.freeMemory())
	}
	c.mu.Unlock()
	if err != nil {
		err = c.opError("close", err)
	}
	return err
}

// silentLinger is how long Close waits at most for the peer's first message, before which nothing
// may be sent. Without the disconnect the peer would not read io.EOF. Dial sends its first message
// at once.
const silentLinger = 200 * time.Millisecond

// linger sends the disconnect, and waits until all posted work is complete. The caller holds mu.
func (c *Conn) linger() error {
	c.finish(proto.Disconnect)
	limit := c.parts.cfg.Linger
	if limit < 0 {
		return nil
	}
	if c.st.Silent() {
		_ = c.sentWithin(min(limit, silentLinger)) // the second try is below
		if c.st.Silent() {
			return nil // nothing was written
		}
	}
	if err := c.sentWithin(limit); err != nil {
		return fmt.Errorf("of what was written, the last %d bytes were not handed to TCP within %v "+
			"(Config.Linger): %w",
			c.parts.cfg.SendBuffer-c.st.Out().Buffer, limit, os.ErrDeadlineExceeded)
	}
	return nil
}

// sentWithin waits until everything is sent. The caller holds mu.
func (c *Conn) sentWithin(limit time.Duration) error {
	c.setDeadline(&c.cl, time.Now().Add(limit))
	defer c.setDeadline(&c.cl, time.Time{})
	return c.await(&c.cl)
}

// allSent reports whether Close can go on (side.ready).
func (c *Conn) allSent() bool {
	return c.posted == 0 && !c.posting && !c.st.Silent() || c.failed != nil ||
		c.st.PeerEnd() == proto.Disconnect
}
