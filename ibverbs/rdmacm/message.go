package rdmacm

import (
	"context"
	"errors"
	"math"
	"math/bits"
	"os"
	"syscall"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/internal/object"
)

// Receive waits for the next message of the peer, in one of the receives of [ConnConfig].Receives.
// On the engine it allocates only for a ctx other than the previous call's.
//
// Message.Data is valid until Message.Release, which posts the receive again. Release each message
// before you send anything that permits the peer to send the next one: while all receives contain
// messages, one more ends the connection. Messages come in the order in which the peer sent them.
// Any number of goroutines may call Receive; each message goes to one of them.
//
// After the connection has ended and all earlier messages have been received, Receive returns the
// error of a flushed receive, in the form of [Conn.Err], in which errors.Is finds
// [ibverbs.ErrFlushed]. If no receive is left, the error wraps ENOTCONN. If this side ended the
// connection, the error says so, and errors.Is also finds os.ErrClosed, as with [Conn.Do]. A
// message longer than ConnConfig.ReceiveSize ends the connection: the error contains a
// [*ibverbs.WCError] with IBV_WC_LOC_LEN_ERR. When ctx ends, the error wraps ctx.Err(), and the
// next call gets the message. After Close, Data of unreleased messages can still be read. EINVAL
// says that the Conn has no receives.
func (c *Conn) Receive(ctx context.Context) (Message, error) {
	const op = "Conn.Receive"
	if c == nil || c.qp == nil {
		return Message{}, errNil(op, "connection")
	}
	if c.receiver != nil {
		m, err := c.receiver.receive(ctx, op)
		return m, c.ownEnd(op, err)
	}
	if c.left.Load() == closedHere {
		return Message{}, &ibverbs.Error{Op: op, Object: c.peer(), Err: os.ErrClosed}
	}
	return Message{}, object.Errorf(op, c.peer(), syscall.EINVAL,
		"the connection has no receives: set ConnConfig.Receives and ReceiveSize")
}

// SendBytes sends a copy of msg to a receive of the peer, as one message, and waits as [Conn.Send]
// does. msg may be empty. SendBytes does not keep msg, even if it returns an error. As with Send,
// nil does not say that the peer has received the message, or has a receive for it. If it has none,
// or too short a one, iWARP ends the connection, and the next call returns an error. If ctx ends
// first, the message may still be sent.
//
// Any number of goroutines may call SendBytes, concurrently with Send, Do and the others; each
// message arrives whole. The copies are in registered memory of the Conn. It has as many buffers as
// calls have been concurrent; each is as long as its longest message so far, rounded up to a power
// of two. Close frees them. On the engine SendBytes allocates only for these buffers and as
// [Conn.Do] does.
func (c *Conn) SendBytes(ctx context.Context, msg []byte) error {
	const op = "Conn.SendBytes"
	if uint64(len(msg)) > math.MaxUint32 {
		return object.Errorf(op, c.peer(), syscall.EINVAL,
			"%d bytes in one message, which may have 2^32-1; send several", len(msg))
	}
	r, err := c.router(op, 1)
	if err != nil {
		return err
	}
	call, err := r.begin(ctx, op, 1)
	if err != nil {
		return c.ownEnd(op, err)
	}
	wr := ibverbs.SendWR{Opcode: ibverbs.WRSend}
	if len(msg) > 0 {
		if call.sge[0], err = c.copied(call, msg); err != nil {
			r.abandon(call)
			return c.ownEnd(op, err)
		}
		wr.SGList = call.sge[:]
	}
	call.wrs = append(call.wrs, wr)
	return c.ownEnd(op, r.perform(ctx, op, call))
}

// shortestCopy is the length of the first buffer of a call in bytes.
const shortestCopy = 64

// copied copies msg into the call's buffer. Nothing else uses the buffer, even after a call that
// was given up, because a call is reused only when its work is complete.
func (c *Conn) copied(x *call, msg []byte) (ibverbs.SGE, error) {
	if len(x.copy.Bytes()) < len(msg) {
		if err := c.makeCopy(x, len(msg)); err != nil {
			return ibverbs.SGE{}, err
		}
	}
	copy(x.copy.Bytes(), msg)
	return x.copy.SGE(0, len(msg)) // os.ErrClosed if Close was faster
}

// makeCopy makes a buffer of at least n bytes for a call. It is heap memory, so that copied may
// write to it while Close frees it.
func (c *Conn) makeCopy(x *call, n int) error {
	c.closing.Lock()
	defer c.closing.Unlock()
	if c.left.Load() == closedHere {
		return os.ErrClosed
	}
	if err := x.copy.Close(); err != nil {
		return err
	}
	size := max(shortestCopy, 1<<bits.Len(uint(n-1)))
	mr, err := c.pd.RegMR(make([]byte, size), 0)
	if err == nil {
		x.copy = mr
	}
	return err
}

// closeCopies frees the buffers of all calls. The caller has closed the QP and holds c.closing.
func (c *Conn) closeCopies() error {
	r := c.routes.Load()
	if r == nil {
		return nil
	}
	r.mu.Lock()
	calls := r.calls
	r.mu.Unlock()
	var errs []error
	for _, x := range calls {
		errs = append(errs, x.copy.Close())
	}
	return errors.Join(errs...)
}
