package figures

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/govs-rdma/govs/ci/bench/outside"
)

func samples(values ...float64) []Sample {
	var s []Sample
	for round, v := range values {
		if v < 0 {
			s = append(s, Sample{Round: round, Error: "it rained"})
			continue
		}
		s = append(s, Sample{Round: round, GBps: v})
	}
	return s
}

// TestValueAlone: a value that is compared with nothing has its unit.
func TestValueAlone(t *testing.T) {
	if got := medians(Figure{Median: 6.82, Rounds: 5}, mops); got != "million/s" {
		t.Errorf("a rate of messages has %q beside it", got)
	}
	if got := medians(Figure{Of: 3, To: 4}, gbps); got != "3.00 / 4.00 GB/s" {
		t.Errorf("a ratio has %q beside it", got)
	}
}

func TestRatioIsOfEachRound(t *testing.T) {
	// The median of the ratios, 2/3, is not the ratio of the medians, 4/3.
	f := ratio(samples(4, 9, 1), samples(6, 3, 2), gbps.of)
	want := Figure{Median: 2.0 / 3, Min: 0.5, Max: 3, Rounds: 3}
	if diff := cmp.Diff(want, f); diff != "" {
		t.Error(diff)
	}
	if f := ratio(samples(1, 8), samples(2, 2), gbps.of); f.Median != (0.5+4)/2 {
		t.Errorf("the median of two is %g", f.Median)
	}
}

func TestRoundsThatFailed(t *testing.T) {
	f := ratio(samples(4, -1, 8, 6), samples(2, 2, -1, 2), gbps.of)
	if f.Rounds != 2 || f.Min != 2 || f.Max != 3 || f.Missing != "" {
		t.Errorf("of two rounds: %+v", f)
	}
	f = ratio(samples(4, 4), samples(-1, -1), gbps.of)
	if f.Missing != "round 1: it rained" {
		t.Errorf("without a round: %+v", f)
	}
	if f := ratio(samples(4, 4), nil, gbps.of); f.Missing != "not measured" {
		t.Errorf("without a second measurement: %+v", f)
	}
	if f := alone(samples(0, 0), gbps.of); f.Missing == "" {
		t.Errorf("of nothing: %+v", f)
	}
}

func TestStanding(t *testing.T) {
	more, less := Goal{Reach: 0.7, Aim: 0.85}, Goal{Lower: true, Reach: 6, Aim: 4}
	for _, tc := range []struct {
		g      Goal
		median float64
		want   string
	}{
		{more, 0.69, "missed"}, {more, 0.7, "reach"}, {more, 0.85, "aim"}, {more, 3, "aim"},
		{less, 6.1, "missed"}, {less, 6, "reach"}, {less, 4, "aim"}, {less, 0, "aim"},
	} {
		if got := tc.g.Standing(Figure{Median: tc.median}); got != tc.want {
			t.Errorf("%g of %+v is %s, want %s", tc.median, tc.g, got, tc.want)
		}
	}
	if got := more.Standing(Figure{Missing: "why"}); got != "missing" {
		t.Errorf("a missing one is %s", got)
	}
}

// Every figure of the goals is made somewhere, of measures that are in the plan, and
// every measure is used.
func TestPlanIsComplete(t *testing.T) {
	c := Config{Rounds: 1, Time: time.Second, Kernel: &KernelDevice{}}
	made := map[string]bool{"idle_qp_kib": true, "idle_10000_mib": true, "allocs_per_op": true}
	used := make(map[string]bool)
	for _, f := range formulas {
		if made[f.id] {
			t.Errorf("%s is made twice", f.id)
		}
		made[f.id] = true
		for _, name := range []string{f.of, f.to} {
			if _, err := inPlan(c, name); name != "" && err != nil {
				t.Errorf("%s: %v", f.id, err)
			}
			used[name] = true
		}
	}
	for _, g := range goals {
		if !made[g.ID] {
			t.Errorf("%s is made nowhere", g.ID)
		}
	}
	names := make(map[string]bool)
	for _, m := range base(c) {
		if !used[m.Name] {
			t.Errorf("%s is of no use", m.Name)
		}
		names[m.Name] = true
	}
	for _, name := range allocating {
		if !names[name] {
			t.Errorf("no measure %s", name)
		}
	}
	for _, m := range append(base(c), allPoints(c)...) {
		if (m.Device == nil) == (m.Test == nil) {
			t.Errorf("%s is of nothing, or of two things", m.Name)
		}
		if names[m.Name+" "] {
			t.Errorf("%s is there twice", m.Name)
		}
		names[m.Name+" "] = true
	}
}

func allPoints(c Config) []measure {
	var list []measure
	for _, s := range sweeps(c) {
		for _, p := range s.points {
			list = append(list, p.measure)
		}
	}
	return list
}

func TestOnlyWhatIsAskedFor(t *testing.T) {
	c := Config{Rounds: 1, Time: time.Second, Only: "write_4k_vs_tcp"}
	var names []string
	for _, m := range chosen(c) {
		names = append(names, m.Name)
	}
	if diff := cmp.Diff([]string{"tcp-4k", "write-4k"}, names); diff != "" {
		t.Error(diff)
	}
	for _, m := range chosen(Config{Rounds: 1, Time: time.Second}) {
		if m.Test != nil && strings.HasPrefix(m.Test.Program, "perftest") || m.Device != nil && m.Device.Provider == "kernel" {
			t.Errorf("%s, and there is no siw", m.Name)
		}
	}
}

