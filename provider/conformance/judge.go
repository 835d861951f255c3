package conformance

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/govs-rdma/govs/provider/conformance/catalogue"
	"github.com/govs-rdma/govs/provider/conformance/wire"
)

// A Judge turns outcomes into results.
type Judge struct {
	Suite   *Suite
	Profile []ProfileEntry // the known divergences of the stacks that take part
	Dir     string         // where the capture files are

	// Reference is the provider that the others are compared with; both sides
	// of a verbs run, or the provider opposite the raw peer.
	Reference string

	// Witness makes another program decode captures, and returns its decoding of each. It
	// may be nil.
	Witness func(ctx context.Context, exhibits []Exhibit) []Witness

	// WireTime is how long a scenario's Wire function may take: then it is abandoned, and the run
	// fails. Zero means a minute; they need milliseconds.
	WireTime time.Duration

	stuck atomic.Int32 // Wire functions that were abandoned
}

// An Exhibit is a capture and its decoding by package wire.
type Exhibit struct {
	File string
	Port uint16 // only connections to and from it count; 0 means all
	Ours *wire.Trace
}

// WireRun is what a scenario's Wire function gets: the decoded capture of a run
// and a T to record checks with. Observations made here are compared like those
// of the run.
type WireRun struct {
	*T
	Trace   *wire.Trace
	Pairing Pairing
}

// judged is an outcome with what its capture says.
type judged struct {
	outcome *Outcome
	trace   *wire.Trace // nil if there is no capture
	witness Witness
	rows    []wire.Row // beside the reference's trace; nil without a reference
}

// Judge judges a collection. The error is about files that cannot be read and
// scenarios that are not known; everything else is in the report.
func (j *Judge) Judge(ctx context.Context, c *Collection) (*Report, error) {
	if c.Schema != CollectionSchema {
		return nil, fmt.Errorf("collection has schema %q, this program reads %q", c.Schema, CollectionSchema)
	}
	requirements, err := catalogue.Load()
	if err != nil {
		return nil, err
	}
	runs, err := j.examineAll(ctx, c)
	if err != nil {
		return nil, err
	}
	j.hearWitness(ctx, runs)
	r := &Report{
		Schema: ReportSchema, Started: c.Started, Version: c.Version, Kernel: c.Kernel,
		KernelVersion: c.KernelVersion, CPUs: c.CPUs, Siw: c.Siw,
		Seed: c.Seed, Peer: c.Peer, Target: c.Target,
		Reference: j.Reference, Counts: make(map[Verdict]int),
	}
	for i := range runs {
		res := j.judge(c, &runs[i], j.reference(runs, runs[i].outcome))
		res.shorten()
		r.Counts[res.Verdict]++
		r.Results = append(r.Results, res)
	}
	r.Passed = Passed(r.Counts)
	r.Unshown = j.unshown(c, r.Results)
	r.Requirements = j.coverage(requirements, r.Results)
	return r, nil
}

// examineAll examines the outcomes of a collection, as many at a time as there are
// CPUs. The order does not matter, because each works on a copy of its own outcome:
// the collection stays as it was.
func (j *Judge) examineAll(ctx context.Context, c *Collection) ([]judged, error) {
	for i := range c.Outcomes {
		if slug := c.Outcomes[i].Scenario; j.Suite.Find(slug) == nil {
			return nil, fmt.Errorf("collection has scenario %q, which this program does not know", slug)
		}
	}
	runs := make([]judged, len(c.Outcomes))
	next := make(chan int)
	var workers sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(runs)) {
		workers.Go(func() {
			for i := range next {
				o := c.Outcomes[i]
				o.Checks, o.Observations = slices.Clone(o.Checks), slices.Clone(o.Observations)
				runs[i] = j.examine(ctx, j.Suite.Find(o.Scenario), &o)
			}
		})
	}
	for i := range runs {
		next <- i
	}
	close(next)
	workers.Wait()
	return runs, ctx.Err()
}

// hearWitness makes the witness decode all captures that package wire could read. It starts the
// witness once, because starting it may take long.
func (j *Judge) hearWitness(ctx context.Context, runs []judged) {
	if j.Witness == nil {
		return
	}
	var exhibits []Exhibit
	var about []*judged
	for i := range runs {
		if r := &runs[i]; r.trace != nil && r.witness.Why == "" {
			exhibits = append(exhibits, Exhibit{filepath.Join(j.Dir, r.outcome.Capture), r.outcome.Port, r.trace})
			about = append(about, r)
		}
	}
	for i, w := range j.Witness(ctx, exhibits) {
		about[i].witness = w
	}
}

