package conformance

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ibverbs/rdmacm"
)

// recorder is a Capturer that writes down what is asked of it.
type recorder struct {
	asked      []string
	start, end error
}

func (r *recorder) Source() string { return "test" }

func (r *recorder) Start(port uint16) (Capture, error) {
	r.asked = append(r.asked, fmt.Sprint("start ", port))
	return r, r.start
}

func (r *recorder) Stop(name string) error {
	r.asked = append(r.asked, "stop "+filepath.Base(name))
	if r.end == nil {
		return os.WriteFile(name, nil, 0o644)
	}
	return r.end
}

func config(t *testing.T, s *Suite, pairings ...Pairing) Config {
	return Config{
		Suite: s, Seed: 7, Pairings: pairings, Dir: t.TempDir(),
		Open: map[string]Opener{"engine": opener(t, "engine"), "kernel": opener(t, "kernel")},
	}
}

func TestRun(t *testing.T) {
	var seen []string
	note := func(kind, who string, seed uint64, addr string) {
		seen = append(seen, fmt.Sprintf("%s %s %d %s", kind, who, seed, addr))
	}
	s := suite(
		verbs("a/verbs", func(r *VerbsRun) {
			note("verbs", r.Initiator.Name+" "+r.Responder.Name, r.Seed, r.Addr.String())
			r.Check(true, "it runs")
		}),
		raw("a/raw", RoleInitiator, func(r *RawRun) {
			note("raw", r.DUT.Name+" "+string(r.Role), r.Seed, r.Addr.String())
			r.Check(true, "it runs")
		}),
	)
	cfg := config(t, s, Pairing{"engine", "engine"}, Pairing{"engine", "kernel"})
	rec := &recorder{}
	cfg.Capture = rec
	var progress []string
	cfg.Progress = func(done, total int, o *Outcome) {
		progress = append(progress, fmt.Sprintf("%d/%d %s %s %s", done, total, o.Scenario, o.Pairing, o.State()))
	}
	out := testkit.Must(Run(context.Background(), cfg))(t)

	verbsSeed, rawSeed := out[0].Seed, out[2].Seed
	wantSeen := []string{
		fmt.Sprintf("verbs engine engine %d 127.0.0.1:20000", verbsSeed), fmt.Sprintf("verbs engine kernel %d 127.0.0.1:20001", verbsSeed),
		fmt.Sprintf("raw engine initiator %d 127.0.0.1:20002", rawSeed), fmt.Sprintf("raw kernel initiator %d 127.0.0.1:20003", rawSeed),
	}
	if strings.Join(seen, "\n") != strings.Join(wantSeen, "\n") {
		t.Errorf("runs were\n%s\nwant\n%s", strings.Join(seen, "\n"), strings.Join(wantSeen, "\n"))
	}
	if verbsSeed == rawSeed || verbsSeed == 0 {
		t.Errorf("seeds %d and %d: each scenario has its own, the same for each pairing", verbsSeed, rawSeed)
	}
	wantProgress := []string{
		"1/4 a/verbs engine->engine ok", "2/4 a/verbs engine->kernel ok", "3/4 a/raw raw->engine ok", "4/4 a/raw raw->kernel ok",
	}
	if strings.Join(progress, "\n") != strings.Join(wantProgress, "\n") {
		t.Errorf("progress was\n%s", strings.Join(progress, "\n"))
	}
	if want := "start 20000,stop a-verbs.engine-engine.pcapng,start 20001,stop a-verbs.engine-kernel.pcapng," +
		"start 20002,stop a-raw.raw-engine.pcapng,start 20003,stop a-raw.raw-kernel.pcapng"; strings.Join(rec.asked, ",") != want {
		t.Errorf("captures were asked for as %s", strings.Join(rec.asked, ","))
	}
	for _, o := range out {
		if o.CaptureSource != "test" || o.Started.IsZero() || len(o.Checks) < 2 || o.failed() {
			t.Errorf("outcome %+v", o)
		}
		if _, err := os.Stat(filepath.Join(cfg.Dir, o.Capture)); err != nil {
			t.Error(err)
		}
	}
}

