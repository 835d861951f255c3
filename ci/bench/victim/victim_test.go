package victim

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/govs-rdma/govs/ci/bench/load"
	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider/conformance/rawpeer"
	"github.com/govs-rdma/govs/provider/iwarp/rdmap"
)

// TestCount: a stall counts for all requests that were due during it.
func TestCount(t *testing.T) {
	var h []time.Duration
	for range 90 {
		if n := count(&h, time.Millisecond, time.Millisecond); n != 0 {
			t.Fatalf("%d missed in an interval", n)
		}
	}
	if n := count(&h, 10*time.Millisecond, time.Millisecond); n != 9 {
		t.Errorf("%d missed, want 9", n)
	}
	l := load.LatencyOf(h)
	if l.Median > 1005*time.Microsecond || l.P99 < 9950*time.Microsecond ||
		l.Max != 10*time.Millisecond {
		t.Errorf("%+v: of 100, 9 took longer than 1 ms", l)
	}
	h = nil
	if n := count(&h, 10*time.Millisecond, 0); n != 0 || h[0] != 10*time.Millisecond {
		t.Errorf("%d missed of requests that are never due", n)
	}
}

// TestSkim: the FPDUs of a stream are found wherever it is cut.
func TestSkim(t *testing.T) {
	var stream []byte
	for i := range 3 {
		part := rawpeer.ReadResponse(1, 0, make([]byte, 1000))
		part.Header.Last = i == 2
		stream = append(stream, part.Octets(true)...)
	}
	write := rawpeer.WriteMessage(1, 0, []byte{0xff})
	stream = append(stream, write.Octets(true)...)
	empty := rawpeer.ReadResponse(1, 0, nil)
	stream = append(stream, empty.Octets(false)...)
	for size := 1; size <= len(stream); size++ {
		var s skimmer
		answered := 0
		for rest := stream; len(rest) > 0; rest = rest[min(size, len(rest)):] {
			answered += s.skim(rest[:min(size, len(rest))])
		}
		if answered != 2 || s.terminated || s.have != 0 || s.skip != 0 {
			t.Fatalf("in pieces of %d: %d Reads answered, %+v", size, answered, s)
		}
	}
	var s skimmer
	term := rawpeer.TerminateMessage(rdmap.Terminate{})
	if s.skim(term.Octets(true)); !s.terminated {
		t.Error("a Terminate was not seen")
	}
}

func TestGrant(t *testing.T) {
	want := grant{1 << 40, 2 << 40, 3, 4, 5, 6}
	if got, err := parseGrant(want.appendTo(nil)); err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := parseGrant(make([]byte, grantLen-1)); err == nil {
		t.Error("a grant that is cut short was taken")
	}
}

func sample(p99 time.Duration) Sample {
	return Sample{
		Pings: &Pings{N: 1, RTT: load.Latency{Median: p99 / 2, P99: p99}},
		Did:   Counts{FPDUs: 10},
	}
}

// TestResult: each round has a ratio, and the result is the median over the rounds.
func TestResult(t *testing.T) {
	ms := time.Millisecond
	idle := []Sample{sample(ms), sample(2 * ms), sample(ms)}
	beside := []Sample{sample(2 * ms), sample(6 * ms), sample(9 * ms)}
	for _, tc := range []struct {
		peers  int
		within bool
		stands string
	}{{1, true, "within"}, {64, true, "within"}, {65, true, "no limit"}} {
		r := result(Case{Zero, tc.peers, load.Spin}, idle, beside)
		if r.Ratio != (Spread{3, 2, 9, 3}) || r.Within != tc.within || r.Standing() != tc.stands {
			t.Errorf("%d peers: %+v, %s", tc.peers, r.Ratio, r.Standing())
		}
		if r.Beside != (Times{3000, 6000}) || r.Idle != (Times{500, 1000}) {
			t.Errorf("%+v beside peers, %+v beside idle ones", r.Beside, r.Idle)
		}
		if r.ratio() != "3.00 (2.00-9.00)" {
			t.Errorf("the ratio is %q", r.ratio())
		}
	}
	beside[0] = sample(4 * ms)
	if r := result(Case{Zero, 1, load.Spin}, idle, beside); r.Within || r.Standing() != "beyond" {
		t.Errorf("%+v beside one peer is %s", r.Ratio, r.Standing())
	}
	if r := result(Case{Zero, 64, load.Spin}, idle, beside); !r.Within {
		t.Errorf("%+v beside 64 peers is %s", r.Ratio, r.Standing())
	}
	for i := range beside {
		beside[i].Did = Counts{}
	}
	if r := result(Case{Zero, 64, load.Spin}, idle, beside); r.Within || r.Standing() != "peers idle" {
		t.Errorf("beside peers that did nothing the result is %s", r.Standing())
	}
	for i := range idle {
		idle[i].Pings.RTT.Median = idle[i].Pings.RTT.P99 / 6
	}
	if r := result(Case{Zero, 64, load.Spin}, idle, beside); r.Within || r.Standing() != "not quiet" {
		t.Errorf("beside idle peers p99 is 6 times p50, and the result is %s", r.Standing())
	}
	beside[0] = Sample{Error: "gone"}
	r := result(Case{Zero, 64, load.Spin}, idle, beside)
	if r.Within || r.Standing() != "failed: round 1: gone" || r.Ratio.Rounds != 2 {
		t.Errorf("%+v is %s", r.Ratio, r.Standing())
	}
	if r := result(Case{Zero, 64, load.Spin}, nil, nil); r.Within {
		t.Error("a result that was not measured is within its limit")
	}
}

