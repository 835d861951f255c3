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

// Receiver posts receives of one size to an SRQ and hands out the messages that arrive in them. A
// message's receive is posted again when the message is released. All methods may be called
// concurrently.
type Receiver struct {
	post func(...ibverbs.RecvWR) error
	cq   *ibverbs.CQ
	took object.CQTaker // of cq
	mr   *ibverbs.MR
	data []byte // of mr
	size int
	tag  uint64 // the upper half of the WRIDs
	wrs  []ibverbs.RecvWR
	c    *Conn // whose Receive it does; nil with an SRQ

	mu   sync.Mutex
	uses []uint32 // how many messages of each receive have been released

	open context.Context // ends with Close
	end  context.CancelFunc

	// lead has a token while nobody polls. The call that has taken it owns what follows.
	lead   chan struct{}
	until  context.Context // the last caller's, ended also by the end of c and by Close
	cancel context.CancelFunc
	done   <-chan struct{} // of the last caller's
}

// Message is what one receive holds.
type Message struct {
	// Data is the message, in the receiver's memory. It is valid until Release. It is empty for an
	// RDMA Write with immediate data, which puts nothing into the receive; WC.ByteLen is the length
	// of the Write.
	Data []byte

	// WC is the completion, with immediate data or an invalidated STag if there are any. WC.WRID
	// is the Receiver's.
	WC ibverbs.WC

	r        *Receiver
	slot     int    // of the receive
	released uint32 // Receiver.uses of it
}

// makeReceiver posts n receives of size bytes each to the receive queue, for Conn.Receive.
func (c *Conn) makeReceiver(n, size int) error {
	const op = "rdmacm.ConnConfig.Receives"
	if c.qp.SRQ() != nil {
		return object.Errorf(op, "", syscall.EINVAL,
			"the connection has an SRQ: NewSRQReceiver posts to that")
	}
	if !c.ownRecvCQ {
		return object.Errorf(op, "", syscall.EINVAL,
			"the receive CQ is one of the configuration, whose completions others may wait "+
				"for: leave ConnConfig.RecvCQ out")
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

// NewSRQReceiver posts n receives of size bytes each to an SRQ, which holds as many at least. cq
// is the RecvCQ of all connections with the SRQ, of nothing else, and has a completion channel. As
// many entries as the SRQ has receives are enough, however many connections there are; fewer than n
// are EINVAL. Until the Receiver is closed, Poll and PollWait of cq are EBUSY, and nobody else may
// post receives. WC.QPN says from which of the connections a message is; the example keeps a map of
// them. Close the Receiver after the connections. [ConnConfig].Receives is the same for one
// connection.
//
// Receive does not report connections that end, for instance one whose peer sent a message while
// the SRQ had no receive: Conn.Done and QP.Cause of each connection do.
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
		return nil, object.Errorf(op, "", syscall.EINVAL,
			"the CQ has no completion channel to wait on (CQOptions.Channel)")
	}
	// What the SRQ does not hold either is begin's to refuse.
	if entries := cq.CQE(); n > entries && n <= attr.MaxWR {
		return nil, object.Errorf(op, "", syscall.EINVAL,
			"%d receives, all of which may complete at once, where the CQ has room for %d: make a "+
				"CQ of as many as the SRQ holds, %d", n, entries, attr.MaxWR)
	}
	r := &Receiver{post: srq.PostRecv, cq: cq}
	if err := r.begin(op, srq.PD(), n, size, attr.MaxWR); err != nil {
		return nil, err
	}
	return r, nil
}