// A run that only waits is under way beside the runs after it. Its outcome keeps its place.
func TestRunIdle(t *testing.T) {
	began := make(chan struct{})
	waits := verbs("a/waits", func(r *VerbsRun) {
		select {
		case <-began:
			r.Check(true, "the next run begins meanwhile")
		case <-r.Context().Done():
			r.Check(false, "the next run begins meanwhile", "%v", r.Context().Err())
		}
	})
	waits.Idle = true
	s := suite(waits, verbs("a/next", func(r *VerbsRun) {
		close(began)
		r.Check(true, "it runs")
	}))
	cfg := config(t, s, Pairing{"engine", "engine"})
	var progress []int
	cfg.Progress = func(done, total int, _ *Outcome) { progress = append(progress, done, total) }
	out := testkit.Must(Run(context.Background(), cfg))(t)
	if len(out) != 2 || out[0].Scenario != "a/waits" || out[1].Scenario != "a/next" {
		t.Fatalf("outcomes %+v", out)
	}
	for _, o := range out {
		if o.State() != "ok" {
			t.Errorf("%s: %s %+v", o.Scenario, o.State(), o.Checks)
		}
	}
	if !slices.Equal(progress, []int{1, 2, 2, 2}) {
		t.Errorf("progress %v", progress)
	}
}

// At most idleAtOnce runs that only wait are under way, and all end with the context.
func TestRunIdleLimit(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var under atomic.Int32
	var scenarios []*Scenario
	for i := range 3 * idleAtOnce {
		sc := verbs(fmt.Sprintf("a/waits-%d", i), func(r *VerbsRun) {
			if under.Add(1) == idleAtOnce {
				time.AfterFunc(50*time.Millisecond, cancel)
			}
			<-r.Context().Done()
		})
		sc.Idle = true
		scenarios = append(scenarios, sc)
	}
	cfg := config(t, suite(scenarios...), Pairing{"engine", "engine"})
	out, err := Run(ctx, cfg)
	if !errors.Is(err, context.Canceled) || len(out) != idleAtOnce || under.Load() != idleAtOnce {
		t.Errorf("%d outcomes, %d runs, error %v", len(out), under.Load(), err)
	}
}

func TestRunSeedDependsOnTheSuites(t *testing.T) {
	s := suite(verbs("a/b", func(r *VerbsRun) { r.Check(true, "it runs") }))
	cfg := config(t, s, Pairing{"engine", "engine"})
	first := testkit.Must(Run(context.Background(), cfg))(t)[0].Seed
	if again := testkit.Must(Run(context.Background(), cfg))(t)[0].Seed; again != first {
		t.Errorf("the same seed gives %d and %d", first, again)
	}
	cfg.Seed = 8
	if other := testkit.Must(Run(context.Background(), cfg))(t)[0].Seed; other == first {
		t.Error("another seed gives the same")
	}
}

func TestRunOnlyByName(t *testing.T) {
	ran := 0
	crash := verbs("a/crash", func(r *VerbsRun) { ran++ })
	crash.OnlyByName = "it has crashed a kernel"
	s := suite(crash, verbs("a/b", func(r *VerbsRun) {}))
	cfg := config(t, s, Pairing{"engine", "engine"})
	for _, only := range []string{"", "a", "a/*", "a/c*"} {
		cfg.Only = only
		testkit.Must(Run(context.Background(), cfg))(t)
	}
	if ran != 0 {
		t.Fatalf("it ran %d times without being named", ran)
	}
	cfg.Only = "a/crash"
	testkit.Must(Run(context.Background(), cfg))(t)
	if ran != 1 {
		t.Errorf("named, it ran %d times", ran)
	}
	cfg.Only = "b"
	if _, err := Run(context.Background(), cfg); err == nil {
		t.Error("a pattern that matches nothing is no error")
	}
}

