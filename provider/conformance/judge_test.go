package conformance

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider/conformance/wire"
)

func check(ok bool) Check {
	return Check{What: "it holds", OK: ok, Got: map[bool]string{false: "it did not"}[ok]}
}

func outcome(slug, initiator, responder string, checks ...Check) Outcome {
	return Outcome{Scenario: slug, Pairing: Pairing{initiator, responder}, Checks: checks}
}

func observed(o Outcome, kv ...string) Outcome {
	for i := 0; i < len(kv); i += 2 {
		o.Observations = append(o.Observations, Observation{kv[i], kv[i+1]})
	}
	return o
}

func collection(outcomes ...Outcome) *Collection {
	return &Collection{Schema: CollectionSchema, Seed: 7, Outcomes: outcomes}
}

// entry returns a complete entry of a profile.
func entry(id, slug, key string) ProfileEntry {
	return ProfileEntry{ID: id, Scenario: slug, Provider: "kernel", Key: key, Reason: "because of " + id,
		Kernels: "6.1", Evidence: "kernel-notes/" + id + ".md", Requirements: []string{requirement}}
}

// reportOf judges.
func reportOf(t *testing.T, j *Judge, c *Collection) *Report {
	t.Helper()
	return testkit.Must(j.Judge(context.Background(), c))(t)
}

// verdicts returns a report's results, one to a line.
func verdicts(r *Report) string {
	var b strings.Builder
	for _, res := range r.Results {
		fmt.Fprintf(&b, "%s %s->%s %s: %s\n", res.Scenario, res.Initiator, res.Responder, res.Verdict, res.Why)
	}
	return b.String()
}

