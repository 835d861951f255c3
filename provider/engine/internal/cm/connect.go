package cm

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/netip"
	"sync"
	"syscall"
	"time"

	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/transport"
	"github.com/govs-rdma/govs/provider/iwarp"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// Connect implements provider.ID. It returns when the Request is sent, so that a peer sees the
// Requests of one goroutine in the order of its calls. It also returns when no Request will be
// sent; then the event says why. TCP's handshake and the MPA start-up together have
// Config.StartupTimeout. siw takes at most 252 bytes of private data, and hangs up when there are
// more.
//
// Config says whether Connect retries with revision 1 when the peer may not understand revision 2.
// If Config.MPA permits RDMAC, Connect also retries after an answer of revision 0.
//
//rfc:5044 MPA-7.1-02 Immediate start right after TCP connect is allowed
//rfc:5044 MPA-7.1.2-10-01 Timeout over the whole startup exchange
func (id *ID) Connect(param provider.ConnParam) error {
	requested, err := id.beginConnect(param)
	if err == nil {
		<-requested
	}
	return err
}

// beginConnect starts a Connect without waiting. requested is closed when Connect may return.
func (id *ID) beginConnect(param provider.ConnParam) (requested <-chan struct{}, err error) {
	const op = "rdma_connect"
	if err := id.enter(op, idRouted); err != nil {
		return nil, err
	}
	defer id.mu.Unlock()
	q, err := id.connectable(param)
	if err != nil {
		return nil, fail(op, id.name(), err)
	}
	initiator, err := id.m.initiator(param)
	if err != nil {
		return nil, fail(op, id.name(), err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), id.m.cfg.StartupTimeout)
	id.cancel, id.state = cancel, idConnecting
	sent := make(chan struct{})
	id.tasks.Go(func() {
		defer id.idle(cancel)
		id.connect(ctx, q, initiator, sync.OnceFunc(func() { close(sent) }))
	})
	return sent, nil
}

// initiator makes the Request of a Connect.
func (m *Manager) initiator(param provider.ConnParam) (mpa.Initiator, error) {
	ird, ord, err := m.checkDepths(param)
	if err != nil {
		return mpa.Initiator{}, err
	}
	cfg, offer := m.cfg.MPA, m.cfg.Offer
	cfg.Revision = m.cfg.Revision
	offer.IRD, offer.ORD, offer.PrivateData = ird, ord, bytes.Clone(param.PrivateData)
	if err := checkPrivateData(offer.PrivateData, cfg.Enhances(offer)); err != nil {
		return mpa.Initiator{}, err
	}
	return mpa.NewInitiator(cfg, offer)
}

// connect makes the connection and raises the event with the result. It calls requested when the
// first Request is sent, at the latest when it returns.
func (id *ID) connect(ctx context.Context, q QP, initiator mpa.Initiator, requested func()) {
	defer requested()
	src := id.source()
	for {
		w, params, reply, err := id.attempt(ctx, src, initiator, requested)
		if err == nil {
			id.run(w, q, params)
			return
		}
		if second, again := id.m.cfg.second(initiator, err, reply); again && w != nil {
			w.abort() // the program may need src again at once
			initiator = second
			continue
		}
		id.failed(whyNoConnection(err, w != nil, reply, id.m.cfg.StartupTimeout))
		if w == nil {
			return
		}
		if frame := lastFPDU(err, reply, id.m.cfg.MPA); frame != nil {
			w.closeAfter(frame)
			return
		}
		w.discard()
		w.close()
		return
	}
}

// attempt makes a TCP connection and does the MPA start-up on it. It calls requested when the
// Request is sent. Without a TCP connection the wire is nil.
//
//rfc:5044 MPA-7.1.2-1-01 Initiator sends a valid Request first
func (id *ID) attempt(ctx context.Context, src netip.AddrPort, initiator mpa.Initiator,
	requested func()) (*wire, mpa.Params, []byte, error) {
	conn, err := id.dial(ctx, src)
	if err != nil {
		return nil, mpa.Params{}, nil, err
	}
	w, err := newWire(id.m.host, conn)
	if err != nil {
		return nil, mpa.Params{}, nil, err
	}
	rest, err := w.writeNow(initiator.AppendRequest(nil))
	if err != nil {
		return w, mpa.Params{}, nil, err
	}
	requested() // a new TCP connection has room for all of it
	if err := w.write(ctx, rest); err != nil {
		return w, mpa.Params{}, nil, err
	}
	params, reply, err := w.reply(ctx, initiator)
	return w, params, reply, err
}

// second returns the initiator of a second attempt, with revision 1, and whether c wants one after
// err.
//
//rfc:6581 MPA2-10-05 Initiator may retry unenhanced after close
func (c *Config) second(first mpa.Initiator, err error, reply []byte) (mpa.Initiator, bool) {
	hungUp := err == io.EOF || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
	switch {
	case mpa.IsRDMACReply(err):
	case !c.RetryUnenhanced, hungUp && (!c.RetryClosed || len(reply) > 0):
		return mpa.Initiator{}, false
	case hungUp:
		err = mpa.ErrClosed
	}
	return first.Fallback(err, time.Time{})
}

// source returns the address to connect from. Its port is the one that BindAddr reserved, or 0.
func (id *ID) source() netip.AddrPort {
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.binding != nil {
		return id.local
	}
	return netip.AddrPortFrom(id.local.Addr(), 0)
}