func TestRunWith(t *testing.T) {
	raw := &Scenario{Slug: "a/raw", Level: Must, Title: "raw", Raw: func(*RawRun) {}, RawRole: RoleInitiator,
		Needs: NeedsProgram}
	cfg := config(t, suite(verbs("a/b", func(*VerbsRun) {}), raw), Pairing{"engine", "engine"},
		Pairing{"engine", "other"}, Pairing{"other", "engine"}, Pairing{"other", "other"})
	for _, c := range []struct {
		with []string
		want []Pairing
	}{
		{[]string{"engine"}, []Pairing{{"engine", "engine"}, {"engine", "other"}, {"other", "engine"}, {Raw, "engine"}}},
		{[]string{"other", "engine"}, []Pairing{{"engine", "other"}, {"other", "engine"}}},
	} {
		cfg.With = c.with
		var got []Pairing
		for _, o := range testkit.Must(Run(context.Background(), cfg))(t) {
			got = append(got, o.Pairing)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("with %v: %v, want %v", c.with, got, c.want)
		}
	}
}

func TestRunLeaveOut(t *testing.T) {
	ran := 0
	s := suite(verbs("a/left", func(r *VerbsRun) { ran++; r.Check(true, "it runs") }),
		verbs("a/run", func(r *VerbsRun) { r.Check(true, "it runs") }))
	cfg := config(t, s, Pairing{"engine", "engine"}, Pairing{"engine", "kernel"})
	cfg.LeaveOut = func(slug string, p Pairing) string {
		if slug == "a/left" && p.Has("kernel") {
			return "it stops"
		}
		return ""
	}
	rec := &recorder{}
	cfg.Capture = rec
	out := testkit.Must(Run(context.Background(), cfg))(t)
	var got []string
	for _, o := range out {
		got = append(got, fmt.Sprint(o.Scenario, " ", o.Pairing, " ", o.Unsupported))
	}
	want := []string{"a/left engine->engine ", "a/left engine->kernel it stops",
		"a/run engine->engine ", "a/run engine->kernel "}
	if !slices.Equal(got, want) || ran != 1 || len(rec.asked) != 2*3 {
		t.Errorf("%q, ran %d times, captures: %q", got, ran, rec.asked)
	}
	rep := testkit.Must((&Judge{Suite: s, Dir: cfg.Dir, Reference: "engine"}).Judge(t.Context(), collection(out[1])))(t)
	if res := rep.Results[0]; res.Verdict != Unsupported || res.Why != "it stops" {
		t.Errorf("%s: %s", res.Verdict, res.Why)
	}
}

func TestRunWithoutAProvider(t *testing.T) {
	s := suite(verbs("a/b", func(r *VerbsRun) { t.Error("it was run") }))
	cfg := config(t, s, Pairing{"engine", "kernel"}, Pairing{"engine", "other"})
	cfg.Open["kernel"] = func([]string) (*Endpoint, error) { return nil, errors.New("no siw0") }
	out := testkit.Must(Run(context.Background(), cfg))(t)
	if out[0].Setup != `provider "kernel" cannot be opened: no siw0` || out[1].Setup != `provider "other" is not available here` {
		t.Errorf("setups are %q and %q", out[0].Setup, out[1].Setup)
	}
}

// A device can't be closed if a scenario leaves something open in it. The run finds that.
func TestRunFindsWhatIsLeftOpen(t *testing.T) {
	s := suite(verbs("a/b", func(r *VerbsRun) {
		pd, err := r.Initiator.Context.AllocPD()
		r.NoError(err, "a PD can be made")
		t.Cleanup(func() {
			if err := errors.Join(pd.Close(), r.Initiator.Context.Close()); err != nil {
				t.Error(err)
			}
		})
	}))
	o := testkit.Must(Run(context.Background(), config(t, s, Pairing{"engine", "engine"})))(t)[0]
	found := false
	for _, c := range o.Checks {
		found = found || !c.OK && strings.Contains(c.What, "nothing was left open")
	}
	if !found {
		t.Errorf("checks are %+v", o.Checks)
	}
}

func TestRunTimeout(t *testing.T) {
	sc := verbs("a/slow", func(r *VerbsRun) { <-r.Context().Done() })
	sc.Timeout = 100 * time.Millisecond
	cfg := config(t, suite(sc), Pairing{"engine", "engine"})
	cfg.Scale = 3
	o := testkit.Must(Run(context.Background(), cfg))(t)[0]
	last := o.Checks[len(o.Checks)-1]
	if last.OK || last.What != "the run ends by itself" || last.Got != "it took longer than 300ms" {
		t.Errorf("the last check is %+v", last)
	}
	if o.DurationMillis < 100 { // the limit begins before the run, on a busy machine by some time
		t.Errorf("it took %d ms", o.DurationMillis)
	}
}

func TestRunInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	s := suite(verbs("a/one", func(r *VerbsRun) { cancel() }), verbs("a/two", func(r *VerbsRun) { t.Error("it was run") }))
	out, err := Run(ctx, config(t, s, Pairing{"engine", "engine"}))
	if !errors.Is(err, context.Canceled) || len(out) != 1 {
		t.Errorf("%d outcomes, error %v", len(out), err)
	}
}

func TestRunCaptureFails(t *testing.T) {
	s := suite(verbs("a/b", func(r *VerbsRun) {}))
	for name, tc := range map[string]struct {
		rec   *recorder
		setup string
		check string
	}{
		"to start": {&recorder{start: errors.New("no rights")}, "cannot capture: no rights", ""},
		"to end":   {&recorder{end: errors.New("dropped 3 packets")}, "", "dropped 3 packets"},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := config(t, s, Pairing{"engine", "engine"})
			cfg.Capture = tc.rec
			o := testkit.Must(Run(context.Background(), cfg))(t)[0]
			if o.Setup != tc.setup || o.Capture != "" {
				t.Errorf("outcome %+v", o)
			}
			if tc.check != "" && o.Checks[len(o.Checks)-1].Got != tc.check {
				t.Errorf("checks %+v", o.Checks)
			}
		})
	}
}

// A scenario that returns without a check has shown nothing, though its devices could be closed.
func TestRunChecksNothing(t *testing.T) {
	onTheWire := verbs("a/on-the-wire", func(*VerbsRun) {})
	onTheWire.Wire = func(*WireRun) {}
	s := suite(verbs("a/nothing", func(*VerbsRun) {}), onTheWire,
		verbs("a/lacks", func(r *VerbsRun) { r.Unsupported("it has none") }))
	out := testkit.Must(Run(context.Background(), config(t, s, Pairing{"engine", "kernel"})))(t)
	for i, want := range []string{"differs", "ok", "lacking"} {
		if got := out[i].State(); got != want {
			t.Errorf("%s: %s, want %s: %+v", out[i].Scenario, got, want, out[i].Checks)
		}
	}
}

// A provider that can't wait for requests has not shown that none comes.
func TestWantNoRequest(t *testing.T) {
	s := suite(raw("r/none", RoleInitiator, func(r *RawRun) {
		r.Listen(r.Addr)
		r.WantNoRequest("no request comes")
	}), raw("r/broken", RoleInitiator, func(r *RawRun) {
		r.Listen(r.Addr)
		r.NoError(r.listener.Close(), "the listener can be closed")
		r.WantNoRequest("no request comes")
	}))
	out := testkit.Must(Run(context.Background(), config(t, s, Pairing{"engine", "engine"})))(t)
	for i, want := range []string{"ok", "differs"} {
		if got := out[i].State(); got != want {
			t.Errorf("%s: %s, want %s: %+v", out[i].Scenario, got, want, out[i].Checks)
		}
	}
}

// Before may end the run, on whichever goroutine the provider calls it, and leaves nothing open.
func TestRunEndsWhilePreparing(t *testing.T) {
	fails := &SideConfig{Before: func(s *Side) { s.Require(false, "the side can prepare") }}
	for name, body := range map[string]func(*VerbsRun){
		"initiator": func(r *VerbsRun) { r.Connect(fails, nil) },
		"responder": func(r *VerbsRun) { r.Connect(nil, fails) },
	} {
		t.Run(name, func(t *testing.T) {
			cfg := config(t, suite(verbs("a/b", body)), Pairing{"engine", "engine"})
			ended := make(chan Outcome, 1)
			go func() { ended <- testkit.Must(Run(context.Background(), cfg))(t)[0] }()
			select {
			case o := <-ended:
				var failed []string
				for _, c := range o.Checks {
					if !c.OK {
						failed = append(failed, c.What+": "+c.Got)
					}
				}
				if !slices.Contains(failed, "the side can prepare: ") || o.DurationMillis > 30_000 {
					t.Errorf("after %d ms these checks have failed: %q", o.DurationMillis, failed)
				}
			case <-time.After(time.Minute):
				t.Fatal("the run does not end")
			}
		})
	}
}