func TestVerdicts(t *testing.T) {
	s := suite(verbs("a/b", nothing), raw("r/w", RoleInitiator, func(*RawRun) {}))
	setup := outcome("a/b", "engine", "kernel")
	setup.Setup = "no siw0"
	lacking := outcome("a/b", "engine", "kernel")
	lacking.Unsupported = "no SRQ"
	leftOpen := outcome("a/b", "engine", "kernel", check(true), check(false))
	leftOpen.Unsupported = "no SRQ"
	poor := outcome("a/b", "engine", "engine", check(true))
	poor.Unsupported = "no SRQ"
	poorRaw := outcome("r/w", Raw, "engine", check(true))
	poorRaw.Unsupported = "no SRQ"
	good := outcome("a/b", "engine", "engine", check(true))
	often := entry("often", "a/b", "observe:wc")
	often.Sometimes = true
	other := entry("other-variant", "a/b", "observe:wc")
	other.Variants = []string{"crc"}
	asInitiator := entry("as-initiator", "a/b", "observe:wc")
	asInitiator.As = RoleInitiator

	for name, tc := range map[string]struct {
		profile []ProfileEntry
		require []string
		runs    []Outcome
		want    string // of the last run
		passed  bool
	}{
		"PASS":              {runs: []Outcome{good}, want: "PASS: ", passed: true},
		"a check failed":    {runs: []Outcome{good, outcome("a/b", "engine", "kernel", check(true), check(false))}, want: "FAIL: not so: it holds: it did not"},
		"two checks failed": {runs: []Outcome{outcome("a/b", "engine", "engine", check(false), check(false))}, want: "FAIL: not so: it holds: it did not (and 1 more)"},
		"nothing checked":   {runs: []Outcome{good, outcome("a/b", "engine", "kernel")}, want: "FAIL: the run checked nothing"},
		"SETUP":             {runs: []Outcome{good, setup}, want: "SETUP: no siw0"},
		"required":          {runs: []Outcome{good, setup}, require: []string{"kernel"}, want: "FAIL: kernel is required: no siw0"},
		"a pattern does not cover a panic": {
			profile: []ProfileEntry{entry("wide", "a/b", "check:*")},
			runs: []Outcome{good, outcome("a/b", "engine", "kernel", check(false),
				Check{What: "nothing panics", Got: "it did"})},
			want: "FAIL: not so: nothing panics: it did",
		},
		"nor a run that does not end": {
			profile: []ProfileEntry{entry("wide", "a/b", "check:the run*")},
			runs: []Outcome{good, outcome("a/b", "engine", "kernel",
				Check{What: "the run ends by itself", Got: "it took longer"})},
			want: "FAIL: not so: the run ends by itself: it took longer",
		},
		"its own words do": {
			profile: []ProfileEntry{entry("slow", "a/b", "check:the run ends by itself")},
			runs: []Outcome{good, outcome("a/b", "engine", "kernel",
				Check{What: "the run ends by itself", Got: "it took longer"})},
			want: "XFAIL: because of slow", passed: true,
		},
		"UNSUPPORTED": {runs: []Outcome{good, lacking}, want: "UNSUPPORTED: no SRQ", passed: true},
		"UNSUPPORTED, and a check failed": {
			runs: []Outcome{good, leftOpen},
			want: "FAIL: not so: it holds: it did not",
		},
		"the reference is not supported": {
			runs: []Outcome{good, poor}, want: "FAIL: the reference can't run it: no SRQ",
		},
		"nor in a raw scenario": {
			runs: []Outcome{good, poorRaw}, want: "FAIL: the reference can't run it: no SRQ",
		},
		"differs": {
			runs: []Outcome{observed(good, "wc", "ok"), observed(outcome("a/b", "engine", "kernel", check(true)), "wc", "flushed")},
			want: `FAIL: observe:wc: engine->engine has "ok", this "flushed"`,
		},
		"the same in another order of keys": {
			runs:   []Outcome{observed(good, "wc", "1", "event", "x", "wc", "2"), observed(outcome("a/b", "kernel", "kernel", check(true)), "event", "x", "wc", "1", "wc", "2")},
			want:   "PASS: ",
			passed: true,
		},
		"a sequence differs": {
			runs: []Outcome{observed(good, "wc", "1", "wc", "2"), observed(outcome("a/b", "kernel", "kernel", check(true)), "wc", "2", "wc", "1")},
			want: `FAIL: observe:wc: engine->engine has "1, 2", this "2, 1"`,
		},
		"XFAIL of a check": {
			profile: []ProfileEntry{entry("known", "a/*", "check:it holds")},
			runs:    []Outcome{good, outcome("a/b", "engine", "kernel", check(false))},
			want:    "XFAIL: because of known", passed: true,
		},
		"XFAIL of a difference": {
			profile: []ProfileEntry{entry("known", "a/b", "observe:w*")},
			runs: []Outcome{observed(good, "wc", "ok"),
				observed(outcome("a/b", "engine", "kernel", check(true)), "wc", "flushed")},
			want: "XFAIL: because of known", passed: true,
		},
		"one known, one not": {
			profile: []ProfileEntry{entry("known", "a/b", "observe:wc")},
			runs: []Outcome{
				observed(good, "wc", "ok", "event", "x"), observed(outcome("a/b", "engine", "kernel", check(true)), "wc", "flushed", "event", "y"),
			},
			want: `FAIL: observe:event: engine->engine has "x", this "y"`,
		},
		"the profile is about the other provider": {
			profile: []ProfileEntry{entry("known", "a/b", "check:it holds")},
			runs:    []Outcome{outcome("a/b", "engine", "engine", check(false))},
			want:    "FAIL: not so: it holds: it did not",
		},
		"XPASS": {
			profile: []ProfileEntry{entry("known", "a/b", "observe:wc")},
			runs: []Outcome{observed(good, "wc", "ok"),
				observed(outcome("a/b", "engine", "kernel", check(true)), "wc", "ok")},
			want: "XPASS: the profile's known did not show: because of known",
		},
		"XPASS of a check, without a reference": {
			profile: []ProfileEntry{entry("known", "a/b", "check:it holds")},
			runs:    []Outcome{outcome("a/b", "kernel", "kernel", check(true))},
			want:    "XPASS: the profile's known did not show: because of known",
		},
		"no XPASS where nothing was compared": {
			profile: []ProfileEntry{entry("known", "a/b", "observe:wc")},
			runs:    []Outcome{good, outcome("a/b", "kernel", "kernel", check(true))}[1:],
			want:    "PASS: ", passed: true,
		},
		"no XPASS of what shows sometimes": {
			profile: []ProfileEntry{often},
			runs:    []Outcome{good, outcome("a/b", "engine", "kernel", check(true))},
			want:    "PASS: ", passed: true,
		},
		"an entry about another variant": {
			profile: []ProfileEntry{other},
			runs: []Outcome{observed(good, "wc", "ok"),
				observed(outcome("a/b", "engine", "kernel", check(true)), "wc", "flushed")},
			want: `FAIL: observe:wc: engine->engine has "ok", this "flushed"`,
		},
		"an entry about another part": {
			profile: []ProfileEntry{asInitiator},
			runs: []Outcome{observed(good, "wc", "ok"),
				observed(outcome("a/b", "engine", "kernel", check(true)), "wc", "flushed")},
			want: `FAIL: observe:wc: engine->engine has "ok", this "flushed"`,
		},
		"raw runs are compared with the reference opposite the raw peer": {
			runs: []Outcome{observed(outcome("r/w", Raw, "engine", check(true)), "wc", "ok"), observed(outcome("r/w", Raw, "kernel", check(true)), "wc", "no")},
			want: `FAIL: observe:wc: raw->engine has "ok", this "no"`,
		},
		"a reference that could not be tried is none": {
			runs: []Outcome{{Scenario: "a/b", Pairing: Pairing{"engine", "engine"}, Unsupported: "x"}, observed(outcome("a/b", "engine", "kernel", check(true)), "wc", "ok")},
			want: "PASS: ",
		},
		"nothing passed": {runs: []Outcome{lacking}, want: "UNSUPPORTED: no SRQ"},
	} {
		t.Run(name, func(t *testing.T) {
			c := collection(tc.runs...)
			c.Require = tc.require
			r := reportOf(t, &Judge{Suite: s, Profile: tc.profile, Reference: "engine"}, c)
			last := r.Results[len(r.Results)-1]
			if got := string(last.Verdict) + ": " + last.Why; got != tc.want {
				t.Errorf("got  %s\nwant %s\nof\n%s", got, tc.want, verdicts(r))
			}
			if r.Passed != tc.passed {
				t.Errorf("passed is %v with %v", r.Passed, r.Counts)
			}
			n := 0
			for _, k := range r.Counts {
				n += k
			}
			if n != len(tc.runs) {
				t.Errorf("counts %v of %d runs", r.Counts, len(tc.runs))
			}
			for _, d := range r.Results[len(r.Results)-1].Divergences {
				if d.Entry != "" && (d.Provider != "kernel" || !slices.Equal(d.Requirements, []string{requirement})) {
					t.Errorf("%s is of %q, about %q", d.Entry, d.Provider, d.Requirements)
				}
			}
		})
	}
}

