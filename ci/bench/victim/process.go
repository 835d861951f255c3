package victim

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"

	"github.com/govs-rdma/govs/ci/bench/load"
	"github.com/govs-rdma/govs/ci/bench/worker"
)

// process is a worker process with its role, which its errors name.
type process struct {
	role   Role
	worker *worker.Process[order, answer]
}

func start(ctx context.Context, c *Config, role Role, cpu int) (*process, error) {
	cmd := exec.CommandContext(ctx, c.Worker[0], append(c.Worker[1:], string(role))...)
	cmd.Env = append(os.Environ(), "GOMAXPROCS=1")
	if role == RolePeers && !c.Normal {
		if err := worker.WhenIdle(cmd); err != nil {
			return nil, fmt.Errorf("%s: %w", role, err)
		}
	}
	w, err := worker.Start[order, answer](cmd, cpu)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", role, err)
	}
	return &process{role, w}, nil
}

// slack is how much longer than asked for an order may take.
const slack = time.Minute

// order gives an order, which takes about the time about, and waits for the answer.
func (p *process) order(ctx context.Context, o order, about time.Duration) (answer, error) {
	a, err := p.worker.Order(ctx, o, about+slack)
	if err != nil {
		err = fmt.Errorf("%s: %w", p.role, err)
	}
	return a, err
}

// close makes the process end, and waits for it.
func (p *process) close() error {
	if err := p.worker.Close(); err != nil {
		return fmt.Errorf("%s: %w", p.role, err)
	}
	return nil
}

// trio has the three processes, with the victim connected.
type trio struct {
	server, client, peers *process
	others                addrPort // where the server listens for peers
	about                 answer   // the answer of the peers' process to its setting
}

func startTrio(ctx context.Context, c *Config, poll load.Poll) (_ *trio, err error) {
	t := &trio{}
	defer func() {
		if err != nil {
			err = errors.Join(err, t.close())
		}
	}()
	if t.server, err = start(ctx, c, RoleServer, c.ServerCPU); err != nil {
		return t, err
	}
	if t.client, err = start(ctx, c, RoleClient, c.ClientCPU); err != nil {
		return t, err
	}
	if t.peers, err = start(ctx, c, RolePeers, c.HostileCPU); err != nil {
		return t, err
	}
	s := setting{Poll: poll}
	listening, err := t.server.order(ctx, order{Set: &s}, 0)
	if err != nil {
		return t, err
	}
	t.others = listening.Others
	if s.Spin = c.spins(poll); c.shared() {
		s.Busy = -1
	}
	if _, err = t.client.order(ctx, order{Set: &s}, 0); err != nil {
		return t, err
	}
	if t.about, err = t.peers.order(ctx, order{Set: &s}, 0); err != nil {
		return t, err
	}
	_, err = t.client.order(ctx, order{Dial: &listening.Victim}, 0)
	return t, err
}

// close ends the processes: the clients first.
func (t *trio) close() error {
	var errs []error
	for _, p := range []*process{t.peers, t.client, t.server} {
		if p != nil {
			errs = append(errs, p.close())
		}
	}
	return errors.Join(errs...)
}