// A script that ends while the program still connects leaves nothing open, so the device can be
// closed.
func TestRunEndsWhileConnecting(t *testing.T) {
	slow := &SideConfig{ConnConfig: rdmacm.ConnConfig{Setup: func(*rdmacm.ID) error {
		time.Sleep(300 * time.Millisecond)
		return nil
	}}}
	sc := raw("r/connects", RoleResponder, func(r *RawRun) { r.DialPeer(slow) })
	sc.Timeout = time.Minute
	cfg := config(t, suite(sc), Pairing{"engine", "engine"})
	cfg.Scale = 0.02 // so that the peer gives up before the program has prepared anything
	for _, o := range testkit.Must(Run(context.Background(), cfg))(t) {
		var failed []string
		for _, c := range o.Checks {
			if !c.OK {
				failed = append(failed, c.What)
			}
		}
		if !slices.Equal(failed, []string{"the provider makes a TCP connection"}) {
			t.Errorf("%s: these checks have failed: %q", o.Scenario, failed)
		}
	}
}

// TestEntryTakesThePeersKernel: an entry about a provider on the other host applies by that host's
// kernel and variant.
func TestEntryTakesThePeersKernel(t *testing.T) {
	e := ProfileEntry{Scenario: "*/*", Provider: "kernel", Key: "x", Fixed: []string{"6.1.100"},
		Variants: []string{"crc"}}
	c := &Collection{KernelVersion: "6.1.200", Siw: "default",
		Peer: &PeerHost{KernelVersion: "6.1.50", Siw: "crc"}}
	for p, want := range map[Pairing]bool{
		{"kernel" + AtPeer, "engine"}: true, {"engine", "kernel" + AtPeer}: true,
		{"kernel", "engine"}: false, {"engine" + AtPeer, "engine"}: false,
	} {
		if got := e.applies("a/b", p, c); got != want {
			t.Errorf("%s: %v", p, got)
		}
	}
	c.Peer.KernelVersion = "6.1.150"
	if e.applies("a/b", Pairing{"kernel" + AtPeer, "engine"}, c) {
		t.Error("it applies to a kernel that is free of it")
	}
	c.Peer.KernelVersion = ""
	p := Pairing{"engine", "kernel" + AtPeer}
	if !e.applies("a/b", p, c) || !e.open(p, c) || e.open(Pairing{"kernel", "engine"}, c) {
		t.Error("a kernel without a version is not told apart")
	}
}

// TestRunLosesThePeer: the run under way ends at once and says why, and no other begins. If none is
// under way, the next outcome says why.
func TestRunLosesThePeer(t *testing.T) {
	why := errors.New("the agent has gone")
	for _, c := range []struct{ during, untried bool }{{during: true}, {}, {untried: true}} {
		during := c.during
		lost := make(chan struct{})
		var s Suite
		began := 0
		for _, slug := range []string{"a/first", "a/second", "a/third"} {
			s.Add(&Scenario{Slug: slug, Title: "t", Level: Must, Verbs: func(r *VerbsRun) {
				if began++; began == 2 && during {
					close(lost)
					<-r.Context().Done()
				}
				if c.untried {
					r.Setup("a setup of its own")
				}
				r.Check(began == 1, "it is the first")
			}})
		}
		cfg := config(t, &s, Pairing{"engine", "engine" + AtPeer})
		cfg.Open["engine"+AtPeer] = opener(t, "engine")
		cfg.Lost, cfg.Why = lost, func() error { return why }
		want := why.Error()
		if !during {
			want = "not tried: " + want
			cfg.Progress = func(done, _ int, _ *Outcome) {
				if done == 1 {
					close(lost)
				}
			}
		}
		outcomes, err := Run(context.Background(), cfg)
		if err != nil || len(outcomes) != 2 || during != (began == 2) {
			t.Fatalf("%d outcomes, %d runs, %v", len(outcomes), began, err)
		}
		if o := outcomes[0]; (o.Setup == "a setup of its own") != c.untried ||
			(o.State() == "ok") == c.untried {
			t.Errorf("the first: %+v", o)
		}
		if o := outcomes[1]; o.Setup != want {
			t.Errorf("the second: %+v, want setup %q", o, want)
		}
	}
}