// examine reads the run's capture and applies the scenario's checks of the wire.
func (j *Judge) examine(ctx context.Context, sc *Scenario, o *Outcome) judged {
	run := judged{outcome: o}
	if o.Capture == "" {
		return run
	}
	trace, err := wire.ReadFile(filepath.Join(j.Dir, o.Capture), o.Port)
	if err != nil {
		o.Checks = append(o.Checks, Check{What: checkReadable, Got: err.Error()})
		return run
	}
	if sc.Verbs != nil {
		// A Dial that had to try another local port may leave a TCP connection on which
		// nothing was sent.
		spoken := trace.IWARP()
		if bare := len(trace.Conns) - len(spoken.Conns); bare > 0 && len(spoken.Conns) > 0 {
			o.Log = append(slices.Clone(o.Log), fmt.Sprintf("left out: %d TCP connections without a start-up frame", bare))
			trace = spoken
		}
	}
	run.trace = trace
	run.witness.Why = sc.Unwitnessed
	if bound(trace) {
		run.witness.Why = fmt.Sprintf("a connection has more than %d frames", mostFrames)
	}
	if sc.Wire != nil && o.Setup == "" && o.Unsupported == "" {
		run.outcome = j.checkWire(ctx, sc, o, trace)
	}
	return run
}

// mostFrames is how many frames of a connection are judged. A run has some hundreds. A stack that
// sends without end would otherwise produce more than fits into memory over hundreds of runs.
const mostFrames = mostLines

// bound leaves the first mostFrames frames of each connection, and reports whether there were more.
// It copies the octets of these frames, because slices of the stream would keep all its megabytes.
func bound(trace *wire.Trace) (more bool) {
	for _, c := range trace.Conns {
		if n := len(c.Frames) - mostFrames; n > 0 {
			c.Frames, more = slices.Clone(c.Frames[:mostFrames]), true
			for i := range c.Frames {
				f := &c.Frames[i]
				f.Octets, f.Payload = bytes.Clone(f.Octets), bytes.Clone(f.Payload)
			}
			c.Notes = append(c.Notes, fmt.Sprintf("%d more frames are in the capture", n))
		}
	}
	return more
}

// checkWire runs the scenario's Wire function on the capture of a run, and returns the outcome with
// the checks and observations that it made. A function that does not end is abandoned, as a run is.
func (j *Judge) checkWire(ctx context.Context, sc *Scenario, o *Outcome, trace *wire.Trace) *Outcome {
	if j.stuck.Load() >= mostAbandoned {
		o.Setup = fmt.Sprintf("not judged: %d checks of other captures did not end, and may keep the "+
			"CPUs busy; see the logs of their runs", mostAbandoned)
		return o
	}
	took, limit := o.DurationMillis, cmp.Or(j.WireTime, time.Minute)
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	t := &T{ctx: ctx, scale: 1, outcome: o, started: time.Now()}
	run := &WireRun{T: t, Trace: trace, Pairing: o.Pairing}
	body := func() { sc.Wire(run) }
	name := fmt.Sprintf("check of the capture of %s %s", sc.Slug, o.Pairing)
	if !t.runWithin(body, name, limit/10) {
		j.stuck.Add(1)
		taken, where := t.abandon(name)
		taken.Checks = append(slices.Clone(taken.Checks), Check{What: checkEnds, Got: fmt.Sprintf(
			"the check of its capture took longer than %v: it was in %s", limit, where)})
		o = taken
	}
	o.DurationMillis = took
	return o
}

// reference finds the run that o is compared with: the same scenario with nothing but
// the reference provider. It returns nil if o is that run, or if no such run could be
// tried.
func (j *Judge) reference(runs []judged, o *Outcome) *judged {
	want := o.Pairing
	for _, side := range []*string{&want.Initiator, &want.Responder} {
		if *side != Raw {
			*side = j.Reference
		}
	}
	if j.Reference == "" || want == o.Pairing {
		return nil
	}
	for i := range runs {
		r := runs[i].outcome
		if r.Scenario == o.Scenario && r.Pairing == want && r.Setup == "" && r.Unsupported == "" {
			return &runs[i]
		}
	}
	return nil
}

