package rdmacm

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"syscall"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/internal/object"
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

	// ended ends with the connection, as far as watch has noticed.
	ended     context.Context
	end       context.CancelFunc
	watchOnce sync.Once
	watchCtx  context.Context
	unwatch   context.CancelFunc

	closing sync.Mutex
	steps   []func() error // what Close still has to do, the last one first
}

// newConn makes the QP of id with all it needs. It takes over ch and id: Close
// frees them even if newConn fails.
func newConn(ch *EventChannel, id *ID, cfg *ConnConfig) (*Conn, error) {
	c := &Conn{vctx: ch.vctx, ch: ch, id: id, pd: cfg.PD, sendCQ: cfg.SendCQ, recvCQ: cfg.RecvCQ}
	c.ended, c.end = context.WithCancel(context.Background())
	c.watchCtx, c.unwatch = context.WithCancel(context.Background())

	sizes := capacity(cfg.Cap)
	err := c.makeParts(sizes)
	c.atClose(ch.Close, id.Close, c.endWatch)
	if err != nil {
		return c, err
	}
	c.qp, err = id.CreateQP(c.pd, &ibverbs.QPInitAttr{
		SendCQ: c.sendCQ, RecvCQ: c.recvCQ, Cap: sizes, SQSigAll: cfg.SQSigAll, Cookie: cfg.Cookie,
	})
	if err != nil {
		return c, err
	}
	c.atClose(c.qp.Close)
	return c, nil
}

// established notes that there is a connection.
func (c *Conn) established(private []byte) {
	c.private = private
	c.atClose(c.hangUp)
}

// makeParts makes what the configuration left out.
func (c *Conn) makeParts(sizes ibverbs.QPCap) (err error) {
	if c.pd == nil {
		if c.pd, err = c.vctx.AllocPD(); err != nil {
			return err
		}
		c.atClose(func() error { return object.RetirePD(c.pd) })
	}
	if c.sendCQ == nil {
		// One more than the queue holds, for QP.Drain.
		if c.sendCQ, err = c.makeCQ(sizes.MaxSendWR + 1); err != nil {
			return err
		}
	}
	if c.recvCQ == nil {
		c.recvCQ, err = c.makeCQ(sizes.MaxRecvWR)
	}
	return err
}

// makeCQ makes a CQ with a channel of its own.
func (c *Conn) makeCQ(cqe int) (*ibverbs.CQ, error) {
	ch, err := c.vctx.CreateCompChannel()
	if err != nil {
		return nil, err
	}
	c.atClose(ch.Close)
	cq, err := c.vctx.CreateCQ(cqe, &ibverbs.CQOptions{Channel: ch})
	if err != nil {
		return nil, err
	}
	c.atClose(cq.Close)
	return cq, nil
}

func (c *Conn) atClose(steps ...func() error) { c.steps = append(c.steps, steps...) }

// QP returns the connection's QP.
func (c *Conn) QP() *ibverbs.QP {
	if c == nil {
		return nil
	}
	return c.qp
}

// PD returns the protection domain of the QP, to register memory with.
func (c *Conn) PD() *ibverbs.PD {
	if c == nil {
		return nil
	}
	return c.pd
}

// SendCQ returns where sends complete.
func (c *Conn) SendCQ() *ibverbs.CQ {
	if c == nil {
		return nil
	}
	return c.sendCQ
}

// RecvCQ returns where receives complete.
func (c *Conn) RecvCQ() *ibverbs.CQ {
	if c == nil {
		return nil
	}
	return c.recvCQ
}

// ID returns the CM id underneath. Its events are the Conn's: don't read its
// channel.
func (c *Conn) ID() *ID {
	if c == nil {
		return nil
	}
	return c.id
}

// PrivateData returns what the peer sent: with its request or, on the side that
// dialled, with its reply. The slice is shared by all calls.
func (c *Conn) PrivateData() []byte {
	if c == nil {
		return nil
	}
	return c.private
}

// LocalAddr returns our address of the connection.
func (c *Conn) LocalAddr() netip.AddrPort { return c.ID().LocalAddr() }

// RemoteAddr returns the peer's address.
func (c *Conn) RemoteAddr() netip.AddrPort { return c.ID().RemoteAddr() }

// Done returns a channel that is closed when the connection has ended, whoever
// ended it and how, or the Conn is closed. QP.Cause may know why.
//
// The first call of Done, Wait or Shutdown starts a goroutine that waits for
// the end; it is gone when the connection is.
func (c *Conn) Done() <-chan struct{} {
	if c == nil || c.id == nil {
		return noConn
	}
	c.watchOnce.Do(func() { go c.watch() })
	return c.ended.Done()
}

// noConn is closed: a Conn that never was has ended.
var noConn = func() <-chan struct{} {
	ch := make(chan struct{})
	close(ch)
	return ch
}()

// Wait waits until the connection has ended, as Done tells. The error is nil or
// ctx.Err().
func (c *Conn) Wait(ctx context.Context) error {
	select {
	case <-c.Done():
	case <-ctx.Done():
		if !c.over() {
			return ctx.Err()
		}
	}
	return nil
}

// over tells whether the end of the connection has been noticed.
func (c *Conn) over() bool {
	select {
	case <-c.Done():
		return true
	default:
		return false
	}
}

func (c *Conn) watch() {
	defer c.end()
	for {
		ev, err := c.ch.GetEvent(c.watchCtx)
		if err != nil || ev.Type == Disconnected || ev.Type == DeviceRemoval {
			return
		}
	}
}

// Disconnect ends the connection at once (rdma_disconnect). What is still in
// the queues is flushed; what of it the peer gets is not defined.
func (c *Conn) Disconnect() error { return c.ID().Disconnect() }

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
	if c == nil || c.id == nil {
		return errNil("rdma_disconnect", "connection")
	}
	c.Done() // starts watching, which ends a Drain that can't end by itself
	drainCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.ended, cancel)()
	if err := c.qp.Drain(drainCtx); err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	// A connection that ended first makes Drain and Disconnect fail, with
	// whatever errno the device has for that.
	if err := c.Disconnect(); err != nil && !c.over() && !isNotConnected(err) {
		return err
	}
	return c.Wait(ctx)
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
// Regions that are registered with the Conn's own PD may be closed before or
// after it; the PD goes with the last of them.
func (c *Conn) Close() error {
	if c == nil {
		return nil
	}
	c.closing.Lock()
	defer c.closing.Unlock()
	for len(c.steps) > 0 {
		last := len(c.steps) - 1
		if err := c.steps[last](); err != nil {
			return err
		}
		c.steps = c.steps[:last]
	}
	return nil
}

// hangUp disconnects for Close, which doesn't mind if the peer was faster.
func (c *Conn) hangUp() error {
	_ = c.id.Disconnect()
	return nil
}

// endWatch stops the watcher, or keeps it from ever starting.
func (c *Conn) endWatch() error {
	c.unwatch()
	c.watchOnce.Do(c.end)
	<-c.ended.Done()
	return nil
}
