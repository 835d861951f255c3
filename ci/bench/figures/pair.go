package figures

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"time"

	"github.com/govs-rdma/govs/ci/bench/load"
	"github.com/govs-rdma/govs/ci/bench/worker"
)

// order is an order to govs-verbs-test perf end. One of Who, Listen and Run is set.
type order struct {
	Who    bool         `json:",omitempty"` // describe the end
	Listen *load.Device `json:",omitempty"` // server: listen over it, at Addr
	Run    *load.Spec   `json:",omitempty"` // client: run it over Over, with the server at Addr

	Over *load.Device   `json:",omitempty"`
	Addr netip.AddrPort `json:",omitzero"`
}

type answer struct {
	End    *load.End
	Addr   netip.AddrPort
	Spec   *load.Spec // the run's spec, with its defaults
	Result *load.Result
}

// peer is where a server listens, and for what.
type peer struct {
	device load.Device
	addr   netip.Addr
}

// pair has the two ends, which are processes, and their listeners.
type pair struct {
	client, server *worker.Process[order, answer]
	who            load.End                // what both are
	servers        map[peer]netip.AddrPort // where the server listens
}

// startPair starts both ends, each in a network namespace of its own if they are apart.
func startPair(ctx context.Context, c Config, apart bool) (_ *pair, err error) {
	p := &pair{servers: make(map[peer]netip.AddrPort)}
	if p.server, err = startEnd[order, answer](ctx, c, c.Worker, c.ServerCPU, apart); err != nil {
		return nil, fmt.Errorf("server: %w", err)
	}
	if p.client, err = startEnd[order, answer](ctx, c, c.Worker, c.ClientCPU, apart); err != nil {
		return nil, errors.Join(fmt.Errorf("client: %w", err), p.server.Close())
	}
	for _, end := range []*worker.Process[order, answer]{p.client, p.server} {
		a, err := end.Order(ctx, order{Who: true}, patience)
		if err == nil && a.End == nil {
			err = errors.New("it does not say who it is")
		}
		if err != nil {
			return nil, errors.Join(err, p.close())
		}
		p.who = *a.End
	}
	return p, nil
}

func (p *pair) close() error { return errors.Join(p.client.Close(), p.server.Close()) }

// run makes the client run a workload with the server. The answer has its result.
func (p *pair) run(ctx context.Context, d load.Device, addr netip.Addr, spec load.Spec) (answer, error) {
	at, err := p.listening(ctx, d, addr)
	if err != nil {
		return answer{}, fmt.Errorf("server: %w", err)
	}
	a, err := p.client.Order(ctx, order{Run: &spec, Over: &d, Addr: at}, patience)
	if err == nil && (a.Result == nil || a.Spec == nil) {
		err = errors.New("an answer without a result")
	}
	return a, err
}

// listening makes the server listen, once.
func (p *pair) listening(ctx context.Context, d load.Device, addr netip.Addr) (netip.AddrPort, error) {
	key := peer{d, addr}
	if at, ok := p.servers[key]; ok {
		return at, nil
	}
	o := order{Listen: &d, Addr: netip.AddrPortFrom(addr, 0)}
	a, err := p.server.Order(ctx, o, patience)
	if err == nil {
		p.servers[key] = a.Addr
	}
	return a.Addr, err
}

// patience is how long an order may take. A connection that loses a message, or one of thousands of
// QPs, takes seconds.
const patience = 2 * time.Minute

// startEnd starts a process that takes orders, on a CPU.
func startEnd[O, A any](ctx context.Context, c Config, command []string, cpu int, apart bool) (
	*worker.Process[O, A], error,
) {
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Env = append(os.Environ(), "GOMAXPROCS="+strconv.Itoa(c.Procs))
	if apart {
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	}
	return worker.Start[O, A](cmd, cpu)
}
