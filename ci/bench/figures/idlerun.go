package figures

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/govs-rdma/govs/ci/bench/worker"
)

// idleMost is the number of idle QPs.
const idleMost = 10_000

// idleSamples has the samples of all idle QPs.
type idleSamples struct {
	memory []Sample // KiB of each, of the end that needs more
	err    error    // the first
}

// most returns the number of idle QPs.
func (r *runner) most() int { return cmp.Or(r.Config.idle, idleMost) }

func (r *runner) wantsIdle() bool {
	return slices.ContainsFunc(r.rows(), func(w row) bool { return w.id == idleID })
}

// idleRound connects two processes, started for it, by idle QPs.
func (r *runner) idleRound(ctx context.Context, round int) error {
	var p idlePair
	server, err := startEnd[idleOrder, idleAnswer](ctx, r.Config, r.IdleWorker, r.ServerCPU, false)
	if err == nil {
		p[1] = server
		p[0], err = startEnd[idleOrder, idleAnswer](ctx, r.Config, r.IdleWorker, r.ClientCPU, false)
	}
	if err == nil {
		err = r.idleOnce(ctx, p, round)
	}
	err = errors.Join(err, p.close())
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil && r.idling.err == nil {
		r.idling.err = err
		r.Say("idle QPs: %v", err)
	}
	return nil
}

func (r *runner) idleOnce(ctx context.Context, p idlePair, round int) error {
	at, err := p[1].Order(ctx, idleOrder{Idle: new(int), Addr: netip.AddrPortFrom(r.addr(engine), 0)}, patience)
	if err != nil {
		return fmt.Errorf("server: %w", err)
	}
	// The first connection needs more memory than each further one.
	const first = 1
	if err := p.idle(ctx, at.Addr, first); err != nil {
		return err
	}
	before, err := p.memory(ctx)
	if err != nil {
		return err
	}
	if err := p.idle(ctx, at.Addr, r.most()+first); err != nil {
		return err
	}
	after, err := p.memory(ctx)
	if err != nil {
		return err
	}
	grown := func(end int) float64 {
		octets := float64(after[end].Resident) - float64(before[end].Resident)
		return octets / kib / float64(r.most())
	}
	r.idling.memory = append(r.idling.memory, Sample{Round: round, Value: max(grown(0), grown(1))})
	return nil
}

// idlePair is client and server.
type idlePair [2]*worker.Process[idleOrder, idleAnswer]

func (p idlePair) close() (err error) {
	for _, end := range p {
		if end != nil {
			err = errors.Join(err, end.Close())
		}
	}
	return err
}

// idle makes the client connect until it has n connections.
func (p idlePair) idle(ctx context.Context, addr netip.AddrPort, n int) error {
	_, err := p[0].Order(ctx, idleOrder{Idle: &n, Addr: addr}, patience)
	return err
}

// memory returns the memory of client and server.
func (p idlePair) memory(ctx context.Context) (m [2]memory, err error) {
	for i, end := range p {
		a, err := end.Order(ctx, idleOrder{Memory: true}, patience)
		if err == nil && a.Memory == nil {
			err = errors.New("an answer without memory")
		}
		if err != nil {
			return m, err
		}
		m[i] = *a.Memory
	}
	return m, nil
}

// idleFigure is the memory of each idle QP.
func (r *runner) idleFigure() Figure {
	f := alone(r.idling.memory, kibOfEach.of)
	if f.Missing != "" && r.idling.err != nil {
		f.Missing = r.idling.err.Error()
	}
	return f
}

// idleNote says what the idle QPs are.
func (r *runner) idleNote() string {
	return fmt.Sprintf("Idle connections are %d, over which nothing was posted, with one PD and CQ;\n"+
		"their queues have %d WRs of one SGE. Their memory is RssAnon after a garbage\n"+
		"collection, minus RssAnon with one connection. Allocations per operation are\n"+
		"rounded down, of the process and the workload that has most.", r.most(), idleCap.MaxSendWR)
}
