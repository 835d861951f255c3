package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/govs-rdma/govs/provider/conformance"
	"github.com/govs-rdma/govs/provider/conformance/fuzz"
	"github.com/govs-rdma/govs/provider/conformance/onengine"
)

type fuzzCmd struct {
	Targets []string      `default:"engine" help:"engine, or engine,kernel. Default ${default}." placeholder:"NAME"`
	Time    time.Duration `default:"1m" help:"How long to go on. Default ${default}." placeholder:"TIME"`
	Count   int           `help:"End after so many sequences. Default: no limit." placeholder:"N"`
	Seed    uint64        `help:"Seed of the sequences. Default: a random one, which is printed." placeholder:"N"`
	Out     string        `default:"out/fuzz" help:"Folder for findings and progress. Default ${default}." placeholder:"DIR" type:"path"`
	Replay  string        `help:"Play only the sequence in this file." placeholder:"FILE" type:"path"`
	VM      bool          `name:"vm" help:"Run in a virtual machine with siw, and boot it again if it fails."`
}

// Help implements kong's HelpProvider.
func (*fuzzCmd) Help() string {
	return `Each sequence is one connection of a scripted peer: MPA start-up, then Sends, Writes, Read Requests, ` +
		`Read Responses and Terminates in any order between the queues, in most of which one field, length, CRC or ` +
		`frame is wrong, cut into TCP segments anywhere. Every target gets the same bytes, but for the STags and ` +
		`offsets of its memory. What it sends, how its work completes and what is in its memory has to be the same. ` +
		`Differences between engine and siw that a note in kernel-notes explains are counted by note. ` +
		`The engine alone gets each stream twice: cut at random, and in one write. A run goes on where one with ` +
		`the same seed and targets ended, by progress.json in --out.

A difference that nothing explains is confirmed with more patience, made smaller, and written to --out as ` +
		`a scenario: frames in hex, which --replay plays again. So is the sequence at which siw hangs, or the ` +
		`guest's kernel dies or warns. Do not use the kernel of a machine that you would miss: --vm brings its own.

    ` + name + ` fuzz --time 10m
    ` + name + ` fuzz --vm --targets engine,kernel --time 10m --seed 1
    ` + name + ` vm -- ` + name + ` fuzz --targets engine,kernel --replay FILE

Exit status: 0 if nothing was found, 1 if something was, or if the targets took no sequence whole.`
}

// Validate implements kong's check.
func (c *fuzzCmd) Validate() error {
	if t := strings.Join(c.Targets, ","); t != "engine" && t != "engine,kernel" {
		return fmt.Errorf("--targets %s: engine and engine,kernel are possible", t)
	}
	if c.VM && (len(c.Targets) == 1 || c.Replay != "") {
		return errors.New("--vm is for --targets engine,kernel, and not for --replay (its help has a line for that)")
	}
	if c.Time < time.Second || c.Count < 0 {
		return fmt.Errorf("--time %v --count %d: a run takes 1s or more, and a count is not negative", c.Time, c.Count)
	}
	return nil
}

// Run plays sequences. It fails if something was found.
func (c *fuzzCmd) Run(ctx context.Context, out *output) error {
	if c.Replay != "" {
		return c.replay(ctx, out)
	}
	if err := os.MkdirAll(c.Out, 0o755); err != nil {
		return unable(fmt.Errorf("--out names a folder for findings that can't be made: %w", err))
	}
	if c.Seed == 0 {
		c.Seed = rand.Uint64()>>1 + 1
	}
	if c.VM {
		return c.inVM(ctx, out)
	}
	p, err := c.progress()
	if err != nil {
		return unable(err)
	}
	targets, err := c.open()
	if err != nil {
		return unable(err)
	}
	defer targets.close()
	debug.SetGCPercent(800) // a sequence leaves much behind, and little is kept
	r := &fuzzRun{fuzzCmd: c, fuzzProgress: p, targets: targets, out: out}
	if targets.kernel {
		r.log = openKernelLog()
	}
	err = r.run(ctx)
	if saved := p.save(); saved != nil {
		return unable(saved)
	}
	if err != nil {
		return err
	}
	return p.print(out)
}

// fuzzTargets are the two that play each sequence.
type fuzzTargets struct {
	a, b   *fuzz.Target
	kernel bool
	taken  bool // both took all of the last sequence
}

func (t *fuzzTargets) close() {
	for _, target := range []*fuzz.Target{t.a, t.b} {
		if target != nil {
			target.Close()
		}
	}
}