// A divergence that a release of the kernel fixed is expected before that release, and
// neither excused nor required from then on.
func TestVerdictOfKernels(t *testing.T) {
	e := entry("mended", "a/b", "observe:wc")
	e.Fixed = []string{"6.1.178", "6.12.96"}
	j := &Judge{Suite: suite(verbs("a/b", nothing)), Profile: []ProfileEntry{e}, Reference: "engine"}
	reference := observed(outcome("a/b", "engine", "engine", check(true)), "wc", "ok")
	for _, tc := range []struct {
		kernel       string
		differs, not Verdict
	}{
		{"6.1.177", XFail, XPass},
		{"6.1.178", Fail, Pass},
		{"6.1.192", Fail, Pass},
		{"6.12.95", XFail, XPass},
		{"6.12.96", Fail, Pass},
		{"6.6.20", XFail, Pass}, // a series of which nothing is known
		{"", XFail, Pass},
	} {
		for value, want := range map[string]Verdict{"flushed": tc.differs, "ok": tc.not} {
			c := collection(reference, observed(outcome("a/b", "engine", "kernel", check(true)), "wc", value))
			c.KernelVersion = tc.kernel
			if got := reportOf(t, j, c).Results[1]; got.Verdict != want {
				t.Errorf("on %q a run that observes %q is %s (%s), want %s", tc.kernel, value, got.Verdict, got.Why, want)
			}
		}
	}
}

func TestVerdictGood(t *testing.T) {
	for v, want := range map[Verdict]bool{Pass: true, XFail: true, Unsupported: true, Fail: false, XPass: false, Setup: false} {
		if v.Good() != want {
			t.Errorf("%s is good: %v", v, v.Good())
		}
		if got := Passed(map[Verdict]int{Pass: 1, v: 1}); got != want {
			t.Errorf("a suite with a PASS and a %s passed: %v", v, got)
		}
		if Passed(map[Verdict]int{v: 1}) != (v == Pass) {
			t.Errorf("a suite of one %s: passed is %v", v, v != Pass)
		}
	}
	if Passed(nil) {
		t.Error("a suite of nothing passed")
	}
}

