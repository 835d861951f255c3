package rdmacm

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/internal/object"
)

// Do posts work requests in order and waits until all of them are complete. If some fail, the error
// is the first failure's, in the form of [Conn.Err]; if the queue refuses one, it is a
// [*ibverbs.PostError]. Any number of goroutines may call Do, Read, Write, Send and SendBytes
// concurrently; each waits only for its own work. WRIDs are the caller's; Do sets SendSignaled.
//
// Do waits while the send queue has too few free places. When ctx ends before everything is
// complete, the error wraps ctx.Err(). Posted work then goes on: the device uses its memory until
// the work is complete, for which QP.Drain waits, or the Conn is closed. If ctx has already ended,
// Do posts nothing.
//
// After this side's Disconnect, Shutdown or Close, and for work that one of them cut off, the error
// names the call and the peer. errors.Is finds [os.ErrClosed] in it, and also [ibverbs.ErrFlushed]
// if the work was flushed. If the peer ended the connection before this side's Disconnect or
// Shutdown, the error reports the peer's end, until Close.
//
// On the engine Do allocates only for errors, for a ctx other than the previous call's, for more
// concurrent calls than ever before, and when it waits for places in the send queue. The kernel
// provider allocates when it sleeps.
//
// The first of these five calls makes the Conn route the completions of SendCQ: a waiting call
// takes them from there. A program that also posts its own signalled work gets those completions
// through [ConnConfig.OnSend]; without OnSend they are dropped. From then on Poll and PollWait of
// SendCQ return EBUSY, and say how many completions were dropped. The five calls need a SendCQ that
// the Conn has made; a SendCQ of the configuration is EINVAL. A Conn on which none of them is
// called is not affected.
func (c *Conn) Do(ctx context.Context, wrs ...ibverbs.SendWR) error {
	const op = "Conn.Do"
	r, err := c.router(op, len(wrs))
	if err != nil {
		return err
	}
	call, err := r.begin(ctx, op, len(wrs))
	if err != nil {
		return c.ownEnd(op, err)
	}
	call.wrs = append(call.wrs, wrs...)
	return c.ownEnd(op, r.perform(ctx, op, call))
}

// Write writes src to the beginning of dst at the peer (RDMA Write). Completion means that src may
// be used again, but not that the bytes are in place. The peer sees them in place before it
// receives anything that is sent afterwards. See [Conn.Do].
func (c *Conn) Write(ctx context.Context, dst ibverbs.RemoteRegion, src ibverbs.SGE) error {
	return c.one(ctx, "Conn.Write", ibverbs.WRRDMAWrite, src, &dst)
}

// Read reads the beginning of src at the peer into dst (RDMA Read). On completion the bytes are in
// dst. On iWARP hardware the region of dst also needs AccessRemoteWrite: see
// [ibverbs.AccessReadSink] and [Conn.Do].
func (c *Conn) Read(ctx context.Context, dst ibverbs.SGE, src ibverbs.RemoteRegion) error {
	return c.one(ctx, "Conn.Read", ibverbs.WRRDMARead, dst, &src)
}

// Send sends msg to a receive of the peer; [Conn.SendBytes] sends bytes that are not in a region.
// Completion means that msg may be used again, but not that the peer has received it. On iWARP a
// Send for which the peer has no receive ends the connection, so the two programs have to agree on
// how many may be under way. Each call waits for its own completion: for many short messages
// QP.PostSend with many outstanding Sends is faster. See [Conn.Do].
func (c *Conn) Send(ctx context.Context, msg ibverbs.SGE) error {
	return c.one(ctx, "Conn.Send", ibverbs.WRSend, msg, nil)
}

