package engine

import (
	"bytes"
	"context"
	"errors"
	"net/netip"

	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/transport"
	"github.com/govs-rdma/govs/provider/iwarp"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
)

// Connect implements provider.ID. TCP's handshake and the MPA start-up together
// have Options.StartupTimeout. A peer that is siw takes 252 octets of private
// data at most, and hangs up when there are more.
//
// There is no second attempt with revision 1 when a peer does not understand
// revision 2 (RFC 6581 section 10 allows one): what such a peer does can't be
// told from a refusal. Options.Revision is for that.
//
//rfc:5044 MPA-7.1-02
//rfc:5044 MPA-7.1.2-10-01
func (id *cmID) Connect(param provider.ConnParam) error {
	const op = "rdma_connect"
	if err := id.enter(op, idRouted); err != nil {
		return err
	}
	defer id.mu.Unlock()
	q, err := id.connectable(param)
	if err != nil {
		return fail(op, id.name(), err)
	}
	initiator, err := id.dev.initiator(param)
	if err != nil {
		return fail(op, id.name(), err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), id.dev.opts.StartupTimeout)
	id.cancel, id.state = cancel, idConnecting
	id.tasks.Go(func() {
		defer cancel()
		id.connect(ctx, q, initiator)
	})
	return nil
}

// initiator makes the Request of a Connect.
func (d *device) initiator(param provider.ConnParam) (mpa.Initiator, error) {
	ird, ord, err := d.checkDepths(param)
	if err != nil {
		return mpa.Initiator{}, err
	}
	if err := checkPrivateData(param.PrivateData, d.opts.Revision >= 2); err != nil {
		return mpa.Initiator{}, err
	}
	cfg := d.startupConfig()
	cfg.Revision = uint8(d.opts.Revision)
	return mpa.NewInitiator(cfg, mpa.Offer{IRD: ird, ORD: ord, PrivateData: bytes.Clone(param.PrivateData)})
}

// connect makes the connection and raises the event that says how it went.
func (id *cmID) connect(ctx context.Context, q *qp, initiator mpa.Initiator) {
	conn, err := id.dial(ctx)
	if err != nil {
		id.failed(err)
		return
	}
	w, err := newWire(id.dev, conn)
	if err != nil {
		id.failed(err)
		return
	}
	params, reply, err := w.initiate(ctx, initiator)
	if err == nil {
		id.run(w, q, params)
		return
	}
	id.failed(err)
	if frame := lastFPDU(err, reply, id.dev.startupConfig()); frame != nil {
		id.hangUp(w, frame)
		return
	}
	w.close()
}

// dial makes the TCP connection, from the port that BindAddr reserved if there is
// one.
func (id *cmID) dial(ctx context.Context) (transport.Conn, error) {
	id.mu.Lock()
	binding, local, remote := id.binding, id.local, id.remote
	id.binding = nil
	id.mu.Unlock()
	var conn transport.Conn
	var err error
	if binding != nil {
		conn, err = binding.Dial(ctx, remote)
	} else {
		conn, err = id.dev.opts.Network.Dial(ctx, netip.AddrPortFrom(local.Addr(), 0), remote)
	}
	if err != nil {
		return nil, err
	}
	id.mu.Lock()
	id.local = conn.LocalAddr()
	id.mu.Unlock()
	return conn, nil
}

// hangUp leaves the end of a connection to the channel, as the id may be closed
// first.
func (id *cmID) hangUp(w *wire, last []byte) {
	id.mu.Lock()
	defer id.mu.Unlock()
	id.ch.hangUp(w, last)
}

// initiate sends the Request and waits for the Reply, whose octets it returns
// too.
//
//rfc:5044 MPA-7.1.2-1-01
//rfc:5044 MPA-7.1.2-3-01
func (w *wire) initiate(ctx context.Context, initiator mpa.Initiator) (p mpa.Params, reply []byte, err error) {
	if err := w.write(ctx, initiator.AppendRequest(nil)); err != nil {
		return p, nil, err
	}
	reply, err = w.frame(ctx, func(b []byte) error {
		p, _, err = initiator.Receive(b)
		return err
	})
	return p, reply, err
}

