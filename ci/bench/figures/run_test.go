package figures

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/govs-rdma/govs/ci/bench/worker/workertest"
)

// asEnd, in the environment, makes the test's binary an end of idle connections.
const asEnd = "GOVS_TEST_AS_END"

func TestMain(m *testing.M) {
	if os.Getenv(asEnd) == "1" {
		if err := ServeIdle(context.Background(), os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

// small returns the configuration of a short run.
func small(t *testing.T, only string) Config {
	t.Helper()
	client, server := workertest.Two(t)
	t.Setenv(asEnd, "1")
	return Config{
		Rounds: 2, Time: 5 * time.Millisecond, Only: only, ClientCPU: client, ServerCPU: server, Procs: 1,
		Worker: []string{workertest.Command(t), "perf", "end"}, IdleWorker: []string{os.Args[0]},
		Say: t.Logf, idle: 100,
	}
}

func run(t *testing.T, c Config) *Report {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	defer cancel()
	rep, err := Run(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	if want := len(c.rows()); len(rep.Lines) != want {
		t.Errorf("%d lines, want %d", len(rep.Lines), want)
	}
	return rep
}

// wanted returns the line with an id.
func wanted(t *testing.T, rep *Report, id string) Line {
	t.Helper()
	i := slices.IndexFunc(rep.Lines, func(l Line) bool { return l.id == id })
	if i < 0 {
		t.Fatalf("no line %s", id)
	}
	return rep.Lines[i]
}

// wantFigure returns the figure of a line, which must have the given number of rounds.
func wantFigure(t *testing.T, rep *Report, id string, rounds int) Figure {
	t.Helper()
	f := wanted(t, rep, id).Value
	if f.Missing != "" || f.Rounds != rounds || f.Min > f.Median || f.Median > f.Max || f.Median <= 0 {
		t.Errorf("%s: %+v", id, f)
	}
	return f
}

func TestRatiosOfARun(t *testing.T) {
	c := small(t, "write-1m,write-1m-nocrc,read-1m,send-1m,allocations")
	c.Time = 20 * time.Millisecond // CPU time comes in ticks
	rep := run(t, c)
	for _, id := range []string{"write-1m", "write-1m-nocrc", "read-1m", "send-1m"} {
		if f := wantFigure(t, rep, id, 2); f.Of <= 0 || f.To <= 0 {
			t.Errorf("%s: medians %g and %g", id, f.Of, f.To)
		}
		if f := wanted(t, rep, id).CPU; f.Rounds == 0 || f.Median <= 0 {
			t.Errorf("%s: CPU time %+v", id, f)
		}
	}
	if f := wanted(t, rep, allocsID).Value; f.Rounds != 2 {
		t.Errorf("allocations: %+v", f)
	}
}

// TestWithoutSiw: if only siw figures are requested, the error says where to measure them.
func TestWithoutSiw(t *testing.T) {
	c := Config{Rounds: 1, Time: time.Second, ServerCPU: 1, Procs: 1, Only: "guest-rtt"}
	if _, err := Run(t.Context(), c); err == nil || !strings.Contains(err.Error(), "make bench-vm") {
		t.Errorf("%v", err)
	}
}

func TestIdleQPs(t *testing.T) {
	rep := run(t, small(t, "idle-*"))
	wantFigure(t, rep, idleID, 2)
	if len(rep.Notes) != 1 || !strings.Contains(rep.Notes[0], "Idle connections are 100, ") {
		t.Errorf("notes %q", rep.Notes)
	}
}

// TestStreamsOfARun measures streams beside TCP.
func TestStreamsOfARun(t *testing.T) {
	rep := run(t, small(t, "stream-*"))
	for _, id := range []string{"stream-1m", "stream-64k", "stream-rtt"} {
		wantFigure(t, rep, id, 2)
	}
}

// TestLostEnd: an end that has gone is noticed, reported and replaced.
func TestLostEnd(t *testing.T) {
	c := small(t, "write-4k")
	ctx := context.Background()
	r := newRunner(c)
	var err error
	if r.pair, err = startPair(ctx, c, false); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := r.pair.close(); err != nil {
			t.Error(err)
		}
	}()
	m, err := inPlan(c, "tcp-4k")
	if err != nil {
		t.Fatal(err)
	}
	if s := r.once(ctx, m); s.Error != "" {
		t.Fatal(s.Error)
	}
	if err := r.pair.client.Kill(); err != nil {
		t.Fatal(err)
	}
	if s := r.once(ctx, m); s.Error == "" {
		t.Error("a run without a client")
	}
	if s := r.once(ctx, m); s.Error != "" || s.GBps <= 0 {
		t.Errorf("with a new pair: %+v", s)
	}
}

func TestEndThatIsNone(t *testing.T) {
	c := small(t, "write-4k")
	for _, worker := range [][]string{{"true"}, {"echo", "hello"}, {"echo", "{}"}, {"govs-no-such-program"}} {
		c.Worker = worker
		if rep, err := Run(context.Background(), c); err == nil {
			t.Errorf("%v is an end, and measured %+v", worker, rep.Lines)
		}
	}
}

func TestSegmentOfLoopback(t *testing.T) {
	if mss, err := segment(t.Context(), loopback); err != nil || mss < 500 {
		t.Errorf("%d, %v", mss, err)
	}
}
