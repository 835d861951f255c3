package cm

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"syscall"

	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/iwarp"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
)

// maxDepth as ResponderResources or InitiatorDepth asks for the device's maximum (librdmacm's
// RDMA_MAX_RESP_RES, RDMA_MAX_INIT_DEPTH).
const maxDepth = 0xff

// checkDepths checks the read depths of param and replaces maxDepth. It rounds IRD up to a power of
// two, because siw rounds up what it is granted, and uses it.
func (m *Manager) checkDepths(param provider.ConnParam) (ird, ord int, err error) {
	ird, ord = param.ResponderResources, param.InitiatorDepth
	if ird == maxDepth {
		ird = m.cfg.MPA.MaxIRD
	}
	if ord == maxDepth {
		ord = m.cfg.MaxORD
	}
	switch {
	case ird < 0 || ird > m.cfg.MPA.MaxIRD:
		return 0, 0, depthOutside("ResponderResources (IRD)", ird, m.cfg.MPA.MaxIRD)
	case ord < 0 || ord > m.cfg.MaxORD:
		return 0, 0, depthOutside("InitiatorDepth (ORD)", ord, m.cfg.MaxORD)
	}
	return RoundDepth(ird), ord, nil
}

// depthOutside returns EINVAL for a read depth out of range. Programs often set depths in
// rdmacm.ConnConfig, where other values have a meaning.
func depthOutside(name string, depth, limit int) error {
	return fmt.Errorf("%s is %d, and must be from 0 to %d (in ConnConfig 0 means the default, and a negative "+
		"value none): %w", name, depth, limit, syscall.EINVAL)
}

// checkPrivateData returns an error that names the limit. The layer below would only refuse.
//
//rfc:5044 MPA-7.1.1-18 Private data at most 512 octets
//rfc:6581 MPA2-6-07 ULP private data limited to 508 when enhanced
func checkPrivateData(private []byte, enhanced bool) error {
	limit, revision := mpa.MaxPrivateData, "5044"
	if enhanced {
		limit, revision = limit-mpa.EnhancedLen, "6581"
	}
	if len(private) > limit {
		return fmt.Errorf("%d bytes of private data are too many, because the message has room for %d "+
			"(RFC %s); send the rest in a message after it: %w", len(private), limit, revision,
			syscall.EINVAL)
	}
	return nil
}

// RoundDepth rounds the number of inbound Reads up to a power of two, because siw does so with the
// number in the start-up frames and uses the result.
//
//rfc:5040 RDMAP-6.1-02 Inbound read limit (IRD) provided as negotiated
func RoundDepth(ird int) int {
	if ird <= 0 {
		return 0
	}
	return 1 << bits.Len(uint(ird-1))
}

// connectable returns the QP on which a connection of id is to run. id.mu is held.
func (id *ID) connectable(param provider.ConnParam) (QP, error) {
	q := id.qp
	if !id.hasQP() {
		if param.QP == nil {
			return nil, fmt.Errorf("it has no QP; call ID.CreateQP, or set ConnParam.QP: %w", syscall.EINVAL)
		}
		own, err := id.m.host.QP(param.QP)
		if err != nil {
			return nil, err
		}
		q = own
	}
	return q, q.CheckConnectable()
}

// establishedEvent returns the event of an established connection, with the peer's private data and
// the agreed read depths as this side sees them: Reads that it serves, and Reads that it may have
// outstanding.
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

// failureEvent returns the event of a connection that could not be made, by the rules of the
// kernel's cma_iw_handler:
//
//   - REJECTED: -ECONNREFUSED if the peer's program rejected (only then is there private data) or
//     nobody listens; -ECONNRESET if the peer hung up without an answer. siw reports -ECONNRESET
//     for both.
//   - UNREACHABLE: no answer in time, or no route to the host.
//   - CONNECT_ERROR: all else; -EINVAL for an answer that violates the protocol.
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
	if r.Enhanced { // the depths that the responder needs on our side
		e.Param.ResponderResources = negotiable(r.ORD, maxDepth)
		e.Param.InitiatorDepth = negotiable(r.IRD, maxDepth)
	}
	return e
}

// negotiable returns a depth as a peer sent it, or limit if the peer left the depth to the
// programs.
func negotiable(depth, limit int) int {
	if depth == mpa.NotNegotiated {
		return limit
	}
	return min(depth, limit)
}
