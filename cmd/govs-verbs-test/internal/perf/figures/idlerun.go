package figures

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"
)

// idleMost is the number of idle QPs.
const idleMost = 10_000

// idleSamples are the samples of all idle QPs.
type idleSamples struct {
	setUp, memory []Sample // seconds; MiB, of the end that needs more
	goMemory      []Sample // MiB that the Go runtime counts, of the same end
	used          []Sample // MiB, once something was posted to each
	err           error    // the first
}

// most is how many there are.
func (r *runner) most() int { return cmp.Or(r.Config.idle, idleMost) }

func (r *runner) wantsIdle() bool {
	return r.Kernel == nil && (r.wants("idle_qp_kib") || r.wants("idle_10000_mib"))
}

// idleRound connects two processes, made for it, by idle QPs.
func (r *runner) idleRound(ctx context.Context, round int) error {
	p, err := startPair(ctx, r.Config, false)
	if err == nil {
		err = errors.Join(r.idleOnce(ctx, p, round), p.close())
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil && r.idling.err == nil {
		r.idling.err = err
		r.Say("idle QPs: %v", err)
	}
	return nil
}

func (r *runner) idleOnce(ctx context.Context, p *pair, round int) error {
	at, err := p.server.order(ctx, order{Idle: new(int), Over: &engine, Addr: netip.AddrPortFrom(r.addr(engine), 0)})
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
	add := func(list *[]Sample, v float64) { *list = append(*list, Sample{Round: round, Value: v}) }
	grown := func(v func(memory) uint64, end int) float64 {
		return (float64(v(after[end])) - float64(v(before[end]))) / mib
	}
	resident := func(m memory) uint64 { return m.Resident }
	more := 0 // the end that needs more
	if grown(resident, 1) > grown(resident, 0) {
		more = 1
	}
	add(&r.idling.setUp, took.Seconds())
	add(&r.idling.memory, grown(resident, more))
	add(&r.idling.goMemory, grown(func(m memory) uint64 { return m.Go }, more))
	if after, err = p.useIdle(ctx); err != nil {
		return err
	}
	add(&r.idling.used, max(grown(resident, 0), grown(resident, 1)))
	return nil
}

// useIdle posts to all idle QPs and returns what memory client and server have
// then.
func (p *pair) useIdle(ctx context.Context) (m [2]memory, err error) {
	for _, e := range []*end{p.client, p.server} {
		if _, err := e.order(ctx, order{UseIdle: true}); err != nil {
			return m, err
		}
	}
	return p.memory(ctx)
}

func (p *pair) idle(ctx context.Context, addr netip.AddrPort, n int) (time.Duration, error) {
	a, err := p.client.order(ctx, order{Idle: &n, Over: &engine, Addr: addr})
	return a.Elapsed, err
}

// memory is that of client and server.
func (p *pair) memory(ctx context.Context) (m [2]memory, err error) {
	for i, e := range []*end{p.client, p.server} {
		a, err := e.order(ctx, order{Memory: true})
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
		why := notAsked
		if r.Kernel != nil {
			why = "measured outside of the guest (make bench)"
		}
		return map[string]Figure{"idle_qp_kib": {Missing: why}, "idle_10000_mib": {Missing: why}}
	}
	whole := alone(r.idling.memory, kibOfEach.of)
	if whole.Missing != "" && r.idling.err != nil {
		whole.Missing = r.idling.err.Error()
	}
	if whole.Missing == "" {
		whole.Conditions = r.idleConditions()
	}
	each := whole
	const kibPerMiB = 1024
	share := kibPerMiB / float64(r.most())
	each.Median, each.Min, each.Max = whole.Median*share, whole.Min*share, whole.Max*share
	return map[string]Figure{"idle_qp_kib": each, "idle_10000_mib": whole}
}

func (r *runner) idleConditions() map[string]any {
	c := r.general()
	c["memory"] = "RssAnon of the process after a garbage collection and debug.FreeOSMemory, minus the same with one connection; of the end that needs more"
	c["go_runtime_mib"] = alone(r.idling.goMemory, func(s Sample) float64 { return s.Value }).Median
	c["kib_each_once_used"] = alone(r.idling.used, func(s Sample) float64 { return s.Value * 1024 / float64(r.most()) }).Median
	c["qps"] = r.most()
	c["qp"] = fmt.Sprintf("%d send and %d receive WRs of one SGE, nothing ever posted (kib_each_once_used: one of each was); one PD and one CQ of %d entries for all", idleCap.MaxSendWR, idleCap.MaxRecvWR, idleCQ)
	c["each"] = "a Conn of package rdmacm with its id and event channel, in either process; sockets' own memory is the kernel's and not in it"
	c["set_up_seconds"] = alone(r.idling.setUp, func(s Sample) float64 { return s.Value }).Median
	return c
}
