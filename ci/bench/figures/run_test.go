package figures

import (
	"context"
	"fmt"
	"os"
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

// small is a run that takes little time.
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
	if len(rep.Figures) != len(goals) {
		t.Errorf("%d figures, want %d", len(rep.Figures), len(goals))
	}
	return rep
}

func wantFigure(t *testing.T, rep *Report, id string, rounds int) Figure {
	t.Helper()
	f := rep.Figures[id]
	if f.Missing != "" || f.Rounds != rounds || f.Min > f.Median || f.Median > f.Max || f.Median <= 0 {
		t.Errorf("%s: %+v", id, f)
	}
	return f
}

func TestRatiosOfARun(t *testing.T) {
	c := small(t, "*_1m_*")
	c.Time = 20 * time.Millisecond // CPU time comes in ticks
	rep := run(t, c)
	for _, id := range []string{"write_1m_crc", "write_1m_cpu_per_gib", "write_1m_nocrc", "read_1m_crc",
		"send_1m_crc"} {
		if f := wantFigure(t, rep, id, 2); f.Of <= 0 || f.To <= 0 {
			t.Errorf("%s: medians %g and %g", id, f.Of, f.To)
		}
	}
	if f := rep.Figures["guest_write_1m_nocrc_vs_siw"]; !strings.Contains(f.Missing, "make bench-vm") {
		t.Errorf("without siw: %+v", f)
	}
	if f := rep.Figures["write_64b_mops"]; f.Missing != notAsked {
		t.Errorf("not asked for: %+v", f)
	}
	if f := rep.Figures["write_1m_mss1448"]; f.Missing == "" {
		t.Errorf("segments without a network for them: %+v", f)
	}
	for _, m := range rep.Measured {
		if m.Name == "read-1m" && (m.What != "read-bw, 1048576 bytes, 16 outstanding in lists of 4, 16 Reads, CRC on, spin" ||
			m.Value.Median <= 0 || m.CPU.Median <= 0) {
			t.Errorf("%+v", m)
		}
	}
}

func TestIdleQPs(t *testing.T) {
	rep := run(t, small(t, "idle_*"))
	whole := wantFigure(t, rep, "idle_10000_mib", 2)
	each := wantFigure(t, rep, "idle_qp_kib", 2)
	if got := each.Median * 100 / 1024; got < whole.Median*0.999 || got > whole.Median*1.001 {
		t.Errorf("100 QPs of %g KiB are not %g MiB", each.Median, whole.Median)
	}
	if len(rep.Notes) != 1 || !strings.Contains(rep.Notes[0], "Idle QPs are 100 in either process") {
		t.Errorf("notes %q", rep.Notes)
	}
}

// TestStreamsOfARun: streams beside TCP.
func TestStreamsOfARun(t *testing.T) {
	rep := run(t, small(t, "stream_*_vs_*"))
	for _, id := range []string{
		"stream_1m_vs_tcp", "stream_64k_vs_tcp", "stream_1m_vs_netconn", "stream_64k_vs_netconn",
		"stream_rtt_vs_netconn",
	} {
		wantFigure(t, rep, id, 2)
	}
	for _, m := range rep.Measured {
		over := strings.Contains(m.What, "over rsockets, ")
		if over != strings.HasPrefix(m.Name, "stream-") || over && !strings.Contains(m.What, "CRC on, block after 250") {
			t.Errorf("%s is %q", m.Name, m.What)
		}
	}
}

// An end that has gone is noticed, reported, and replaced.
func TestLostEnd(t *testing.T) {
	c := small(t, "write_4k_vs_tcp")
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
	c := small(t, "write_4k_vs_tcp")
	for _, worker := range [][]string{{"true"}, {"echo", "hello"}, {"echo", "{}"}, {"govs-no-such-program"}} {
		c.Worker = worker
		if rep, err := Run(context.Background(), c); err == nil {
			t.Errorf("%v is an end, and measured %+v", worker, rep.Figures["write_4k_vs_tcp"])
		}
	}
}

func TestPathOfLoopback(t *testing.T) {
	p, err := tryPath(context.Background(), loopback)
	if err != nil || p.MSS < 500 || p.Cong == "" {
		t.Errorf("%+v, %v", p, err)
	}
}
