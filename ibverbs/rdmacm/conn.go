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

// Conn is a connection that Dial or Request.Accept made: a CM id with its own event channel, its
// QP, and the PD and CQs that the configuration did not give.
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

	left          atomic.Int32 // how this side has ended the connection, 0 if it has not
	mu            sync.Mutex
	watching      *watch // nil before the first Done, except on kernel devices
	up            bool   // the connection is established: watching reads its events
	private       []byte
	rdmac         bool
	local, remote netip.AddrPort // of a closed Conn, whose id may have dropped them

	receiver *Receiver // of ConnConfig.Receives, nil without

	// What Close has to do besides closing QP, id and channel. Close holds closing throughout.
	closing                     sync.Mutex
	disconnect                  bool
	ownPD, ownSendCQ, ownRecvCQ bool
}

// watch waits for the end of a connection on behalf of all calls that need it.
type watch struct {
	begun bool            // the goroutine has been started; under Conn.mu
	ended context.Context // ends when the watch is over
	end   context.CancelFunc
	ctx   context.Context // ends the watch early
	stop  context.CancelFunc
}

// newConn makes the QP of id, and the PD and CQs that it needs. It takes over ch and id: Close
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

// offered stores the private data of the request of ev, for Prepare.
func (c *Conn) offered(ev *Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.private = ev.PrivateData
}

