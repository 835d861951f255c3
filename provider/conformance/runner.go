package conformance

import (
	"context"
	"fmt"
	"hash/fnv"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/govs-rdma/govs/ibverbs"
	"github.com/govs-rdma/govs/provider/engine/transport"
)

// An Endpoint is one side of a verbs scenario, or the provider that a raw
// scenario is played to.
type Endpoint struct {
	Name    string // the provider's name
	Context *ibverbs.Context
	Addr    netip.Addr // where it can be reached and connects from
	Fixed   bool       // it is the same whatever a scenario's Options say

	// Opposite is the address of this host that the raw peer listens on for it; if it is not
	// valid, Addr is.
	Opposite netip.Addr

	// Memory is that of a device on another host; nil for one of this host.
	Memory Memory
}

// Memory synchronizes what a program registers with a device on another host and the copies that
// the device uses.
type Memory interface {
	Push() error   // what the program has changed goes to the copies
	Pull() error   // what the device has changed comes back, too
	Intact() error // which octet beside a copy was written to, if one was
}

// An Opener opens a provider for one run. The options are the scenario's.
type Opener func(options []string) (*Endpoint, error)

// A Capturer records the packets of one run.
type Capturer interface {
	// Start begins to record; port is where the run's responder will listen.
	Start(port uint16) (Capture, error)
	// Source is what Outcome.CaptureSource says: "wire" or "tap".
	Source() string
}

// A Capture is a recording under way.
type Capture interface {
	// Stop ends the recording and writes it as pcapng to the file called name.
	Stop(name string) error
}

// Config says what to run and how.
type Config struct {
	Suite    *Suite
	Only     string
	Pairings []Pairing
	Open     map[string]Opener // by provider name
	Seed     uint64

	// Scale stretches every time limit; zero means 1. Under emulation use 10.
	Scale float64

	// Grace is how long a run may go on after its time is up, for its cleanups; then it is
	// abandoned. It is not scaled. Zero means a minute plus the run's time limit.
	Grace time.Duration

	// FirstPort is the first TCP port to listen on; each run takes the next.
	// Zero means 20000.
	FirstPort uint16

	// Capture may be nil; Dir is then not used.
	Capture Capturer
	Dir     string // where capture files go

	// CaptureToPeer, if not nil, is used instead of Capture for runs with the other host, because
	// their packets are on another interface.
	CaptureToPeer Capturer

	// CaptureAtPeer, if not nil, records runs with the other host there as well. If it fails, the
	// run's log says so, and the run goes on: the judge looks at Capture's files.
	CaptureAtPeer Capturer

	// With names providers: runs in which not all of them take part are left out.
	With []string

	// LeaveOut, if not nil, returns why a scenario is not run over a pairing, and "" if it is run.
	// The outcome of a scenario that is not run has the reason in Unsupported.
	LeaveOut func(slug string, p Pairing) string

	// Target, if not nil, is the side that raw scenarios are played to, instead of a provider that
	// is opened. Verbs scenarios are left out. Runs follow one another, because all have its port.
	// After a run that does not reach the target no other begins. After a run that failed, the
	// target has to answer a Request first ([Target.Probe]), or the next outcome says that it
	// does not.
	Target *Target

	// Tap, if not nil, gets what the raw peer sends and receives.
	Tap transport.Tap

	// Lost, if not nil, is closed when the other host can't be reached any more, and Why then
	// returns the reason. The runs under way end with it as their setup, and no other begins. If
	// none is under way, the next outcome has it, because a suite that was cut short has not
	// passed.
	Lost <-chan struct{}
	Why  func() error

	// Progress, if not nil, is called after each run, by one goroutine at a time.
	Progress func(done, total int, o *Outcome)
}

