package engine

import (
	"context"
	"net/netip"
	"slices"

	"github.com/govs-rdma/govs/provider/engine/transport"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
)

// arrival is a connection to a listener that has not sent its Request yet.
//
// The CONNECT_REQUESTs of one peer come in the order of its connections, if the Requests have come
// in that order, too: programs number connections by it (see cmID.Connect). Each connection has a
// goroutine that waits for its Request, and these may run in any order. So the one that has a
// Request first reads what has come on the peer's earlier connections.
type arrival struct {
	wire      *wire
	peer      netip.Addr
	responder mpa.Responder
	done      chan struct{} // closed when there is a Request, or will be none

	// Under listening.turn.
	in       frameReader
	silent   bool // counted by admit
	overtook int  // how many later connections had their Requests first
}

// arrive puts a connection behind the others of its peer. The connection is closed if it fails.
func (ls *listening) arrive(conn transport.Conn, peer netip.Addr) (*arrival, error) {
	responder, err := mpa.NewResponder(ls.id.dev.startupConfig())
	if err != nil { // Options were checked
		_ = conn.Close()
		return nil, err
	}
	w, err := newWire(ls.id.dev, conn)
	if err != nil {
		return nil, err
	}
	a := &arrival{wire: w, peer: peer, responder: responder, done: make(chan struct{}),
		in: newFrameReader(pastFrame)}
	ls.turn <- struct{}{}
	ls.order[peer] = append(ls.order[peer], a)
	<-ls.turn
	return a, nil
}

// await waits for the Request of a connection, and raises CONNECT_REQUEST. It closes the
// connection if there is none in time or it is not one.
//
//rfc:5044 MPA-7.1.2-2-01 Responder waits for a validated Request
//rfc:5044 MPA-7.1.2-8-02 Responder times out waiting for Request
//rfc:5044 MPA-7.1.2-10-01 Timeout over the whole startup exchange
func (ls *listening) await(a *arrival) {
	ctx, cancel := context.WithTimeout(ls.ctx, ls.id.dev.opts.StartupTimeout)
	defer cancel()
	var late error
	for !ls.look(a, late) {
		select {
		case <-a.done:
		case <-a.wire.readable:
		case <-ctx.Done():
			late = ctx.Err()
		}
	}
}

// look reads what has come on a connection, and with its Request what has come before. It reports
// whether the connection is no longer a's; with late, the error of a's time limit, it is not.
func (ls *listening) look(a *arrival, late error) bool {
	ls.turn <- struct{}{}
	defer func() { <-ls.turn }()
	select {
	case <-a.done:
		// What a's goroutine has taken from readable may be the request's.
		a.wire.notify(a.wire.readable)
		return true
	default:
	}
	r, err := ls.read(a)
	if err == transport.ErrWouldBlock {
		if late == nil {
			return false
		}
		err = late
	}
	if err == nil {
		ls.readBefore(a)
	}
	ls.settle(a, r, err)
	return true
}

// readBefore reads what has come on the earlier connections of a's peer.
func (ls *listening) readBefore(a *arrival) {
	list := ls.order[a.peer]
	for _, b := range slices.Clone(list[:max(0, slices.Index(list, a))]) {
		ls.overtake(b)
	}
}

// overtakenMost is how many later connections of its peer may have their Requests before that of a
// connection, until these are no longer looked for on it.
const overtakenMost = 64

// overtake is for a connection whose peer has sent the Request of a later one. After a number of
// these the Request is no longer looked for, so that silent connections cost each Request that
// comes no more than a call of the socket, however many there are.
func (ls *listening) overtake(b *arrival) {
	r, err := ls.read(b)
	if err != transport.ErrWouldBlock {
		ls.settle(b, r, err)
		return
	}
	if b.overtook++; b.overtook == overtakenMost {
		ls.unorder(b)
	}
}

// read reads the Request of a connection, as far as it has come: ErrWouldBlock if it is not
// complete. Bytes after it are refused like a malformed Request: they can only be FPDUs, which an
// initiator may not send before it has the Reply, and this end could not know how they are framed.
// siw does the same.
//
// A connection counts as silent only if it has to be waited for: when it comes out of the backlog,
// its Request has often arrived.
func (ls *listening) read(a *arrival) (*mpa.Request, error) {
	r := new(mpa.Request)
	err := a.in.read(a.wire.conn, func(b []byte) (n int, err error) {
		*r, n, err = a.responder.Receive(b)
		return n, err
	})
	if err != transport.ErrWouldBlock {
		return r, err
	}
	if !a.silent {
		if err := ls.admit(a.peer); err != nil {
			return nil, err
		}
		a.silent = true
	}
	a.wire.want(a.wire.poller.WantRead, true)
	return nil, transport.ErrWouldBlock
}

// settle raises CONNECT_REQUEST for a Request. With an error it closes the connection.
//
//rfc:5044 MPA-7.1.2-2-02 Malformed Request: close TCP, leave MPA
func (ls *listening) settle(a *arrival, r *mpa.Request, err error) {
	defer close(a.done)
	ls.unorder(a)
	if a.silent {
		ls.speaks(a.peer)
	}
	announced := false
	ls.id.dev.step(func() {
		switch err {
		case nil:
			announced = ls.announce(r, a.wire)
		case errSilent:
			ls.refused("MaxPendingPerPeer", a.wire.conn)
			a.wire.abort()
		default:
			if ls.ctx.Err() == nil {
				ls.failed(a.wire.conn, whyNoRequest(err, a.in.got))
			}
			ls.refuse(a.wire, a.responder.AppendRefusal(nil, err))
		}
	})
	if !announced {
		ls.giveUp(a.peer)
	}
}

// unorder takes a connection out of the order, if it is there.
func (ls *listening) unorder(a *arrival) {
	list := ls.order[a.peer]
	if i := slices.Index(list, a); i >= 0 {
		list = slices.Delete(list, i, i+1)
	}
	if len(list) == 0 {
		delete(ls.order, a.peer)
	} else {
		ls.order[a.peer] = list
	}
}
