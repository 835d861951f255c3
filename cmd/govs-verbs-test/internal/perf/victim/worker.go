package victim

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/govs-rdma/govs/cmd/govs-verbs-test/internal/perf/load"
	"github.com/govs-rdma/govs/cmd/govs-verbs-test/internal/perf/pin"
	"github.com/govs-rdma/govs/ibverbs"
)

// Role is what one of the three processes is.
type Role string

// The processes.
const (
	RoleServer Role = "server"
	RoleClient Role = "client"
	RolePeers  Role = "peers"
)

// A process does what the one that started it says: an order in a line of JSON on its
// stdin, an answer in a line on its stdout.

// setting is the first order, and says what all others are done with.
type setting struct {
	CRC    bool
	Cong   string
	Poll   load.Poll     // server: how the victim's end waits
	Spin   bool          // client: it spins
	Busy   time.Duration // of the device, as engine.Options has it
	Normal bool          // peers: with the scheduler's usual policy
}

// order is what a process is to do. One of its fields is set.
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
	Error          string   `json:",omitempty"`
	Victim, Others addrPort `json:",omitzero"`  // server: where it listens
	Policy         string   `json:",omitempty"` // peers: the scheduler's
	Pings          *Pings   `json:",omitempty"`
	Counts         Counts   `json:",omitzero"`
	Usage          Usage    `json:",omitzero"`
	Live           int64    `json:",omitempty"` // server: connections of peers
}

// Serve is one of the processes: it takes orders from in until that ends.
func Serve(ctx context.Context, role Role, in io.Reader, out io.Writer) (err error) {
	ctx, stop := context.WithCancel(ctx)
	w := &worker{ctx: ctx, role: role}
	defer func() { err = errors.Join(err, w.close(stop)) }()
	say := json.NewEncoder(out)
	lines := bufio.NewScanner(in)
	for lines.Scan() {
		var o order
		if err := json.Unmarshal(lines.Bytes(), &o); err != nil {
			return fmt.Errorf("an order: %w", err)
		}
		a, err := w.do(o)
		if err != nil {
			a.Error = err.Error()
		}
		if err := say.Encode(a); err != nil {
			return err
		}
	}
	return lines.Err()
}

// worker is a process. It does one thing at a time.
type worker struct {
	ctx    context.Context
	role   Role
	set    setting
	vctx   *ibverbs.Context
	server *server
	client *echo
	peers  *hostile
	ended  Counts // of peers that are no more
}

func (w *worker) do(o order) (a answer, err error) {
	switch {
	case o.Set != nil:
		return w.setUp(*o.Set)
	case o.Dial != nil && w.role == RoleClient:
		w.client, err = dial(w.ctx, w.vctx, *o.Dial, w.set.Spin)
	case o.Ping != nil && w.client != nil:
		a.Pings, err = w.client.pings(w.ctx, o.Ping.Time, o.Ping.Every)
	case o.Begin != nil && w.role == RolePeers && w.peers == nil:
		w.peers, err = begin(w.ctx, o.Begin.Addr, o.Begin.Kind, o.Begin.Peers, w.set.CRC, w.set.Cong)
	case o.End && w.peers != nil:
		w.peers.end()
		w.ended, w.peers = w.ended.plus(w.peers.counts.now()), nil
	case o.Look:
		return w.look()
	default:
		err = errors.New("an order to do nothing")
	}
	return a, err
}

// setUp makes the process what it is.
func (w *worker) setUp(s setting) (a answer, err error) {
	w.set = s
	if w.role == RolePeers {
		if a.Policy = "SCHED_OTHER"; !s.Normal {
			a.Policy, err = "SCHED_IDLE", pin.Lowest()
		}
		return a, err
	}
	if w.vctx, err = device(s.CRC, s.Cong, s.Busy); err != nil || w.role == RoleClient {
		return a, err
	}
	if w.server, err = serve(w.ctx, w.vctx, s.Poll); err != nil {
		return a, err
	}
	a.Victim, a.Others = w.server.victim.Addr(), w.server.others.Addr()
	return a, nil
}

// look tells what was done and used so far.
func (w *worker) look() (a answer, err error) {
	a.Counts = w.ended
	if w.peers != nil {
		a.Counts = a.Counts.plus(w.peers.counts.now())
	}
	if w.server != nil {
		a.Live = w.server.live.Load()
	}
	a.Usage, err = usage()
	return a, err
}

// close ends everything in the order in which it can end.
func (w *worker) close(stop func()) error {
	var errs []error
	if w.peers != nil {
		w.peers.end()
	}
	stop()
	if w.client != nil {
		errs = append(errs, w.client.close())
	}
	if w.server != nil {
		errs = append(errs, w.server.close())
	}
	if w.vctx != nil {
		errs = append(errs, w.vctx.Close())
	}
	return errors.Join(errs...)
}
