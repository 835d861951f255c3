package cm

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
// in that order, because programs number connections by it (see ID.Connect). Each connection has
// a goroutine that waits for its Request, and these may run in any order. So the first goroutine
// that has a Request reads what has come on the peer's earlier connections.
type arrival struct {
	wire      *wire
	peer      netip.Addr
	responder mpa.Responder
	done      chan struct{} // closed when there is a Request, or will be none

	// Guarded by listening.reading.
	in       frameReader
	silent   bool // counted by admit
	overtook int  // how many later connections had their Requests first
}

// arrive appends a connection to its peer's connections. It closes the connection if it fails.
func (ls *listening) arrive(conn transport.Conn, peer netip.Addr) (*arrival, error) {
	responder, err := mpa.NewResponder(ls.id.m.cfg.MPA)
	if err != nil { // the engine has checked Config
		_ = conn.Close()
		return nil, err
	}
	w, err := newWire(ls.id.m.host, conn)
	if err != nil {
		return nil, err
	}
	a := &arrival{wire: w, peer: peer, responder: responder, done: make(chan struct{}),
		in: newFrameReader(pastFrame)}
	ls.reading <- struct{}{}
	ls.order[peer] = append(ls.order[peer], a)
	<-ls.reading
	return a, nil
}

// await waits for the Request of a connection, and raises CONNECT_REQUEST. It closes the connection
// if no Request comes in time, or a malformed one.
//
//rfc:5044 MPA-7.1.2-2-01 Responder waits for a validated Request
//rfc:5044 MPA-7.1.2-8-02 Responder times out waiting for Request
//rfc:5044 MPA-7.1.2-10-01 Timeout over the whole startup exchange
func (ls *listening) await(a *arrival) {
	ctx, cancel := context.WithTimeout(ls.ctx, ls.id.m.cfg.StartupTimeout)
	defer cancel()
	var late error
	for !ls.check(a, late) {
		select {
		case <-a.done:
		case <-a.wire.readable:
		case <-ctx.Done():
			late = ctx.Err()
		}
	}
}

// check reads what has come on a connection and, if that is its Request, on earlier connections of
// its peer. It reports whether a is done. With late, the error of a's time limit, it always is.
func (ls *listening) check(a *arrival, late error) bool {
	ls.reading <- struct{}{}
	defer func() { <-ls.reading }()
	select {
	case <-a.done:
		// a's goroutine may have taken a token from readable that was for the request.
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

// overtakenMost is how many later connections of a peer may have their Requests first before the
// engine stops looking for the Request of an earlier one.
const overtakenMost = 64

// overtake reads the Request of a connection whose peer has sent the Request of a later one. After
// overtakenMost times it stops looking. So silent connections, however many there are, cost each
// arriving Request at most one call of the socket.
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

// read reads the Request of a connection, as far as it has come. The error is ErrWouldBlock if the
// Request is not complete. Bytes after it are refused like a malformed Request, as siw does: they
// can only be FPDUs, which an initiator may not send before it has the Reply, and this end could
// not know how they are framed.
//
// A connection counts as silent only if its Request has not arrived when it comes out of the
// backlog, which it often has.
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

// settle raises CONNECT_REQUEST for a Request. With an error it closes the connection instead.
//
//rfc:5044 MPA-7.1.2-2-02 Malformed Request: close TCP, leave MPA
func (ls *listening) settle(a *arrival, r *mpa.Request, err error) {
	defer close(a.done)
	ls.unorder(a)
	if a.silent {
		ls.speaks(a.peer)
	}
	announced := false
	ls.id.m.host.Step(func() {
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

// unorder removes a connection from ls.order, if it is there.
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
