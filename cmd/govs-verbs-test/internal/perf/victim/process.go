package victim

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/govs-rdma/govs/cmd/govs-verbs-test/internal/perf/load"
	"github.com/govs-rdma/govs/cmd/govs-verbs-test/internal/perf/pin"
)

// process is one that takes orders. All of them stay in one session: where the kernel
// schedules sessions against each other (autogroups), a policy counts within one only.
type process struct {
	role    Role
	cmd     *exec.Cmd
	in      io.WriteCloser
	answers chan answer // closed when the process says no more
	said    strings.Builder
}

func start(ctx context.Context, c *Config, role Role, cpu int) (*process, error) {
	p := &process{role: role, cmd: exec.CommandContext(ctx, c.Worker[0], append(c.Worker[1:], string(role))...), answers: make(chan answer)}
	p.cmd.Env = append(os.Environ(), "GOMAXPROCS=1")
	p.cmd.Stderr = &p.said
	p.cmd.WaitDelay = time.Second
	var err error
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := pin.Start(p.cmd, cpu); err != nil {
		return nil, err
	}
	go p.hear(out)
	return p, nil
}

func (p *process) hear(out io.Reader) {
	defer close(p.answers)
	for lines := bufio.NewScanner(out); lines.Scan(); {
		var a answer
		if err := json.Unmarshal(lines.Bytes(), &a); err != nil {
			a.Error = fmt.Sprintf("an answer that is none: %v", err)
		}
		p.answers <- a
	}
}

// slack is how much longer than asked for an order may take.
const slack = time.Minute

// order gives an order, which takes about so long, and waits for the answer.
func (p *process) order(ctx context.Context, o order, about time.Duration) (answer, error) {
	line, err := json.Marshal(o)
	if err != nil {
		return answer{}, err
	}
	if _, err := p.in.Write(append(line, '\n')); err != nil {
		return answer{}, fmt.Errorf("the process of the %s takes no orders: %w", p.role, err)
	}
	late := time.NewTimer(about + slack)
	defer late.Stop()
	select {
	case a, ok := <-p.answers:
		switch {
		case !ok:
			return a, fmt.Errorf("the process of the %s has ended", p.role)
		case a.Error != "":
			return a, fmt.Errorf("%s: %s", p.role, a.Error)
		}
		return a, nil
	case <-ctx.Done():
		return answer{}, ctx.Err()
	case <-late.C:
		return answer{}, fmt.Errorf("the process of the %s does not answer in %v", p.role, about+slack)
	}
}

// close has the process end, and waits for it.
func (p *process) close() error {
	_ = p.in.Close() // it may have ended
	kill := time.AfterFunc(10*time.Second, func() { _ = p.cmd.Process.Kill() })
	defer kill.Stop()
	for range p.answers { // until it says no more
	}
	if err := p.cmd.Wait(); err != nil {
		return fmt.Errorf("the process of the %s: %w: %s", p.role, err, strings.TrimSpace(p.said.String()))
	}
	return nil
}

// trio is the three processes, with the victim connected.
type trio struct {
	server, client, peers *process
	others                addrPort // where the server listens for peers
	about                 answer   // what the peers say of themselves
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
	s := setting{CRC: c.CRC, Cong: c.Cong, Poll: poll, Normal: c.Normal}
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