// begin makes the memory and posts all receives. The queue holds places of them.
func (r *Receiver) begin(op string, pd *ibverbs.PD, n, size, places int) (err error) {
	if n < 1 || size < 1 || uint64(size) > math.MaxUint32 || n > math.MaxInt/size {
		return object.Errorf(op, "", syscall.EINVAL,
			"%d receives of %d bytes: at least one of one is needed, of 2^32-1 at most, and %d together",
			n, size, math.MaxInt)
	}
	if n > places {
		// Some of them would be posted, and can't be taken back.
		return object.Errorf(op, "", syscall.ENOMEM,
			"%d receives, where the queue holds %d: ask for more when you make it "+
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
	// Memory of the heap stays readable for a program that holds a message when Close comes.
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

// whyReceiver is why the program may not poll the CQ of a Receiver.
func whyReceiver() string {
	return "a Receiver, or a Conn with ConnConfig.Receives, takes the completions of this CQ; call its " +
		"Receive, or close it"
}

// Receive waits for the next message. Release it when its bytes are not needed any more: while
// all receives hold messages, the next one ends its connection. Over the engine Receive
// allocates nothing, other than for a ctx that is not the one of the call before. Several calls at
// a time get a message each.
//
// A receive fails if its connection ends within the message, or the message is too long. The error
// has a [*ibverbs.WCError], whose QPN says which connection that was; the receive is posted again,
// and Receive goes on for the other connections. When ctx ends, the error wraps ctx.Err(), and when
// the Receiver is closed, os.ErrClosed.
func (r *Receiver) Receive(ctx context.Context) (Message, error) {
	return r.receive(ctx, "Receiver.Receive")
}

// receive is Receive by the name of op.
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
			"a completion of qp %d with WRID %#x, which is not the Receiver's: others may neither "+
				"post receives beside it nor complete to its CQ", wc[0].QPN, wc[0].WRID)
	}
	r.mu.Lock()
	m.released = r.uses[m.slot]
	r.mu.Unlock()
	at, n := m.slot*r.size, int(m.WC.ByteLen)
	if m.WC.Opcode == ibverbs.WCRecvRDMAWithImm {
		n = 0 // its bytes are where the peer has written them
	}
	m.Data = r.data[at : at+n : at+r.size]
	return m, nil
}

// failed returns the error of a receive that failed. To an SRQ it is posted again: any peer can
// make receives fail, and those of the other connections would become fewer with each.
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

// held adds to err what to do if a connection has ended because the peer sent more messages than
// there were receives.
func held(err error) error {
	var term *ibverbs.TerminateError
	if errors.As(err, &term) && !term.Remote && term.Layer == 1 && term.EType == 2 && term.ECode == 2 &&
		strings.Contains(term.Text, "a Send") { // a Read too many has the same code
		return fmt.Errorf("%w; a message occupies its receive until Message.Release: release messages "+
			"sooner, or have more receives (ConnConfig.Receives)", err)
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

// name is what the Receiver is called in errors.
func (r *Receiver) name() string {
	if r.c != nil {
		return r.c.peer()
	}
	return "SRQ"
}

// closed returns the error of op on a Receiver that is closed.
func (r *Receiver) closed(op string) error {
	return &ibverbs.Error{Op: op, Object: "receiver of " + r.name(), Err: os.ErrClosed}
}

// poll waits for a completion until ctx ends, or the connection, or Close is called.
func (r *Receiver) poll(ctx context.Context, op string, wc []ibverbs.WC) error {
	if r.open.Err() != nil {
		return r.closed(op)
	}
	// A context is derived only if the one of the last call won't do: that allocates.
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
	// What came until the connection's end is there by now.
	n, err := r.took.Poll(wc)
	if n == 0 && err == nil {
		err = &ibverbs.Error{
			Op: op, Object: r.c.peer(),
			Err: fmt.Errorf("%w: the connection has ended: %w", syscall.ENOTCONN, held(context.Cause(r.until))),
		}
	}
	return err
}

// derive makes until of ctx.
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

// oneWC has places for a completion, which PollWait would have allocated anew for each call.
var oneWC = sync.Pool{New: func() any { return new([1]ibverbs.WC) }}

// Release posts the receive of a message again. Data is not the caller's afterwards. Of a message
// and its copies only the first Release does so; the others return EINVAL. Otherwise the error is
// that of PostRecv: the connection may have ended.
func (m *Message) Release() error {
	const op = "Message.Release"
	switch {
	case m == nil:
		return errNil(op, "message")
	case m.r == nil:
		return object.Errorf(op, "", syscall.EINVAL, "the zero message, which does not come from Receive")
	}
	r := m.r
	m.Data = nil
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.uses[m.slot] != m.released {
		return object.Errorf(op, r.name(), syscall.EINVAL, "the message, or a copy of it, has been released already")
	}
	if r.open.Err() != nil {
		return r.closed(op)
	}
	r.uses[m.slot]++
	return r.post(r.wrs[m.slot : m.slot+1]...)
}

// Close deregisters the memory, that of messages that were not released included: their Data can
// still be read, but no longer released. Calls that wait in Receive return os.ErrClosed. A receive
// that is still posted fails with the message that arrives in it, and with it the connection:
// close connections first.
func (r *Receiver) Close() error {
	if r == nil || r.mr == nil {
		return nil
	}
	r.mu.Lock() // no Release posts from here on
	r.end()
	r.mu.Unlock()
	<-r.lead // whoever polls has been woken
	r.endUntil()
	r.lead <- struct{}{}
	r.took.Release()
	return r.mr.Close()
}
