package rdmacm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/bits"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/internal/object"
	"github.com/govs-rdma/govs/provider"
)

// Conn is a connection that Dial or Request.Accept made: a CM id with an event
// channel of its own, its QP, and whatever else it had to make for them.
type Conn struct {
	vctx   *ibverbs.Context
	ch     *EventChannel
	id     *ID
	pd     *ibverbs.PD
	sendCQ *ibverbs.CQ
	recvCQ *ibverbs.CQ
	qp     *ibverbs.QP
	onSend func(*ibverbs.WC)
	routes atomic.Pointer[router] // nil before the first Do

	left          atomic.Int32 // whether this side has ended the connection, and how
	mu            sync.Mutex
	watching      *watch // nil before the first Done, but on devices of the kernel
	up            bool   // the connection is established, so that its events are for watching
	private       []byte
	rdmac         bool
	local, remote netip.AddrPort // of a Conn that is closed, whose id may not know them any more

	receiver *Receiver // of ConnConfig.Receives, nil without

	// What Close has to do beside closing QP, id and channel. Close holds closing all the time.
	closing                     sync.Mutex
	disconnect                  bool
	ownPD, ownSendCQ, ownRecvCQ bool
}

// watch waits for the end of a connection on behalf of all calls that ask for it.
type watch struct {
	begun bool            // the goroutine has been started; under Conn.mu
	ended context.Context // ends when the watch is over
	end   context.CancelFunc
	ctx   context.Context // ends the watch early
	stop  context.CancelFunc
}

// newConn makes the QP of id with all it needs. It takes over ch and id: Close
// frees them even if newConn fails.
func newConn(ch *EventChannel, id *ID, cfg *ConnConfig) (*Conn, error) {
	c := &Conn{vctx: ch.vctx, ch: ch, id: id, pd: cfg.PD, sendCQ: cfg.SendCQ, recvCQ: cfg.RecvCQ,
		onSend: cfg.OnSend}
	sizes, err := c.capacity(cfg)
	if err != nil {
		return c, err
	}
	if err := c.makeParts(sizes, cfg.SRQ); err != nil {
		return c, err
	}
	c.qp, err = id.CreateQP(c.pd, &ibverbs.QPInitAttr{
		SendCQ: c.sendCQ, RecvCQ: c.recvCQ, SRQ: cfg.SRQ, Cap: sizes, SQSigAll: cfg.SQSigAll, Cookie: cfg.Cookie,
	})
	if err == nil && cfg.Receives > 0 {
		err = c.makeReceiver(cfg.Receives, cfg.ReceiveSize)
	}
	return c, err
}

// offered notes what the request of ev brought, for Prepare.
func (c *Conn) offered(ev *Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.private = ev.PrivateData
}

// established notes that there is a connection, and what ev says of it: the peer's
// answer, or its request.
func (c *Conn) established(ev *Event) {
	c.closing.Lock()
	c.disconnect = true
	c.closing.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.private, c.rdmac = ev.PrivateData, ev.RDMAC
	c.up = true
	switch {
	case c.watching != nil: // since Prepare
		c.watching.start(c.ch)
	case c.watchedFromStart():
		c.watching = newWatch()
		c.watching.start(c.ch)
	}
}

// isUp reports whether the connection has been established.
func (c *Conn) isUp() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.up
}

// watchedFromStart reports whether somebody has to wait for the end of the connection all the
// time. A peer that disconnects waits for an answer on InfiniBand and RoCE. With every driver of
// the kernel, our QP stays as it is until somebody takes the event: what is posted to it would
// never complete.
func (c *Conn) watchedFromStart() bool {
	return c.vctx.Transport() == ibverbs.TransportIB || c.vctx.Provider() == "kernel"
}

// makeParts makes what the configuration left out.
func (c *Conn) makeParts(sizes ibverbs.QPCap, srq *ibverbs.SRQ) (err error) {
	if srq != nil {
		attr, err := srq.Query()
		if err != nil {
			return err
		}
		sizes.MaxRecvWR = attr.MaxWR
		if c.pd == nil {
			c.pd = srq.PD()
		}
	}
	if c.pd == nil {
		if c.pd, err = c.vctx.AllocPD(); err != nil {
			return err
		}
		c.ownPD = true
	}
	if c.sendCQ == nil {
		if err = c.makeSendCQ(sizes.MaxSendWR); err != nil {
			return c.whyNoCQ("Cap.MaxSendWR", sizes.MaxSendWR, err)
		}
		c.ownSendCQ = true
	} else if err = object.Polled(c.sendCQ, "rdmacm.ConnConfig.SendCQ"); err != nil {
		return err
	}
	if c.recvCQ == nil {
		if c.recvCQ, err = c.makeCQ(sizes.MaxRecvWR); err != nil {
			return c.whyNoCQ("Cap.MaxRecvWR or Receives", sizes.MaxRecvWR, err)
		}
		c.ownRecvCQ = true
	}
	return nil
}