// Run runs the chosen scenarios and returns their outcomes in the suite's order. One run follows
// another, except that up to [idleAtOnce] runs of scenarios that only wait (Scenario.Idle) are
// under way beside the others. The error is about the configuration; what goes wrong in a scenario
// is in its outcome. When ctx ends, the runs under way end, and those that are left are not in the
// result.
func Run(ctx context.Context, cfg Config) ([]Outcome, error) {
	if cfg.Scale == 0 {
		cfg.Scale = 1
	}
	if cfg.FirstPort == 0 {
		cfg.FirstPort = 20000
	}
	jobs, err := cfg.jobs()
	if err != nil {
		return nil, err
	}
	r := runner{Config: &cfg, outcomes: make([]*Outcome, len(jobs))}
	var idle sync.WaitGroup
	places := make(chan struct{}, idleAtOnce)
	idle.Go(func() {
		for _, j := range jobs {
			if !r.beside(j) {
				continue
			}
			places <- struct{}{}
			idle.Go(func() {
				r.run(ctx, j)
				<-places
			})
		}
	})
	for _, j := range jobs {
		if !r.beside(j) {
			r.run(ctx, j)
		}
	}
	idle.Wait()
	outcomes := make([]Outcome, 0, len(jobs))
	for _, o := range r.outcomes {
		if o != nil {
			outcomes = append(outcomes, *o)
		}
	}
	if len(outcomes) < len(jobs) && ctx.Err() != nil {
		return outcomes, ctx.Err()
	}
	return outcomes, nil
}

// beside reports whether a run may be under way beside others.
func (cfg *Config) beside(j job) bool { return j.scenario.Idle && cfg.Target == nil }

// port is where a job's responder listens.
func (cfg *Config) port(j job) uint16 {
	if cfg.Target != nil {
		return cfg.Target.Addr.Port()
	}
	return cfg.FirstPort + uint16(j.number)
}

// lost returns why the other host can't be reached any more, nil if it can.
func (cfg *Config) lost() error {
	select {
	case <-cfg.Lost: // blocks if it is nil
		return cfg.Why()
	default:
		return nil
	}
}

// idleAtOnce is how many runs that only wait may be under way at once.
const idleAtOnce = 8

// A job is one run.
type job struct {
	scenario *Scenario
	pairing  Pairing
	number   int // from 0, in the suite's order
}

// jobs returns the runs that the configuration asks for.
func (cfg *Config) jobs() ([]job, error) {
	scenarios, err := cfg.Suite.Select(cfg.Only)
	if err != nil {
		return nil, err
	}
	var jobs []job
	for _, sc := range scenarios {
		if cfg.Target != nil && sc.Raw == nil {
			continue
		}
		for _, p := range sc.pairings(cfg.Pairings) {
			if p.HasAll(cfg.With) {
				jobs = append(jobs, job{sc, p, len(jobs)})
			}
		}
	}
	return jobs, nil
}

// Planned returns how many runs of each Area the configuration asks for.
func (cfg *Config) Planned() (map[string]int, error) {
	jobs, err := cfg.jobs()
	if err != nil {
		return nil, err
	}
	runs := make(map[string]int)
	for _, j := range jobs {
		runs[Area(j.scenario.Slug)]++
	}
	return runs, nil
}

// runner holds the outcomes of jobs, some of which run at the same time.
type runner struct {
	*Config
	mu        sync.Mutex
	done      int
	abandoned int        // runs that did not end
	gone      bool       // a run did not reach the target
	told      bool       // an outcome says why the other host can't be reached
	doubt     string     // the scenario that failed with the target just before; "" if none did
	outcomes  []*Outcome // by the job's number; nil if it has not run
}