// TestPeersWorked: peers that the server only refused, or that did nothing in one round, do not
// count as hostile peers beside the victim.
func TestPeersWorked(t *testing.T) {
	ms := time.Millisecond
	c := Case{Reader, 64, load.Block}
	idle := []Sample{sample(ms), sample(ms), sample(ms)}
	refused, still := sample(ms), sample(ms)
	refused.Did, still.Did = Counts{Cut: 100}, Counts{}
	for what, beside := range map[string][]Sample{
		"that were refused":              {refused, refused, refused},
		"that were idle in one of three": {sample(ms), still, sample(ms)},
	} {
		if r := result(c, idle, beside); r.Within || r.Standing() != "peers idle" {
			t.Errorf("the result beside peers %s is %s", what, r.Standing())
		}
	}
	if r := result(c, idle, []Sample{sample(ms), sample(ms), sample(ms)}); !r.Within {
		t.Errorf("the result beside peers that worked is %s", r.Standing())
	}
}

// TestUnsettled: the cases that are not within their limits, and no others, are measured again,
// whatever the reason.
func TestUnsettled(t *testing.T) {
	ms := time.Millisecond
	noisy, beyond, still := Case{Zero, 64, load.Spin}, Case{Reader, 1, load.Spin}, Case{Reader, 64, load.Spin}
	r := &runner{Config: Config{
		Kinds: []Kind{Reader, Zero}, Peers: []int{1, 64}, Polls: []load.Poll{load.Block, load.Spin},
	}}
	r.idle, r.beside = make(map[Case][]Sample), make(map[Case][]Sample)
	for _, poll := range r.Polls {
		for _, c := range r.cases(poll) {
			idle, beside := sample(ms), sample(ms)
			switch c {
			case noisy:
				idle.Pings.RTT.Median = ms / 6
			case beyond:
				beside = sample(4 * ms)
			case still:
				beside.Did = Counts{}
			}
			r.idle[c], r.beside[c] = []Sample{idle}, []Sample{beside}
		}
	}
	if got := r.unsettled(load.Block); len(got) != 0 {
		t.Errorf("%v are measured again", got)
	}
	got, want := r.unsettled(load.Spin), []Case{beyond, still, noisy}
	if !slices.Equal(got, want) {
		t.Errorf("%v are measured again, want %v", got, want)
	}
}

func TestReport(t *testing.T) {
	ms := time.Millisecond
	r := &runner{Config: Config{
		Kinds: []Kind{Reader, Zero}, Peers: []int{1, 64}, Polls: []load.Poll{load.Block, load.Spin},
	}}
	r.idle, r.beside = make(map[Case][]Sample), make(map[Case][]Sample)
	for _, poll := range r.Polls {
		for _, c := range r.cases(poll) {
			r.idle[c], r.beside[c] = []Sample{sample(ms)}, []Sample{sample(2 * ms)}
		}
	}
	rep := r.report()
	if !rep.Within() || len(rep.Results) != 8 {
		t.Errorf("%+v", rep)
	}
	slow := Case{Zero, 1, load.Spin}
	r.beside[slow] = []Sample{sample(4 * ms)}
	rep = r.report()
	if rep.Within() {
		t.Errorf("%v is within its limit", slow)
	}
	var b bytes.Buffer
	testkit.OK(t, rep.Markdown(&b))
	for _, part := range []string{
		"\n| kind | peers | block: p50 idle | p50 | p99 | ratio of p99 " +
			"| spin: p50 idle | p50 | p99 | ratio of p99 | limit |\n" +
			"|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|---|\n",
		"\n| reader | 1 | 500 | 1000 | 2000 | 2.00 (2.00-2.00) " +
			"| 500 | 1000 | 2000 | 2.00 (2.00-2.00) | <=3 |\n",
		"\n| zero | 1 | 500 | 1000 | 2000 | 2.00 (2.00-2.00) " +
			"| 500 | 2000 | 4000 | 4.00 (4.00-4.00) beyond | <=3 |\n",
		"| <=10 |\n", "| CRC | on |", "| IRD | 128 |",
	} {
		if !strings.Contains(b.String(), part) {
			t.Errorf("no %q in:\n%s", part, &b)
		}
	}
}

func TestCheck(t *testing.T) {
	good := Config{
		Kinds: Kinds(), Peers: []int{1, MaxPeers}, Polls: []load.Poll{load.Spin},
		Rounds: 1, Time: time.Second, ServerCPU: 1,
	}
	testkit.OK(t, good.Check())
	for want, change := range map[string]func(*Config){
		`kind "loud"`:         func(c *Config) { c.Kinds = []Kind{"loud"} },
		`kind "idle"`:         func(c *Config) { c.Kinds = []Kind{Idle} },
		"0 peers":             func(c *Config) { c.Peers = []int{0} },
		"4097 peers":          func(c *Config) { c.Peers = []int{MaxPeers + 1} },
		"nothing to measure":  func(c *Config) { c.Peers = nil },
		"--rounds 0":          func(c *Config) { c.Rounds = 0 },
		"0s for":              func(c *Config) { c.Time = 0 },
		"a request every -1s": func(c *Config) { c.Every = -time.Second },
		"CPU 0: the server":   func(c *Config) { c.ServerCPU = 0 },
	} {
		c := good
		change(&c)
		if err := c.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }
