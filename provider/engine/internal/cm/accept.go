package cm

import (
	"context"
	"fmt"
	"sync"
	"syscall"

	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
)

// request is a peer's Request until the program accepts or rejects it.
type request struct {
	*mpa.Request
	wire    *wire
	answers chan answer  // capacity 1
	event   *queuedEvent // its CONNECT_REQUEST

	// answered is closed by settled after the answer is carried out, or when it can't be any more.
	answered chan struct{}
	settled  func()

	// Under ID.mu.
	places chan struct{} // of the listener; nil after this request has returned its place
	gone   bool          // the peer has closed the connection
}

// answer is the program's decision: to accept with params on qp, or to reject.
type answer struct {
	reply  []byte
	qp     QP // nil: reject
	params mpa.Params
}

// wait starts the goroutine that waits for the answer and carries it out. There is no time limit,
// as with siw: the program may take as long as it needs. id.mu is held.
//
// The request counts against Config.MaxPending and MaxAccepted until the program has answered it
// or closed the id, even if the peer is gone. Otherwise peers that come and leave could make any
// number of ids and events.
func (id *ID) wait(r *request) {
	ctx, cancel := context.WithCancel(context.Background())
	id.cancel, id.request = cancel, r
	r.answered = make(chan struct{})
	r.settled = sync.OnceFunc(func() { close(r.answered) })
	// The Manager waits for it as well, because nobody closes the id of a withdrawn request.
	id.m.requests.Add(1)
	id.tasks.Go(func() {
		defer id.m.requests.Done()
		defer id.idle(cancel)
		defer r.settled()
		a, err := r.answer(ctx)
		switch {
		case err != nil:
			id.m.host.Step(func() { id.peerLeft(r, err) })
		case a.qp == nil:
			id.m.host.Step(func() { r.wire.closeAfter(a.reply) })
		default:
			id.accept(ctx, r, a)
		}
	})
}

// answer waits for the program's answer. Until then the peer has to stay and be silent; if it does
// not, the error says so. A closed id rejects.
func (r *request) answer(ctx context.Context) (answer, error) {
	for {
		if err := r.wire.intrusion(); err != nil {
			return answer{}, err
		}
		select {
		case a := <-r.answers:
			return a, r.wire.intrusion()
		case <-r.wire.readable:
			continue
		case <-ctx.Done():
		}
		select {
		case a := <-r.answers: // given just before
			return a, nil
		default:
			reply, err := r.AppendReject(nil, mpa.Answer{})
			return answer{reply: reply}, err
		}
	}
}

// peerLeft notes that the peer has closed the connection before it was answered. If the program has
// not fetched the CONNECT_REQUEST, it never sees it. Otherwise Accept or Reject fails, or, if the
// program has accepted already, an event reports the failure.
func (id *ID) peerLeft(r *request, err error) {
	if err == mpa.ErrTrailing { // TCP may have more bytes of it, and would reset anyway
		r.wire.abort()
	} else {
		r.wire.close()
	}
	id.mu.Lock()
	defer id.mu.Unlock()
	r.gone = true
	err = whyNotAccepted(err, 0)
	switch id.state {
	case idRequested:
		id.countFailure(err)
		if id.ch.withdraw(r.event) {
			id.endRequest()
			id.state = idClosed // the program has never seen the id
		}
	case idAccepting:
		id.noConnection(err)
	}
}

// returnPlace returns the request's place to its listener, unless it was returned before. id.mu is
// held.
func (id *ID) returnPlace() {
	if r := id.request; r != nil && r.places != nil {
		<-r.places
		r.places = nil
	}
}

// endRequest ends a request whose peer has left. id.mu is held.
func (id *ID) endRequest() {
	id.state = idEnded
	id.discharge()
	id.returnPlace()
	id.request = nil
}

// accept sends the accepting Reply and starts the QP.
//
//rfc:5044 MPA-7.1.2-2-05 Private data accepted: Reply R=0, then ready for FPDUs
func (id *ID) accept(ctx context.Context, r *request, a answer) {
	ctx, cancel := context.WithTimeout(ctx, id.m.cfg.StartupTimeout)
	defer cancel()
	rest, err := r.wire.writeNow(a.reply)
	if err == nil && len(rest) > 0 { // TCP has room for it otherwise
		r.settled()
		err = r.wire.write(ctx, rest)
	}
	if err != nil {
		r.wire.abort() // half a Reply is of no use
		id.failed(err)
		return
	}
	a.params.PeerPrivateData = nil // it came with CONNECT_REQUEST
	id.m.host.Step(func() { id.run(r.wire, a.qp, a.params) })
}