func TestImpossibleConfigs(t *testing.T) {
	good := Config{Rounds: 1, Time: time.Second, ServerCPU: 1, Procs: 1}
	if err := good.Check(); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Config){
		"no rounds":    func(c *Config) { c.Rounds = 0 },
		"no time":      func(c *Config) { c.Time = 0 },
		"one CPU":      func(c *Config) { c.ServerCPU = 0 },
		"no procs":     func(c *Config) { c.Procs = 0 },
		"bad pattern":  func(c *Config) { c.Only = "[" },
		"nothing left": func(c *Config) { c.Only = "writes" },
	} {
		c := good
		change(&c)
		if err := c.Check(); err == nil {
			t.Errorf("%s is possible", name)
		}
	}
	for _, only := range []string{"bandwidth", "latency", "idle_*", "write-64k-vs-tcp"} {
		c := good
		c.Only = only
		if err := c.Check(); err != nil {
			t.Errorf("--only %s: %v", only, err)
		}
	}
}

func TestTables(t *testing.T) {
	rep := &Report{
		Goals: Goals(), Figures: map[string]Figure{
			"write_1m_crc": {Median: 0.7123, Min: 0.65, Max: 0.9, Rounds: 7, Of: 7.1, To: 10},
		},
		More: map[string]Figure{
			"write-64k-vs-tcp":     {Median: 12.345, Min: 1, Max: 100, Rounds: 2, Of: 123, To: 10},
			"send-rtt-spin-vs-ucx": {Missing: "no\nucx"},
		},
		Curves: []Curve{{ID: "bandwidth", Title: "Bandwidth", X: "bytes", Y: "GB/s", Series: []Series{
			{Name: "a", Points: []Point{{X: 64, Median: 1}, {X: 128, Median: 2}}},
			{Name: "b", Points: []Point{{X: 128, Median: 3}}},
		}}},
		Measured: []Measured{{"write-1m", "write-bw, 1048576 bytes", "GB/s",
			Figure{Median: 7, Min: 6, Max: 8, Rounds: 2}, Figure{Median: 0.5}}},
		Notes: []string{"Nothing else."}, Conditions: map[string]any{"rounds": 7},
	}
	for _, g := range goals[1:] {
		rep.Figures[g.ID] = Figure{Missing: "no siw"}
	}
	rep.Figures[goals[2].ID] = Figure{Missing: notAsked}
	var b strings.Builder
	if err := rep.Markdown(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| `write_1m_crc` | 1 MiB RDMA Write, spinning / raw Go TCP spinning, 1 MiB writes " +
			"| 7.10 / 10.0 GB/s | 0.712 | 0.650 | 0.900 | 7 " +
			"| >=0.82 | >=0.88 | missed |",
		"| `write-64k-vs-tcp` | bandwidth, `write-64k` / `tcp-64k` | 123 / 10.0 GB/s | 12.3 | 1.00 | 100 | 2 |",
		"| `send-rtt-spin-vs-ucx` | round trip, `send-rtt-spin` / `ucx-rtt` | | missing: no ucx |",
		"\nBandwidth, GB/s:\n\n| bytes | a | b |\n|--:|--:|--:|\n| 64 | 1.00 | |\n| 128 | 2.00 | 3.00 |\n",
		"| `write-1m` | write-bw, 1048576 bytes | 7.00 GB/s | 6.00 | 8.00 | 0.500 |\n\nNothing else.\n",
		"| rounds | 7 |",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
	if strings.Contains(b.String(), notAsked) {
		t.Errorf("what was not asked for is in\n%s", b.String())
	}
}

func TestPlotsOfACurve(t *testing.T) {
	c := Config{Rounds: 1, Time: time.Second}
	got := make(map[string][]Sample)
	for _, m := range allPoints(c) {
		got[m.Name] = []Sample{{GBps: 1, RTT: 2}}
	}
	rep := &Report{}
	for _, s := range sweeps(c) {
		rep.Curves = append(rep.Curves, s.curve(got))
	}
	dir := filepath.Join(t.TempDir(), "plots")
	if err := rep.WriteSVGs(dir); err != nil {
		t.Fatal(err)
	}
	for _, s := range sweeps(c) {
		if _, err := os.Stat(filepath.Join(dir, s.id+".svg")); err != nil {
			t.Error(err)
		}
	}
	// A point without a value is left out, and so is a series without points.
	delete(got, "bandwidth/UCX put/64")
	for _, size := range plotSizes {
		delete(got, "bandwidth/libfabric (ping-pong)/"+strconv.Itoa(size))
	}
	points := make(map[string]int)
	for _, sr := range bandwidths(c).curve(got).Series {
		points[sr.Name] = len(sr.Points)
	}
	if len(points) != 5 || points["UCX put"] != len(plotSizes)-1 || points["UCX tag"] != len(plotSizes) {
		t.Errorf("points: %v", points)
	}
}

func TestProgramsRunAboutAsLongAsTheRest(t *testing.T) {
	c := Config{Time: 300 * time.Millisecond}
	for _, tc := range []struct {
		program string
		size    int
		want    int
	}{{outside.UCXTagLat, 64, 75000}, {outside.UCXPutBW, mib, 572}, {outside.VerbsWrite, mib, 28}, {outside.UCXPutBW, 64 * mib, 20}} {
		if got := c.program("x", tc.program, tc.size).Test.Iters; got != tc.want {
			t.Errorf("%s of %d octets: %d messages, want %d", tc.program, tc.size, got, tc.want)
		}
	}
}

// inPlan is the measure of a name.
func inPlan(c Config, name string) (measure, error) {
	for _, m := range base(c) {
		if m.Name == name {
			return m, nil
		}
	}
	return measure{}, fmt.Errorf("no measurement %q", name)
}