// makeSendCQ makes the send CQ for a queue of as many places as are granted to a caller that asks
// for this many: the engine and siw round up to a power of two, rxe to one less. QP.Drain needs one
// more. With OnSend a full queue of the calls' work may complete while as many completions of the
// program's own work are in the CQ.
func (c *Conn) makeSendCQ(places int) (err error) {
	granted := places
	switch {
	case places < 1 || places > math.MaxInt16: // what can't be, or nearly all that devices have
	case c.vctx.Transport() == ibverbs.TransportIB:
		granted = 1<<bits.Len(uint(places)) - 1
	default:
		granted = 1 << bits.Len(uint(places-1))
	}
	share := 1
	if c.onSend != nil {
		share = 2
	}
	c.sendCQ, err = c.makeCQ(share*granted + 1)
	if err != nil && granted > places { // that may be more than the device has
		c.sendCQ, err = c.makeCQ(share*places + 1)
	}
	return err
}

// whyNoCQ returns err, with which no CQ was made for the n work requests that a field of
// ConnConfig asks for, or EINVAL about that field if no QP can have as many.
func (c *Conn) whyNoCQ(field string, n int, err error) error {
	attr, failed := c.vctx.Query()
	if failed != nil || n >= 0 && n <= attr.MaxQPWR {
		return err
	}
	return &ibverbs.Error{Op: "rdma_create_qp", Object: c.vctx.Name(), Err: fmt.Errorf(
		"ConnConfig.%s is %d, and must be from 1 to %d, or 0 for the default: %w", field, n,
		attr.MaxQPWR, syscall.EINVAL)}
}

// makeCQ makes a CQ with a channel of its own.
func (c *Conn) makeCQ(cqe int) (*ibverbs.CQ, error) {
	ch, err := c.vctx.CreateCompChannel()
	if err != nil {
		return nil, err
	}
	cq, err := c.vctx.CreateCQ(cqe, &ibverbs.CQOptions{Channel: ch})
	if err != nil {
		return nil, also(err, ch.Close())
	}
	return cq, nil
}

// closeCQ undoes makeCQ.
func closeCQ(cq *ibverbs.CQ) error {
	if err := cq.Close(); err != nil {
		return err
	}
	return cq.Channel().Close()
}

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
// dialled, with its reply. The slice is shared by all calls. On InfiniBand and RoCE
// it has a fixed length, and what the peer did not fill is zeros.
func (c *Conn) PrivateData() []byte {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.private
}