// run runs a job, unless ctx has ended.
func (r *runner) run(ctx context.Context, j job) {
	if ctx.Err() != nil {
		return
	}
	lost := r.lost()
	r.mu.Lock()
	crowded, gone := r.abandoned >= mostAbandoned, r.gone || lost != nil && r.told
	r.told = r.told || lost != nil
	r.mu.Unlock()
	if gone {
		return
	}
	port := r.port(j)
	var o *Outcome
	ended := true
	why := r.silenced(ctx, j.scenario)
	if lost != nil {
		why = "not tried: " + lost.Error()
	}
	if ctx.Err() != nil {
		return // what it did not answer says nothing about the target
	}
	switch {
	case why != "":
		o = newOutcome(r.Seed, j.scenario, j.pairing, port)
		o.Setup = why
	case crowded:
		o = newOutcome(r.Seed, j.scenario, j.pairing, port)
		o.Setup = fmt.Sprintf("not tried: %d runs before it did not end, and may keep the CPUs busy; "+
			"see their logs", mostAbandoned)
	default:
		o, ended = r.runOne(ctx, j.scenario, j.pairing, port)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !ended {
		r.abandoned++
	}
	r.told = r.told || o.Setup != "" && r.lost() != nil
	if r.Target != nil && o.Unsupported == "" {
		r.gone, r.doubt = o.Setup != "", ""
		if o.failed() {
			r.doubt = j.scenario.Slug
		}
	}
	r.done++
	r.outcomes[j.number] = o
	if r.Progress != nil {
		r.Progress(r.done, len(r.outcomes), o)
	}
}

// silenced returns why a scenario can't be tried because the target has not answered since the
// scenario before it failed. It returns "" if the target answers, or if nothing went wrong. Without
// it every scenario that is left would wait in vain, and fail.
func (r *runner) silenced(ctx context.Context, sc *Scenario) string {
	r.mu.Lock()
	after := r.doubt
	r.mu.Unlock()
	if after == "" || r.Target.lacks(sc) != "" {
		return ""
	}
	if err := r.Target.Probe(ctx, r.Scale); err != nil {
		return fmt.Sprintf("not tried: after %s, which failed, the target no longer answers as it did "+
			"when the run began: %v", after, err)
	}
	return ""
}

// newOutcome returns the outcome of a run that begins.
func newOutcome(seed uint64, sc *Scenario, p Pairing, port uint16) *Outcome {
	return &Outcome{Scenario: sc.Slug, Pairing: p, Seed: runSeed(seed, sc.Slug),
		Started: time.Now().UTC(), Port: port}
}

// runOne runs a scenario once. The context's limit is for scenarios that fail to bound
// their own waits. One that does not end at all is abandoned after the grace, and ended is
// false.
func (cfg *Config) runOne(ctx context.Context, sc *Scenario, p Pairing, port uint16) (o *Outcome,
	ended bool) {
	o = newOutcome(cfg.Seed, sc, p, port)
	if cfg.LeaveOut != nil {
		if o.Unsupported = cfg.LeaveOut(sc.Slug, p); o.Unsupported != "" {
			return o, true
		}
	}
	if cfg.Target != nil {
		if o.Unsupported = cfg.Target.lacks(sc); o.Unsupported != "" {
			return o, true
		}
	}
	limit := time.Duration(float64(sc.timeout()) * cfg.Scale)
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	if cfg.Lost != nil {
		over := make(chan struct{})
		defer close(over)
		go func() {
			select {
			case <-cfg.Lost:
				cancel()
			case <-over:
			}
		}()
	}
	t := &T{ctx: ctx, scale: cfg.Scale, outcome: o, started: time.Now()}

	var capture Capture
	if capturer := cfg.capturer(p); capturer != nil {
		c, err := capturer.Start(port)
		if err != nil {
			o.Setup = "cannot capture: " + err.Error()
			return o, true
		}
		capture, o.CaptureSource = c, capturer.Source()
	}
	stopAtPeer := cfg.captureAtPeer(t, p, port)
	run, seed := t, o.Seed
	body := func() { cfg.body(run, sc, p, port, seed) }
	name, grace := fmt.Sprintf("%s %s %d", sc.Slug, p, port), cfg.grace(limit)
	more := ""
	if ended = run.runWithin(body, name, grace); !ended {
		var where string
		o, where = run.abandon(name)
		t = &T{ctx: ctx, scale: cfg.Scale, outcome: o, started: run.started}
		more = fmt.Sprintf(", and %v after that it was in %s", grace, where)
	}
	if err := cfg.lost(); err != nil { // the failed checks follow from that
		o.Setup, ctx = err.Error(), context.WithoutCancel(ctx)
	}
	if ended && !t.tried && sc.Wire == nil && o.Setup == "" && o.Unsupported == "" {
		t.Check(false, checkChecks) // of Wire the judge makes the checks
	}
	if ctx.Err() != nil {
		t.Check(false, checkEnds, "it took longer than %v%s", limit, more)
	}
	atPeer := stopAtPeer(t)
	if capture != nil {
		name := captureName(sc.Slug, p)
		if err := capture.Stop(cfg.Dir + "/" + name); err != nil {
			t.Check(false, checkWritten, "%v", err)
		} else {
			o.Capture = name
		}
	}
	o.CaptureAtPeer = <-atPeer
	return o, ended
}

// capturer returns what records the packets of a pairing's runs, nil if they are not recorded.
func (cfg *Config) capturer(p Pairing) Capturer {
	if cfg.CaptureToPeer != nil && p.far() {
		return cfg.CaptureToPeer
	}
	return cfg.Capture
}

// captureAtPeer begins to record a run on the other host, if it takes part. stop ends the recording
// in the background; the channel then has the name of the file, empty if there is none. stop gets
// another T than t if the run was abandoned.
func (cfg *Config) captureAtPeer(t *T, p Pairing, port uint16) (stop func(*T) <-chan string) {
	var running Capture
	if cfg.CaptureAtPeer != nil && p.far() {
		var err error
		if running, err = cfg.CaptureAtPeer.Start(port); err != nil {
			t.Log("no capture at the other host: %v", err)
		}
	}
	return func(t *T) <-chan string {
		file := make(chan string, 1)
		if running == nil {
			file <- ""
			return file
		}
		go func() {
			name := strings.TrimSuffix(captureName(t.outcome.Scenario, p), ".pcapng") + ".at-peer.pcapng"
			if err := running.Stop(cfg.Dir + "/" + name); err != nil {
				t.Log("no capture at the other host: %v", err)
				name = ""
			}
			file <- name
		}()
		return file
	}
}

func (cfg *Config) body(t *T, sc *Scenario, p Pairing, port uint16, seed uint64) {
	if sc.Verbs != nil {
		r := &VerbsRun{T: t, Seed: seed}
		r.Initiator = cfg.open(t, sc, p.Initiator)
		r.Responder = cfg.open(t, sc, p.Responder, sc.ResponderOptions...)
		r.Addr = netip.AddrPortFrom(r.Responder.Addr, port)
		sc.Verbs(r)
		return
	}
	r := &RawRun{T: t, Seed: seed, Role: sc.RawRole, Tap: cfg.Tap}
	if cfg.Target != nil {
		r.Addr = cfg.Target.Addr
		sc.Raw(r)
		return
	}
	name := p.Responder
	if sc.RawRole == RoleResponder {
		name = p.Initiator
	}
	r.DUT = cfg.open(t, sc, name)
	r.Addr = netip.AddrPortFrom(r.DUT.Addr, port)
	if r.Role == RoleResponder && r.DUT.Opposite.IsValid() {
		r.Addr = netip.AddrPortFrom(r.DUT.Opposite, port)
	}
	if r.DUT.Memory != nil {
		r.Tap = pushingTap{t, r.DUT.Memory, r.Tap}
	}
	sc.Raw(r)
}

func (cfg *Config) open(t *T, sc *Scenario, name string, more ...string) *Endpoint {
	opener := cfg.Open[name]
	if opener == nil {
		t.Setup("provider %q is not available here", name)
	}
	ep, err := opener(slices.Concat(sc.Options, more))
	if err != nil {
		t.Setup("provider %q cannot be opened: %v", name, err)
	}
	t.Cleanup(func() {
		if m := ep.Memory; m != nil {
			err := m.Intact()
			t.Check(err == nil, "no octet around a region on the other host is touched", "%v", err)
		}
		err := ep.Context.Close()
		t.Check(err == nil, "the device can be closed after the run: nothing was left open", "%v", err)
	})
	return ep
}

// pushingTap is a tap of the raw peer. Before the peer sends, it copies what the program has put
// into its memory to a device on another host.
type pushingTap struct {
	t    *T
	mem  Memory
	next transport.Tap // may be nil
}

// Tap implements transport.Tap. The raw peer calls it before it writes.
func (p pushingTap) Tap(r transport.TapRecord) {
	if r.Sent && r.Event == transport.TapData {
		if err := p.mem.Push(); err != nil {
			p.t.Check(false, "the memory on the other host can be written to", "%v", err)
		}
	}
	if p.next != nil {
		p.next.Tap(r)
	}
}

// VerbsRun is one run of a verbs scenario.
type VerbsRun struct {
	*T
	Seed                 uint64
	Initiator, Responder *Endpoint
	Addr                 netip.AddrPort // where the responder is to listen
}

// runSeed derives a run's seed from the suite's, the same for every pairing, so that each
// gets the same octets.
func runSeed(seed uint64, slug string) uint64 {
	h := fnv.New64a()
	fmt.Fprintf(h, "%d %s", seed, slug)
	return h.Sum64()
}