// open opens the targets.
func (c *fuzzCmd) open() (*fuzzTargets, error) {
	addr := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	t := &fuzzTargets{kernel: len(c.Targets) == 2}
	engine := onengine.Side{Name: "engine", Addr: addr}.Opener()
	second := onengine.Side{Name: "engine, one write", Addr: addr}.Opener()
	if t.kernel {
		k, err := findKernel(netip.Addr{})
		if err != nil {
			return nil, fmt.Errorf("%w; --vm brings one", err)
		}
		second = k.opener(k.addr, nil, nil)
	}
	var err error
	for _, o := range []struct {
		into *(*fuzz.Target)
		open conformance.Opener
	}{{&t.a, engine}, {&t.b, second}} {
		ep, e := o.open(nil)
		if e == nil {
			*o.into, e = fuzz.Open(ep)
		}
		err = errors.Join(err, e)
	}
	if err != nil {
		t.close()
		return nil, err
	}
	return t, nil
}

// play plays a sequence to both targets. The error is a target's that can't go on.
func (t *fuzzTargets) play(ctx context.Context, s *fuzz.Sequence, patience time.Duration) (
	d []fuzz.Difference, notes []string, err error) {
	t.a.Quiet, t.b.Quiet = patience, patience
	a, err := t.a.Play(ctx, s)
	if err != nil {
		return nil, nil, err
	}
	if !t.kernel {
		s = s.Whole()
	}
	b, err := t.b.Play(ctx, s)
	if err != nil {
		return nil, nil, err
	}
	t.taken = a.Taken() && b.Taken()
	d = fuzz.Compare(a, b)
	notes = make([]string, len(d))
	if t.kernel {
		notes = fuzz.Explain(s, d)
	}
	if s.Unanswered(a) { // whatever the other one does
		d, notes = append(d, fuzz.Difference{Key: "no answer", A: "silence", B: "-"}), append(notes, "")
	}
	return d, notes, nil
}

// Patience of the peer: at first, and for a difference that is confirmed.
const (
	fuzzQuiet   = 30 * time.Millisecond
	fuzzConfirm = 500 * time.Millisecond
)

// fuzzRun is a run under way.
type fuzzRun struct {
	*fuzzCmd
	*fuzzProgress
	targets *fuzzTargets
	out     *output
	log     *kernelLog
	at      *os.File // has the index of the sequence that is played
}

func (r *fuzzRun) run(ctx context.Context) (err error) {
	fmt.Fprintf(r.out, "targets %s, seed %d, from index %d\n", r.fuzzProgress.Targets,
		r.fuzzProgress.Seed, r.Next)
	if r.at, err = os.Create(filepath.Join(r.Out, atFile)); err != nil {
		return unable(err)
	}
	defer r.at.Close()
	begin, saved := time.Now(), time.Now()
	before := r.Spent
	for n := 0; (r.Count == 0 || n < r.Count) && time.Since(begin) < r.Time && ctx.Err() == nil; n++ {
		if !slices.Contains(r.Skip, r.Next) {
			if err := r.one(ctx, r.Next); err != nil {
				return err
			}
		}
		r.Next++
		r.Spent = before + time.Since(begin)
		if time.Since(saved) > 5*time.Second {
			saved = time.Now()
			if err := r.save(); err != nil {
				return unable(err)
			}
		}
	}
	return nil
}

// one plays one sequence, and keeps it if a difference is not explained.
func (r *fuzzRun) one(ctx context.Context, index int) error {
	s := fuzz.Generate(r.fuzzProgress.Seed, index)
	if _, err := r.at.WriteAt(fmt.Appendf(nil, "%-20d", index), 0); err != nil {
		return unable(err)
	}
	d, notes, err := r.play(ctx, s, fuzzQuiet)
	if err == nil && slices.Contains(notes, "") {
		r.Confirmed++
		d, notes, err = r.play(ctx, s, fuzzConfirm)
	}
	if ctx.Err() != nil {
		return nil
	}
	if errors.Is(err, syscall.ECONNREFUSED) && r.Lost != index+1 {
		r.Notes["siw-listener-lost"]++ // by an earlier sequence
		r.Lost = index + 1
		return broken(index, err)
	}
	if err != nil {
		r.Skip = append(r.Skip, index)
		r.keep(s, "broken", err.Error())
		return broken(index, err)
	}
	r.Played++
	if r.targets.taken {
		r.Taken++
	}
	if slices.Contains(notes, "") {
		if err := r.minimise(ctx, s, d, notes); err != nil && ctx.Err() == nil {
			r.Skip = append(r.Skip, index)
			return broken(index, err)
		}
		return nil
	}
	slices.Sort(notes)
	for _, note := range slices.Compact(notes) {
		r.Notes[note]++
	}
	return nil
}

// broken is the error of a run that a sequence has ended.
func broken(index int, err error) error {
	return fmt.Errorf("sequence %d: the target can't be used any more: %w", index, err)
}

