//go:build !race

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/govs-rdma/govs/cmd/govs-verbs-test/internal/perf/load"
	"github.com/govs-rdma/govs/cmd/govs-verbs-test/internal/perf/pin/pintest"
	"github.com/govs-rdma/govs/cmd/govs-verbs-test/internal/perf/victim"
)

// The whole command: three processes, rounds, table and files, and peers that were at work
// during each measurement. The values of the figures are not checked here.
func TestPerfVictim(t *testing.T) {
	client, server := pintest.Two(t)
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	p := startCommand(t, nil, "perf", "victim",
		"--client-cpu", strconv.Itoa(client), "--server-cpu", strconv.Itoa(server),
		// otherwise tests that run at the same time would leave the peers no CPU
		"--policy", "normal",
		"--rounds", "1", "--time", "200ms", "--peers", "1,3", "--kind", "zero,terminate", "--every", "1ms",
		"--json", file("victim.json"), "--markdown", file("victim.md"), "--svg", file("svg"))
	status := p.wait(t)
	if status != exitPassed && status != exitFailed {
		t.Fatalf("status %d\n%s", status, &p.stderr)
	}
	text, err := os.ReadFile(file("victim.json"))
	if err != nil {
		t.Fatal(err)
	}
	var rep victim.Report
	if err := json.Unmarshal(text, &rep); err != nil {
		t.Fatal(err)
	}
	if rep.Within() != (status == exitPassed) {
		t.Errorf("the report is within its limits: %v, but the exit status is %d", rep.Within(),
			status)
	}
	if len(rep.Results) != 8 {
		t.Fatalf("%d results, want two kinds of two numbers of peers, blocking and spinning", len(rep.Results))
	}
	for _, r := range rep.Results {
		busy := r.Did.FPDUs > 100
		if r.Kind == victim.Terminate {
			busy = r.Did.TermSeen+r.Did.TermSent > 0
		}
		if r.Error != "" || r.Ratio.Rounds < 1 || r.Ratio.Rounds > 2 || r.Ratio.Median <= 0 || !busy || r.Did.Cut != 0 {
			t.Errorf("%v: ratio %+v, error %q, peers did %+v", r.Case, r.Ratio, r.Error, r.Did)
		}
		for _, s := range append(r.IdleRounds, r.BesideRounds...) {
			if s.Pings == nil || s.Pings.N == 0 || s.Pings.RTT.P99 <= 0 || s.Server.CPU <= 0 {
				t.Errorf("%v: %+v", r.Case, s)
			}
		}
	}
	for key, want := range map[string]any{
		"crc": "on", "peers_policy": "SCHED_OTHER", "congestion_control": "cubic", "rounds": 1.0,
	} {
		if got := rep.Conditions[key]; got != want {
			t.Errorf("condition %s is %v, want %v", key, got, want)
		}
	}
	wantText(t, "stdout", p.stdout.String(), parts("KIND ", "zero  ", " <=3 ", " <=10 ", " block ", " spin "))
	for _, name := range []string{"victim.md", "svg/victim-block.svg", "svg/victim-spin.svg"} {
		if info, err := os.Stat(file(name)); err != nil || info.Size() == 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestPerfVictimWrongUsage(t *testing.T) {
	for args, want := range map[string]string{
		"--kind loud":        `kind "loud": there are [reader slow`,
		"--peers 0":          "0 peers: has to be 1 to 4096",
		"--rounds 0":         "--rounds 0",
		"--time 0s":          "at least 1ms is needed",
		"--spin --block":     "--spin and --block can't be used together",
		"--server-cpu 0":     "CPU 0: the server needs one to itself",
		"--cong no-such":     "--cong no-such: ",
		"--server-cpu 1000":  "may not run on CPU 1000",
		"--client-cpu 1000":  "may not run on CPU 1000",
		"--hostile-cpu 1000": "may not run on CPU 1000",
	} {
		cmd := start(t, append([]string{"perf", "victim"}, strings.Fields(args)...)...)
		cmd.want(t, exitUsage, nil, parts(name+": ", want))
	}
}

// The flags configure what they say.
func TestPerfVictimConfig(t *testing.T) {
	c := perfVictimCmd{
		Spin: true, ServerCPU: 1, HostileCPU: 5, Cong: "system", CRC: "off", Policy: "normal",
		Kind: []string{"tiny"}, Peers: []int{2},
	}
	v := c.config()
	if v.HostileCPU != 5 || v.Cong != "" || v.CRC || !v.Normal {
		t.Errorf("%+v", v)
	}
	if !slices.Equal(v.Polls, []load.Poll{load.Spin}) ||
		!slices.Equal(v.Kinds, []victim.Kind{victim.Tiny}) {
		t.Errorf("%+v", v)
	}
	c = perfVictimCmd{CRC: "on", Cong: "reno", HostileCPU: -1}
	if v := c.config(); len(v.Polls) != 2 || len(v.Kinds) != 7 || !v.CRC || v.Cong != "reno" || v.HostileCPU < 0 {
		t.Errorf("%+v", v)
	}
	c = perfVictimCmd{Block: true, Policy: "idle"}
	if v := c.config(); v.Normal || len(v.Polls) != 1 || v.Polls[0] != load.Block {
		t.Errorf("%+v", v)
	}
}