func (j *Judge) judge(c *Collection, run, ref *judged) Result {
	o, sc := run.outcome, j.Suite.Find(run.outcome.Scenario)
	res := Result{
		Scenario: sc.Slug, Title: sc.Title, Kind: sc.Kind(), Level: sc.Level, Requirements: sc.Requirements,
		Initiator: o.Pairing.Initiator, Responder: o.Pairing.Responder,
		DurationMillis: o.DurationMillis, Checks: o.Checks, Observations: o.Observations, Log: o.Log,
		Witness: run.witness, Port: o.Port, Capture: o.Capture, CaptureSource: o.CaptureSource,
		CaptureAtPeer: o.CaptureAtPeer,
		Replay:        replay(c, o),
	}
	if run.trace != nil {
		res.Ladder, res.Messages = run.trace.Ladder(), messages(run.trace)
	}
	switch {
	case o.Setup != "":
		res.Verdict, res.Why = Setup, o.Setup
		for _, name := range c.Require {
			if o.Pairing.Has(name) {
				res.Verdict, res.Why = Fail, name+" is required: "+o.Setup
			}
		}
		return res
	case o.Unsupported != "":
		res.Divergences = divergences(run, nil)
		res.Verdict, res.Why = j.lacking(o, res.Divergences)
		return res
	}
	if run.trace != nil && ref != nil && ref.trace != nil {
		run.rows = withoutRightful(sc, wire.Align(ref.trace, run.trace))
		res.Aligned = alignments(run.rows)
	}
	res.Divergences = divergences(run, ref)
	j.explain(&res, c, ref != nil)
	return res
}

// lacking returns the verdict of a run that ended because a provider lacks something. A check that
// failed still makes it FAIL, whether before that or when the run's devices were closed. The
// reference provider may lack nothing, because otherwise the other runs of the scenario have
// nothing to be compared with.
func (j *Judge) lacking(o *Outcome, found []Divergence) (v Verdict, why string) {
	switch {
	case len(found) > 0:
		return Fail, describe(&found[0])
	case j.alone(o.Pairing):
		return Fail, "the reference can't run it: " + o.Unsupported
	}
	return Unsupported, o.Unsupported
}

// alone reports whether p has no other provider than the reference.
func (j *Judge) alone(p Pairing) bool {
	for _, name := range []string{p.Initiator, p.Responder} {
		if name != Raw && name != j.Reference {
			return false
		}
	}
	return true
}

// withoutRightful removes differences that are allowed. If the scenario says that everything
// depends on timing, it removes all. It always removes differences in what the raw peer sends,
// because the peer follows its script only as far as the provider lets it. It also removes whether
// CRC is asked for, because each provider has its own default (see mpa/crc-default).
func withoutRightful(sc *Scenario, rows []wire.Row) []wire.Row {
	for i := range rows {
		rows[i].Differences = slices.DeleteFunc(rows[i].Differences, func(d wire.Difference) bool {
			return sc.Concurrent || sc.scripts(d.Key) || strings.HasSuffix(d.Key, ":request:C") || strings.HasSuffix(d.Key, ":reply:C")
		})
	}
	return rows
}

// divergences lists how a run differs from what was expected and, if there is a
// reference, from that.
func divergences(run, ref *judged) []Divergence {
	var out []Divergence
	for _, c := range run.outcome.Checks {
		if !c.OK {
			out = append(out, Divergence{Key: "check:" + c.What, Reference: c.What, Got: c.Got})
		}
	}
	if run.witness.Asked && !run.witness.Agrees {
		out = append(out, Divergence{Key: "witness:tshark", Reference: "tshark decodes what we decode", Got: run.witness.Why})
	}
	if ref == nil {
		return out
	}
	against := ref.outcome.Pairing.String()
	want, got := sequences(ref.outcome.Observations), sequences(run.outcome.Observations)
	for _, key := range unionKeys(ref.outcome.Observations, run.outcome.Observations) {
		if want[key] != got[key] {
			out = append(out, Divergence{Key: "observe:" + key, Reference: want[key], Got: got[key], Against: against})
		}
	}
	for _, row := range run.rows {
		for _, d := range row.Differences {
			out = append(out, Divergence{Key: "wire:" + d.Key, Reference: d.Reference, Got: d.Got, Against: against})
		}
	}
	return out
}

// messages returns the messages of a trace, with their fields.
func messages(trace *wire.Trace) []Message {
	decoded := trace.Decode()
	out := make([]Message, 0, len(decoded))
	for _, d := range decoded {
		m := Message{
			Lines: d.Lines, Direction: d.Dir.String(), Kind: d.Kind,
			Fields: make([]string, 0, len(d.Fields)),
		}
		for _, f := range d.Fields {
			m.Fields = append(m.Fields, f.Name+"="+f.Value)
		}
		out = append(out, m)
	}
	return out
}

