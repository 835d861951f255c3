package figures

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// profiled are the measures of which profiles are made. These runs are longer and do not
// count, so no profiler disturbs those that do.
var profiled = []string{"write-1m", "write-64b", "send-rtt-spin", "send-rtt-block"}

// How many times as long as measurements they take: a profile of CPU time has 100
// samples in a second.
const (
	cpuProfileTimes   = 8
	allocProfileTimes = 2
)

// profile writes CPU profiles of both ends for some workloads, and one of all
// allocations of processes that do nothing else.
func (r *runner) profile(ctx context.Context) error {
	if r.Profiles == "" {
		return nil
	}
	dir, err := filepath.Abs(r.Profiles)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	for _, name := range profiled {
		m, err := inPlan(r.Config, name)
		if err != nil {
			return err
		}
		if err := r.cpuProfile(ctx, m, dir); err != nil {
			return fmt.Errorf("CPU profile of %s: %w", name, err)
		}
		if err := r.allocProfile(ctx, m, dir); err != nil {
			return fmt.Errorf("allocation profile of %s: %w", name, err)
		}
	}
	r.Say("profiles are in %s", r.Profiles)
	return nil
}

func (r *runner) cpuProfile(ctx context.Context, m measure, dir string) error {
	for _, e := range r.pair.ends() {
		file := filepath.Join(dir, m.Name+"-"+e.name+".cpu.pprof")
		if _, err := e.order(ctx, order{Profile: &profileRequest{CPU: file}}); err != nil {
			return err
		}
	}
	m.Spec.Duration = cpuProfileTimes * r.Time
	_, err := r.pair.run(ctx, *m.Device, r.addr(*m.Device), m.Spec)
	for _, e := range r.pair.ends() {
		_, stopped := e.order(ctx, order{Profile: &profileRequest{Stop: true}})
		err = errors.Join(err, stopped)
	}
	return err
}

func (r *runner) allocProfile(ctx context.Context, m measure, dir string) (err error) {
	p, err := startPair(ctx, r.Config, "GODEBUG=memprofilerate=1")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	m.Spec.Duration = allocProfileTimes * r.Time
	if _, err := p.run(ctx, *m.Device, r.addr(*m.Device), m.Spec); err != nil {
		return err
	}
	for _, e := range p.ends() {
		file := filepath.Join(dir, m.Name+"-"+e.name+".allocs.pprof")
		if _, err := e.order(ctx, order{Profile: &profileRequest{Allocs: file}}); err != nil {
			return err
		}
	}
	return nil
}

type namedEnd struct {
	*end
	name string
}

func (p *pair) ends() []namedEnd { return []namedEnd{{p.client, "client"}, {p.server, "server"}} }