// one performs a work request with one SGE, as Do does.
func (c *Conn) one(ctx context.Context, op string, opcode ibverbs.WROpcode, sge ibverbs.SGE,
	remote *ibverbs.RemoteRegion) error {
	r, err := c.router(op, 1)
	if err != nil {
		return err
	}
	wr := ibverbs.SendWR{Opcode: opcode}
	if remote != nil {
		if uint64(sge.Length) > remote.Len {
			return object.Errorf(op, c.peer(), syscall.EINVAL,
				"the SGE has %d bytes, and the peer's region only %d", sge.Length, remote.Len)
		}
		wr.RemoteAddr, wr.RKey = remote.Addr, remote.RKey
	}
	call, err := r.begin(ctx, op, 1)
	if err != nil {
		return c.ownEnd(op, err)
	}
	call.sge[0] = sge
	wr.SGList = call.sge[:]
	call.wrs = append(call.wrs, wr)
	return c.ownEnd(op, r.perform(ctx, op, call))
}

// router returns the Conn's router, which the first call makes. It checks a call of op with n work
// requests.
func (c *Conn) router(op string, n int) (*router, error) {
	if c == nil || c.qp == nil {
		return nil, errNil(op, "connection")
	}
	r := c.routes.Load()
	if r == nil {
		if !c.ownSendCQ {
			return nil, object.Errorf(op, c.peer(), syscall.EINVAL,
				"the call needs a send CQ that nothing else polls; leave ConnConfig.SendCQ out, "+
					"or post with QP.PostSend")
		}
		_, init, err := c.qp.Query()
		if err != nil {
			return nil, c.ownEnd(op, err)
		}
		// Completions that are not polled yet take room in the CQ, but no longer in the queue.
		room := c.sendCQ.CQE() - 1 // one entry is QP.Drain's
		if c.onSend != nil {
			room /= 2 // the other half is for the program's own work
		}
		if r, err = c.route(min(init.Cap.MaxSendWR, room)); err != nil {
			return nil, c.ownEnd(op, err)
		}
	}
	if n < 1 || n > r.size {
		return nil, object.Errorf(op, c.peer(), syscall.EINVAL,
			"%d work requests; one call takes 1 to %d, the size of the send queue (ConnConfig.Cap.MaxSendWR)",
			n, r.size)
	}
	return r, nil
}

// route makes the router, unless another call has made it, and takes the send CQ.
func (c *Conn) route(size int) (*router, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r := c.routes.Load(); r != nil {
		return r, nil
	}
	r := newRouter(c, size)
	var err error
	if r.cq, err = object.TakeCQ(c.sendCQ, r.whyTaken, r.owns); err != nil {
		return nil, err
	}
	c.routes.Store(r)
	return r, nil
}

// whyTaken says why the program may not poll the send CQ.
func (r *router) whyTaken() string {
	text := "Conn.Do, Read, Write, Send and SendBytes take the completions of this CQ since the first " +
		"of them was called; "
	if n := r.dropped.Load(); n > 0 {
		text += fmt.Sprintf("completions of other work that were dropped: %d; ", n)
	}
	return text + "set ConnConfig.OnSend to get the completions of work that the program posts itself"
}

// owns reports whether a WRID is of a call's work.
func (r *router) owns(wrid uint64) bool { return wrid>>tagShift<<tagShift == r.tag }

// peer names the connection in errors.
func (c *Conn) peer() string { return c.RemoteAddr().String() }

// A router waits for the completions of a Conn's send CQ on behalf of many calls. It has no
// goroutine: one of the waiting calls, which has the token of lead, polls for all. When its own
// work is complete, another call takes the token.
type router struct {
	c    *Conn
	cq   object.CQTaker // of the send CQ
	size int            // of the send queue
	tag  uint64         // the upper half of the WRIDs of calls

	lead chan struct{} // has a token while no call polls
	turn chan struct{} // has a token while no call waits for places
	room chan struct{} // has a token when places may have become free
	wcs  [16]ibverbs.WC

	dropped atomic.Uint64 // completions of the program's own work, without OnSend

	mu     sync.Mutex
	places int     // free places in the send queue
	queued bool    // a call waits for places, and no other may overtake it
	recall func()  // ends the poll of a call that waits for places, nil if none does
	calls  []*call // all calls ever made: at most one for each place
	free   []*call
}

