package ibverbs

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/govs-rdma/govs/ibverbs/internal/object"
	"github.com/govs-rdma/govs/provider"
)

// CQ is a completion queue (struct ibv_cq). It may serve any number of send and
// receive queues of its context.
type CQ struct {
	obj    object.Object
	ctx    *Context
	ch     *CompChannel
	p      provider.CQ
	cookie any
	sink   bool // the completions go to CQOptions.Sink

	armed  atomic.Bool // by ReqNotify; CompChannel.Next owes an event
	events uint64      // seen on the channel, under ch.mu

	// drain.go: while aside is set poll takes the long way.
	mu      sync.RWMutex
	aside   bool
	markers []*marker
	held    []WC

	// cqtaken.go, under mu.
	taken func() string          // why the program may not poll, nil if it may
	owns  func(wrid uint64) bool // whether a WRID is of a taker, present or past; nil: no taker
	long  bool                   // aside is set, or taken is: Poll takes the long way
}

// CQOptions are the arguments of ibv_create_cq that have a default. Nil is the
// zero value.
type CQOptions struct {
	Channel    *CompChannel // nil: none, the CQ can only be polled
	CompVector int          // on which of the device's vectors events are raised
	Cookie     any          // for CQ.Cookie

	// Sink takes the completions in place of Poll, on the engine. Poll then returns none, and only
	// moves the data of the QPs that complete here. What needs completions of its own is EINVAL:
	// QP.Drain, a rdmacm.Conn that sends there, a rdmacm.Receiver. Not with a Channel.
	Sink CompletionSink
}

// CreateCQ makes a completion queue for at least cqe completions (ibv_create_cq).
// A CQ that overflows loses completions and raises EventCQErr, so that cqe must
// cover what may be posted, signalled or not, to the queues that complete here;
// Resize makes it larger. What overflows is lost as a report only: the work is done,
// its places in the queues are free again, and the CQ can be used.
func (c *Context) CreateCQ(cqe int, opts *CQOptions) (*CQ, error) {
	const op = "ibv_create_cq"
	if err := c.ok(op); err != nil {
		return nil, err
	}
	if opts == nil {
		opts = &CQOptions{}
	}
	cq := &CQ{ctx: c, ch: opts.Channel, cookie: opts.Cookie, sink: opts.Sink != nil}
	init := provider.CQInitAttr{CQE: cqe, CompVector: opts.CompVector, Sink: opts.Sink, Cookie: cq}
	parents := []*object.Object{&c.obj}
	if ch := opts.Channel; ch != nil {
		if ch.p == nil {
			return nil, errNil(op, "completion channel")
		}
		if ch.ctx != c {
			return nil, c.obj.Errorf(op, syscall.EINVAL, "the completion channel belongs to another context")
		}
		init.Channel = ch.p
		parents = append(parents, &ch.obj)
	}
	cq.obj.Describe(object.KindCQ, c.Name())
	if err := cq.obj.Open(op, parents...); err != nil {
		return nil, err
	}
	var err error
	if cq.p, err = c.dev.CreateCQ(init); err != nil {
		cq.obj.Abandon()
		return nil, err
	}
	cq.obj.List(cq)
	return cq, nil
}

// polled returns EINVAL if Poll returns no completions, because they go to a Sink: op would wait
// for ever.
func (cq *CQ) polled(op string) error {
	if cq.sink {
		return cq.obj.Errorf(op, syscall.EINVAL,
			"its completions go to CQOptions.Sink, and the call needs some of its own")
	}
	return nil
}

func (cq *CQ) ok(op string) error {
	if cq == nil || cq.p == nil {
		return errNil(op, "cq")
	}
	return cq.obj.Check(op)
}

// Poll moves up to len(wc) completions into wc, oldest first, and returns how many
// (ibv_poll_cq). It returns at once, with 0 if there are none, and does not
// allocate. On the engine it also moves data of the QPs that complete here. Oldest first
// is the order in which the device has completed them: that of the posts of one queue, but
// between QPs not always that in which peers have sent. Fewer than len(wc) mean that the CQ
// was empty, unless a Drain is under way; more may have come since, or wait in sockets.
// Goroutines may poll one CQ at the same time: each gets its completions in order, and some
// that belong between them may go to another. A completion that reports a failure is
// not an error of Poll: see WC.Err. EBUSY: the calls of an rdmacm.Conn or an
// rdmacm.Receiver take the completions.
func (cq *CQ) Poll(wc []WC) (int, error) {
	if cq == nil || cq.p == nil {
		return 0, errNil("ibv_poll_cq", "cq")
	}
	cq.mu.RLock()
	if cq.long {
		busy := cq.busy()
		cq.mu.RUnlock()
		if busy != nil {
			return 0, busy
		}
		return cq.pollAside(wc)
	}
	return cq.pollDevice(wc)
}

// pollDevice polls with mu held for reading, and releases it, also if the poll does not return: it
// runs the handlers of the engine, and objects that a program has mapped may panic or end the
// goroutine.
func (cq *CQ) pollDevice(wc []WC) (int, error) {
	defer cq.mu.RUnlock()
	n, err := cq.p.Poll(wc)
	if err != nil {
		err = cq.called(err)
	}
	return n, err
}

