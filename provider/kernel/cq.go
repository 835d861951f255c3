//go:build cgo && linux && !nokernel

package kernel

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"sync"
	"syscall"

	"github.com/govs-rdma/govs/cgo/ibv"
	"github.com/govs-rdma/govs/provider"
)

// pollBatch is the number of completions that one call into C fetches.
const pollBatch = 32

// ackBatch is the number of events that one call into C acknowledges.
const ackBatch = 64

type cq struct {
	object
	dev    *device
	ch     *compChannel // nil for none
	token  uintptr
	cookie any
	cqe    int // guarded by pollMu

	pollMu  sync.Mutex
	c       *ibv.CQ // nil once destroyed; guarded by pollMu
	batch   *ibv.WCBatch
	logs    map[uint32]*qp // siw's QPs, by number
	drained []provider.WC  // completions that have been taken out of C
	late    []lateWC       // completions that were never in C
	armed   bool           // by ReqNotify, for drained and late completions

	// Destroying the CQ waits in C until every fetched event is acknowledged. So Close first
	// acknowledges all outstanding events, and later events are acknowledged at once.
	ackMu   sync.Mutex
	unacked uint
	closing bool
}

// errOutside refuses a CompletionSink or a RecvSource, because the kernel's device keeps the
// queues.
var errOutside = &provider.UnsupportedError{
	Feature: "a queue that the program keeps", Reason: "only the engine has it",
}

func (d *device) CreateCQ(init provider.CQInitAttr) (provider.CQ, error) {
	fail := func(err error) (provider.CQ, error) {
		return nil, opError("ibv_create_cq", fmt.Sprintf("%d entries", init.CQE), err)
	}
	if init.Sink != nil {
		return fail(errOutside)
	}
	if init.CQE < 1 || init.CQE > math.MaxInt32 || init.CompVector < 0 || init.CompVector > math.MaxInt32 {
		return fail(d.whyNoCQ(&init, syscall.EINVAL))
	}
	q := &cq{dev: d, cookie: init.Cookie}
	var channel *ibv.CompChannel
	held := []*object{&d.object}
	if init.Channel != nil {
		ch, ok := init.Channel.(*compChannel)
		if !ok || ch.dev.shared != d.shared {
			return fail(fmt.Errorf("the channel is not of this device; make one with it: %w", syscall.EINVAL))
		}
		q.ch, channel = ch, ch.c
		held = append(held, &ch.object)
	}
	if err := holdAll(held...); err != nil {
		return fail(err)
	}
	if err := q.create(init, channel); err != nil {
		releaseAll(held...)
		return fail(d.whyNoCQ(&init, err))
	}
	return q, nil
}

func (q *cq) create(init provider.CQInitAttr, channel *ibv.CompChannel) error {
	var err error
	if q.batch, err = ibv.NewWCBatch(pollBatch); err != nil {
		return err
	}
	q.token = cqs.add(q)
	err = q.dev.createQueues(func() (err error) {
		q.c, err = q.dev.shared.verbs.CreateCQ(init.CQE, q.token, channel, init.CompVector)
		return err
	})
	if err != nil {
		cqs.remove(q.token)
		q.batch.Free()
		return memlockError(err)
	}
	q.cqe = q.c.CQE()
	return nil
}

func (q *cq) CQE() int {
	q.pollMu.Lock()
	defer q.pollMu.Unlock()
	return q.cqe
}

func (q *cq) Cookie() any { return q.cookie }

// errResize is for drivers without the operation, siw among them.
var errResize = &provider.UnsupportedError{Feature: "resizing a CQ", Reason: "the device's driver can't; make another CQ"}

