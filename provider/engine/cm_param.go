package engine

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"syscall"

	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/iwarp"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
)

// maxDepth as ResponderResources or InitiatorDepth asks for what the device
// allows (RDMA_MAX_RESP_RES, RDMA_MAX_INIT_DEPTH of librdmacm).
const maxDepth = 0xff

// checkDepths checks the read depths of param and replaces maxDepth. IRD comes
// as a power of two: siw rounds what it is granted up to one, and uses it.
func (d *device) checkDepths(param provider.ConnParam) (ird, ord int, err error) {
	ird, ord = param.ResponderResources, param.InitiatorDepth
	if ird == maxDepth {
		ird = d.opts.MaxIRD
	}
	if ord == maxDepth {
		ord = d.opts.MaxORD
	}
	switch {
	case ird < 0 || ird > d.opts.MaxIRD:
		return 0, 0, depthOutside("ResponderResources (IRD)", ird, d.opts.MaxIRD)
	case ord < 0 || ord > d.opts.MaxORD:
		return 0, 0, depthOutside("InitiatorDepth (ORD)", ord, d.opts.MaxORD)
	}
	return roundDepth(ird), ord, nil
}

// depthOutside is outside for a read depth, which programs often set in rdmacm.ConnConfig, where
// other values have a meaning.
func depthOutside(name string, depth, limit int) error {
	return fmt.Errorf("%s is %d, and must be from 0 to %d (in ConnConfig, 0 is the default and a negative one none): %w",
		name, depth, limit, syscall.EINVAL)
}

// checkPrivateData names the limit where the layer below would only refuse.
//
//rfc:5044 MPA-7.1.1-18 Private data at most 512 octets
//rfc:6581 MPA2-6-07 ULP private data limited to 508 when enhanced
func checkPrivateData(private []byte, enhanced bool) error {
	limit, revision := mpa.MaxPrivateData, "5044"
	if enhanced {
		limit, revision = limit-mpa.EnhancedLen, "6581"
	}
	if len(private) > limit {
		return fmt.Errorf("%d bytes of private data, limit %d (RFC %s): %w", len(private), limit, revision, syscall.EINVAL)
	}
	return nil
}

// startupConfig is how the engine starts MPA up, in either role. Deadlines are
// the caller's.
func (d *device) startupConfig() mpa.Config {
	cfg := mpa.Config{RDMAC: d.opts.RDMAC, Markers: d.opts.Markers, MaxIRD: d.opts.MaxIRD, RTR: d.opts.RTR}
	switch d.opts.CRC {
	case CRCOff:
		cfg.CRC = mpa.CRCOff
	case CRCRequired:
		cfg.CRC = mpa.CRCRequired
	}
	return cfg
}

// connectable returns the QP that a connection of id is to run on. id.mu is
// held.
func (id *cmID) connectable(param provider.ConnParam) (*qp, error) {
	q := id.qp
	if !id.hasQP() {
		if param.QP == nil {
			return nil, fmt.Errorf("it has no QP; call ID.CreateQP, or set ConnParam.QP: %w", syscall.EINVAL)
		}
		own, ok := param.QP.(*qp)
		if !ok || own.dev != id.dev {
			return nil, fmt.Errorf("QP: %w: %w", errForeign, syscall.EINVAL)
		}
		q = own
	}
	switch state := q.getState(); {
	case q.isClosed():
		return nil, fmt.Errorf("%s is closed: %w", q.name(), syscall.EINVAL)
	case state != provider.QPReset && state != provider.QPInit && state != provider.QPRTR:
		return nil, fmt.Errorf("%s is in %s: %w", q.name(), state, syscall.EINVAL)
	}
	return q, nil
}

// establishedEvent makes the event of a connection that works: what the peer sent,
// and the read depths that were agreed, from our point of view: Reads that we
// serve and Reads that we may have outstanding.
//
//rfc:5044 MPA-7.1.1-20 Private data handed to the ULP unchanged
//rfc:5044 RDMAC-C.2-01 ULP informed that version 0 is in use
//rfc:6581 MPA2-9.1-09 Initiator passes responder IRD/ORD to ULP, also on reject
func establishedEvent(p mpa.Params) provider.CMEvent {
	return provider.CMEvent{
		Type: provider.CMEstablished,
		Param: provider.ConnParam{
			PrivateData:        bytes.Clone(p.PeerPrivateData),
			ResponderResources: p.IRD,
			InitiatorDepth:     p.ORD,
		},
		RDMAC: p.RDMAC,
	}
}

// failureEvent makes the event of a connection that did not come about, by the
// rules of the kernel's cma_iw_handler:
//
//   - REJECTED: -ECONNREFUSED when the peer's program said no (only then is there
//     private data) or nobody listens; -ECONNRESET when the peer hung up without
//     an answer. siw reports -ECONNRESET for both.
//   - UNREACHABLE: no answer in time, or no way to the host.
//   - CONNECT_ERROR: all else; -EINVAL for an answer that breaks the protocol.
//
//rfc:5044 MPA-7.1.2-3-03 R=1: exit MPA, TCP left open
//rfc:5044 MPA-7.1.2-5-01 Wrong key closes TCP and reports to ULP
//rfc:6581 MPA2-9.1-09 Initiator passes responder IRD/ORD to ULP, also on reject
func failureEvent(err error) provider.CMEvent {
	e := failureOf(err)
	e.Cause = err
	return e
}

func failureOf(err error) provider.CMEvent {
	var rejected *mpa.RejectedError
	var protocol *iwarp.Error
	switch {
	case errors.As(err, &rejected):
		return rejectedEvent(rejected)
	case errors.As(err, &protocol):
		return provider.CMEvent{Type: provider.CMConnectError, Status: -int(syscall.EINVAL)}
	case errors.Is(err, io.EOF), errors.Is(err, syscall.EPIPE):
		err = syscall.ECONNRESET
	}
	e := provider.CMEvent{Type: provider.CMConnectError, Status: status(err)}
	switch syscall.Errno(-e.Status) {
	case syscall.ECONNRESET, syscall.ECONNREFUSED:
		e.Type = provider.CMRejected
	case syscall.ETIMEDOUT, syscall.EHOSTUNREACH, syscall.ENETUNREACH, syscall.EHOSTDOWN:
		e.Type = provider.CMUnreachable
	}
	return e
}

func rejectedEvent(r *mpa.RejectedError) provider.CMEvent {
	e := provider.CMEvent{
		Type:   provider.CMRejected,
		Status: -int(syscall.ECONNREFUSED),
		Param:  provider.ConnParam{PrivateData: r.PrivateData},
	}
	if r.Enhanced { // what the responder would have needed of us
		e.Param.ResponderResources, e.Param.InitiatorDepth = negotiable(r.ORD, maxDepth), negotiable(r.IRD, maxDepth)
	}
	return e
}

// negotiable returns a depth as a peer sent it, or limit if it left it to the
// programs.
func negotiable(depth, limit int) int {
	if depth == mpa.NotNegotiated {
		return limit
	}
	return min(depth, limit)
}