func TestJudgeRefuses(t *testing.T) {
	j := &Judge{Suite: suite(verbs("a/b", nothing))}
	for name, c := range map[string]*Collection{
		"another schema":      {Schema: "govs-collection/0"},
		"an unknown scenario": collection(outcome("no/such", "engine", "engine")),
	} {
		if r, err := j.Judge(context.Background(), c); err == nil {
			t.Errorf("%s is judged: %+v", name, r)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := j.Judge(ctx, collection(outcome("a/b", "engine", "engine", check(true)))); err == nil {
		t.Error("a judge that is interrupted says nothing of it")
	}
}

// Judging does not change the collection, and a second time gives the same result.
func TestJudgeTwice(t *testing.T) {
	sc := verbs("a/b", nothing)
	sc.Wire = func(w *WireRun) { w.Check(false, "the wire is right"); w.Observe("frames", "%d", w.Trace.Count()) }
	dir := t.TempDir()
	o := outcome("a/b", "engine", "engine", check(true))
	o.Checks = append(make([]Check, 0, 10), o.Checks...) // with room that appending would write to
	o.Capture, o.Port = writeSYN(t, dir, 20001), 20001
	c := collection(o)
	j := &Judge{Suite: suite(sc), Dir: dir}
	first := reportOf(t, j, c)
	if d := cmp.Diff(first, reportOf(t, j, c)); d != "" {
		t.Errorf("the second judgement is another:\n%s", d)
	}
	if len(c.Outcomes[0].Checks) != 1 || len(first.Results[0].Checks) != 2 || first.Results[0].Verdict != Fail {
		t.Errorf("%d checks in the collection, %d in the report", len(c.Outcomes[0].Checks), len(first.Results[0].Checks))
	}
}

// writeSYN writes a capture of a connection without an answer.
func writeSYN(t *testing.T, dir string, port uint16) string {
	t.Helper()
	name := fmt.Sprintf("syn-%d.pcap", port)
	f, err := os.Create(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	addr := netip.MustParseAddr("192.0.2.1").AsSlice()
	ip := &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolTCP, SrcIP: addr, DstIP: addr}
	tcp := &layers.TCP{SrcPort: 40000, DstPort: layers.TCPPort(port), SYN: true, Seq: 5}
	buf := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true}, ip, tcp); err != nil {
		t.Fatal(err)
	}
	w := pcapgo.NewWriter(f)
	err = w.WriteFileHeader(1<<16, layers.LinkTypeRaw)
	if err == nil {
		n := len(buf.Bytes())
		err = w.WritePacket(gopacket.CaptureInfo{Timestamp: time.Unix(1, 0), CaptureLength: n, Length: n}, buf.Bytes())
	}
	if err != nil {
		t.Fatal(err)
	}
	return name
}

func TestJudgeAsksTheWitness(t *testing.T) {
	dir := t.TempDir()
	unwitnessed := verbs("a/unwitnessed", nothing)
	unwitnessed.Unwitnessed = "tshark has no word for it"
	s := suite(verbs("a/agreed", nothing), verbs("a/disputed", nothing), unwitnessed, verbs("a/none", nothing), verbs("a/lost", nothing))
	var runs []Outcome
	for i, slug := range []string{"a/agreed", "a/disputed", "a/unwitnessed", "a/none", "a/lost"} {
		o := outcome(slug, "engine", "engine", check(true))
		o.Port = uint16(20000 + i)
		switch slug {
		case "a/none":
		case "a/lost":
			o.Capture = "not-there.pcapng"
		default:
			o.Capture = writeSYN(t, dir, o.Port)
		}
		runs = append(runs, o)
	}
	var asked []string
	j := &Judge{Suite: s, Dir: dir, Witness: func(_ context.Context, exhibits []Exhibit) []Witness {
		out := make([]Witness, len(exhibits))
		for i, e := range exhibits {
			asked = append(asked, fmt.Sprintf("%s %d %d", filepath.Base(e.File), e.Port, len(e.Ours.Conns)))
			out[i] = Witness{Asked: true, Agrees: e.Port != 20001, Why: map[bool]string{true: "it sees another MSN"}[e.Port == 20001]}
		}
		return out
	}}
	r := reportOf(t, j, collection(runs...))
	if want := "syn-20000.pcap 20000 1,syn-20001.pcap 20001 1"; strings.Join(asked, ",") != want {
		t.Errorf("asked about %q, want %q", strings.Join(asked, ","), want)
	}
	want := "a/agreed engine->engine PASS: \n" +
		"a/disputed engine->engine FAIL: witness:tshark: it sees another MSN\n" +
		"a/unwitnessed engine->engine PASS: \n" +
		"a/none engine->engine PASS: \n"
	if got := verdicts(r); !strings.HasPrefix(got, want) || !strings.Contains(got, "a/lost engine->engine FAIL: not so: our decoder can read the capture: ") {
		t.Errorf("verdicts\n%s", got)
	}
	if w := r.Results[2].Witness; w.Asked || w.Why != unwitnessed.Unwitnessed {
		t.Errorf("the unwitnessed run's witness is %+v", w)
	}
}

// TestWitnessIsNotAsked: entries about the witness can show only in runs about which the witness
// was asked.
func TestWitnessIsNotAsked(t *testing.T) {
	dir := t.TempDir()
	o := outcome("a/b", "engine", "kernel", check(true))
	o.Port = 20000
	o.Capture = writeSYN(t, dir, o.Port)
	reference := o
	reference.Pairing.Responder = "engine"
	agrees := func(_ context.Context, exhibits []Exhibit) []Witness {
		return slices.Repeat([]Witness{{Asked: true, Agrees: true}}, len(exhibits))
	}
	unwitnessed := verbs("a/b", nothing)
	unwitnessed.Unwitnessed = "tshark has no word for it"
	for name, tc := range map[string]struct {
		sc      *Scenario
		witness func(context.Context, []Exhibit) []Witness
		verdict Verdict
		unshown int
	}{
		"asked":                    {verbs("a/b", nothing), agrees, XPass, 1},
		"there is none":            {verbs("a/b", nothing), nil, Pass, 0},
		"not about this, for once": {unwitnessed, agrees, Pass, 0},
	} {
		j := &Judge{Suite: suite(tc.sc), Dir: dir, Reference: "engine", Witness: tc.witness,
			Profile: []ProfileEntry{entry("known", "a/b", "witness:tshark")}}
		c := collection(reference, o)
		r := reportOf(t, j, c)
		could, does := j.Profile[0].Shown(c, r)
		if got := r.Results[1].Verdict; got != tc.verdict || len(r.Unshown) != tc.unshown ||
			could != tc.unshown || does != 0 {
			t.Errorf("%s: %s, %d of %d entries did not show, %d runs could show it", name, got,
				len(r.Unshown), len(j.Profile), could)
		}
	}
}

// A scenario's checks of the wire count even if they panic. They are not made of a run that could
// not be tried.
func TestJudgeChecksTheWire(t *testing.T) {
	dir := t.TempDir()
	sc := verbs("a/b", nothing)
	sc.Wire = func(w *WireRun) {
		if w.Pairing.Has("kernel") {
			panic("at the wire")
		}
		w.Require(len(w.Trace.Conns) == 1, "there is a connection")
		w.Observe("conns", "%d", len(w.Trace.Conns))
	}
	run := func(initiator string) Outcome {
		o := outcome("a/b", initiator, "engine", check(true))
		o.Port, o.DurationMillis = 20000, 99
		o.Capture = writeSYN(t, dir, o.Port)
		return o
	}
	setup := run("third")
	setup.Setup = "no device"
	r := reportOf(t, &Judge{Suite: suite(sc), Dir: dir, Reference: "engine"},
		collection(run("engine"), run("kernel"), setup))
	got := verdicts(r)
	if !strings.HasPrefix(got, "a/b engine->engine PASS: \na/b kernel->engine FAIL: not so: nothing panics: at the wire") ||
		!strings.Contains(got, "a/b third->engine SETUP: no device") {
		t.Errorf("verdicts\n%s", got)
	}
	if res := r.Results[0]; len(res.Observations) != 1 || res.DurationMillis != 99 || len(res.Ladder) != 0 {
		t.Errorf("result %+v", res)
	}
	if len(r.Results[2].Checks) != 1 {
		t.Errorf("the wire of a run that could not be tried was checked: %+v", r.Results[2].Checks)
	}
}