// errDiallerGone is why a request can't be answered.
var errDiallerGone = fmt.Errorf("the peer closed the TCP connection before the request was "+
	"answered: %w", syscall.ECONNRESET)

// Accept implements provider.ID. As with siw, it raises ResponderResources to what the peer asks
// for, as far as the device allows, and lowers InitiatorDepth to what the peer offers. When it
// returns, the Reply is sent and the QP is in RTS, or the event says why not. ECONNRESET: the peer
// has hung up.
func (id *ID) Accept(param provider.ConnParam) error {
	r, err := id.beginAccept(param)
	if err == nil {
		<-r.answered
	}
	return err
}

// beginAccept does everything that Accept does before it waits.
func (id *ID) beginAccept(param provider.ConnParam) (*request, error) {
	const op = "rdma_accept"
	if err := id.enter(op, idRequested); err != nil {
		return nil, err
	}
	defer id.mu.Unlock()
	q, err := id.connectable(param)
	if err != nil {
		return nil, fail(op, id.name(), err)
	}
	a, err := id.acceptance(param)
	if err != nil {
		return nil, fail(op, id.name(), err)
	}
	r := id.request
	if r.gone {
		id.endRequest()
		return nil, fail(op, id.name(), errDiallerGone)
	}
	a.qp = q
	id.state = idAccepting
	r.answers <- a
	return r, nil
}

// acceptance returns the answer with the Reply of an Accept. id.mu is held.
//
//rfc:6581 MPA2-9.1-02 Responder ORD not above initiator IRD
//rfc:6581 MPA2-9.1-03 Responder IRD at least initiator ORD or reject/limit
func (id *ID) acceptance(param provider.ConnParam) (answer, error) {
	r := id.request.Request
	ird, ord, err := id.m.checkDepths(param)
	if err != nil {
		return answer{}, err
	}
	if err := checkPrivateData(param.PrivateData, r.Enhanced); err != nil {
		return answer{}, err
	}
	if r.Enhanced && r.ORD != mpa.NotNegotiated {
		ird = max(ird, RoundDepth(min(r.ORD, id.m.cfg.MPA.MaxIRD)))
	}
	reply, params, err := r.AppendAccept(nil, mpa.Answer{IRD: ird, ORD: ord, PrivateData: param.PrivateData})
	return answer{reply: reply, params: params}, err
}

// Reject implements provider.ID. It sends private to the peer, and hangs up as Host.CloseAfter
// does: RFC 5044 section 7.1.2 leaves the TCP connection to the ULP, and the verbs have no other
// use for it. When Reject returns, private is sent. ECONNRESET: the peer has hung up.
//
//rfc:5044 MPA-7.1.2-2-03 Unacceptable private data: Reply with R=1
//rfc:5044 MPA-7.1.2-6-01 Responder answers R=1 when ULP refuses private data
func (id *ID) Reject(private []byte) error {
	r, err := id.beginReject(private)
	if err == nil {
		<-r.answered
	}
	return err
}

// beginReject does everything that Reject does before it waits.
func (id *ID) beginReject(private []byte) (*request, error) {
	const op = "rdma_reject"
	if err := id.enter(op, idRequested); err != nil {
		return nil, err
	}
	defer id.mu.Unlock()
	r := id.request
	if err := checkPrivateData(private, r.Enhanced); err != nil {
		return nil, fail(op, id.name(), err)
	}
	reply, err := r.AppendReject(nil, mpa.Answer{PrivateData: private})
	if err != nil {
		return nil, fail(op, id.name(), fmt.Errorf("%w: %w", err, syscall.EINVAL))
	}
	if r.gone {
		id.endRequest()
		return nil, fail(op, id.name(), errDiallerGone)
	}
	id.state = idEnded
	id.discharge()
	r.answers <- answer{reply: reply}
	return r, nil
}