// frame reads a start-up frame and returns the octets that came. accept judges
// what there is so far; ErrShort asks for more.
//
// The buffer has room for more than the longest frame: octets behind the frame
// must be seen, as the peer may not have sent any yet.
//
//rfc:5044 MPA-7.1.2-9-01
//rfc:5044 MPA-7.1.5-01
func (w *wire) frame(ctx context.Context, accept func(b []byte) error) ([]byte, error) {
	b := make([]byte, 0, mpa.MaxFrameLen+4)
	for {
		n, err := w.read(ctx, b[len(b):cap(b)])
		if err != nil {
			return b, err
		}
		b = b[:len(b)+n]
		if err := accept(b); !errors.Is(err, mpa.ErrShort) {
			return b, err
		}
	}
}

// lastFPDU returns the Terminate that RFC 6581 wants sent when an initiator can't
// go on with what an enhanced responder agreed to, nil if err is not of that
// kind. RFC 5044 section 8 closes the connection at once for everything else.
//
//rfc:6581 MPA2-8-01
//rfc:6581 MPA2-9.1-08
//rfc:6581 MPA2-9.2-09
//rfc:6581 MPA2-9.3-01
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
	fpdu, err := framer.AppendFPDU(nil, endTerminate(e, nil, 0, nil).ulpdu)
	if err != nil {
		return nil
	}
	return fpdu
}

// run hands the connection to the QP and says so.
func (id *cmID) run(w *wire, q *qp, params mpa.Params) {
	event := establishedEvent(params)
	w.release()
	id.mu.Lock()
	id.connected = q
	id.mu.Unlock()
	if err := q.start(w.conn, params, nil, id.disconnected); err != nil {
		_ = w.conn.Abort()
		id.mu.Lock()
		id.connected = nil
		id.mu.Unlock()
		id.failed(err)
		return
	}
	if id.established(event) {
		q.disconnect()
	}
}

// established raises ESTABLISHED, and reports whether Disconnect was called
// before.
func (id *cmID) established(event provider.CMEvent) (leave bool) {
	id.mu.Lock()
	defer id.mu.Unlock()
	if id.state == idClosed { // Close waits for this goroutine and then ends the connection
		return false
	}
	id.state = idEstablished
	id.post(event)
	if id.down {
		id.end(provider.CMEvent{Type: provider.CMDisconnected})
	}
	return id.leave
}

// disconnected is called once by the QP when the connection has ended. That may be
// before ESTABLISHED was raised, which comes first nevertheless.
func (id *cmID) disconnected(error) {
	id.mu.Lock()
	defer id.mu.Unlock()
	id.down = true
	if id.state == idEstablished {
		id.end(provider.CMEvent{Type: provider.CMDisconnected})
	}
}

// failed raises the event of a connection that did not come about.
func (id *cmID) failed(err error) {
	id.mu.Lock()
	defer id.mu.Unlock()
	id.end(failureEvent(err))
}

// end raises the last event of id. id.mu is held.
func (id *cmID) end(e provider.CMEvent) {
	if id.state != idClosed {
		id.post(e)
		id.state = idEnded
	}
}

// Disconnect implements provider.ID. A connection that is being made ends as soon
// as it works. With a request that was not answered, and after the peer has
// disconnected, there is nothing to do, which is not an error with the kernel
// either.
func (id *cmID) Disconnect() error {
	if err := id.enter("rdma_disconnect", idConnecting, idRequested, idAccepting, idEstablished, idEnded); err != nil {
		return err
	}
	var q *qp
	switch id.state {
	case idConnecting, idAccepting:
		id.leave = true
	case idEstablished:
		q = id.connected
	}
	id.mu.Unlock()
	if q != nil {
		q.disconnect()
	}
	return nil
}