func (q *cq) Resize(cqe int) error {
	const op = "ibv_resize_cq"
	q.pollMu.Lock()
	defer q.pollMu.Unlock()
	switch {
	case q.c == nil:
		return opError(op, "", os.ErrClosed)
	case cqe < 1 || cqe > math.MaxInt32:
		return opError(op, "", because(syscall.EINVAL, syscall.EINVAL,
			outside(size{"the number of completions", cqe, 1, q.dev.attr.MaxCQE})))
	}
	err := q.c.Resize(cqe)
	if err == nil {
		q.cqe = q.c.CQE()
	} else if errors.Is(err, syscall.EOPNOTSUPP) || errors.Is(err, syscall.ENOSYS) {
		err = fmt.Errorf("%w: %w", errResize, err)
	}
	return opError(op, fmt.Sprintf("%d entries", cqe), memlockError(err))
}

func (q *cq) Poll(wc []provider.WC) (int, error) {
	q.pollMu.Lock()
	defer q.pollMu.Unlock()
	if q.c == nil {
		return 0, opError("ibv_poll_cq", "", os.ErrClosed)
	}
	n := 0
	if len(q.drained) > 0 {
		n = copy(wc, q.drained)
		q.drained = q.drained[n:]
	}
	for n < len(wc) {
		want := min(len(wc)-n, pollBatch)
		got, err := q.c.Poll(q.batch, want)
		if err != nil && n > 0 {
			break // the next Poll gets the same error
		}
		if err != nil {
			return 0, opError("ibv_poll_cq", "", err)
		}
		for i := range got {
			if q.takeWC(&wc[n], q.batch.At(i)) {
				n++
			}
		}
		if got < want {
			break
		}
	}
	if n < len(wc) && len(q.late) > 0 {
		n += q.takeLate(wc[n:])
	}
	return n, nil
}

// rxeWithInv is the flag that rxe sets for the receive of a message that invalidated a key. It is
// IB_WC_WITH_INVALIDATE of the kernel's verbs, which librxe passes on unchanged. In user space the
// same bit is IBV_WC_IP_CSUM_OK, for checksums that rxe does not check
// (kernel-notes/rxe-windows.md).
const rxeWithInv provider.WCFlags = 1 << 2

// takeWC converts a completion from C, and reports whether the program may see it.
func (q *cq) takeWC(dst *provider.WC, src *ibv.WC) bool {
	*dst = provider.WC{
		WRID:      src.WRID(),
		Status:    provider.WCStatus(src.Status()),
		Opcode:    provider.WCOpcode(src.Opcode()),
		Flags:     provider.WCFlags(src.Flags()) & (provider.WCWithImm | provider.WCWithInv),
		ByteLen:   src.ByteLen(),
		QPN:       src.QPNum(),
		VendorErr: src.VendorErr(),
	}
	if dst.Flags&provider.WCWithImm != 0 {
		if dst.Opcode&provider.WCRecv == 0 {
			dst.Flags &^= provider.WCWithImm // rxe also sets it for Sends without a value
		} else {
			dst.Imm = src.Imm()
		}
	}
	if q.dev.rxe && provider.WCFlags(src.Flags())&rxeWithInv != 0 && dst.Opcode&provider.WCRecv != 0 {
		dst.Flags |= provider.WCWithInv
	}
	if dst.Flags&provider.WCWithInv != 0 {
		dst.InvalidatedRKey = src.InvalidatedRKey()
		if q.dev.rxe {
			q.dev.shared.memory.invalidated(dst.InvalidatedRKey)
		}
	}
	of := q.logs[dst.QPN]
	if of != nil && !of.connected.Load() && dst.Status == provider.WCSuccess &&
		dst.Opcode&provider.WCRecv != 0 {
		of.connected.Store(true) // the program may answer before it gets ESTABLISHED
	}
	if of == nil || of.init.SRQ != nil && dst.Opcode&provider.WCRecv != 0 {
		return true
	}
	if of.queueOf(dst.WRID) != q {
		return false // it completes as flushed (kernel-notes/siw-receive-on-send-cq.md)
	}
	w, ok := of.log.complete(dst.WRID)
	dst.WRID = w.wrid
	return ok
}

func (q *cq) ReqNotify(solicitedOnly bool) error {
	q.pollMu.Lock()
	defer q.pollMu.Unlock()
	if q.c == nil {
		return opError("ibv_req_notify_cq", "", os.ErrClosed)
	}
	q.armed = true
	return opError("ibv_req_notify_cq", "", q.c.ReqNotify(solicitedOnly))
}

