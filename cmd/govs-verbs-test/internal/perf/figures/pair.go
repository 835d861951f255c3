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

	"github.com/govs-rdma/govs/cmd/govs-verbs-test/internal/perf/load"
	"github.com/govs-rdma/govs/cmd/govs-verbs-test/internal/perf/worker"
)

// pair is the two ends, processes both, and what has been set up between them.
type pair struct {
	client, server *end
	servers        map[peer]netip.AddrPort // where the server listens, by device and address asked for
}

// startPair starts both ends, each in a network namespace of its own if they are apart.
func startPair(ctx context.Context, c Config, apart bool) (*pair, error) {
	server, err := startEnd(ctx, c, c.ServerCPU, apart)
	if err != nil {
		return nil, fmt.Errorf("server: %w", err)
	}
	client, err := startEnd(ctx, c, c.ClientCPU, apart)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("client: %w", err), server.Close())
	}
	return &pair{client: client, server: server, servers: make(map[peer]netip.AddrPort)}, nil
}

func (p *pair) close() error { return errors.Join(p.client.Close(), p.server.Close()) }

// run has the client run a workload with the server.
func (p *pair) run(ctx context.Context, d Device, addr netip.Addr, spec load.Spec) (load.Result, error) {
	at, err := p.listening(ctx, d, addr)
	if err != nil {
		return load.Result{}, fmt.Errorf("server: %w", err)
	}
	a, err := p.client.order(ctx, order{Run: &spec, Over: &d, Addr: at})
	if err != nil {
		return load.Result{}, err
	}
	return *a.Result, nil
}

// listening has the server listen, once.
func (p *pair) listening(ctx context.Context, d Device, addr netip.Addr) (netip.AddrPort, error) {
	key := peer{d, netip.AddrPortFrom(addr, 0)}
	if at, ok := p.servers[key]; ok {
		return at, nil
	}
	a, err := p.server.order(ctx, order{Listen: &d, Addr: key.addr})
	if err == nil {
		p.servers[key] = a.Addr
	}
	return a.Addr, err
}

// end is a process that takes orders.
type end struct {
	*worker.Process[order, answer]
	who load.End
}

func startEnd(ctx context.Context, c Config, cpu int, apart bool) (*end, error) {
	cmd := exec.CommandContext(ctx, c.Worker[0], c.Worker[1:]...)
	cmd.Env = append(os.Environ(), "GOMAXPROCS="+strconv.Itoa(c.Procs))
	if apart {
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	}
	p, err := worker.Start[order, answer](cmd, cpu)
	if err != nil {
		return nil, err
	}
	e := &end{Process: p}
	a, err := e.order(ctx, order{Who: true})
	if err == nil && a.End == nil {
		err = errors.New("it does not say who it is")
	}
	if err != nil {
		return nil, errors.Join(err, e.Close())
	}
	e.who = *a.End
	return e, nil
}

// patience is how long an order may take: a connection with a message lost in it,
// or one of thousands of QPs, takes seconds.
const patience = 2 * time.Minute

func (e *end) order(ctx context.Context, o order) (answer, error) { return e.Order(ctx, o, patience) }