// established records that the connection is established. ev is the peer's answer or request.
func (c *Conn) established(ev *Event) {
	c.closing.Lock()
	c.disconnect = true
	c.closing.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.private, c.rdmac = ev.PrivateData, ev.RDMAC
	c.up = true
	switch {
	case c.watching != nil: // Prepare has called Done
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

// watchedFromStart reports whether the Conn has to wait for the end of the connection all the time.
// On InfiniBand and RoCE a peer that disconnects waits for an answer. With every driver of the
// kernel, our QP keeps its state until the event is read, and work that is posted to it would never
// complete.
func (c *Conn) watchedFromStart() bool {
	return c.vctx.Transport() == ibverbs.TransportIB || c.vctx.Provider() == "kernel"
}

// makeParts makes the PD and CQs that the configuration left out.
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

// makeSendCQ makes the send CQ. A device grants more places than requested: the engine and siw
// round up to a power of two, rxe to a power of two less one. QP.Drain needs one more entry. With
// OnSend the CQ has twice the room, because completions of the program's own work may be in it
// while a full queue of the calls' work completes.
func (c *Conn) makeSendCQ(places int) (err error) {
	granted := places
	switch {
	case places < 1 || places > math.MaxInt16: // invalid, or close to the maximum of devices
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
	if err != nil && granted > places { // may be more than the device supports
		c.sendCQ, err = c.makeCQ(share*places + 1)
	}
	return err
}

// whyNoCQ returns the error for a CQ that could not be made, for err and the n work requests that a
// field of ConnConfig requests. If no QP can have that many, this is EINVAL about the field,
// otherwise err.
func (c *Conn) whyNoCQ(field string, n int, err error) error {
	attr, failed := c.vctx.Query()
	if failed != nil || n >= 0 && n <= attr.MaxQPWR {
		return err
	}
	return &ibverbs.Error{Op: "rdma_create_qp", Object: c.vctx.Name(), Err: fmt.Errorf(
		"ConnConfig.%s is %d, and must be from 1 to %d, or 0 for the default: %w", field, n,
		attr.MaxQPWR, syscall.EINVAL)}
}

// makeCQ makes a CQ with its own channel.
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

// closeCQ closes a CQ of makeCQ with its channel.
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

// SendCQ returns the CQ of the send queue.
func (c *Conn) SendCQ() *ibverbs.CQ {
	if c == nil {
		return nil
	}
	return c.sendCQ
}

// RecvCQ returns the CQ of the receive queue.
func (c *Conn) RecvCQ() *ibverbs.CQ {
	if c == nil {
		return nil
	}
	return c.recvCQ
}

// ID returns the connection's CM id. The Conn reads its events: do not read its channel.
func (c *Conn) ID() *ID {
	if c == nil {
		return nil
	}
	return c.id
}

// PrivateData returns the private data of the peer's request or, on the side that dialled, of its
// reply. All calls return the same slice. On InfiniBand and RoCE it has a fixed length, padded with
// zeros.
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

// LocalAddr returns our address of the connection, even after Close.
func (c *Conn) LocalAddr() netip.AddrPort {
	addr := c.ID().LocalAddr()
	if addr.IsValid() || c == nil {
		return addr
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.local
}

// RemoteAddr returns the peer's address, even after Close.
func (c *Conn) RemoteAddr() netip.AddrPort {
	addr := c.ID().RemoteAddr()
	if addr.IsValid() || c == nil {
		return addr
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.remote
}

// Done returns a channel that is closed when the connection has ended, for whatever reason, or the
// Conn is closed. QP.Cause may know the reason. Done may be called in ConnConfig.Prepare: the
// channel is also closed when Dial or Accept fails.
//
// The first call of Done, Receive, Shutdown, UntilEnd or Wait starts a goroutine that waits for the
// end of the connection, and exits then. On kernel devices it runs from the beginning. Without it,
// siw never completes work that is posted after the peer has gone, and on InfiniBand and RoCE a
// peer that disconnects waits for about a minute.
func (c *Conn) Done() <-chan struct{} {
	if c == nil || c.id == nil {
		return noConn
	}
	return c.watched().Done()
}

// watched starts watching the connection, and returns a context that ends with the connection.
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

// start starts w's goroutine, which reads the events of an established connection. Before that,
// Dial or Accept reads them, for ESTABLISHED. The caller holds Conn.mu.
func (w *watch) start(ch *EventChannel) {
	if !w.begun {
		w.begun = true
		go w.wait(ch)
	}
}

// noWatch is the watch of a Conn that was closed before the first Done.
var noWatch = func() *watch {
	w := newWatch()
	w.begun = true
	w.stop()
	w.end()
	return w
}()

// noConn is closed, because a nil or zero Conn has no connection.
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

// UntilEnd returns a context that ends with parent or with the connection, whichever is first. It
// is for waits that the end of the connection makes pointless, such as waiting for a reply. If the
// connection ended first, context.Cause returns QP.Cause if that is known, and otherwise an
// [ibverbs.Error] that wraps ENOTCONN. Call cancel when the context is no longer needed.
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

// Err returns nil for a successful completion. For a failure it returns an error with the
// completion's [*ibverbs.WCError] and, if it is known, the cause of the connection's end
// (QP.Cause), so a flushed work request says why it was flushed. The completion of the faulty work
// request itself may come before the connection ends, and then has only the WCError. The text
// begins with the peer's address. Err allocates only if there is an error.
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

// because adds the cause of the connection's end to err, the failure of a work request, if the
// cause is known.
func (c *Conn) because(err error) error {
	if cause := c.qp.Cause(); cause != nil {
		return fmt.Errorf("%w: %w", err, cause)
	}
	return err
}

// Disconnect ends the connection at once (rdma_disconnect). Work in the queues is flushed; how much
// of it reaches the peer is undefined.
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

// Shutdown ends the connection in order. It waits for the completion of everything in the send
// queue as QP.Drain does, disconnects, and waits until the peer's side has taken what was sent and
// closed the connection, too. Receives that are still posted are flushed. Post nothing after
// calling Shutdown. Completions stay in the CQs, and the program may poll them during the call.
// Call Close afterwards.
//
// The error is nil when both sides have closed the connection, even if the peer closed it first.
// Each work request's outcome is in its completion, but a completion does not say that the peer
// took the data. A nil error also does not say that the peer's program has processed everything.
//
// Otherwise the error is an [*ibverbs.Error] with the address of the peer. On the engine it wraps
// QP.Cause if the connection ended in another way, even after the last completion:
//   - an [*ibverbs.TerminateError] after a Terminate of either side;
//   - [os.ErrDeadlineExceeded] if the peer took nothing and did not close its side within a time
//     limit. The engine then resets the connection, and data that the peer has not received is
//     lost. While Shutdown waits, the limit is engine.Options.SendTimeout, 60 s by default, or
//     CloseTimeout if that is longer. A negative SendTimeout means no limit: give ctx a deadline
//     then;
//   - ECONNRESET if the peer reset the connection.
//
// Kernel devices report none of these, and the error is nil. On devices other than the engine, siw
// and rxe it is [ibverbs.ErrNoneSignaled] if the connection has ended but QP.Drain could not wait
// for unsignalled work, so that its outcome is unknown. When ctx ends, the error wraps ctx.Err().
// The connection may still exist then, and Shutdown may be called again; from then on the peer has
// CloseTimeout.
//
// After Close the error wraps os.ErrClosed.
//
// Before Dial or Accept has established the connection, there is nothing to shut down, and the
// error wraps ENOTCONN. To end Dial or Accept, return an error from ConnConfig.Prepare.
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
	// The watch ends a Drain that cannot end by itself.
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
	// If the connection ended first, Drain and Disconnect fail with whatever errno the device has
	// for that.
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

// disorder returns an error if a connection has not ended in order, by a close of either side.
// cause is QP.Cause. A Terminate itself says what the peer did not take.
func disorder(cause error) error {
	switch term := (*ibverbs.TerminateError)(nil); {
	case cause == nil, errors.Is(cause, io.EOF), errors.Is(cause, os.ErrClosed):
		return nil
	case errors.As(cause, &term):
		return cause
	}
	return fmt.Errorf("work that is complete may not have reached the peer; "+
		"connect again, and repeat what its program has not answered: %w", cause)
}

// isNotConnected reports whether a disconnect failed because the peer disconnected first and its
// event has not been read yet.
func isNotConnected(err error) bool {
	return errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.ENOTCONN)
}

// Close ends the connection, if there is one, and frees what Dial or Accept made: QP, id, event
// channel, and the CQs and PD that the configuration did not give. Unless Shutdown was called
// before, work that is still posted is lost without completions.
//
// Regions of the Conn's own PD may be closed before or after the Conn; the PD is freed with the
// last of them.
func (c *Conn) Close() error {
	if c == nil {
		return nil
	}
	c.closing.Lock()
	defer c.closing.Unlock()
	c.left.Store(closedHere)
	if c.disconnect {
		c.disconnect = false
		_ = c.id.Disconnect() // fails if the peer was faster, which does not matter
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

// closeParts closes what makeParts made. It may be called again after an error.
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

// endWatch stops the watch, or prevents its start.
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