// gotEvent counts a fetched event of the CQ, and reports whether to pass it on.
func (q *cq) gotEvent(c *ibv.CQ) bool {
	q.ackMu.Lock()
	defer q.ackMu.Unlock()
	if q.closing {
		c.AckEvents(1)
		return false
	}
	if q.unacked++; q.unacked == ackBatch {
		c.AckEvents(q.unacked)
		q.unacked = 0
	}
	return true
}

// settle acknowledges the fetched events. With closing set, later events are acknowledged when they
// arrive.
func (q *cq) settle(closing bool) {
	q.ackMu.Lock()
	defer q.ackMu.Unlock()
	q.closing = closing
	if q.unacked > 0 {
		q.c.AckEvents(q.unacked)
		q.unacked = 0
	}
}

func (q *cq) Close() error {
	return opError("ibv_destroy_cq", "", q.close(func() error {
		q.pollMu.Lock()
		defer q.pollMu.Unlock()
		q.settle(true)
		if err := q.c.Destroy(); err != nil {
			q.settle(false)
			return err
		}
		q.c = nil
		cqs.remove(q.token)
		q.dev.forgetEvents(func(e provider.AsyncEvent) bool { return e.CQ == provider.CQ(q) })
		q.batch.Free()
		q.late, q.drained = nil, nil
		if q.ch != nil {
			q.ch.forgetLate(q)
			q.ch.release()
		}
		q.dev.release()
		return nil
	}))
}

type compChannel struct {
	object
	dev    *device
	c      *ibv.CompChannel
	source *source
	life   context.Context
	endJob context.CancelFunc
	late   lateEvents
}

func (d *device) CreateCompChannel() (provider.CompChannel, error) {
	if err := d.hold(); err != nil {
		return nil, opError("ibv_create_comp_channel", d.name, err)
	}
	c, err := d.shared.verbs.CreateCompChannel()
	if err != nil {
		d.release()
		return nil, opError("ibv_create_comp_channel", d.name, err)
	}
	src, err := newSource(c.FD(), "ibv completion channel")
	if err != nil {
		_ = c.Destroy() // nothing uses it yet
		d.release()
		return nil, opError("ibv_create_comp_channel", d.name, err)
	}
	ch := &compChannel{dev: d, c: c, source: src}
	ch.life, ch.endJob = context.WithCancel(context.Background())
	ch.late.renew(ch.life)
	return ch, nil
}

func (ch *compChannel) Next(ctx context.Context) (provider.CQ, error) {
	for {
		late, kick := ch.takeLate()
		if late != nil {
			return late, nil
		}
		var found *cq
		err := ch.source.wait(ctx, kick, nil, func() (bool, error) {
			var err error
			found, err = ch.get()
			return found != nil, err
		})
		switch {
		case err == nil:
			return found, nil
		case err == ctx.Err():
			return nil, err
		case ch.life.Err() == nil && kick.Err() != nil:
			continue
		}
		return nil, opError("ibv_get_cq_event", "", err)
	}
}

// get fetches an event from C's channel and returns its CQ, or nil if there is no event.
func (ch *compChannel) get() (*cq, error) {
	for {
		c, token, err := ch.c.GetCQEvent()
		switch {
		case interrupted(err):
			continue
		case again(err):
			return nil, nil
		case err != nil:
			return nil, err
		}
		q, ok := cqs.get(token)
		if !ok {
			// The CQ is removed only after C has destroyed it, which waits
			// for this event.
			panic("kernel: completion event of a CQ that does not exist")
		}
		if q.gotEvent(c) {
			return q, nil
		}
	}
}

func (ch *compChannel) Close() error {
	return opError("ibv_destroy_comp_channel", "", ch.close(func() error {
		ch.endJob()
		ch.source.close()
		err := ch.c.Destroy()
		ch.dev.release()
		return err
	}))
}