// call is the state of one Do. It is reused.
type call struct {
	index int
	wrs   []ibverbs.SendWR
	given []given // the caller's names for them
	sge   [1]ibverbs.SGE
	copy  *ibverbs.MR // for SendBytes: nil before the first; changed under Conn.closing

	posted int           // work requests that the queue has taken
	done   chan struct{} // gets a token when left is 0

	// Under router.mu.
	left    int // completions to come
	places  int
	failed  bool
	first   ibverbs.WC // the first failure, if failed
	givenUp bool
}

// A WRID is the router's tag, the call's index, and the work request's position in it.
const (
	indexShift = 16
	tagShift   = 32
	fieldMask  = 1<<16 - 1
)

func newRouter(c *Conn, size int) *router {
	r := &router{
		c: c, size: min(size, fieldMask), tag: uint64(rand.Uint32()|1<<31) << tagShift, // no small number
		lead: make(chan struct{}, 1), turn: make(chan struct{}, 1), room: make(chan struct{}, 1),
	}
	r.places = r.size
	r.lead <- struct{}{}
	r.turn <- struct{}{}
	return r
}

// begin waits for n places in the send queue and returns a call that has them. Waiting calls get
// their places in turn.
func (r *router) begin(ctx context.Context, op string, n int) (*call, error) {
	if err := ctx.Err(); err != nil {
		return nil, object.GaveUp(ctx, op, r.c.peer(), err, "anything was posted")
	}
	if call := r.take(n, false); call != nil {
		return call, nil
	}
	const until = "the send queue had places for it: other calls have them, and nothing was posted"
	if err := r.wait(ctx, r.turn, true); err != nil {
		return nil, object.GaveUp(ctx, op, r.c.peer(), err, until)
	}
	defer r.endTurn()
	for {
		if call := r.take(n, true); call != nil {
			return call, nil
		}
		if err := r.wait(ctx, r.room, true); err != nil {
			return nil, object.GaveUp(ctx, op, r.c.peer(), err, until)
		}
	}
}

// endTurn lets the next call wait for places.
func (r *router) endTurn() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.queued = false
	r.turn <- struct{}{} // does not block: capacity 1
	if r.recall != nil {
		r.recall()
	}
}

// take returns a call with n places, nil if there are too few. first says that it is the caller's
// turn to wait for places.
func (r *router) take(n int, first bool) *call {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.places < n || r.queued && !first {
		r.queued = r.queued || first
		return nil
	}
	r.places -= n
	var x *call
	if k := len(r.free); k > 0 {
		x, r.free = r.free[k-1], r.free[:k-1]
	} else {
		x = &call{index: len(r.calls), done: make(chan struct{}, 1)}
		r.calls = append(r.calls, x)
	}
	x.left, x.places, x.posted, x.failed, x.givenUp = n, n, 0, false, false
	return x
}

// perform posts a call's work requests and waits for them. The caller must not use the call
// afterwards.
func (r *router) perform(ctx context.Context, op string, x *call) error {
	ids := r.tag | uint64(x.index)<<indexShift
	x.given = x.given[:0]
	for i := range x.wrs {
		x.given = append(x.given, given{x.wrs[i].WRID, x.wrs[i].Opcode})
		x.wrs[i].WRID = ids | uint64(i)
		x.wrs[i].Flags |= ibverbs.SendSignaled
	}
	over := false
	defer func() {
		if !over {
			r.abandon(x)
		}
	}()
	refused := r.post(ctx, op, x)
	clear(x.wrs)
	x.wrs = x.wrs[:0]
	over = refused != nil && !r.keep(x)
	if over {
		return refused
	}
	if err := r.wait(ctx, x.done, false); err != nil && !r.giveUp(x) {
		over = true
		switch {
		case refused == nil:
			return object.GaveUp(ctx, op, r.c.peer(), err, "its work requests were complete"+r.c.whyHeld())
		case !errors.Is(refused, err):
			return fmt.Errorf("%w; and some that were posted are not complete: %w", refused, err)
		}
		return refused
	}
	var err error
	r.mu.Lock()
	if x.failed {
		err = x.failure()
	}
	r.free = append(r.free, x)
	over = true
	r.mu.Unlock()
	if err != nil {
		return &ibverbs.Error{Op: op, Object: r.c.peer(), Err: r.c.because(err)}
	}
	return refused
}

