package engine

import (
	"errors"
	"fmt"
	"net/netip"
	"syscall"

	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/internal/cm"
	"github.com/govs-rdma/govs/provider/engine/transport"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
)

// What package cm sees of a device, a QP and a stream. The types have methods of their own, so that
// a program finds none of them on its device or QP. Pointers are converted, which costs nothing.
type (
	cmDevice device
	cmQP     qp
	cmStream stream
)

// cmConfig returns what package cm needs of complete options.
func cmConfig(o *Options) cm.Config {
	suite := &o.Conformance
	c := cm.Config{
		Device:  DeviceName,
		Network: o.Network,
		MPA: mpa.Config{
			RDMAC: suite.RDMAC, Markers: suite.Markers, MaxIRD: o.MaxIRD, RTR: suite.RTR,
		},
		Revision: uint8(suite.Revision),
		Offer: mpa.Offer{
			ManualIRD: suite.ManualIRD, ManualORD: suite.ManualORD, PeerToPeer: o.PeerToPeer,
		},
		MaxORD: o.MaxORD,

		RetryUnenhanced: suite.Fallback != FallbackNever,
		RetryClosed:     suite.Fallback == FallbackClosed,

		StartupTimeout:     o.StartupTimeout,
		MaxPending:         o.MaxPending,
		MaxPendingPerPeer:  o.MaxPendingPerPeer,
		MaxAccepted:        o.MaxAccepted,
		MaxAcceptedPerPeer: o.MaxAcceptedPerPeer,
	}
	switch o.CRC {
	case CRCOff:
		c.MPA.CRC = mpa.CRCOff
	case CRCRequired:
		c.MPA.CRC = mpa.CRCRequired
	}
	return c
}

// CreateEventChannel implements provider.Device.
func (d *device) CreateEventChannel() (provider.EventChannel, error) {
	const op = "rdma_create_event_channel"
	if !d.refs.Hold() {
		return nil, failClosed(op, DeviceName)
	}
	return d.cm.NewEventChannel(), nil // calls cmDevice.Release when it is closed
}

// Poller implements cm.Host.
func (d *cmDevice) Poller() transport.Poller { return d.poller.first() }

// Step implements cm.Host.
func (d *cmDevice) Step(f func()) { (*device)(d).step(f) }

// Yield implements cm.Host.
func (d *cmDevice) Yield() { (*device)(d).serveAndYield() }

// Woke implements cm.Host.
func (d *cmDevice) Woke() { d.prog.woken.Store(true) }

// CloseAfter implements cm.Host.
func (d *cmDevice) CloseAfter(conn transport.Conn, last []byte) { (*device)(d).closeAfter(conn, last) }

// Refused implements cm.Host.
func (d *cmDevice) Refused(limit string, peer netip.AddrPort) {
	d.tally.refuse(limit)
	d.log.limit(limit, peer)
}

// Failed implements cm.Host.
func (d *cmDevice) Failed(side string, peer netip.AddrPort, err error) {
	d.tally.failures.Add(1)
	d.log.startup(side, peer, err)
}

// Release implements cm.Host.
func (d *cmDevice) Release() { d.refs.Drop() }

// CreateQP implements cm.Host.
func (d *cmDevice) CreateQP(p provider.PD, init provider.QPInitAttr) (provider.QP, error) {
	own, ok := p.(*pd)
	if !ok || own.dev != (*device)(d) {
		return nil, failForeign("rdma_create_qp", "pd")
	}
	q, err := own.CreateQP(init)
	if err != nil {
		return nil, err
	}
	if err := q.Modify(provider.QPAttr{State: provider.QPInit}, provider.QPAttrState); err != nil {
		return nil, errors.Join(err, q.Close())
	}
	return q, nil
}

// QP implements cm.Host.
func (d *cmDevice) QP(q provider.QP) (cm.QP, error) {
	own, ok := q.(*qp)
	if !ok || own.dev != (*device)(d) {
		return nil, fmt.Errorf("QP: %w: %w", errForeign, syscall.EINVAL)
	}
	return (*cmQP)(own), nil
}

// Closed implements cm.QP.
func (q *cmQP) Closed() bool { return (*qp)(q).isClosed() }

// CheckConnectable implements cm.QP.
func (q *cmQP) CheckConnectable() error {
	own := (*qp)(q)
	if own.isClosed() {
		return fmt.Errorf("%s is closed: %w", own.name(), syscall.EINVAL)
	}
	return own.checkConnectable()
}

// Begin implements cm.QP.
func (q *cmQP) Begin(
	conn transport.Conn, params mpa.Params, admitted bool, down func(error),
) (cm.Stream, error) {
	s, err := (*qp)(q).begin(conn, params, admitted, down)
	if err != nil {
		return nil, err
	}
	return (*cmStream)(s), nil
}

// Disconnect implements cm.Stream.
func (s *cmStream) Disconnect() { (*stream)(s).disconnect() }

// Destroy implements cm.Stream.
func (s *cmStream) Destroy() {
	own := (*stream)(s)
	own.fail(&ending{cause: errIDDestroyed})
	own.settle()
}
