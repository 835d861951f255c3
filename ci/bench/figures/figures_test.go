package figures

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/govs-rdma/govs/ci/bench/chart"
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

// TestValueAlone: a value that is not compared has its unit, and no ratio.
func TestValueAlone(t *testing.T) {
	f := Figure{Median: 6.82, Rounds: 5}
	if got := f.medians(mops) + "," + f.ratio(); got != "6.82 million/s," {
		t.Errorf("a rate of messages is %q", got)
	}
	f = Figure{Of: 3, To: 4, Median: 0.7}
	if got := f.medians(gbps) + "," + f.ratio(); got != "3.00 / 4.00 GB/s,0.700" {
		t.Errorf("a ratio is %q", got)
	}
	if got := (Figure{Rounds: 5}).medians(counted); got != "0" {
		t.Errorf("nothing is %q", got)
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

func TestGoals(t *testing.T) {
	for _, tc := range []struct {
		q             quantity
		reach, median float64
		want          string
	}{
		{gbps, 0.7, 0.69, ">=0.7 missed"}, {gbps, 0.7, 0.7, ">=0.7"}, {mops, 8, 14.3, ">=8"},
		{rtt, 1.1, 1.11, "<=1.1 missed"}, {cpuPerGiB, 1.8, 1.8, "<=1.8"}, {kibOfEach, 6, 3.4, "<=6"},
		{rtt, 0, 3, ""},
	} {
		if got := tc.q.goal(tc.reach, tc.median); got != tc.want {
			t.Errorf("%g of %g %s is %q, want %q", tc.median, tc.reach, tc.q.unit, got, tc.want)
		}
	}
}

// TestPlanIsComplete: the plan has the measures of every row, and every measure is used.
func TestPlanIsComplete(t *testing.T) {
	c := Config{Rounds: 1, Time: time.Second}
	made := make(map[string]bool)
	used := make(map[string]bool)
	for _, w := range allRows {
		if made[w.id] {
			t.Errorf("%s is made twice", w.id)
		}
		made[w.id] = true
		if special := w.id == idleID || w.id == allocsID; special != (w.of == "") {
			t.Errorf("%s is of the measure %q", w.id, w.of)
		}
		for _, name := range []string{w.of, w.to} {
			if _, err := inPlan(c, name); name != "" && err != nil {
				t.Errorf("%s: %v", w.id, err)
			}
			used[name] = true
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
	for _, p := range c.points() {
		list = append(list, p.measure)
	}
	return list
}

func TestOnlyWhatIsAskedFor(t *testing.T) {
	c := Config{Rounds: 1, Time: time.Second, Only: "write-4k"}
	var names []string
	for _, m := range chosen(c) {
		names = append(names, m.Name)
	}
	if diff := cmp.Diff([]string{"tcp-4k", "write-4k"}, names); diff != "" {
		t.Error(diff)
	}
	// Measurements over siw are made only with siw, with CRC or without.
	for kernel, want := range map[KernelDevice][]string{
		{}:          {"siw-write-1m", "siw-send-rtt"},
		{CRC: true}: {"siw-crc-write-64k"},
	} {
		var over []string
		for _, m := range chosen(Config{Kernel: &kernel}) {
			if m.Device != nil && m.Device.Provider == "kernel" {
				over = append(over, m.Name)
			}
		}
		if diff := cmp.Diff(want, over); diff != "" {
			t.Errorf("siw with CRC %v: %s", kernel.CRC, diff)
		}
	}
	for _, m := range chosen(Config{}) {
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
	for _, only := range []string{"bandwidth", "idle-*", "guest-rtt", "write-64k"} {
		c := good
		c.Only = only
		if err := c.Check(); err != nil {
			t.Errorf("--only %s: %v", only, err)
		}
	}
}

// rowOf returns the row with an id.
func rowOf(t *testing.T, id string) row {
	t.Helper()
	i := slices.IndexFunc(allRows, func(w row) bool { return w.id == id })
	if i < 0 {
		t.Fatalf("no row %s", id)
	}
	return allRows[i]
}

func TestTables(t *testing.T) {
	rep := &Report{
		Heading: "The loopback", Lines: []Line{
			{rowOf(t, "write-1m"),
				Figure{Median: 0.7123, Min: 0.65, Max: 0.9, Rounds: 7, Of: 7.1, To: 10},
				Figure{Median: 1.2, Min: 1, Max: 2, Rounds: 7, Of: 0.3, To: 0.25}},
			{rowOf(t, "write-64k-ucx"),
				Figure{Median: 12.345, Min: 1, Max: 100, Rounds: 2, Of: 123, To: 10},
				Figure{Missing: "no round gave a value"}},
			{rowOf(t, "rtt-ucx"), Figure{Missing: "no\nucx"}, Figure{}},
			{rowOf(t, idleID), Figure{Median: 3.39, Min: 3.38, Max: 3.4, Rounds: 3}, Figure{}},
		},
		Curve: []Series{
			{Name: "a", Points: []chart.Point{{X: 64, Y: 1}, {X: 128, Y: 2}}},
			{Name: "b", Points: []chart.Point{{X: 128, Y: 3}}},
		},
		Notes: []string{"Nothing else."}, Conditions: map[string]any{"rounds": 7},
	}
	var b strings.Builder
	if err := rep.Markdown(&b); err != nil {
		t.Fatal(err)
	}
	const want = "## The loopback\n\n| | medians | ratio | range | goal | CPU time | ratio | goal |\n" +
		"|---|--:|--:|--:|---|--:|--:|---|\n" +
		"| Writes of 1 MiB / raw TCP | 7.10 / 10.0 GB/s | 0.712 | 0.650 to 0.900 | >=0.82 missed |" +
		" 0.300 / 0.250 s | 1.20 | <=1.25 |\n" +
		"| Writes of 64 KiB / UCX tag | 123 / 10.0 GB/s | 12.3 | 1.00 to 100 |  |  |  |  |\n" +
		"| round trip of 64 bytes, spinning / UCX tag | missing: no ucx | | | | | | |\n" +
		"| memory of an idle connection, each end | 3.39 KiB |  | 3.38 to 3.40 | <=6 |  |  |  |\n\n" +
		"Bandwidth over message size, one connection, loopback, spinning, GB/s:\n\n" +
		"| bytes | a | b |\n|--:|--:|--:|\n| 64 | 1.00 | |\n| 128 | 2.00 | 3.00 |\n\n" +
		"Nothing else.\n\n| condition | |\n|---|---|\n| rounds | 7 |\n"
	if diff := cmp.Diff(want, b.String()); diff != "" {
		t.Error(diff)
	}
}

func TestPlot(t *testing.T) {
	c := Config{Rounds: 1, Time: time.Second}
	got := make(map[string][]Sample)
	for _, m := range allPoints(c) {
		got[m.Name] = []Sample{{GBps: 1}}
	}
	dir := filepath.Join(t.TempDir(), "plots")
	if err := (&Report{Curve: curve(c.points(), got)}).WriteSVG(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "bandwidth.svg")); err != nil {
		t.Error(err)
	}
	// A point without a value is left out, and so is a series without points.
	delete(got, "bandwidth/UCX put/64")
	for _, size := range plotSizes {
		delete(got, "bandwidth/libfabric (ping-pong)/"+strconv.Itoa(size))
	}
	points := make(map[string]int)
	for _, s := range curve(c.points(), got) {
		points[s.Name] = len(s.Points)
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
			t.Errorf("%s of %d bytes: %d messages, want %d", tc.program, tc.size, got, tc.want)
		}
	}
}

// inPlan returns the measure with a name.
func inPlan(c Config, name string) (measure, error) {
	for _, m := range base(c) {
		if m.Name == name {
			return m, nil
		}
	}
	return measure{}, fmt.Errorf("no measurement %q", name)
}
