package mutants

import (
	"fmt"
	"net/netip"
	"sync/atomic"
	"syscall"

	"github.com/govs-rdma/govs/provider"
)

// told is a fault that changes the events of the connection manager.
func told(change func(e *provider.CMEvent) (deliver bool)) func(*world) *verbsFault {
	return func(*world) *verbsFault { return &verbsFault{event: change} }
}

// cmMutants make connections the wrong way, or report them wrongly to their program.
func cmMutants() []*Mutant {
	return []*Mutant{
		{
			Name: "end-untold", What: "does not report that a connection has ended",
			CaughtBy: []string{"conn/disconnect-initiator", "conn/disconnect-responder", "mpa/reset", "mpa/cut-then-reset"},
			verbs:    told(func(e *provider.CMEvent) bool { return e.Type != provider.CMDisconnected }),
		},
		{
			Name: "private-data-lost", What: "does not hand private data on",
			CaughtBy: []string{
				"conn/private-data-1", "conn/private-data-56", "conn/private-data-251", "conn/many-at-once",
				"mpa/request-private-data-1", "mpa/request-private-data-252", "mpa/request-private-data-253", "mpa/request-private-data-508",
				"mpa/reply-private-data-1", "mpa/reply-private-data-251", "mpa/reply-private-data-252", "mpa/reply-private-data-253", "mpa/reply-private-data-508",
				"mpa/reply-rejects-9",
			},
			verbs: told(func(e *provider.CMEvent) bool {
				e.Param.PrivateData = nil
				return true
			}),
		},
		{
			Name: "depths-in-private-data", What: "hands enhanced connection data on as private data",
			CaughtBy: []string{
				"conn/private-data-0", "mpa/request-private-data-0", "mpa/reply-private-data-0", "mpa/reply-rejects-0",
			},
			verbs: told(func(e *provider.CMEvent) bool {
				e.Param.PrivateData = append([]byte{0, 4, 0, 4}, e.Param.PrivateData...)
				return true
			}),
		},
		{
			Name: "rejection-mistold", What: "reports a rejection as a host that can't be reached",
			CaughtBy: []string{"conn/reject", "mpa/reply-rejects-0", "mpa/reply-rejects-9"},
			verbs: told(func(e *provider.CMEvent) bool {
				if e.Type == provider.CMRejected {
					e.Type = provider.CMUnreachable
				}
				return true
			}),
		},
		{
			Name:     "rejection-by-nobody",
			What:     "reports a rejection by the peer's program as one by the connection manager",
			CaughtBy: []string{"conn/reject", "mpa/reply-rejects-0", "mpa/reply-rejects-9"},
			verbs: told(func(e *provider.CMEvent) bool {
				if e.Type == provider.CMRejected {
					e.Status = -int(syscall.ECONNRESET)
				}
				return true
			}),
		},
		{
			Name: "refusal-mistold", What: "reports a port without a listener as a time-out",
			CaughtBy: []string{"conn/no-listener"},
			network: func() *networkFault {
				return &networkFault{dialed: func(error) error { return fmt.Errorf("dial: %w", syscall.ETIMEDOUT) }}
			},
		},
		{
			Name: "one-peer", What: "serves one peer, and no other",
			CaughtBy: []string{"conn/many-in-turn", "mpa/request-key-first"},
			network: func() *networkFault {
				var served atomic.Bool
				return &networkFault{accept: func() bool { return !served.Swap(true) }}
			},
		},
		{
			Name: "wildcard-refused", What: "does not listen on all addresses",
			CaughtBy: []string{"mpa/wildcard-listen"},
			network: func() *networkFault {
				return &networkFault{bind: func(local netip.AddrPort) error {
					if local.Addr().IsUnspecified() && local.Port() != 0 {
						return fmt.Errorf("bind %v: %w", local, syscall.EADDRNOTAVAIL)
					}
					return nil
				}}
			},
		},
	}
}
