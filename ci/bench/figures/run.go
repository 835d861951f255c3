package figures

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/govs-rdma/govs/ci/bench/load"
	"github.com/govs-rdma/govs/ci/bench/outside"
)

// Cong is the TCP congestion control of all measurements.
const Cong = "cubic"

// Config says what is measured, and how.
type Config struct {
	Rounds int
	Time   time.Duration // of one measurement
	Only   string        // path.Match patterns of ids of rows and the plot, with commas; empty: all

	ClientCPU, ServerCPU int
	Procs                int // GOMAXPROCS of each end

	Worker     []string // command of an end: govs-verbs-test perf end
	IdleWorker []string // of an end of idle connections: a process that calls ServeIdle

	Separate bool // this process is in the network namespace that the script run makes

	Exec   []string      // command that runs C programs over the engine, with its flags
	Kernel *KernelDevice // siw, if it is measured

	Say func(format string, args ...any) // reports progress

	idle int // for tests: another number of idle QPs than idleMost
}

// KernelDevice is the iWARP device of the kernel.
type KernelDevice struct {
	Name string
	Addr netip.Addr
	CRC  bool // its connections have CRC
}

// Check returns what is wrong with a Config.
func (c Config) Check() error {
	for pattern := range strings.SplitSeq(c.Only, ",") {
		if _, err := path.Match(pattern, ""); err != nil {
			return fmt.Errorf("pattern %q: %w", pattern, err)
		}
		if ids := c.ids(); c.Only != "" && !slices.ContainsFunc(ids, Config{Only: pattern}.wants) {
			return fmt.Errorf("no row or plot has an id like %q: there are %s",
				pattern, strings.Join(ids, ", "))
		}
	}
	switch {
	case c.Rounds < 1:
		return fmt.Errorf("--rounds %d: at least 1 is needed", c.Rounds)
	case c.Time < time.Millisecond:
		return fmt.Errorf("%v for a measurement: at least 1ms is needed", c.Time)
	case c.ClientCPU == c.ServerCPU:
		return errors.New("two CPUs are needed, one for each end")
	case c.Procs < 1:
		return fmt.Errorf("GOMAXPROCS %d: has to be at least 1", c.Procs)
	}
	return nil
}

// ids returns the ids of all rows and of the plot.
func (c Config) ids() []string {
	list := []string{curveID}
	for _, w := range allRows {
		list = append(list, w.id)
	}
	return list
}

// runner has the state of a run.
type runner struct {
	Config
	pair     *pair
	path     *pathPair // nil until it is needed, and when it must be made again
	samples  map[string][]Sample
	idling   idleSamples
	mss      int               // of the engine's connections, in bytes of payload
	versions map[string]string // of the packages of other projects' programs
	errors   []string          // that were reported
}

func newRunner(c Config) *runner {
	return &runner{Config: c, samples: make(map[string][]Sample), versions: make(map[string]string)}
}

// errNothing is the error of a run in which nothing can be measured.
var errNothing = errors.New(
	"nothing of that can be measured here: siw is measured in the guest (make bench-vm)")

// Run measures. Values that can't be measured are missing in the report, with the reason. Run
// returns an error if it makes the rest useless.
func Run(ctx context.Context, c Config) (_ *Report, err error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	if len(c.rows()) == 0 && len(c.points()) == 0 {
		return nil, errNothing
	}
	r := newRunner(c)
	if r.mss, err = segment(ctx, r.addr(engine)); err != nil {
		return nil, fmt.Errorf("TCP at %v: %w", r.addr(engine), err)
	}
	if r.pair, err = startPair(ctx, c, false); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.pair.close(), r.path.close()) }()
	for round := range c.Rounds {
		if err := r.round(ctx, round); err != nil {
			return nil, err
		}
	}
	return r.report(), nil
}