// whyHeld returns the text of QP.Drain if sends are held until the peer's first message, ""
// otherwise.
func (c *Conn) whyHeld() string {
	if st, err := c.qp.Stats(); err != nil || !st.HeldForPeer {
		return ""
	}
	return " (sends are held until the peer's first message: the side that dialled has to send first)"
}

// abandon leaves a call's completions to the next poller, because OnSend has panicked or ended the
// goroutine. It returns the call's unused places.
func (r *router) abandon(x *call) {
	clear(x.wrs)
	x.wrs = x.wrs[:0]
	if r.keep(x) && r.giveUp(x) {
		r.mu.Lock()
		r.free = append(r.free, x)
		r.mu.Unlock()
	}
}

// post posts a call's work requests. While the program's own work fills the queue, post takes
// completions until there is room or ctx ends. The error and x.posted say how many are posted in
// all.
func (r *router) post(ctx context.Context, op string, x *call) error {
	for wait := postWaitMin; ; wait = min(2*wait, postWaitMax) {
		err := r.c.qp.PostSend(x.wrs[x.posted:]...)
		if err == nil {
			x.posted = len(x.wrs)
			return nil
		}
		if refused := new(ibverbs.PostError); errors.As(err, &refused) {
			err = refusedAt(x.posted, refused)
			x.posted += refused.Posted
		}
		full := errors.Is(err, syscall.ENOMEM) && !errors.Is(err, ibverbs.ErrNoneSignaled)
		if !full || x.posted == len(x.wrs) {
			return err
		}
		if !r.makeRoom(ctx, wait) {
			if gone := ctx.Err(); gone != nil {
				return fmt.Errorf("%w: %w", object.GaveUp(ctx, op, r.c.peer(), gone, "all was posted"), err)
			}
			return err
		}
	}
}

// makeRoom takes completions if there are any, and otherwise sleeps for wait. It reports whether
// the caller should post again.
func (r *router) makeRoom(ctx context.Context, wait time.Duration) bool {
	select {
	case <-r.lead:
		n, err := r.look()
		if n > 0 || err != nil {
			return err == nil
		}
	default: // another call polls
	}
	select {
	case <-time.After(wait):
		return true
	case <-ctx.Done():
		return false
	}
}

// look polls once for makeRoom, and returns the token of lead.
func (r *router) look() (n int, err error) {
	defer r.handOver()
	n, err = r.cq.Poll(r.wcs[:])
	r.handOut(r.wcs[:n])
	return n, err
}

// The limits of post's delay between tries. It has to try, because nothing reports places that
// become free when unsignalled work completes.
const (
	postWaitMin = 20 * time.Microsecond
	postWaitMax = time.Millisecond
)

// keep adjusts a call that is abandoned, or of which some work was not posted. It reports whether
// there are completions to wait for. If not, the caller must not use the call any more.
func (r *router) keep(x *call) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	posted := x.posted
	if posted == x.places {
		// The connection is ending, and posted work may never complete; or no goroutine waits for
		// the call.
		x.givenUp = true
		if x.left > 0 {
			return false
		}
		<-x.done
		r.free = append(r.free, x)
		return false
	}
	r.release(x.places - posted)
	x.left -= x.places - posted
	x.places = posted
	switch {
	case x.left > 0:
	case posted == 0:
		r.free = append(r.free, x)
		return false
	default: // everything posted is complete
		r.release(posted)
		x.done <- struct{}{}
	}
	return true
}

