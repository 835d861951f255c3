package figures

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// idleMost is the number of idle QPs at the end, and idleSteps are the numbers at which
// memory is measured.
const idleMost = 10_000

var idleSteps = []int{1000, 2000, 5000, idleMost}

// idleSweep is the id of the plot.
const idleSweep = "growth-idle-qps"

// idleSamples are the samples, by the number of idle QPs.
type idleSamples struct {
	setUp, memory map[int][]Sample // seconds; MiB, of the end that needs more
	goMemory      map[int][]Sample // MiB that the Go runtime counts, of the same end
	used          []Sample         // MiB of the most, once something was posted to each
	err           error            // the first
}

func (r *runner) steps() []int {
	if r.Config.idle != nil {
		return r.Config.idle
	}
	return idleSteps
}

// most is the last of them.
func (r *runner) most() int { return slices.Max(r.steps()) }

func (r *runner) wantsIdle() bool {
	return r.Kernel == nil && (r.wants("idle_qp_kib") || r.wants("idle_10000_mib") || r.wants(idleSweep))
}

// idleRound connects two processes, made for it, by more and more idle QPs.
func (r *runner) idleRound(ctx context.Context, round int) error {
	if r.idling.setUp == nil {
		r.idling.setUp, r.idling.memory, r.idling.goMemory = map[int][]Sample{}, map[int][]Sample{}, map[int][]Sample{}
	}
	p, err := startPair(ctx, r.Config, false)
	if err == nil {
		err = errors.Join(r.idleSteps(ctx, p, round), p.close())
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

func (r *runner) idleSteps(ctx context.Context, p *pair, round int) error {
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
	var setUp time.Duration
	for _, n := range r.steps() {
		took, err := p.idle(ctx, at.Addr, n+first)
		if err != nil {
			return err
		}
		setUp += took
		after, err := p.memory(ctx)
		if err != nil {
			return err
		}
		add := func(m map[int][]Sample, v float64) { m[n] = append(m[n], Sample{Round: round, Value: v}) }
		add(r.idling.setUp, setUp.Seconds())
		grown := func(v func(memory) uint64, end int) float64 {
			return (float64(v(after[end])) - float64(v(before[end]))) / mib
		}
		resident := func(m memory) uint64 { return m.Resident }
		more := 0 // the end that needs more
		if grown(resident, 1) > grown(resident, 0) {
			more = 1
		}
		add(r.idling.memory, grown(resident, more))
		add(r.idling.goMemory, grown(func(m memory) uint64 { return m.Go }, more))
	}
	after, err := p.useIdle(ctx)
	if err != nil {
		return err
	}
	used := max(int64(after[0].Resident-before[0].Resident), int64(after[1].Resident-before[1].Resident))
	r.idling.used = append(r.idling.used, Sample{Round: round, Value: float64(used) / mib})
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
	whole := alone(r.idling.memory[r.most()], kibOfEach.of)
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
	setUp := make(map[string]any)
	for _, n := range r.steps() {
		f := alone(r.idling.setUp[n], func(s Sample) float64 { return s.Value })
		if f.Missing == "" {
			setUp[fmt.Sprint(n)] = f.Median
		}
	}
	c := r.general()
	c["memory"] = "RssAnon of the process after a garbage collection and debug.FreeOSMemory, minus the same with one connection; of the end that needs more"
	c["go_runtime_mib"] = alone(r.idling.goMemory[r.most()], func(s Sample) float64 { return s.Value }).Median
	c["kib_each_once_used"] = alone(r.idling.used, func(s Sample) float64 { return s.Value * 1024 / float64(r.most()) }).Median
	c["qps"] = r.most()
	c["qp"] = fmt.Sprintf("%d send and %d receive WRs of one SGE, nothing ever posted (kib_each_once_used: one of each was); one PD and one CQ of %d entries for all", idleCap.MaxSendWR, idleCap.MaxRecvWR, idleCQ)
	c["each"] = "a Conn of package rdmacm with its id and event channel, in either process; sockets' own memory is the kernel's and not in it"
	c["set_up_seconds"] = setUp
	return c
}

// idleCurve is the plot.
func (r *runner) idleCurve() Curve {
	c := Curve{ID: idleSweep, Title: "Idle QPs: time to connect them one after the other, and memory", X: "QPs of each process", Y: "ms, KiB"}
	for _, line := range []struct {
		name    string
		samples map[int][]Sample
		unit    float64
	}{{"set-up time, ms", r.idling.setUp, 1000}, {"memory of the process, KiB", r.idling.memory, 1024}} {
		s := Series{Name: line.name}
		for _, n := range r.steps() {
			f := alone(line.samples[n], func(s Sample) float64 { return s.Value * line.unit })
			if f.Missing == "" {
				s.Points = append(s.Points, Point{float64(n), f.Median, f.Min, f.Max, f.Rounds})
			}
		}
		if len(s.Points) > 0 {
			s.Growth = growthOf(s.Points)
			c.Series = append(c.Series, s)
		}
	}
	return c
}