// round makes each measure once. Each round begins with another measure, so that none always comes
// right after other work of the machine.
func (r *runner) round(ctx context.Context, round int) error {
	var list []measure
	for _, m := range chosen(r.Config) {
		if m.Rounds == 0 || round < m.Rounds {
			list = append(list, m)
		}
	}
	began := time.Now()
	for i := range list {
		m := list[(i+round*len(list)/r.Rounds)%len(list)]
		s := r.once(ctx, m)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		s.Round = round
		if s.Error != "" && !slices.Contains(r.errors, s.Error) {
			r.Say("%s: %s", m.Name, s.Error)
			r.errors = append(r.errors, s.Error)
		}
		r.samples[m.Name] = append(r.samples[m.Name], s)
	}
	if round < fewRounds && r.wantsIdle() {
		if err := r.idleRound(ctx, round); err != nil {
			return err
		}
	}
	r.Say("round %d of %d: %d measurements, %.0f s", round+1, r.Rounds, len(list), time.Since(began).Seconds())
	return nil
}

// once makes a measurement.
func (r *runner) once(ctx context.Context, m measure) Sample {
	if m.Test != nil {
		return r.program(ctx, *m.Test)
	}
	d := *m.Device
	p, err := r.pairFor(ctx, d)
	if err != nil {
		return Sample{Error: err.Error()}
	}
	a, err := p.run(ctx, d, r.addr(d), m.Spec)
	if err != nil && p.broken() && ctx.Err() == nil {
		// A process that does not answer is ended, and a new pair is started.
		err = errors.Join(err, r.renew(ctx, p))
	}
	if err != nil {
		return Sample{Error: err.Error()}
	}
	return sampleOf(*a.Result)
}

// pairFor returns the pair between which a device is measured.
func (r *runner) pairFor(ctx context.Context, d load.Device) (*pair, error) {
	if d.Link == "" {
		return r.pair, nil
	}
	if r.path == nil {
		r.path = startPath(ctx, r.Config)
	}
	return r.path.pair, errors.Join(r.path.err, r.path.missing[d.Link])
}

// addr returns the address where a device's server listens.
func (r *runner) addr(d load.Device) netip.Addr {
	switch {
	case d.Link != "":
		return far(linkOf(d))
	case r.Kernel != nil: // beside siw, which has no loopback
		return r.Kernel.Addr
	}
	return loopback
}

func (p *pair) broken() bool { return p.client.Failed() || p.server.Failed() }

func (r *runner) renew(ctx context.Context, old *pair) error {
	_ = old.client.Kill()
	_ = old.server.Kill()
	_ = old.close()
	if old != r.pair {
		r.path = nil
		return nil
	}
	p, err := startPair(ctx, r.Config, false)
	if err == nil {
		r.pair = p
	}
	return err
}

func sampleOf(res load.Result) Sample {
	cpu := res.Client.CPU() + res.Server.CPU()
	ops, gib := float64(max(res.Ops, 1)), float64(max(res.Octets, 1))/(1<<30)
	s := Sample{
		Allocs: max(res.Client.AllocsPerOp, res.Server.AllocsPerOp),
		PerGiB: cpu.Seconds() / gib, PerOp: micros(cpu) / ops,
	}
	if l := res.Lat; l != nil {
		s.RTT = micros(l.Median)
		return s
	}
	seconds := res.Elapsed.Seconds() // no value if this is 0
	s.GBps, s.Mops = float64(res.Octets)/1e9/seconds, ops/1e6/seconds
	return s
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }

// program runs another project's program.
func (r *runner) program(ctx context.Context, t outside.Test) Sample {
	p := outside.Pair{ClientCPU: r.ClientCPU, ServerCPU: r.ServerCPU, Addr: r.addr(engine), Netdev: "lo", Exec: r.Exec}
	if r.Kernel != nil {
		p.Device = r.Kernel.Name
	}
	// On a busy machine, two processes that spin in turns may take forever.
	ctx, cancel := context.WithTimeout(ctx, max(20*time.Second, 20*r.Time))
	defer cancel()
	res, err := p.Run(ctx, t)
	if err != nil {
		return Sample{Error: err.Error()}
	}
	if pkg := outside.Package(t.Program); r.versions[pkg] == "" {
		r.versions[pkg] = outside.Version(ctx, t.Program)
	}
	return Sample{GBps: res.GBps, RTT: micros(res.RTT)}
}