// giveUp leaves a call's completions to the next poller. If the call is complete already, giveUp
// only reports that.
func (r *router) giveUp(x *call) (complete bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if x.left == 0 {
		<-x.done
		return true
	}
	x.givenUp = true
	return false
}

// wait waits for a token of ready, and polls if no other call does. Only the polling call sends
// tokens to done. Tokens of turn and room also come from other calls, which end the poll (early),
// because there may be no completion that would end it.
func (r *router) wait(ctx context.Context, ready <-chan struct{}, early bool) error {
	for {
		// A token that is ready comes first, even if ctx has ended.
		select {
		case <-ready:
			return nil
		default:
		}
		select {
		case <-ready:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-r.lead:
		}
		got, err := r.leading(ctx, ready, early)
		switch {
		case got:
			return nil
		case ctx.Err() != nil && err != nil:
			return ctx.Err()
		case err != nil:
			return err
		}
	}
}

// leading polls on behalf of all calls. The caller has the token of lead, which leading gives back
// even if OnSend panics.
func (r *router) leading(ctx context.Context, ready <-chan struct{}, early bool) (got bool, err error) {
	defer r.handOver()
	// The previous holder of the token may have completed the caller's work with its last poll, and
	// no other completion may ever come. From here on no other call sends tokens to done.
	select {
	case <-ready:
		return true, nil
	default:
	}
	over, soon, err := r.afterLoss(!early)
	if over || err != nil {
		return false, err
	}
	look := ctx
	if soon {
		var cancel func()
		look, cancel = context.WithTimeout(ctx, lossLook)
		defer cancel()
	}
	if early {
		got, err = r.pollUntil(look, ready)
	} else {
		err = r.poll(look)
	}
	if look.Err() != nil && ctx.Err() == nil {
		err = nil // poll again
	}
	return got, err
}

// handOver gives the token of lead to the next waiting call.
func (r *router) handOver() { r.lead <- struct{}{} }

// poll waits for completions and delivers them. The caller has the token of lead.
func (r *router) poll(ctx context.Context) error {
	n, err := r.cq.PollWait(ctx, r.wcs[:])
	r.handOut(r.wcs[:n])
	return err
}

// handOut delivers completions to their calls and to OnSend. If OnSend panics, it still delivers
// the rest.
func (r *router) handOut(wcs []ibverbs.WC) {
	i := 0
	defer func() {
		if i < len(wcs) {
			r.handOut(wcs[i:])
		}
	}()
	for i < len(wcs) {
		wc := &wcs[i]
		i++
		r.completed(wc)
	}
}

// pollUntil waits for completions and delivers them, as poll does. It also returns when ready may
// have a token, and reports whether it took the token.
func (r *router) pollUntil(ctx context.Context, ready <-chan struct{}) (got bool, err error) {
	until, recall := context.WithCancel(ctx)
	defer recall()
	r.mu.Lock()
	r.recall = recall
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		r.recall = nil
		r.mu.Unlock()
	}()
	// From here on a new token ends the poll.
	select {
	case <-ready:
		return true, nil
	default:
	}
	err = r.poll(until)
	if until.Err() != nil && ctx.Err() == nil {
		return false, nil
	}
	return false, err
}

// completed delivers a completion to its call, or to OnSend.
func (r *router) completed(wc *ibverbs.WC) {
	if !r.owns(wc.WRID) {
		if r.c.onSend != nil {
			r.c.onSend(wc)
		} else {
			r.dropped.Add(1)
		}
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	x := r.calls[wc.WRID>>indexShift&fieldMask]
	if wc.Status != ibverbs.WCSuccess && !x.failed {
		x.failed, x.first = true, *wc
	}
	x.left--
	if x.left > 0 {
		return
	}
	r.release(x.places)
	if x.givenUp {
		r.free = append(r.free, x)
		return
	}
	x.done <- struct{}{}
}

// release frees places of the send queue. The caller holds r.mu.
func (r *router) release(n int) {
	r.places += n
	select {
	case r.room <- struct{}{}:
	default:
	}
	if r.recall != nil {
		r.recall()
	}
}
