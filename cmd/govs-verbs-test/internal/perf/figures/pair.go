package figures

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/govs-rdma/govs/cmd/govs-verbs-test/internal/perf/load"
	"github.com/govs-rdma/govs/cmd/govs-verbs-test/internal/perf/pin"
)

// pair is the two ends, processes both, and what has been set up between them.
type pair struct {
	client, server *end
	servers        map[peer]netip.AddrPort // where the server listens, by device and address asked for
}

// startPair starts both ends. extra is for their environment.
func startPair(ctx context.Context, c Config, extra ...string) (*pair, error) {
	server, err := startEnd(ctx, c, c.ServerCPU, extra)
	if err != nil {
		return nil, fmt.Errorf("server: %w", err)
	}
	client, err := startEnd(ctx, c, c.ClientCPU, extra)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("client: %w", err), server.close())
	}
	return &pair{client: client, server: server, servers: make(map[peer]netip.AddrPort)}, nil
}

func (p *pair) close() error { return errors.Join(p.client.close(), p.server.close()) }

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
	who     load.End
	cmd     *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Scanner
	answers chan answer // closed when the process says no more
	said    strings.Builder
	failed  error // no more orders
	closed  bool
}

func startEnd(ctx context.Context, c Config, cpu int, extra []string) (*end, error) {
	e := &end{cmd: exec.CommandContext(ctx, c.Worker[0], c.Worker[1:]...), answers: make(chan answer)}
	e.cmd.Env = append(append(os.Environ(), "GOMAXPROCS="+strconv.Itoa(c.Procs)), extra...)
	e.cmd.Stderr = &e.said
	e.cmd.WaitDelay = time.Second
	var err error
	if e.in, err = e.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := e.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := pin.Start(e.cmd, cpu); err != nil {
		return nil, err
	}
	e.out = bufio.NewScanner(out)
	e.out.Buffer(nil, mib)
	go e.hear()
	a, err := e.answer(ctx, time.Minute)
	if err != nil {
		return nil, errors.Join(err, e.close())
	}
	if a.End == nil {
		return nil, errors.Join(errors.New("it does not say who it is"), e.close())
	}
	e.who = *a.End
	return e, nil
}

func (e *end) hear() {
	defer close(e.answers)
	for e.out.Scan() {
		var a answer
		if err := json.Unmarshal(e.out.Bytes(), &a); err != nil {
			a.Error = fmt.Sprintf("an answer that is none: %v", err)
		}
		e.answers <- a
	}
}

// patience is how long an order may take: a connection with a message lost in it,
// or one of thousands of QPs, takes seconds.
const patience = 2 * time.Minute

// order gives an order and waits for the answer.
func (e *end) order(ctx context.Context, o order) (answer, error) {
	if e.failed != nil {
		return answer{}, e.failed
	}
	line, err := json.Marshal(o)
	if err != nil {
		return answer{}, err
	}
	if _, err := e.in.Write(append(line, '\n')); err != nil {
		e.failed = fmt.Errorf("the process takes no orders: %w", err)
		return answer{}, e.failed
	}
	return e.answer(ctx, patience)
}

func (e *end) answer(ctx context.Context, patience time.Duration) (answer, error) {
	late := time.NewTimer(patience)
	defer late.Stop()
	select {
	case a, ok := <-e.answers:
		if !ok {
			e.failed = errors.New("the process has ended")
			return a, e.failed
		}
		if a.Error != "" {
			return a, errors.New(a.Error)
		}
		return a, nil
	case <-ctx.Done():
		e.failed = ctx.Err()
	case <-late.C:
		e.failed = fmt.Errorf("no answer in %v", patience)
	}
	return answer{}, e.failed
}

// close has the process end, and waits for it. Closed again it does nothing.
func (e *end) close() error {
	if e.closed {
		return nil
	}
	e.closed = true
	_ = e.in.Close() // it may have ended
	kill := time.AfterFunc(10*time.Second, func() { _ = e.cmd.Process.Kill() })
	defer kill.Stop()
	for range e.answers { // until it says no more
	}
	if err := e.cmd.Wait(); err != nil {
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(e.said.String()))
	}
	return nil
}