// called names the CQ in an error of the provider, nil for nil.
func (cq *CQ) called(err error) error { return called(err, &cq.obj, "cq") }

// ReqNotify asks for one event on the CQ's channel when the next completion
// comes, or with solicitedOnly the next one that is solicited or failed
// (ibv_req_notify_cq). Completions that are already in the CQ give none: poll
// once more afterwards. PollWait does all of this.
func (cq *CQ) ReqNotify(solicitedOnly bool) error {
	if err := cq.ok("ibv_req_notify_cq"); err != nil {
		return err
	}
	cq.armed.Store(true)
	return cq.called(cq.p.ReqNotify(solicitedOnly))
}

// PollWait is Poll that waits until there is a completion: it polls, arms the
// CQ, polls again, and sleeps on the CQ's channel, which it must have been made
// with. It returns as soon as it has one, with no more than are there. When ctx
// ends the error is an [*Error] that wraps ctx.Err(), and when the CQ is closed os.ErrClosed.
// On the engine it goes on polling for up to engine.Options.BusyWait before it arms the CQ,
// if the last wait was that short.
//
// Any number of goroutines may wait on a CQ and its channel, each completion
// going to one of them. Don't arm the same CQ with ReqNotify(true) in the
// meantime: some devices then forget that PollWait armed it for all.
func (cq *CQ) PollWait(ctx context.Context, wc []WC) (int, error) {
	return cq.pollWait(ctx, wc, (*CQ).Poll)
}

// pollWait is PollWait with poll for Poll.
func (cq *CQ) pollWait(ctx context.Context, wc []WC, poll func(*CQ, []WC) (int, error)) (int, error) {
	const op = "ibv_poll_cq"
	if err := cq.ok(op); err != nil {
		return 0, err
	}
	if len(wc) == 0 {
		return 0, cq.obj.Errorf(op, syscall.EINVAL, "waiting for no completions")
	}
	if cq.ch == nil {
		return 0, cq.obj.Errorf(op, syscall.EINVAL,
			"the CQ has no completion channel to wait on; make it with CQOptions.Channel, or use Poll")
	}
	for {
		n, err := poll(cq, wc)
		if looker, ok := cq.p.(provider.Looker); ok && n == 0 && err == nil && looker.Look(ctx) {
			n, err = poll(cq, wc)
		}
		if n > 0 || err != nil {
			return n, err
		}
		// Counting before arming: an event from here on ends the wait, whoever
		// reads it from the channel.
		cq.ch.mu.Lock()
		seen := cq.events
		cq.ch.mu.Unlock()
		if err := cq.p.ReqNotify(false); err != nil {
			return 0, cq.called(err)
		}
		if n, err := poll(cq, wc); n > 0 || err != nil {
			return n, err
		}
		err = cq.ch.wait(ctx, cq, func() bool { return cq.events != seen || cq.obj.Closed() })
		if err == nil {
			err = cq.obj.Check(op)
		}
		if err != nil {
			return 0, object.GaveUp(ctx, op, cq.obj.Name(), err, "anything completed"+cq.overflow())
		}
	}
}

// overflow says what the CQ has lost, which may be what a waiter waits for; "" if it has lost
// nothing or does not count.
func (cq *CQ) overflow() string {
	st, err := cq.Stats()
	if err != nil || st.Lost == 0 {
		return ""
	}
	return fmt.Sprintf(" (but the CQ has lost %s, because it has room for %d: make it larger)",
		object.Count(st.Lost, "completion"), st.CQE)
}

// Resize changes the CQ to hold cqe completions, at least (ibv_resize_cq). It may
// grow and shrink while QPs complete to it, and none of its completions is lost. It is
// EINVAL, and nothing changes, if cqe is less than 1, more than the device's MaxCQE,
// or less than the completions that are in the CQ. Drivers that can't, as siw's, make
// it errors.ErrUnsupported.
func (cq *CQ) Resize(cqe int) error {
	if err := cq.ok("ibv_resize_cq"); err != nil {
		return err
	}
	return cq.called(cq.p.Resize(cqe))
}

// CQE returns how many completions the CQ holds, at least what was asked for.
func (cq *CQ) CQE() int {
	if cq == nil || cq.p == nil {
		return 0
	}
	return cq.p.CQE()
}

// Channel returns the channel that the CQ was made with, nil if none.
func (cq *CQ) Channel() *CompChannel {
	if cq == nil {
		return nil
	}
	return cq.ch
}

// Context returns the context that the CQ was made from.
func (cq *CQ) Context() *Context {
	if cq == nil {
		return nil
	}
	return cq.ctx
}

// Cookie returns CQOptions.Cookie (cq_context).
func (cq *CQ) Cookie() any {
	if cq == nil {
		return nil
	}
	return cq.cookie
}

// Close destroys the CQ with what is in it (ibv_destroy_cq). While a QP completes to it, Close
// is EBUSY and says so. Calls of PollWait that are waiting return os.ErrClosed.
func (cq *CQ) Close() error {
	if cq == nil || cq.p == nil {
		return nil
	}
	err := cq.obj.Close(cq.p.Close)
	if err == nil && cq.ch != nil {
		cq.ch.forget(cq)
	}
	return err
}
