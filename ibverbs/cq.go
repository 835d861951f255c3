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

// CQ is a completion queue (struct ibv_cq). Any number of send and receive queues of its context
// may complete to it.
type CQ struct {
	obj    object.Object
	ctx    *Context
	ch     *CompChannel
	p      provider.CQ
	cookie any
	sink   bool // the completions go to CQOptions.Sink

	armed  atomic.Bool // by ReqNotify: CompChannel.Next has to return the CQ once
	events uint64      // seen on the channel, under ch.mu

	// For marker.go: while aside is set, completions pass through pollAside.
	mu      sync.RWMutex
	aside   bool
	markers []*marker
	held    []WC

	// cqtaken.go, under mu.
	taken func() string          // says why the program may not poll; nil if it may
	owns  func(wrid uint64) bool // whether a taker, present or past, posted the WRID; or nil
	long  bool                   // aside or taken is set: Poll cannot just poll the device
}

// CQOptions are the optional arguments of ibv_create_cq. Nil is the zero value.
type CQOptions struct {
	Channel    *CompChannel // nil: the CQ can only be polled
	CompVector int          // which of the device's vectors raises the events
	Cookie     any          // for CQ.Cookie

	// Sink receives the completions instead of Poll, on the engine. Poll then returns none, and
	// only moves the data of the QPs that complete here. Calls that need completions of their own
	// return EINVAL: QP.Drain, rdmacm's Dial and Accept with this CQ as SendCQ, and
	// rdmacm.NewSRQReceiver. A CQ with a Sink has no Channel.
	Sink CompletionSink
}

// CreateCQ makes a completion queue for at least cqe completions (ibv_create_cq). A CQ that
// overflows loses completions and raises EventCQErr, so cqe must cover everything that may be
// posted, signalled or not, to the queues that complete here. Resize makes it larger. Overflow
// loses only the report: the work is done, its places in the queues are free again, and the CQ can
// still be used.
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
			return nil, c.obj.Errorf(op, syscall.EINVAL,
				"the completion channel belongs to another context; make one with this context")
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

// polled returns EINVAL if a Sink receives the completions, because op would wait for them forever.
func (cq *CQ) polled(op string) error {
	if cq.sink {
		return cq.obj.Errorf(op, syscall.EINVAL,
			"a CQ with CQOptions.Sink can't be polled, because its completions go to the Sink")
	}
	return nil
}

func (cq *CQ) ok(op string) error {
	if cq == nil || cq.p == nil {
		return errNil(op, "cq")
	}
	return cq.obj.Check(op)
}

// Poll moves up to len(wc) completions into wc, oldest first, and returns how many (ibv_poll_cq).
// It returns at once, with 0 if there are none, and does not allocate. On the engine it also moves
// data of the QPs that complete here. A completion that reports a failure is not an error of Poll:
// see WC.Err. EBUSY says that the calls of an rdmacm.Conn or an rdmacm.Receiver take the
// completions.
//
// Completions of one queue come in the order of the posts. Between QPs the order is the device's,
// which may differ from the order in which peers sent. Goroutines may poll one CQ concurrently:
// each gets its completions in order, but another may get some that belong between them.
//
// If Poll returns fewer than len(wc), the CQ was empty, unless a Drain is under way. More
// completions may have come since, or their data may still be in sockets.
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

// pollDevice polls the provider's CQ. The caller has read-locked mu, and pollDevice unlocks it. The
// unlock is deferred because a poll of the engine may not return: it calls methods of a program's
// objects (RegObject), which may panic or end the goroutine.
func (cq *CQ) pollDevice(wc []WC) (int, error) {
	defer cq.mu.RUnlock()
	n, err := cq.p.Poll(wc)
	if err != nil {
		err = cq.called(err)
	}
	return n, err
}

// called adds the CQ's name to an error of the provider.
func (cq *CQ) called(err error) error { return called(err, &cq.obj, "cq") }

