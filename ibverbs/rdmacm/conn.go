package rdmacm

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"syscall"

	"github.com/govs-rdma/govs/ibverbs"
)

// Conn is a connection that Dial or Request.Accept made: a CM id with an event
// channel of its own, its QP, and whatever else it had to make for them.
type Conn struct {
	vctx    *ibverbs.Context
	ch      *EventChannel
	id      *ID
	pd      *ibverbs.PD
	sendCQ  *ibverbs.CQ
	recvCQ  *ibverbs.CQ
	qp      *ibverbs.QP
	private []byte

	closing sync.Mutex
	steps   []func() error // what Close still has to do, in this order

	watchOnce sync.Once
	watchCtx  context.Context
	unwatch   context.CancelFunc
	done      chan struct{}
}

// newConn makes the QP of id with all it needs. It takes over ch and id: Close
// frees them even if it fails.
func newConn(ch *EventChannel, id *ID, cfg *ConnConfig) (*Conn, error) {
	c := &Conn{
		vctx: ch.vctx, ch: ch, id: id,
		pd: cfg.PD, sendCQ: cfg.SendCQ, recvCQ: cfg.RecvCQ,
		done: make(chan struct{}),
	}
	c.watchCtx, c.unwatch = context.WithCancel(context.Background())
	// Steps of closing are put in front as things are made.
	c.steps = []func() error{c.endWatch, id.Close, ch.Close}

	sizes := capacity(cfg.Cap)
	var err error
	if c.pd == nil {
		if c.pd, err = c.vctx.AllocPD(); err != nil {
			return c, err
		}
		c.steps = append(c.steps, c.pd.Close)
	}
	if c.sendCQ == nil {
		// One more than the queue holds, for QP.Drain.
		if c.sendCQ, err = c.makeCQ(sizes.MaxSendWR + 1); err != nil {
			return c, err
		}
	}
	if c.recvCQ == nil {
		if c.recvCQ, err = c.makeCQ(sizes.MaxRecvWR); err != nil {
			return c, err
		}
	}
	c.qp, err = id.CreateQP(c.pd, &ibverbs.QPInitAttr{
		SendCQ: c.sendCQ, RecvCQ: c.recvCQ, Cap: sizes, SQSigAll: cfg.SQSigAll, Cookie: cfg.Cookie,
	})
	if err != nil {
		return c, err
	}
	c.steps = append([]func() error{c.hangUp, c.qp.Close}, c.steps...)
	return c, nil
}

// makeCQ makes a CQ with a channel of its own, which Close frees before the PD.
func (c *Conn) makeCQ(cqe int) (*ibverbs.CQ, error) {
	ch, err := c.vctx.CreateCompChannel()
	if err != nil {
		return nil, err
	}
	cq, err := c.vctx.CreateCQ(cqe, &ibverbs.CQOptions{Channel: ch})
	if err != nil {
		return nil, errors.Join(err, ch.Close())
	}
	last := len(c.steps) - 1
	c.steps = append(c.steps[:last:last], cq.Close, ch.Close, c.steps[last])
	return cq, nil
}

// QP returns the connection's QP.
func (c *Conn) QP() *ibverbs.QP { return c.qp }

// PD returns the protection domain of the QP, to register memory with.
func (c *Conn) PD() *ibverbs.PD { return c.pd }

// SendCQ returns where sends complete.
func (c *Conn) SendCQ() *ibverbs.CQ { return c.sendCQ }

// RecvCQ returns where receives complete.
func (c *Conn) RecvCQ() *ibverbs.CQ { return c.recvCQ }

// ID returns the CM id underneath. Its events are the Conn's: don't read its
// channel.
func (c *Conn) ID() *ID { return c.id }

// PrivateData returns what the peer sent: with its request or, on the side that
// dialled, with its reply. The slice is shared by all calls.
func (c *Conn) PrivateData() []byte { return c.private }

// LocalAddr returns our address of the connection.
func (c *Conn) LocalAddr() netip.AddrPort { return c.id.LocalAddr() }

// RemoteAddr returns the peer's address.
func (c *Conn) RemoteAddr() netip.AddrPort { return c.id.RemoteAddr() }

// Done returns a channel that is closed when the connection has ended, whoever
// ended it and how, or the Conn is closed. QP.Cause may know why.
//
// The first call of Done, Wait or Shutdown starts a goroutine that waits for
// the end; it is gone when the connection is.
func (c *Conn) Done() <-chan struct{} {
	c.watchOnce.Do(func() { go c.watch() })
	return c.done
}

// Wait waits until the connection has ended, as Done tells. The error is nil or
// ctx.Err().
func (c *Conn) Wait(ctx context.Context) error {
	select {
	case <-c.Done():
		return nil
	default:
	}
	select {
	case <-c.Done():
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *Conn) watch() {
	defer close(c.done)
	for {
		ev, err := c.ch.GetEvent(c.watchCtx)
		if err != nil || ev.Type == Disconnected || ev.Type == DeviceRemoval {
			return
		}
	}
}

// Disconnect ends the connection at once (rdma_disconnect). What is still in
// the queues is flushed; what of it the peer gets is not defined.
func (c *Conn) Disconnect() error { return c.id.Disconnect() }

// Shutdown ends the connection in order: it waits for the completion of
// everything in the send queue as QP.Drain does, disconnects, and waits until
// that is through. Receives that are still posted are flushed. Post no more
// when calling it. Completions stay in the CQs; a program may go on polling
// meanwhile. Afterwards, Close.
//
// The error is nil when the connection is over, also when the peer ended it
// first: how each work request fared is in its completion. When ctx ends it is
// ctx.Err(), and the connection may still be there.
func (c *Conn) Shutdown(ctx context.Context) error {
	drainCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.watchCtx, cancel)()
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		select {
		case <-c.Done():
			cancel()
		case <-stop:
		}
	}()

	drainErr := c.qp.Drain(drainCtx)
	if err := ctx.Err(); err != nil && drainErr != nil {
		return err
	}
	// A connection that has ended meanwhile makes both fail, with whatever
	// errno the device has for that.
	if err := c.Disconnect(); err != nil && !c.over() && !isNotConnected(err) {
		return err
	}
	if err := c.Wait(ctx); err != nil {
		return err
	}
	return nil
}

// over tells whether the end of the connection is known.
func (c *Conn) over() bool {
	select {
	case <-c.Done():
		return true
	default:
		return false
	}
}

// isNotConnected tells whether a disconnect failed because the peer was faster
// and its event has not come up yet.
func isNotConnected(err error) bool {
	return errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.ENOTCONN)
}

// Close ends the connection, if there is one, and frees what Dial or Accept
// made: QP, id and event channel, and those of CQs and PD that the
// configuration didn't give. Without Shutdown before it, work that is still
// posted is lost without completions.
//
// If a region is still registered with the Conn's own PD, all else is closed
// and the error is EBUSY; call Close again when the region is closed.
func (c *Conn) Close() error {
	c.closing.Lock()
	defer c.closing.Unlock()
	for len(c.steps) > 0 {
		if err := c.steps[0](); err != nil {
			return err
		}
		c.steps = c.steps[1:]
	}
	return nil
}

// hangUp disconnects for Close, which doesn't mind if there is no connection.
func (c *Conn) hangUp() error {
	_ = c.id.Disconnect()
	return nil
}

// endWatch stops the watcher, or keeps it from ever starting.
func (c *Conn) endWatch() error {
	c.unwatch()
	c.watchOnce.Do(func() { close(c.done) })
	<-c.done
	return nil
}