// Many runs at once are judged independently.
func TestJudgeManyRuns(t *testing.T) {
	dir := t.TempDir()
	s := &Suite{}
	var runs []Outcome
	for i := range 40 {
		sc := verbs(fmt.Sprintf("a/n%d", i), nothing)
		sc.Wire = func(w *WireRun) {
			w.Check(w.Trace.Conns[0].Responder.Port() == uint16(20000+i), "it is its own capture")
		}
		s.Add(sc)
		o := outcome(sc.Slug, "engine", "engine", check(true))
		o.Port = uint16(20000 + i)
		o.Capture = writeSYN(t, dir, o.Port)
		runs = append(runs, o)
	}
	r := reportOf(t, &Judge{Suite: s, Dir: dir}, collection(runs...))
	if r.Counts[Pass] != 40 {
		t.Errorf("verdicts\n%s", verdicts(r))
	}
	for i, res := range r.Results {
		if res.Scenario != runs[i].Scenario {
			t.Fatalf("result %d is that of %s", i, res.Scenario)
		}
	}
}

func TestReplay(t *testing.T) {
	c := &Collection{Seed: 7}
	for want, p := range map[string]Pairing{
		"govs-verbs-test run --only a/b --seed 7 --initiator engine --responder engine":              {"engine", "engine"},
		"ci/vm/run -- govs-verbs-test run --only a/b --seed 7 --initiator engine --responder kernel": {"engine", "kernel"},
		"govs-verbs-test run --only a/b --seed 7 --responder engine":                                 {Raw, "engine"},
		"ci/vm/run -- govs-verbs-test run --only a/b --seed 7 --initiator kernel":                    {"kernel", Raw},
	} {
		if got := replay(c, &Outcome{Scenario: "a/b", Pairing: p}); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
	c.Siw = "crc"
	const want = "ci/vm/run --siw crc -- govs-verbs-test run --only a/b --seed 7 --initiator engine --responder kernel"
	if got := replay(c, &Outcome{Scenario: "a/b", Pairing: Pairing{"engine", "kernel"}}); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// TestShorten: a result with very many lines keeps its first lines, and what begins there.
func TestShorten(t *testing.T) {
	res := Result{}
	for i := range mostLines + 7 {
		res.Ladder = append(res.Ladder, fmt.Sprint(i))
		res.Messages = append(res.Messages, Message{Lines: []int{i, i + 1}})
		res.Aligned = append(res.Aligned, Alignment{Reference: []int{0}, Got: []int{i}})
	}
	res.Aligned = append(res.Aligned, Alignment{Reference: []int{mostLines}}, Alignment{})
	whole := res.Ladder[mostLines]
	short := res
	short.shorten()
	if len(short.Ladder) != mostLines+1 || len(short.Messages) != mostLines ||
		len(short.Aligned) != mostLines+1 || res.Ladder[mostLines] != whole {
		t.Errorf("%d lines, %d messages, %d alignments", len(short.Ladder), len(short.Messages),
			len(short.Aligned))
	}
	if last := short.Ladder[mostLines]; !strings.HasPrefix(last, "7 more lines") {
		t.Errorf("the last line is %q", last)
	}
	few := Result{Ladder: res.Ladder[:mostLines]}
	if few.shorten(); len(few.Ladder) != mostLines {
		t.Errorf("%d lines of %d", len(few.Ladder), mostLines)
	}
}

// TestBound: a connection with very many frames keeps its first ones, and a note says so.
func TestBound(t *testing.T) {
	many := &wire.Conn{Frames: make([]wire.Frame, mostFrames+3)}
	stream := make([]byte, 1<<20)
	many.Frames[7].Octets, many.Frames[7].Payload = stream[:40], stream[18:36]
	few := &wire.Conn{Frames: make([]wire.Frame, mostFrames)}
	if bound(&wire.Trace{Conns: []*wire.Conn{few}}) || len(few.Notes) != 0 {
		t.Errorf("%d frames are too many: %q", mostFrames, few.Notes)
	}
	if !bound(&wire.Trace{Conns: []*wire.Conn{few, many}}) || len(many.Frames) != mostFrames ||
		cap(many.Frames) > 2*mostFrames || len(many.Notes) != 1 ||
		many.Notes[0] != "3 more frames are in the capture" {
		t.Errorf("%d frames, notes %q", len(many.Frames), many.Notes)
	}
	f := &many.Frames[7]
	if len(f.Octets) != 40 || cap(f.Octets) > 64 || len(f.Payload) != 18 || cap(f.Payload) > 64 {
		t.Errorf("a frame that is left keeps %d and %d octets of the stream", cap(f.Octets), cap(f.Payload))
	}
}