// ReqNotify requests one event on the CQ's channel for the next completion, or with solicitedOnly
// for the next one that is solicited or failed (ibv_req_notify_cq). Completions that are already in
// the CQ raise no event, so poll once more after ReqNotify. PollWait does all of this.
func (cq *CQ) ReqNotify(solicitedOnly bool) error {
	if err := cq.ok("ibv_req_notify_cq"); err != nil {
		return err
	}
	cq.armed.Store(true)
	return cq.called(cq.p.ReqNotify(solicitedOnly))
}

// PollWait polls, and waits until there is at least one completion. It returns what is there, up to
// len(wc), as soon as there is one. It polls, arms the CQ, polls again, and sleeps on the CQ's
// channel, which is required. When ctx ends, the error is an [*Error] that wraps ctx.Err(); when
// the CQ is closed, it is os.ErrClosed. On the engine PollWait keeps polling for up to
// engine.Options.BusyWait before it arms the CQ, if the last wait was that short.
//
// Any number of goroutines may wait on a CQ and its channel; each completion goes to one of them.
// Do not arm the same CQ with ReqNotify(true) while they wait, because some devices then forget
// that PollWait armed it for all completions.
func (cq *CQ) PollWait(ctx context.Context, wc []WC) (int, error) {
	return cq.pollWait(ctx, wc, (*CQ).Poll)
}

// pollWait implements PollWait. It calls poll for completions: Poll, or the taker's poll.
func (cq *CQ) pollWait(ctx context.Context, wc []WC, poll func(*CQ, []WC) (int, error)) (int, error) {
	const op = "ibv_poll_cq"
	if err := cq.ok(op); err != nil {
		return 0, err
	}
	if len(wc) == 0 {
		return 0, cq.obj.Errorf(op, syscall.EINVAL,
			"len(wc) is 0; pass room for at least one completion")
	}
	if cq.ch == nil {
		return 0, cq.obj.Errorf(op, syscall.EINVAL,
			"the CQ has no completion channel to wait on; make it with CQOptions.Channel, or use Poll")
	}
	for {
		n, err := poll(cq, wc)
		if waiter, ok := cq.p.(provider.BusyWaiter); ok && n == 0 && err == nil && waiter.BusyWait(ctx) {
			n, err = poll(cq, wc)
		}
		if n > 0 || err != nil {
			return n, err
		}
		// Read the counter before arming: then any later event ends the wait, whichever goroutine
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

// overflow returns a text about the completions that the CQ has lost, because a caller may wait for
// one of them. It returns "" if the CQ has lost none or does not count.
func (cq *CQ) overflow() string {
	st, err := cq.Stats()
	if err != nil || st.Lost == 0 {
		return ""
	}
	return fmt.Sprintf(" (but the CQ has lost %s, because it has room for %d: make it larger)",
		object.Count(st.Lost, "completion"), st.CQE)
}

// Resize changes the CQ to hold at least cqe completions (ibv_resize_cq). It may grow and shrink
// while QPs complete to it, and loses no completions. If cqe is less than 1, more than the device's
// MaxCQE, or less than the completions in the CQ, Resize returns EINVAL and changes nothing.
// Drivers that cannot resize, such as siw's, return errors.ErrUnsupported.
func (cq *CQ) Resize(cqe int) error {
	if err := cq.ok("ibv_resize_cq"); err != nil {
		return err
	}
	return cq.called(cq.p.Resize(cqe))
}

// CQE returns how many completions the CQ has room for, at least the number that was requested.
func (cq *CQ) CQE() int {
	if cq == nil || cq.p == nil {
		return 0
	}
	return cq.p.CQE()
}

// Channel returns the CQ's channel, nil if it has none.
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

// Close destroys the CQ and the completions in it (ibv_destroy_cq). While a QP completes to it,
// Close returns EBUSY and says so. Waiting calls of PollWait return os.ErrClosed.
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