// RDMAC reports whether the connection speaks the RDMA Consortium's version of the
// protocols, as [Event].RDMAC says.
func (c *Conn) RDMAC() bool {
	if c == nil {
		return false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.rdmac
}

// LocalAddr returns our address of the connection, also of a Conn that is closed.
func (c *Conn) LocalAddr() netip.AddrPort {
	addr := c.ID().LocalAddr()
	if addr.IsValid() || c == nil {
		return addr
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.local
}

// RemoteAddr returns the peer's address, also of a Conn that is closed.
func (c *Conn) RemoteAddr() netip.AddrPort {
	addr := c.ID().RemoteAddr()
	if addr.IsValid() || c == nil {
		return addr
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.remote
}

// Done returns a channel that is closed when the connection has ended, whoever
// ended it and how, or the Conn is closed. QP.Cause may know why. In ConnConfig.Prepare it may be
// called as well: the channel is also closed when Dial or Accept fails.
//
// The first call of Done, Wait or Shutdown starts a goroutine that waits for
// the end; it is gone when the connection is. On devices of the kernel it is there
// from the beginning: without it, siw never completes work that is posted after the peer has
// gone, and on InfiniBand and RoCE a peer that disconnects waits for about a minute.
func (c *Conn) Done() <-chan struct{} {
	if c == nil || c.id == nil {
		return noConn
	}
	return c.watched().Done()
}

// watched has the connection watched, and returns what ends with it.
func (c *Conn) watched() context.Context {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.watching == nil {
		c.watching = newWatch()
		if c.up {
			c.watching.start(c.ch)
		}
	}
	return c.watching.ended
}

func newWatch() *watch {
	w := new(watch)
	w.ended, w.end = context.WithCancel(context.Background())
	w.ctx, w.stop = context.WithCancel(context.Background())
	return w
}

// start has w read the events of a connection that is established. Before that, they are for the
// Dial or Accept that waits for ESTABLISHED. Conn.mu is held.
func (w *watch) start(ch *EventChannel) {
	if !w.begun {
		w.begun = true
		go w.wait(ch)
	}
}

// noWatch is what a Conn has that was closed before anybody asked.
var noWatch = func() *watch {
	w := newWatch()
	w.begun = true
	w.stop()
	w.end()
	return w
}()

// noConn is closed: a Conn that never was has ended.
var noConn = func() <-chan struct{} {
	ch := make(chan struct{})
	close(ch)
	return ch
}()

// Wait waits until the connection has ended, as Done reports. The error is nil or, when ctx ends,
// an [*ibverbs.Error] that wraps ctx.Err().
func (c *Conn) Wait(ctx context.Context) error {
	select {
	case <-c.Done():
	case <-ctx.Done():
		if !c.over() {
			return object.GaveUp(ctx, "Conn.Wait", c.peer(), ctx.Err(), "the connection ended")
		}
	}
	return nil
}

// UntilEnd returns a context that ends with parent and with the connection, whichever is first:
// for waits that make no sense without the connection, as for a reply. Where the connection ended
// first, context.Cause returns QP.Cause if that is known, and otherwise an [ibverbs.Error] that
// wraps ENOTCONN. Call cancel when the context is not needed any more. UntilEnd starts what Done
// starts.
func (c *Conn) UntilEnd(parent context.Context) (ctx context.Context, cancel context.CancelFunc) {
	ctx, end := context.WithCancelCause(parent)
	if c == nil || c.id == nil {
		end(errNil("Conn.UntilEnd", "connection"))
		return ctx, func() {}
	}
	stop := context.AfterFunc(c.watched(), func() {
		cause := c.qp.Cause()
		if cause == nil {
			cause = &ibverbs.Error{Op: "Conn.UntilEnd", Object: c.peer(), Err: syscall.ENOTCONN}
		}
		end(cause)
	})
	return ctx, func() {
		stop()
		end(context.Canceled)
	}
}

// over reports whether the end of the connection has been noticed.
func (c *Conn) over() bool {
	select {
	case <-c.Done():
		return true
	default:
		return false
	}
}

func (w *watch) wait(ch *EventChannel) {
	defer w.end()
	for {
		ev, err := ch.GetEvent(w.ctx)
		if err != nil || ev.Type == Disconnected || ev.Type == DeviceRemoval {
			return
		}
	}
}

// Err returns nil for a completion that is a success, and otherwise an error with its
// [*ibverbs.WCError] and, where it is known, why the connection ended (QP.Cause): so a
// work request that was flushed says why. The completion of the work request that is at
// fault may come before the connection ends; only the WCError is there then. The text begins
// with the peer's address. Err allocates only if there is an error.
func (c *Conn) Err(wc *ibverbs.WC) error {
	if wc == nil {
		return errNil("ibv_poll_cq", "completion")
	}
	err := wc.Err()
	if err == nil || c == nil || wc.QPN != c.qp.QPN() {
		return err
	}
	return fmt.Errorf("%s: %w", c.peer(), c.because(err))
}

// because adds to err, the failure of a work request, why the connection ended, if that is known.
func (c *Conn) because(err error) error {
	if cause := c.qp.Cause(); cause != nil {
		return fmt.Errorf("%w: %w", err, cause)
	}
	return err
}

// Disconnect ends the connection at once (rdma_disconnect). What is still in
// the queues is flushed; what of it the peer gets is not defined.
func (c *Conn) Disconnect() error {
	if c == nil {
		return c.ID().Disconnect()
	}
	first := c.left.CompareAndSwap(0, disconnectedHere)
	err := c.id.Disconnect()
	if err != nil && first {
		c.left.CompareAndSwap(disconnectedHere, 0) // the peer was faster
	}
	return err
}

// Shutdown ends the connection in order: it waits for the completion of
// everything in the send queue as QP.Drain does, disconnects, and waits until the peer's side has
// taken what was sent and closed the connection, too. Receives that are still posted are flushed.
// Post no more when calling it. Completions stay in the CQs; a program may go on polling
// meanwhile. Afterwards, Close.
//
// The error is nil when both sides have closed the connection, also when the peer did so first: how
// each work request fared is in its completion, which does not say that the peer took it. Nil
// does not mean either that the peer's program has processed everything.
//
// Otherwise the error is an [*ibverbs.Error] with the address of the peer. On the engine it wraps
// QP.Cause if the connection ended in another way, also after the last completion:
//   - a Terminate of either side is the [*ibverbs.TerminateError];
//   - a peer that took nothing and did not close its side for as long as the device waits is
//     [os.ErrDeadlineExceeded]. The engine then resets the connection: what the peer has not
//     received is lost. While Shutdown waits that time is engine.Options.SendTimeout, 60 s unless
//     it is set, or CloseTimeout if that is longer. A negative SendTimeout is no limit: give ctx a
//     deadline then;
//   - a peer that reset the connection is ECONNRESET.
//
// Devices of the kernel report none of these, and it is nil. On devices other than the engine, siw
// and rxe it is [ibverbs.ErrNoneSignaled] if the connection is over, but QP.Drain could not wait
// for unsignalled work, so that nobody knows whether that succeeded. When ctx ends the error wraps
// ctx.Err(). The connection may still be there then, and Shutdown may be called again; from then on
// the peer has CloseTimeout.
//
// After Close the error wraps os.ErrClosed.
//
// Before Dial or Accept has established the connection, there is nothing to shut down, and the
// error wraps ENOTCONN: an error of ConnConfig.Prepare ends Dial or Accept.
func (c *Conn) Shutdown(ctx context.Context) error {
	if c == nil || c.id == nil {
		return errNil(opShutdown, "connection")
	}
	if c.left.Load() == closedHere {
		return &ibverbs.Error{Op: opShutdown, Object: c.peer(), Err: os.ErrClosed}
	}
	if !c.isUp() {
		return object.Errorf(opShutdown, c.peer(), syscall.ENOTCONN,
			"Dial or Accept has not established the connection; to end them, end their context, "+
				"or return an error from ConnConfig.Prepare")
	}
	if h, ok := object.QP(c.qp).(provider.EndHolder); ok {
		defer h.HoldEnd()()
	}
	// Watching ends a Drain that can't end by itself.
	drainCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(c.watched(), cancel)()
	drained := c.qp.Drain(drainCtx)
	if drained != nil && ctx.Err() != nil {
		if !errors.Is(drained, ctx.Err()) {
			drained = ctx.Err()
		}
		return &ibverbs.Error{Op: opShutdown, Object: c.peer(), Err: drained}
	}
	// A connection that ended first makes Drain and Disconnect fail, with
	// whatever errno the device has for that.
	if err := c.Disconnect(); err != nil && !c.over() && !isNotConnected(err) {
		return err
	}
	if c.Wait(ctx) != nil {
		return object.GaveUp(ctx, opShutdown, c.peer(), ctx.Err(),
			"the connection ended; the peer may not have taken everything, and Close drops the rest")
	}
	if err := disorder(c.qp.Cause()); err != nil {
		return &ibverbs.Error{Op: opShutdown, Object: c.peer(), Err: err}
	}
	if errors.Is(drained, ibverbs.ErrNoneSignaled) {
		return drained
	}
	return nil
}

const opShutdown = "Conn.Shutdown"

// disorder returns an error if a connection has not ended in order, for which cause is QP.Cause: by
// neither a close of the peer nor one of this side. A Terminate says itself what the peer did not
// take.
func disorder(cause error) error {
	switch term := (*ibverbs.TerminateError)(nil); {
	case cause == nil, errors.Is(cause, io.EOF), errors.Is(cause, os.ErrClosed):
		return nil
	case errors.As(cause, &term):
		return cause
	}
	return fmt.Errorf("%w; work that is complete may not have reached the peer: "+
		"connect again, and repeat what its program has not answered", cause)
}

// isNotConnected reports whether a disconnect failed because the peer was faster
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
	c.left.Store(closedHere)
	if c.disconnect {
		c.disconnect = false
		_ = c.id.Disconnect() // it doesn't matter if the peer was faster
	}
	if err := c.qp.Close(); err != nil {
		return err
	}
	c.endWatch()
	if err := errors.Join(c.receiver.Close(), c.closeCopies()); err != nil {
		return err
	}
	if local, remote := c.id.LocalAddr(), c.id.RemoteAddr(); remote.IsValid() {
		c.mu.Lock()
		c.local, c.remote = local, remote
		c.mu.Unlock()
	}
	if err := c.id.Close(); err != nil {
		return err
	}
	if err := c.ch.Close(); err != nil {
		return err
	}
	return c.closeParts()
}

// closeParts closes what makeParts made. What is closed already stays so.
func (c *Conn) closeParts() error {
	if c.ownRecvCQ {
		if err := closeCQ(c.recvCQ); err != nil {
			return err
		}
	}
	if c.ownSendCQ {
		if err := closeCQ(c.sendCQ); err != nil {
			return err
		}
	}
	if c.ownPD {
		return object.RetirePD(c.pd)
	}
	return nil
}

// endWatch stops the watcher, or keeps it from ever starting.
func (c *Conn) endWatch() {
	c.mu.Lock()
	if c.watching == nil {
		c.watching = noWatch
	}
	w := c.watching
	if !w.begun {
		w.begun = true // never
		w.end()
	}
	c.mu.Unlock()
	w.stop()
	<-w.ended.Done()
}
