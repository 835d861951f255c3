package rdmacm

import (
	"context"
	"sync"
	"syscall"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/ibverbs/internal/object"
)

// Receiver posts receives of one size and hands out the messages that arrive in them. A message's
// receive is posted again when the message is released. All methods may be called concurrently.
type Receiver struct {
	post func(...ibverbs.RecvWR) error
	cq   *ibverbs.CQ
	mr   *ibverbs.MR
	size int
	wrs  []ibverbs.RecvWR
	err  func(*ibverbs.WC) error
	name string
}

// Message is what one receive holds.
type Message struct {
	// Data is the message, in the receiver's memory. It is valid until Release.
	Data []byte

	// WC is the completion, with immediate data or an invalidated STag if there are any. WC.WRID
	// is the receiver's.
	WC ibverbs.WC

	r *Receiver
}

// NewReceiver posts n receives of size octets each to the receive queue of a Conn, and takes the
// completions of its RecvCQ from then on: nobody else may poll that. It is for
// [ConnConfig.Prepare], so that receives are posted before the peer can send. Close the Receiver
// after the Conn. For a Conn with an SRQ, use [NewSRQReceiver]; here that is EINVAL.
func NewReceiver(c *Conn, n, size int) (*Receiver, error) {
	const op = "rdmacm.NewReceiver"
	if c == nil || c.qp == nil {
		return nil, errNil(op, "connection")
	}
	if c.qp.SRQ() != nil {
		return nil, object.Errorf(op, "", syscall.EINVAL, "the connection has an SRQ: NewSRQReceiver posts to that")
	}
	r := &Receiver{post: c.qp.PostRecv, cq: c.recvCQ, err: c.Err}
	return r, r.begin(op, c.pd, n, size)
}

// NewSRQReceiver is NewReceiver for an SRQ. cq is the RecvCQ of all connections with it, and has a
// completion channel. WC.QPN says from which of them a message is.
func NewSRQReceiver(srq *ibverbs.SRQ, cq *ibverbs.CQ, n, size int) (*Receiver, error) {
	const op = "rdmacm.NewSRQReceiver"
	if srq == nil || cq == nil {
		return nil, errNil(op, "srq or cq")
	}
	r := &Receiver{post: srq.PostRecv, cq: cq, err: (*ibverbs.WC).Err}
	return r, r.begin(op, srq.PD(), n, size)
}

// begin makes the memory and posts all receives.
func (r *Receiver) begin(op string, pd *ibverbs.PD, n, size int) (err error) {
	if n < 1 || size < 1 {
		return object.Errorf(op, "", syscall.EINVAL, "%d receives of %d octets: at least one of one is needed", n, size)
	}
	if r.mr, err = pd.AllocMR(n*size, ibverbs.AccessLocalWrite); err != nil {
		return err
	}
	r.size, r.wrs = size, make([]ibverbs.RecvWR, n)
	for i := range r.wrs {
		sge, err := r.mr.SGE(i*size, size)
		if err != nil {
			return also(err, r.mr.Close())
		}
		r.wrs[i] = ibverbs.RecvWR{WRID: uint64(i), SGList: []ibverbs.SGE{sge}}
	}
	if err := r.post(r.wrs...); err != nil {
		return also(err, r.mr.Close())
	}
	return nil
}

// Receive waits for the next message. Release it when its octets are not needed any more: while
// all receives hold messages, the peer's next one ends the connection. Receive allocates nothing.
//
// When the connection has ended, the error is that of a receive that was flushed, as [Conn.Err]
// makes it: errors.Is finds [ibverbs.ErrFlushed]. With an SRQ such errors name the QP of one
// connection, and the others go on. When ctx ends, the error wraps ctx.Err().
func (r *Receiver) Receive(ctx context.Context) (Message, error) {
	wc := oneWC.Get().(*[1]ibverbs.WC)
	defer oneWC.Put(wc)
	if _, err := r.cq.PollWait(ctx, wc[:]); err != nil {
		return Message{}, err
	}
	if err := r.err(&wc[0]); err != nil {
		return Message{}, err
	}
	m := Message{WC: wc[0], r: r}
	at := int(m.WC.WRID) * r.size
	m.Data = r.mr.Bytes()[at : at+int(m.WC.ByteLen) : at+r.size]
	return m, nil
}

// oneWC has places for a completion, which PollWait would have allocated anew for each call.
var oneWC = sync.Pool{New: func() any { return new([1]ibverbs.WC) }}

// Release posts the receive of a message again. Call it once; Data is not the caller's afterwards.
// The error is that of PostRecv: the connection may have ended.
func (m *Message) Release() error {
	if m.r == nil {
		return errNil("Message.Release", "message")
	}
	r := m.r
	m.r, m.Data = nil, nil
	return r.post(r.wrs[m.WC.WRID : m.WC.WRID+1]...)
}

// Close deregisters and frees the memory, that of messages that were not released included. A
// receive that is still posted then fails with the message that arrives in it, and with it the
// connection.
func (r *Receiver) Close() error {
	if r == nil || r.mr == nil {
		return nil
	}
	return r.mr.Close()
}