// play plays a sequence. A complaint of the kernel is an error, too.
func (r *fuzzRun) play(ctx context.Context, s *fuzz.Sequence, patience time.Duration) (
	d []fuzz.Difference, notes []string, err error) {
	d, notes, err = r.targets.play(ctx, s, patience)
	if warned := r.log.warning(); warned != "" {
		err = errors.Join(err, fmt.Errorf("the kernel says: %s", warned))
	}
	return d, notes, err
}

// minimise makes a sequence smaller as long as the same differences stay unexplained, and keeps it.
// The error is of a target that a smaller sequence has broken.
func (r *fuzzRun) minimise(ctx context.Context, s *fuzz.Sequence, d []fuzz.Difference, notes []string) error {
	want := unexplained(d, notes)
	tries, failed := 0, error(nil)
	small := fuzz.Minimise(s, func(c *fuzz.Sequence) bool {
		tries++
		if tries > 40 || failed != nil || ctx.Err() != nil {
			return false
		}
		d, notes, err := r.play(ctx, c, fuzzConfirm/4)
		failed = err
		return err == nil && slices.Equal(keys(unexplained(d, notes)), keys(want))
	})
	if failed == nil {
		d, notes, failed = r.play(ctx, small, fuzzConfirm)
		if left := unexplained(d, notes); failed == nil && len(left) > 0 {
			want = left
		}
	}
	var lines []string
	for _, d := range want {
		lines = append(lines, fmt.Sprintf("%s: %s | %s", d.Key, abridged(d.A), abridged(d.B)))
	}
	r.keep(small, strings.ReplaceAll(want[0].Key, " ", "-"), lines...)
	return failed
}

func unexplained(d []fuzz.Difference, notes []string) (out []fuzz.Difference) {
	for i := range d {
		if notes[i] == "" {
			out = append(out, d[i])
		}
	}
	return out
}

func keys(d []fuzz.Difference) (out []string) {
	for i := range d {
		out = append(out, d[i].Key)
	}
	return out
}

func abridged(s string) string {
	if len(s) > 160 {
		return s[:160] + "..."
	}
	return s
}

// keep writes a finding to a file, with lines about it.
func (r *fuzzRun) keep(s *fuzz.Sequence, kind string, lines ...string) {
	file, err := keepFinding(r.Out, s, kind, lines...)
	if err != nil {
		fmt.Fprintf(r.out.errors, "%s: writing a finding: %v\n", name, err)
	}
	r.Findings = append(r.Findings, file)
	fmt.Fprintf(r.out, "%s: %s\n  %s\n", file, strings.TrimSpace(s.About), strings.Join(lines, "\n  "))
}

func (c *fuzzCmd) replay(ctx context.Context, out *output) error {
	f, err := os.Open(c.Replay)
	if err != nil {
		return unable(err)
	}
	defer f.Close()
	s, err := fuzz.Read(f)
	if err != nil {
		return unable(fmt.Errorf("%s: %w", c.Replay, err))
	}
	targets, err := c.open()
	if err != nil {
		return unable(err)
	}
	defer targets.close()
	d, notes, err := targets.play(ctx, s, fuzzConfirm)
	if err != nil {
		return err
	}
	for i, d := range d {
		note := notes[i]
		if note == "" {
			note = "not explained"
		}
		fmt.Fprintf(out, "%s: %s\n  %s: %s\n  %s: %s\n", d.Key, note, targets.a.Name, d.A, targets.b.Name, d.B)
	}
	if slices.Contains(notes, "") {
		return errFailed
	}
	fmt.Fprintf(out, "%d differences, all explained\n", len(d))
	return nil
}

// print prints what a run has found so far. It fails if that is something, or if the targets take
// so little that equal outcomes mean nothing.
func (p *fuzzProgress) print(out *output) error {
	rate := float64(p.Played) / max(p.Spent.Seconds(), 0.001)
	fmt.Fprintf(out, "seed %d: %d sequences, %.0f a second, %d of them again with more patience, %d taken whole\n",
		p.Seed, p.Played, rate, p.Confirmed, p.Taken)
	for _, note := range slices.Sorted(maps.Keys(p.Notes)) {
		fmt.Fprintf(out, "  explained by %-30s %d\n", note, p.Notes[note])
	}
	fmt.Fprintf(out, "%d findings\n", len(p.Findings))
	for _, file := range p.Findings {
		fmt.Fprintf(out, "  %s\n", file)
	}
	switch {
	case len(p.Findings) > 0:
		return errFailed
	case p.Played == 0:
		return errors.New("no sequence was played")
	case p.Played >= 100 && p.Taken == 0:
		return errors.New("no sequence was taken whole by both targets, so nothing was compared: " +
			"play a valid one with --replay")
	}
	return nil
}
