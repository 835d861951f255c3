package figures

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/govs-rdma/govs/ci/bench/worker"
)

// idleMost is the number of idle QPs.
const idleMost = 10_000

// idleSamples are the samples of all idle QPs.
type idleSamples struct {
	setUp, memory []Sample // seconds; MiB, of the end that needs more
	err           error    // the first
}

// most is how many there are.
func (r *runner) most() int { return cmp.Or(r.Config.idle, idleMost) }

func (r *runner) wantsIdle() bool {
	return r.Kernel == nil && (r.wants("idle_qp_kib") || r.wants("idle_10000_mib"))
}

// idleRound connects two processes, made for it, by idle QPs.
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
	// The first connection needs more than each further one.
	const first = 1
	if _, err := p.idle(ctx, at.Addr, first); err != nil {
		return err
	}
	before, err := p.memory(ctx)
	if err != nil {
		return err
	}
	took, err := p.idle(ctx, at.Addr, r.most()+first)
	if err != nil {
		return err
	}
	after, err := p.memory(ctx)
	if err != nil {
		return err
	}
	grown := func(end int) float64 {
		return (float64(after[end].Resident) - float64(before[end].Resident)) / mib
	}
	r.idling.setUp = append(r.idling.setUp, Sample{Round: round, Value: took.Seconds()})
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

// idle has the client have n connections, and returns the time in which the missing ones were made.
func (p idlePair) idle(ctx context.Context, addr netip.AddrPort, n int) (time.Duration, error) {
	a, err := p[0].Order(ctx, idleOrder{Idle: &n, Addr: addr}, patience)
	return a.Elapsed, err
}

// memory is that of client and server.
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

// idleFigures are those of idle QPs.
func (r *runner) idleFigures() map[string]Figure {
	if !r.wantsIdle() {
		return map[string]Figure{"idle_qp_kib": {Missing: notAsked}, "idle_10000_mib": {Missing: notAsked}}
	}
	whole := alone(r.idling.memory, kibOfEach.of)
	if whole.Missing != "" && r.idling.err != nil {
		whole.Missing = r.idling.err.Error()
	}
	each := whole
	const kibPerMiB = 1024
	share := kibPerMiB / float64(r.most())
	each.Median, each.Min, each.Max = whole.Median*share, whole.Min*share, whole.Max*share
	return map[string]Figure{"idle_qp_kib": each, "idle_10000_mib": whole}
}

func (r *runner) idleNote() string {
	setUp := alone(r.idling.setUp, func(s Sample) float64 { return s.Value })
	return fmt.Sprintf("Idle QPs are %d in either process, each a Conn of package rdmacm with its id and event channel, "+
		"%d send and %d receive WRs of one SGE, and nothing ever posted; one PD and one CQ of %d entries for all. They "+
		"were connected in %s s. Memory is RssAnon of the process that needs more, after a garbage collection and "+
		"debug.FreeOSMemory, minus the same with one connection. The sockets' own memory is the kernel's.", r.most(),
		idleCap.MaxSendWR, idleCap.MaxRecvWR, idleCQ, digits(setUp.Median))
}
