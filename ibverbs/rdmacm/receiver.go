package rdmacm

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"syscall"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/internal/object"
)

// Receiver posts receives of one size to an SRQ and returns the messages that arrive in them.
// Releasing a message posts its receive again. All methods may be called concurrently.
type Receiver struct {
	post func(...ibverbs.RecvWR) error
	cq   *ibverbs.CQ
	took object.CQTaker // of cq
	mr   *ibverbs.MR
	data []byte // of mr
	size int
	tag  uint64 // the upper half of the WRIDs
	wrs  []ibverbs.RecvWR
	c    *Conn // the Conn that receives here; nil with an SRQ

	mu   sync.Mutex
	uses []uint32 // for each receive, how many of its messages were released

	open context.Context // ends with Close
	end  context.CancelFunc

	// lead has a token while no call polls. The call that has taken it owns the following fields.
	lead   chan struct{}
	until  context.Context // ends with the last caller's, with c's connection and with Close
	cancel context.CancelFunc
	done   <-chan struct{} // the last caller's Done
}

// Message is a received message, which occupies a receive until Release.
type Message struct {
	// Data is the message, in the receiver's memory. It is valid until Release. For an RDMA Write
	// with immediate data it is empty, because the Write puts nothing into the receive; WC.ByteLen
	// is then the length of the Write.
	Data []byte

	// WC is the completion, with immediate data or an invalidated key if there are any. The
	// Receiver sets WC.WRID.
	WC ibverbs.WC

	r        *Receiver
	slot     int    // of the receive
	released uint32 // Receiver.uses[slot] on arrival
}

// makeReceiver posts n receives of size bytes each to the receive queue, for Conn.Receive.
func (c *Conn) makeReceiver(n, size int) error {
	const op = "rdmacm.ConnConfig.Receives"
	if c.qp.SRQ() != nil {
		return object.Errorf(op, c.peer(), syscall.EINVAL,
			"the connection has an SRQ; leave Receives out, and use NewSRQReceiver")
	}
	if !c.ownRecvCQ {
		return object.Errorf(op, c.peer(), syscall.EINVAL,
			"the receives need a CQ that nothing else polls; leave ConnConfig.RecvCQ out")
	}
	_, init, err := c.qp.Query()
	if err != nil {
		return err
	}
	r := &Receiver{post: c.qp.PostRecv, cq: c.recvCQ, c: c}
	if err := r.begin(op, c.pd, n, size, init.Cap.MaxRecvWR); err != nil {
		return err
	}
	c.receiver = r
	return nil
}

// NewSRQReceiver posts n receives of size bytes each to an SRQ with room for at least n. cq must be
// the RecvCQ of all connections with the SRQ, and of nothing else, and have a completion channel.
// As many entries as the SRQ has receives are enough, however many connections there are; fewer
// than n are EINVAL. Until the Receiver is closed, Poll and PollWait of cq return EBUSY, and
// nothing else may post receives. WC.QPN identifies a message's connection; the example keeps a map
// of connections. Close the Receiver after the connections. For a single connection use
// [ConnConfig].Receives.
//
// Receive does not report connections that end, for instance because their peer sent a message
// while the SRQ had no receive. Conn.Done and QP.Cause of each connection report it.
func NewSRQReceiver(srq *ibverbs.SRQ, cq *ibverbs.CQ, n, size int) (*Receiver, error) {
	const op = "rdmacm.NewSRQReceiver"
	if srq == nil || cq == nil {
		return nil, errNil(op, "srq or cq")
	}
	attr, err := srq.Query()
	if err != nil {
		return nil, err
	}
	if cq.Channel() == nil {
		return nil, object.Errorf(op, "SRQ", syscall.EINVAL,
			"the CQ has no completion channel to wait on; make it with CQOptions.Channel")
	}
	// If the SRQ has no room either, begin returns the error.
	if entries := cq.CQE(); n > entries && n <= attr.MaxWR {
		return nil, object.Errorf(op, "SRQ", syscall.EINVAL,
			"%d receives may complete at once, and the CQ has room for %d; make it for as many as "+
				"the SRQ holds, %d", n, entries, attr.MaxWR)
	}
	r := &Receiver{post: srq.PostRecv, cq: cq}
	if err := r.begin(op, srq.PD(), n, size, attr.MaxWR); err != nil {
		return nil, err
	}
	return r, nil
}