// dial makes the TCP connection, from the port that BindAddr reserved if it is still reserved.
func (id *ID) dial(ctx context.Context, src netip.AddrPort) (transport.Conn, error) {
	id.mu.Lock()
	binding, network, remote := id.binding, id.network(), id.remote
	id.binding = nil
	id.mu.Unlock()
	var conn transport.Conn
	var err error
	if binding != nil {
		conn, err = binding.Dial(ctx, remote)
	} else {
		conn, err = network.Dial(ctx, src, remote)
	}
	if err != nil {
		return nil, err
	}
	id.mu.Lock()
	id.local = conn.LocalAddr()
	id.mu.Unlock()
	return conn, nil
}

// lastFPDU returns the Terminate that RFC 6581 requires of an initiator that can't go on with what
// an enhanced responder agreed to. It returns nil for all other errors, after which RFC 5044
// section 8 closes the connection at once.
//
//rfc:6581 MPA2-8-01 Enhanced errors reported as Layer 2 / Type 0
//rfc:6581 MPA2-9.1-08 Insufficient IRD: TERM 2/0/6 then terminate
//rfc:6581 MPA2-9.2-09 No common RTR: TERM 2/0/7 and terminate
//rfc:6581 MPA2-9.3-01 Other local enhanced-setup error: TERM 2/0/5 before reset
func lastFPDU(err error, reply []byte, cfg mpa.Config) []byte {
	var e *iwarp.Error
	if !errors.As(err, &e) || e.Layer != iwarp.LayerLLP || e.Code < iwarp.MPALocalCatastrophic {
		return nil
	}
	f, _, err := mpa.ParseFrame(reply, mpa.KindReply)
	if err != nil {
		return nil
	}
	framer := mpa.NewFramer(f.Markers, f.CRC || cfg.CRC != mpa.CRCOff)
	header, terminate := rdmap.TerminateHeader(), rdmap.NewTerminate(e, nil, 0, nil)
	fpdu, err := framer.AppendFPDU(nil, terminate.AppendTo(header.AppendTo(nil)))
	if err != nil {
		return nil
	}
	return fpdu
}

// run hands the connection to the QP and raises the event.
func (id *ID) run(w *wire, q QP, params mpa.Params) {
	event := establishedEvent(params)
	w.release()
	id.mu.Lock()
	admitted := id.admitted
	id.mu.Unlock()
	s, err := q.Begin(w.conn, params, admitted, id.disconnected)
	if err != nil {
		_ = w.conn.Abort()
		id.failed(err)
		return
	}
	if id.established(s, event) {
		s.Disconnect()
	}
}

// established raises ESTABLISHED, and reports whether Disconnect was called before. From now on id
// ends s, not the QP's connection, because the QP may have another one once s has ended.
func (id *ID) established(s Stream, event provider.CMEvent) (disconnect bool) {
	id.mu.Lock()
	defer id.mu.Unlock()
	if !id.down {
		id.stream = s
	}
	if id.state == idClosed { // Close waits for this goroutine, and then ends the connection
		return false
	}
	id.state = idEstablished
	id.post(event)
	if id.down {
		id.postLast(provider.CMEvent{Type: provider.CMDisconnected})
	}
	return id.disconnectEarly
}

// disconnected is called once by the QP when the connection has ended. That may be before
// ESTABLISHED was raised; ESTABLISHED still comes first.
func (id *ID) disconnected(error) {
	id.mu.Lock()
	defer id.mu.Unlock()
	id.down = true
	id.stream = nil
	id.discharge()
	if id.state == idEstablished {
		id.postLast(provider.CMEvent{Type: provider.CMDisconnected})
	}
}

// failed raises the event of a connection that could not be made.
func (id *ID) failed(err error) {
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.request != nil {
		err = whyNotAccepted(err, id.m.cfg.StartupTimeout)
	}
	id.noConnection(err)
}

// noConnection raises that event for a complete error. id.mu is held.
func (id *ID) noConnection(err error) {
	if id.state == idClosed {
		err = errIDClosed
	}
	id.countFailure(err)
	e := failureEvent(err)
	if id.request != nil {
		e.Type = provider.CMConnectError // a listener's peer rejects nothing
	}
	id.postLast(e)
}

// countFailure counts and logs a start-up that has failed. id.mu is held.
func (id *ID) countFailure(err error) {
	side := "dialler"
	if id.request != nil {
		side = "listener"
	}
	id.m.host.Failed(side, id.remote, err)
}

// postLast raises the last event of id. id.mu is held.
func (id *ID) postLast(e provider.CMEvent) {
	id.discharge()
	if id.state != idClosed {
		id.post(e)
		id.state = idEnded
	}
}

// Disconnect implements provider.ID. A connection that is being made ends as soon as it is
// established. For a request that was not answered, and after the peer has disconnected, it does
// nothing and returns nil, as the kernel does.
func (id *ID) Disconnect() error {
	if err := id.enter("rdma_disconnect", idConnecting, idRequested, idAccepting, idEstablished, idEnded); err != nil {
		return err
	}
	var s Stream
	switch id.state {
	case idConnecting, idAccepting:
		id.disconnectEarly = true
	case idEstablished:
		s = id.stream
	}
	id.mu.Unlock()
	if s != nil {
		s.Disconnect()
	}
	return nil
}