// alignments returns rows without the text of the divergences.
func alignments(rows []wire.Row) []Alignment {
	out := make([]Alignment, 0, len(rows))
	for _, r := range rows {
		a := Alignment{Reference: r.Reference, Got: r.Got}
		for _, d := range r.Differences {
			a.Keys = append(a.Keys, "wire:"+d.Key)
		}
		out = append(out, a)
	}
	return out
}

// explain looks every divergence up in the profiles and decides the verdict.
func (j *Judge) explain(res *Result, c *Collection, compared bool) {
	pairing := Pairing{res.Initiator, res.Responder}
	used := make(map[string]bool)
	var unexplained []string
	for i := range res.Divergences {
		d := &res.Divergences[i]
		for k := range j.Profile {
			e := &j.Profile[k]
			if e.applies(res.Scenario, pairing, c) && e.covers(d.Key) {
				d.Entry, d.Reason, d.Evidence, d.Kernels = e.ID, e.Reason, e.Evidence, e.Kernels
				d.Provider, d.Requirements = e.Provider, e.Requirements
				used[e.ID] = true
				break
			}
		}
		if d.Entry == "" {
			unexplained = append(unexplained, describe(d))
		}
	}
	if len(res.Checks) == 0 {
		res.Verdict, res.Why = Fail, "the run checked nothing"
		return
	}
	if len(unexplained) > 0 {
		res.Verdict, res.Why = Fail, unexplained[0]
		if n := len(unexplained); n > 1 {
			res.Why += fmt.Sprintf(" (and %d more)", n-1)
		}
		return
	}
	for k := range j.Profile {
		e := &j.Profile[k]
		needsReference := !strings.HasPrefix(e.Key, "check:")
		if used[e.ID] || e.Sometimes || e.open(pairing, c) ||
			!e.applies(res.Scenario, pairing, c) || needsReference && !compared || e.unasked(res) {
			continue
		}
		res.Verdict, res.Why = XPass, "the profile's "+e.ID+" did not show: "+e.Reason
		return
	}
	res.Verdict = Pass
	if len(res.Divergences) > 0 {
		res.Verdict, res.Why = XFail, res.Divergences[0].Reason
	}
}

func describe(d *Divergence) string {
	if strings.HasPrefix(d.Key, "check:") {
		if d.Got == "" {
			return "not so: " + d.Reference
		}
		return "not so: " + d.Reference + ": " + d.Got
	}
	if d.Against == "" {
		return d.Key + ": " + d.Got
	}
	return fmt.Sprintf("%s: %s has %q, this %q", d.Key, d.Against, d.Reference, d.Got)
}

// sequences joins the values that each key was observed with.
func sequences(obs []Observation) map[string]string {
	m := make(map[string]string)
	for _, o := range obs {
		if old, ok := m[o.Key]; ok {
			m[o.Key] = old + ", " + o.Value
		} else {
			m[o.Key] = o.Value
		}
	}
	return m
}

func unionKeys(a, b []Observation) []string {
	var keys []string
	for _, o := range append(slices.Clone(a), b...) {
		if !slices.Contains(keys, o.Key) {
			keys = append(keys, o.Key)
		}
	}
	return keys
}

// replay returns the command that repeats just this run.
func replay(c *Collection, o *Outcome) string {
	cmd := fmt.Sprintf("govs-verbs-test run --only %s --seed %d", o.Scenario, c.Seed)
	if o.Pairing.atTarget() {
		cmd += " --target " + c.Target
		for _, name := range []string{o.Pairing.Initiator, o.Pairing.Responder} {
			if stack, _ := OnTarget(name); stack != "" {
				cmd += " --target-stack " + stack
			}
		}
		return cmd
	}
	if o.Pairing.Initiator != Raw {
		cmd += " --initiator " + o.Pairing.Initiator
	}
	if o.Pairing.Responder != Raw {
		cmd += " --responder " + o.Pairing.Responder
	}
	if p := c.Peer; p != nil && strings.Contains(cmd, AtPeer) {
		return cmd + " --peer " + p.Address
	}
	switch {
	case !o.Pairing.Has("kernel"):
		return cmd
	case c.Siw != "" && c.Siw != "default":
		return "ci/vm/run --siw " + c.Siw + " -- " + cmd
	}
	return "ci/vm/run -- " + cmd
}

// captureName is the file name of a run's capture.
func captureName(slug string, p Pairing) string {
	return strings.ReplaceAll(slug, "/", "-") + "." + p.Initiator + "-" + p.Responder + ".pcapng"
}