// begin allocates the memory and posts all receives. places is the size of the queue.
func (r *Receiver) begin(op string, pd *ibverbs.PD, n, size, places int) (err error) {
	if n < 1 || size < 1 || uint64(size) > math.MaxUint32 || n > math.MaxInt/size {
		return object.Errorf(op, r.name(), syscall.EINVAL,
			"%d receives of %d bytes; there must be at least 1, of 1 to 2^32-1 bytes, and of %d bytes at "+
				"most together", n, size, math.MaxInt)
	}
	if n > places {
		// Posting would succeed for some, and they cannot be taken back.
		return object.Errorf(op, r.name(), syscall.ENOMEM,
			"%d receives are too many for the queue, which holds %d; make it larger "+
				"(ConnConfig.Cap.MaxRecvWR, SRQAttr.MaxWR)", n, places)
	}
	r.tag = uint64(rand.Uint32()) << tagShift
	r.size, r.wrs, r.uses = size, make([]ibverbs.RecvWR, n), make([]uint32, n)
	if r.took, err = object.TakeCQ(r.cq, whyReceiver, r.owns); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			r.took.Release()
		}
	}()
	// Heap memory stays readable for a program that still has a message at Close.
	if r.mr, err = pd.RegMR(make([]byte, n*size), ibverbs.AccessLocalWrite); err != nil {
		return err
	}
	for i := range r.wrs {
		sge, err := r.mr.SGE(i*size, size)
		if err != nil {
			return also(err, r.mr.Close())
		}
		r.wrs[i] = ibverbs.RecvWR{WRID: r.tag | uint64(i), SGList: []ibverbs.SGE{sge}}
	}
	if err := r.post(r.wrs...); err != nil {
		return also(err, r.mr.Close())
	}
	r.data = r.mr.Bytes()
	r.open, r.end = context.WithCancel(context.Background())
	r.lead = make(chan struct{}, 1)
	r.lead <- struct{}{}
	return nil
}

// whyReceiver says why the program may not poll the CQ of a Receiver.
func whyReceiver() string {
	return "a Receiver, or a Conn with ConnConfig.Receives, takes the completions of this CQ; call its " +
		"Receive, or close it"
}

// Receive waits for the next message. Release it when its bytes are no longer needed, because while
// all receives contain messages, the next message ends its connection. On the engine Receive
// allocates only for a ctx other than the previous call's. Concurrent calls get a message each.
//
// A receive fails if its connection ends within the message, or if the message is too long. The
// error contains an [*ibverbs.WCError], whose QPN identifies the connection. The receive is posted
// again, and Receive works on for the other connections. When ctx ends, the error wraps ctx.Err(),
// and when the Receiver is closed, os.ErrClosed.
func (r *Receiver) Receive(ctx context.Context) (Message, error) {
	return r.receive(ctx, "Receiver.Receive")
}

// receive implements Receive. op is the call in errors.
func (r *Receiver) receive(ctx context.Context, op string) (Message, error) {
	wc := oneWC.Get().(*[1]ibverbs.WC)
	defer oneWC.Put(wc)
	if r == nil || r.lead == nil {
		return Message{}, errNil(op, "receiver")
	}
	select {
	case <-r.lead:
	case <-ctx.Done():
		return Message{}, object.GaveUp(ctx, op, r.name(), ctx.Err(), "there was a message")
	case <-r.open.Done():
		return Message{}, r.closed(op)
	}
	err := r.poll(ctx, op, wc[:])
	r.lead <- struct{}{}
	if err != nil {
		return Message{}, err
	}
	if wc[0].Status != ibverbs.WCSuccess {
		return Message{}, r.failed(&wc[0])
	}
	m := Message{WC: wc[0], r: r}
	if m.slot = r.slot(wc[0].WRID); m.slot < 0 {
		return Message{}, object.Errorf(op, r.name(), syscall.EINVAL,
			"a completion of qp %d with WRID %#x is not the Receiver's; nothing else may post "+
				"receives, or complete to its CQ", wc[0].QPN, wc[0].WRID)
	}
	r.mu.Lock()
	m.released = r.uses[m.slot]
	r.mu.Unlock()
	at, n := m.slot*r.size, int(m.WC.ByteLen)
	if m.WC.Opcode == ibverbs.WCRecvRDMAWithImm {
		n = 0 // the peer wrote the bytes elsewhere
	}
	m.Data = r.data[at : at+n : at+r.size]
	return m, nil
}

// failed returns the error of a failed receive. On an SRQ it posts the receive again, because any
// peer can make receives fail, and each failure would leave fewer for the other connections.
func (r *Receiver) failed(wc *ibverbs.WC) error {
	err := failedWork("a receive", wc)
	if wc.Status == ibverbs.WCLocLenErr {
		err = fmt.Errorf("%w: a message is longer than the receives, which have %d bytes; agree with the "+
			"peer on the longest message (ConnConfig.ReceiveSize, or the size for NewSRQReceiver)", err, r.size)
	}
	if r.c != nil {
		return fmt.Errorf("%s: %w", r.c.peer(), held(r.c.because(err)))
	}
	i := r.slot(wc.WRID)
	r.mu.Lock()
	defer r.mu.Unlock()
	if i < 0 || r.open.Err() != nil {
		return err
	}
	return also(err, r.post(r.wrs[i:i+1]...))
}

