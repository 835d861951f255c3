//go:build cgo && linux && !nokernel

package kernel

import (
	"runtime"

	"github.com/govs-rdma/govs/cgo/rdmacm"
	"github.com/govs-rdma/govs/provider"
)

// On InfiniBand and RoCE the connection manager's messages do not pass through the QP, so librdmacm
// leaves to its user what iWARP's drivers do in the kernel. This file does what the contract
// requires of every device.

// cmConnectResponse is RDMA_CM_EVENT_CONNECT_RESPONSE: the peer has accepted, and librdmacm knows
// no QP of the id. This package handles the event and does not pass it on.
const cmConnectResponse provider.CMEventType = 5

// onIB reports whether the id is bound to an InfiniBand or RoCE device.
func (i *id) onIB() (ib bool) {
	i.addrs(func(c *rdmacm.ID) {
		if verbs := c.Verbs(); verbs != nil {
			ib = provider.TransportType(verbs.Device().TransportType()) == provider.TransportIB
		}
	})
	return ib
}

// lockAfterConnect locks the id to handle an event, which may arrive before Connect has returned.
func (i *id) lockAfterConnect() error {
	for {
		i.mu.Lock()
		call := i.connecting
		i.mu.Unlock()
		if call == nil {
			return i.lock()
		}
		<-call.done
		runtime.Gosched() // the goroutine in Connect takes the lock to record that it has returned
	}
}

// moveQP moves a QP that the id does not own through states of its connection.
func (i *id) moveQP(q *qp, ird, ord int, states ...provider.QPState) error {
	if err := i.lockAfterConnect(); err != nil {
		return err
	}
	defer i.mu.Unlock()
	for _, state := range states {
		reads := ord
		if state == provider.QPRTR {
			reads = ird
		}
		if err := i.c.ModifyQP(q.c, uint32(state), reads); err != nil {
			return err
		}
	}
	return nil
}

// prepareConnect moves a QP that the id does not own to the states that Connect needs.
func (i *id) prepareConnect(q *qp, _ *rdmacm.ConnParam) error {
	if !i.onIB() {
		return nil
	}
	return i.moveQP(q, -1, -1, provider.QPInit)
}

// prepareAccept moves a QP that the id does not own to the states that Accept needs.
func (i *id) prepareAccept(q *qp, p *rdmacm.ConnParam) error {
	if !i.onIB() {
		return nil
	}
	return i.moveQP(q, int(p.ResponderResources), int(p.InitiatorDepth), provider.QPInit, provider.QPRTR, provider.QPRTS)
}

// respond completes Connect for a QP that the id does not own, and changes the event as librdmacm
// does for a QP that the id owns.
func (i *id) respond(ev *provider.CMEvent) {
	err := i.finish()
	if err == nil {
		ev.Type = provider.CMEstablished
		return
	}
	ev.Type, ev.Cause = provider.CMConnectError, err
	if errno := provider.Errno(err); errno != 0 {
		ev.Status = -int(errno)
	}
	_ = i.Reject(nil) // the connection fails even if the peer cannot be informed
}

func (i *id) finish() error {
	q := i.qp.Load()
	if q == nil {
		return nil
	}
	if err := q.enter(); err != nil {
		return err
	}
	defer q.leave()
	if err := i.moveQP(q, -1, -1, provider.QPRTR, provider.QPRTS); err != nil {
		return err
	}
	if err := i.lockAfterConnect(); err != nil {
		return err
	}
	defer i.mu.Unlock()
	err := i.c.Establish()
	if err == nil {
		i.established() // under the lock, see nowConnected
	}
	return err
}

// leave answers the peer's disconnect. Without the answer, the peer would wait more than a minute
// for DISCONNECTED, and our own QP would stay in RTS: rdma_disconnect(3) leaves both to the
// program. iWARP does not need this, because TCP informs both ends.
func (i *id) leave() {
	if !i.onIB() {
		return
	}
	i.mu.Lock()
	left := i.left
	i.mu.Unlock()
	if !left {
		_ = i.Disconnect() // the connection has ended in any case
	}
}
