package figures

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/govs-rdma/govs/cmd/govs-verbs-test/internal/perf/load"
	"github.com/govs-rdma/govs/cmd/govs-verbs-test/internal/perf/pin/pintest"
)

// asEnd, in the environment, makes the test's binary an end.
const asEnd = "GOVS_TEST_AS_END"

func TestMain(m *testing.M) {
	if os.Getenv(asEnd) == "1" {
		if err := Serve(context.Background(), os.Stdin, os.Stdout, load.End{Procs: 1, Go: "go-test"}); err != nil {
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
	client, server := pintest.Two(t)
	t.Setenv(asEnd, "1")
	return Config{
		Rounds: 2, Time: 5 * time.Millisecond, Only: only, ClientCPU: client, ServerCPU: server, Procs: 1,
		Worker: []string{os.Args[0]}, NoSplit: "this is a test", NoKernel: "this is a test",
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
	if f.Missing != "" || f.Rounds != rounds || f.Min > f.Median || f.Median > f.Max || f.Median <= 0 || len(f.Conditions) == 0 {
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
		f := wantFigure(t, rep, id, 2)
		of := f.Conditions["of"].(map[string]any)
		if of["size"] != mib || f.Conditions["to"].(map[string]any)["provider"] != "tcp" || of["crc"] == nil {
			t.Errorf("%s: conditions %v", id, f.Conditions)
		}
	}
	for _, m := range rep.Measurements {
		for _, s := range m.Samples {
			if s.Error != "" {
				continue
			}
			gib := float64(s.Octets) / (1 << 30)
			if s.ClientCPU <= 0 || s.ServerCPU <= 0 || math.Abs(s.ClientCPU+s.ServerCPU-s.CPU) > 1e-6 ||
				math.Abs(s.PerGiB*gib-s.CPU) > 1e-6 || math.Abs(s.PerOp*float64(s.Ops)/1e6-s.CPU) > 1e-5 {
				t.Errorf("%s: CPU time of %+v", m.Name, s)
			}
		}
	}
	if f := rep.Figures["guest_write_1m_nocrc_vs_siw"]; !strings.Contains(f.Missing, "this is a test") {
		t.Errorf("without siw: %+v", f)
	}
	if f := rep.Figures["write_64b_mops"]; f.Missing != notAsked {
		t.Errorf("not asked for: %+v", f)
	}
	if f := rep.Figures["write_1m_mss1448"]; f.Missing == "" {
		t.Errorf("segments without a network for them: %+v", f)
	}
	text, err := json.Marshal(rep)
	if err != nil {
		t.Fatal(err)
	}
	var back Report
	if err := json.Unmarshal(text, &back); err != nil {
		t.Fatal(err)
	}
	if back.Figures["write_1m_crc"].Median != rep.Figures["write_1m_crc"].Median {
		t.Error("the figure is another one after JSON")
	}
}

func TestIdleQPs(t *testing.T) {
	rep := run(t, small(t, "idle_*"))
	whole := wantFigure(t, rep, "idle_10000_mib", 2)
	each := wantFigure(t, rep, "idle_qp_kib", 2)
	if got := each.Median * 100 / 1024; got < whole.Median*0.999 || got > whole.Median*1.001 {
		t.Errorf("100 QPs of %g KiB are not %g MiB", each.Median, whole.Median)
	}
	if setUp := whole.Conditions["set_up_seconds"].(float64); setUp <= 0 {
		t.Errorf("set-up takes %g s", setUp)
	}
	if used := each.Conditions["kib_each_once_used"].(float64); used < each.Median {
		t.Errorf("a QP needs %g KiB before it is used and %g afterwards", each.Median, used)
	}
}

// TestStreamsOfARun: streams beside TCP.
func TestStreamsOfARun(t *testing.T) {
	rep := run(t, small(t, "stream_*_vs_*"))
	for _, id := range []string{
		"stream_1m_vs_tcp", "stream_64k_vs_tcp", "stream_1m_vs_netconn", "stream_64k_vs_netconn",
		"stream_rtt_vs_netconn",
	} {
		f := wantFigure(t, rep, id, 2)
		of := f.Conditions["of"].(map[string]any)
		if of["stream"] != "rsocket" || of["poll"] != "block" || of["crc"] != "on" ||
			f.Conditions["to"].(map[string]any)["stream"] != nil {
			t.Errorf("%s: conditions %v", id, f.Conditions)
		}
	}
}

// An end that has gone is noticed, reported, and replaced.
func TestLostEnd(t *testing.T) {
	c := small(t, "write_4k_vs_tcp")
	ctx := context.Background()
	r := &runner{Config: c, samples: make(map[string][]Sample), paths: make(map[netip.Addr]pathOf), version: make(map[string]string)}
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

// An order that an end can't carry out gets an answer, and the end goes on.
func TestOrders(t *testing.T) {
	var out bytes.Buffer
	in := strings.NewReader(`{"Who":true}
{}
{"Run":{"Op":"write-bw","Size":64,"Iters":1},"Over":{"Provider":"engine","CRC":"on"},"Addr":"127.0.0.1:1"}
{"Memory":true}
`)
	if err := Serve(context.Background(), in, &out, load.End{Procs: 3}); err != nil {
		t.Fatal(err)
	}
	type reply struct {
		Error  string
		Answer answer
	}
	var answers []reply
	for line := range strings.Lines(out.String()) {
		var a reply
		if err := json.Unmarshal([]byte(line), &a); err != nil {
			t.Fatal(err)
		}
		answers = append(answers, a)
	}
	if len(answers) != 4 {
		t.Fatalf("%d answers: %s", len(answers), out.String())
	}
	if e := answers[0].Answer.End; e == nil || e.Procs != 3 {
		t.Errorf("who it is: %+v", answers[0])
	}
	for i, want := range []string{"nothing", "nobody listens there; start the server first"} {
		if !strings.Contains(answers[i+1].Error, want) {
			t.Errorf("answer %d is %q, want one with %q", i+1, answers[i+1].Error, want)
		}
	}
	if m := answers[3].Answer.Memory; m == nil || m.Resident == 0 || m.Go == 0 {
		t.Errorf("memory %+v", m)
	}
	if err := Serve(context.Background(), strings.NewReader("perhaps\n"), &out, load.End{}); err == nil {
		t.Error("an order that is none")
	}
}

func TestPathOfLoopback(t *testing.T) {
	p, err := tryPath(context.Background(), loopback)
	if err != nil || p.MSS < 500 || p.Cong == "" {
		t.Errorf("%+v, %v", p, err)
	}
}