// held adds advice to err if the connection has ended because the peer sent more messages than
// there were receives.
func held(err error) error {
	var term *ibverbs.TerminateError
	if errors.As(err, &term) && !term.Remote && term.Layer == 1 && term.EType == 2 && term.ECode == 2 &&
		strings.Contains(term.Text, "a Send") { // a Read too many has the same code
		return fmt.Errorf("%w; a message occupies its receive until Message.Release: release messages "+
			"sooner, or increase ConnConfig.Receives", err)
	}
	return err
}

// slot returns the number of the receive with a WRID, -1 if it is not one of r.
func (r *Receiver) slot(wrid uint64) int {
	if i := wrid ^ r.tag; i < uint64(len(r.wrs)) {
		return int(i)
	}
	return -1
}

// owns reports whether a WRID is of a receive of r.
func (r *Receiver) owns(wrid uint64) bool { return r.slot(wrid) >= 0 }

// name returns the Receiver's name in errors.
func (r *Receiver) name() string {
	if r.c != nil {
		return r.c.peer()
	}
	return "SRQ"
}

// closed returns the error of op on a closed Receiver.
func (r *Receiver) closed(op string) error {
	return &ibverbs.Error{Op: op, Object: "receiver of " + r.name(), Err: os.ErrClosed}
}

// poll waits for a completion until ctx or the connection ends, or Close is called.
func (r *Receiver) poll(ctx context.Context, op string, wc []ibverbs.WC) error {
	if r.open.Err() != nil {
		return r.closed(op)
	}
	// Derive a context only if the last call's does not fit, because deriving allocates.
	if r.until == nil || r.done != ctx.Done() || r.until.Err() != nil {
		r.derive(ctx)
	}
	_, err := r.took.PollWait(r.until, wc)
	switch {
	case err == nil || r.until.Err() == nil:
		return err
	case r.open.Err() != nil:
		return r.closed(op)
	case ctx.Err() != nil:
		return object.GaveUp(ctx, op, r.name(), ctx.Err(), "there was a message")
	}
	// All completions from before the connection's end are in the CQ by now.
	n, err := r.took.Poll(wc)
	if n == 0 && err == nil {
		err = &ibverbs.Error{
			Op: op, Object: r.c.peer(),
			Err: object.Because(fmt.Errorf("the connection has ended: %w", held(context.Cause(r.until))),
				syscall.ENOTCONN),
		}
	}
	return err
}

// derive derives until from ctx.
func (r *Receiver) derive(ctx context.Context) {
	r.endUntil()
	r.done = ctx.Done()
	var cancel context.CancelFunc
	if r.c != nil {
		r.until, cancel = r.c.UntilEnd(ctx)
	} else {
		r.until, cancel = context.WithCancel(ctx)
	}
	stop := context.AfterFunc(r.open, cancel)
	r.cancel = func() {
		stop()
		cancel()
	}
}

func (r *Receiver) endUntil() {
	if r.cancel != nil {
		r.cancel()
	}
	r.until, r.cancel = nil, nil
}

// oneWC reuses the memory for a completion, which would otherwise be allocated for each PollWait.
var oneWC = sync.Pool{New: func() any { return new([1]ibverbs.WC) }}

// Release posts the message's receive again. Do not use Data afterwards. Only the first Release of
// a message and its copies does this; the others return EINVAL. Release also returns the errors of
// PostRecv, because the connection may have ended.
func (m *Message) Release() error {
	const op = "Message.Release"
	switch {
	case m == nil:
		return errNil(op, "message")
	case m.r == nil:
		return object.Errorf(op, "",
			syscall.EINVAL, "the message is zero; release one that Receive has returned")
	}
	r := m.r
	m.Data = nil
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.uses[m.slot] != m.released {
		return object.Errorf(op, r.name(), syscall.EINVAL,
			"the message, or a copy of it, has been released already; release each message once")
	}
	if r.open.Err() != nil {
		return r.closed(op)
	}
	r.uses[m.slot]++
	return r.post(r.wrs[m.slot : m.slot+1]...)
}

// Close deregisters the memory, including messages that were not released: their Data can still be
// read, but they cannot be released. Waiting calls of Receive return os.ErrClosed. Close the
// connections first, because a message that arrives in a receive that is still posted fails, which
// ends its connection.
func (r *Receiver) Close() error {
	if r == nil || r.mr == nil {
		return nil
	}
	r.mu.Lock() // from here on Release posts nothing
	r.end()
	r.mu.Unlock()
	<-r.lead // the polling call has been woken
	r.endUntil()
	r.lead <- struct{}{}
	r.took.Release()
	return r.mr.Close()
}
