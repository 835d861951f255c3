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
// Over the engine it allocates nothing, other than for a ctx that is not the one of the call
// before.
//
// Message.Data is valid until Message.Release, which posts the receive again. Release each message,
// and before sending what allows the peer its next one: while all receives hold messages, one more
// ends the connection. Messages come in the order in which the peer has sent them. Any number of
// goroutines may call Receive, and each message goes to one of them.
//
// When the connection has ended, and all messages from before have been received, the error is that
// of a receive that was flushed, as [Conn.Err] makes it, in which errors.Is finds
// [ibverbs.ErrFlushed], or one that wraps ENOTCONN if none is left. If this side has ended it, the
// error says so, and errors.Is finds os.ErrClosed as well, as with [Conn.Do]. A message longer than
// ConnConfig.ReceiveSize ends the connection: the error has a [*ibverbs.WCError] with
// IBV_WC_LOC_LEN_ERR. When ctx ends, the error wraps ctx.Err(), and the next call gets the message.
// After Close, Data of messages that were not released can still be read. EINVAL says that the Conn
// has no receives. The first call starts what Conn.Done starts.
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
// does. msg may be empty. It is the caller's again when SendBytes returns, also with an error. For
// the rest it is a Send: nil says neither that the peer has received the message, nor that it has a
// receive for it. Where it has none, or a shorter one, iWARP ends the connection, and the next call
// returns an error. When ctx ends first, the message may be sent all the same.
//
// Any number of goroutines may call SendBytes, beside Send, Do and the others, and each message
// arrives whole. The copies are in registered memory of the Conn: as many buffers as there were
// calls at a time, of the longest message of each, up to the next power of two. Close frees them.
// Over the engine SendBytes allocates nothing, other than for these and as [Conn.Do] does.
func (c *Conn) SendBytes(ctx context.Context, msg []byte) error {
	const op = "Conn.SendBytes"
	if uint64(len(msg)) > math.MaxUint32 {
		return object.Errorf(op, c.peer(), syscall.EINVAL,
			"%d bytes in one message, which may have 2^32-1", len(msg))
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

// copied copies msg into the buffer of a call. Nothing else uses that, also after a call that was
// given up, because a call is used again only when its work is complete.
func (c *Conn) copied(x *call, msg []byte) (ibverbs.SGE, error) {
	if len(x.copy.Bytes()) < len(msg) {
		if err := c.makeCopy(x, len(msg)); err != nil {
			return ibverbs.SGE{}, err
		}
	}
	copy(x.copy.Bytes(), msg)
	return x.copy.SGE(0, len(msg)) // os.ErrClosed if Close was faster
}

// makeCopy makes the buffer of a call have n bytes at least. The memory is the heap's, so that
// copied may write to it while Close frees it.
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

// closeCopies frees the buffers of all calls. The QP is closed, and c.closing is held.
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
