package victim

import (
	"context"
	"errors"
	"io"
	"time"

	"golang.org/x/sys/unix"

	"github.com/govs-rdma/govs/ci/bench/load"
	"github.com/govs-rdma/govs/ci/bench/worker"
	"github.com/govs-rdma/govs/ibverbs"
)

// Role is one of the three processes.
type Role string

// The processes.
const (
	RoleServer Role = "server"
	RoleClient Role = "client"
	RolePeers  Role = "peers"
)

// setting is the first order to a process. It holds for all others.
type setting struct {
	Poll load.Poll     // server: how its end of the victim's connection waits
	Spin bool          // client: whether it spins
	Busy time.Duration // of the device, as engine.Options has it
}

// order is an order to a process. One of its fields is set.
type order struct {
	Set   *setting    `json:",omitempty"`
	Dial  *addrPort   `json:",omitempty"` // client
	Ping  *pingOrder  `json:",omitempty"` // client
	Begin *beginOrder `json:",omitempty"` // peers
	End   bool        `json:",omitempty"` // peers
	Look  bool        `json:",omitempty"`
}

type pingOrder struct{ Time, Every time.Duration }

type beginOrder struct {
	Addr  addrPort
	Kind  Kind
	Peers int
}

type answer struct {
	Victim, Others addrPort `json:",omitzero"`  // server: where it listens
	Policy         string   `json:",omitempty"` // peers: the scheduler's
	Pings          *Pings   `json:",omitempty"`
	Counts         Counts   `json:",omitzero"`
	Live           int64    `json:",omitempty"` // server: connections of peers
}

// Serve is one of the processes: it takes orders from in until that ends.
func Serve(ctx context.Context, role Role, in io.Reader, out io.Writer) (err error) {
	ctx, stop := context.WithCancel(ctx)
	x := &executor{ctx: ctx, role: role}
	defer func() { err = errors.Join(err, x.close(stop)) }()
	return worker.Serve(in, out, x.do)
}

// executor carries out the orders to a process, one at a time.
type executor struct {
	ctx    context.Context
	role   Role
	set    setting
	vctx   *ibverbs.Context
	server *server
	client *echo
	peers  *hostile
	ended  Counts // of peers that have been ended
}

func (x *executor) do(o order) (a answer, err error) {
	switch {
	case o.Set != nil:
		return x.setUp(*o.Set)
	case o.Dial != nil && x.role == RoleClient:
		x.client, err = dial(x.ctx, x.vctx, *o.Dial, x.set.Spin)
	case o.Ping != nil && x.client != nil:
		a.Pings, err = x.client.pings(x.ctx, o.Ping.Time, o.Ping.Every)
	case o.Begin != nil && x.role == RolePeers && x.peers == nil:
		x.peers, err = begin(x.ctx, o.Begin.Addr, o.Begin.Kind, o.Begin.Peers)
	case o.End && x.peers != nil:
		x.peers.end()
		x.ended, x.peers = x.ended.plus(x.peers.counts.now()), nil
	case o.Look:
		return x.look(), nil
	default:
		err = errors.New("the order has nothing that this process can do")
	}
	return a, err
}

// setUp prepares the process for its role.
func (x *executor) setUp(s setting) (a answer, err error) {
	x.set = s
	if x.role == RolePeers {
		attr, err := unix.SchedGetAttr(0, 0)
		if err != nil {
			return a, err
		}
		if a.Policy = "SCHED_OTHER"; attr.Policy == unix.SCHED_IDLE {
			a.Policy = "SCHED_IDLE"
		}
		return a, nil
	}
	if x.vctx, err = device(s.Busy); err != nil || x.role == RoleClient {
		return a, err
	}
	if x.server, err = serve(x.ctx, x.vctx, s.Poll); err != nil {
		return a, err
	}
	a.Victim, a.Others = x.server.victim.Addr(), x.server.others.Addr()
	return a, nil
}

// look returns the actions so far.
func (x *executor) look() (a answer) {
	a.Counts = x.ended
	if x.peers != nil {
		a.Counts = a.Counts.plus(x.peers.counts.now())
	}
	if x.server != nil {
		a.Live = x.server.live.Load()
	}
	return a
}

// close ends the peers first, then the contexts of the rest, then closes what they used.
func (x *executor) close(stop func()) error {
	var errs []error
	if x.peers != nil {
		x.peers.end()
	}
	stop()
	if x.client != nil {
		errs = append(errs, x.client.close())
	}
	if x.server != nil {
		errs = append(errs, x.server.close())
	}
	if x.vctx != nil {
		errs = append(errs, x.vctx.Close())
	}
	return errors.Join(errs...)
}
