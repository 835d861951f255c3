package engine

import (
	"fmt"
	"sync"
	"syscall"

	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/cm"
	"github.com/govs-rdma/govs/provider/engine/transport"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
)

// start takes over conn, which has finished MPA's start-up with params, and moves the QP to RTS.
// The read depths are those in params.
//
// onDown is called once, without any lock and on any goroutine, when the QP has left RTS for good
// and all posted work is flushed. Its error is QP.Cause. It may be called before start returns. The
// Conn belongs to the QP from now on, and is closed some time after onDown, so that the last bytes
// are not lost. If start returns an error, onDown is not called and conn still belongs to the
// caller; the QP is in ERR if it could have been connected.
//
//rfc:5040 RDMAP-6.1-01 Only RDMA messages on the stream in RDMA mode
//rfc:5041 DDP-6.1-01 Both directions enabled at the same time
//rfc:5044 MPA-7.1-04 DDP endpoint bound when Full Operation starts
func (q *qp) start(conn transport.Conn, params mpa.Params, onDown func(error)) error {
	_, err := q.begin(conn, params, false, onDown)
	return err
}

// begin does the work of start, and returns the stream, so that the caller can end this stream and
// not a later one of the QP. admitted says that package cm counts the connection, at least until
// onDown is called.
func (q *qp) begin(
	conn transport.Conn, params mpa.Params, admitted bool, onDown func(error),
) (*stream, error) {
	s := (&stream{q: q, dev: q.dev, conn: conn, admitted: admitted, onDown: onDown}).link()
	s.loop = q.dev.poller.assign()
	s.params = streamParams{
		Enhanced: params.Enhanced, CRC: params.CRC, MarkersTx: params.MarkersTx,
		MarkersRx: params.MarkersRx, RDMAC: params.RDMAC,
		PeerToPeer: params.PeerToPeer, WaitFirstFPDU: params.WaitFirstFPDU, RTR: params.RTR,
	}
	s.inbound.Init(cm.RoundDepth(params.IRD))
	s.outstanding.Init(outboundDepth(params))
	s.rx.init(s)
	s.tx.init(s)
	s.maySend.Store(!params.WaitFirstFPDU)

	// The poller may call Ready as soon as Add has been called. While rx.mu is held, Ready does
	// nothing, and is called again. The program may post as soon as the QP is in RTS. If such a
	// post fills the socket, the poller must watch the Conn, so it has to be added before.
	s.rx.mu.Lock()
	s.tx.mu.Lock()
	err := q.enterRTS(s, params.ORD)
	if err == nil {
		if err = s.loop.poller.Add(conn, s); err != nil {
			e := &ending{cause: err, lost: true}
			s.fail(e)
			s.finish(e)
		} else {
			q.dev.streams.Add(1)
			q.dev.tally.connections.Add(1)
		}
	}
	s.tx.unlock()
	if err != nil {
		s.loop.unassign()
		s.rx.mu.Unlock()
		return nil, err
	}
	s.rx.mu.Unlock()
	s.resume()
	return s, nil
}

// outboundDepth returns the ORD, or 1 if it is 0 and the RTR indication is a Read.
func outboundDepth(p mpa.Params) int {
	if sendsRTR(p.PeerToPeer, p.WaitFirstFPDU) && p.RTR == mpa.RTRRead {
		return max(p.ORD, 1)
	}
	return p.ORD
}

func (q *qp) enterRTS(s *stream, ord int) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.closing:
		return errDestroyed
	case q.dev.fatal.Load():
		return errDeviceFatal
	}
	if err := q.checkConnectable(); err != nil {
		return err
	}
	s.tx.next = q.sq.tail.Load() // posts are refused before RTS
	q.ird, q.ord = uint16(s.inbound.Depth()), uint16(ord)
	q.stream.Store(s)
	q.setState(provider.QPRTS)
	return nil
}

// checkConnectable returns EINVAL for a QP in a state from which it can't be connected.
func (q *qp) checkConnectable() error {
	state := q.getState()
	if state != provider.QPReset && state != provider.QPInit && state != provider.QPRTR {
		return fmt.Errorf("%s is in %s; a connection needs a QP without one: %w",
			q.name(), state, syscall.EINVAL)
	}
	return nil
}

// disconnect ends the connection gracefully: it sends what is in the send queue, then FIN. The QP
// goes to ERR and onDown is called when the peer's FIN has come, or when closeTimeout has passed
// without progress. disconnect does not wait. Without a connection it does nothing.
//
//rfc:5041 DDP-6.2.1-01 Graceful close flushes pending data first
//rfc:5041 DDP-6.2.1-05 Reception stays enabled after local half close
func (q *qp) disconnect() { _ = q.startClosing(false) }

// HoldEnd implements provider.EndHolder.
func (q *qp) HoldEnd() (release func()) {
	s := q.stream.Load()
	if s == nil {
		return func() {}
	}
	s.closer.hold(1)
	return sync.OnceFunc(func() { s.closer.hold(-1) })
}
