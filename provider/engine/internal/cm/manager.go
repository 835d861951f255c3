package cm

import (
	"net/netip"
	"sync"
	"time"

	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/engine/transport"
	"github.com/govs-rdma/govs/provider/iwarp/mpa"
)

// Config says how a Manager makes connections. A zero is a value, not a default. Where a field has
// the name of one of engine.Options, its comment is there.
type Config struct {
	Device  string // ID.DeviceName of an id that is bound to an address
	Network transport.Network

	MPA      mpa.Config // of both roles, without Revision and Deadline
	Revision uint8      // of Connect's first Request: 1 or 2
	Offer    mpa.Offer  // of Connect, without depths and private data
	MaxORD   int        // MPA.MaxIRD is the limit of the other direction

	// Connect tries once more with revision 1 if RetryUnenhanced, after a Reply that is not
	// enhanced, and, if RetryClosed as well, after the peer has hung up without a Reply.
	RetryUnenhanced, RetryClosed bool

	StartupTimeout time.Duration

	MaxPending, MaxPendingPerPeer   int
	MaxAccepted, MaxAcceptedPerPeer int
}

// Host is the device of a Manager. Its methods may be called concurrently, and wait for no peer.
type Host interface {
	// Poller returns the poller of connections in the start-up.
	Poller() transport.Poller

	// Step runs f, a step in setting up or ending a connection, after a few steps of other
	// connections that are under way. f must not wait for anything that takes long.
	Step(f func())

	// Yield serves what is ready on other connections, and lets other goroutines run.
	Yield()

	// Woke notes that a goroutine of a start-up was woken, and may not have run yet.
	Woke()

	// CloseAfter sends last, then FIN, and closes conn after the peer's FIN or a time limit. It
	// takes over conn, which no poller watches, and does not wait.
	CloseAfter(conn transport.Conn, last []byte)

	// Refused notes that the limit of this name has refused a connection of peer.
	Refused(limit string, peer netip.AddrPort)

	// Failed notes that a start-up has failed. side is "dialler" or "listener".
	Failed(side string, peer netip.AddrPort, err error)

	// CreateQP makes a QP in INIT. Its errors are complete.
	CreateQP(p provider.PD, init provider.QPInitAttr) (provider.QP, error)

	// QP returns a QP of the device, or EINVAL for one of another.
	QP(q provider.QP) (QP, error)

	// Release undoes the hold that the caller of NewEventChannel had.
	Release()
}

// QP is a queue pair of the Host. Its methods may be called concurrently.
type QP interface {
	// Closed reports whether the program has closed it.
	Closed() bool

	// CheckConnectable returns EINVAL for a QP that is closed, or in a state from which it can't
	// be connected.
	CheckConnectable() error

	// Begin takes over conn, which has finished the start-up with params, and moves the QP to RTS.
	// admitted says that the Manager counts the connection, at least until down is called. down is
	// called once, without any lock and on any goroutine, when the connection has ended, perhaps
	// before Begin returns. If Begin fails, down is not called, and conn is still the caller's.
	Begin(conn transport.Conn, params mpa.Params, admitted bool, down func(error)) (Stream, error)
}

// Stream is the connection of a QP. Its methods return at once, and do nothing after its end.
type Stream interface {
	// Disconnect ends it gracefully, as rdma_disconnect does.
	Disconnect()

	// Destroy ends it because the program has closed its id.
	Destroy()
}

// Manager makes the connections of one device.
type Manager struct {
	cfg      Config
	host     Host
	accepted admission
	requests sync.WaitGroup // goroutines of ids that came with a CONNECT_REQUEST
}

// New makes a Manager.
func New(cfg Config, host Host) *Manager { return &Manager{cfg: cfg, host: host} }

// Wait returns when no goroutine of a request is left. The program has closed all event channels.
// Such a goroutine may still be there, because nobody closes the id of a request whose peer has
// left before the program fetched it.
func (m *Manager) Wait() { m.requests.Wait() }
