//go:build !race

package main

import (
	"context"
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/govs-rdma/govs/cmd/govs-verbs-test/internal/perf/pin/pintest"
)

// perfAll starts perf all with the engine, as a process of its own.
func perfAll(t *testing.T, args ...string) *program {
	t.Helper()
	client, server := pintest.Two(t)
	return startCommand(t, nil, append([]string{"perf", "all", "--time-per", "5ms", "--provider", "engine",
		"--client-cpu", strconv.Itoa(client), "--server-cpu", strconv.Itoa(server)}, args...)...)
}

// The whole way: separate network, two processes, rounds, table, and files.
func TestPerfAll(t *testing.T) {
	dir := t.TempDir()
	file := func(name string) string { return filepath.Join(dir, name) }
	p := perfAll(t, "--rounds", "2", "--only", "*_[14][mk]_*", "--json", file("all.json"), "--svg", file("svg"), "--markdown", file("all.md"))
	p.want(t, exitPassed, "FIGURE ", "write_1m_crc ", "write_1m_cpu_per_gib ", " <=1.25 ", " >=0.7   >=0.85 ")
	if s := p.stdout.String(); strings.Contains(s, "not asked for") || strings.Contains(s, "qp1000_vs_1") {
		t.Errorf("figures that were not asked for:\n%s", s)
	}

	rep, err := readFigures(file("all.json"))
	if err != nil {
		t.Fatal(err)
	}
	if len(rep.Figures) != 26 {
		t.Errorf("%d figures, want 26", len(rep.Figures))
	}
	for _, id := range []string{"write_1m_crc", "write_1m_cpu_per_gib", "write_1m_nocrc", "read_1m_crc",
		"send_1m_crc", "write_4k_vs_tcp"} {
		if f := rep.Figures[id]; f.Missing != "" || f.Median <= 0 || f.Rounds != 2 {
			t.Errorf("%s: %+v", id, f)
		}
	}
	// Where the system gives a network namespace, it has segments of both kinds.
	if f := rep.Figures["write_1m_mss1448"]; f.Missing == "" {
		if mss := f.Conditions["of"].(map[string]any)["mss"]; mss != 1448.0 {
			t.Errorf("the MSS is %v, want 1448", mss)
		}
		if cc := f.Conditions["congestion_control_of_other_programs"]; cc != "cubic" {
			t.Errorf("others use %v", cc)
		}
	} else if !strings.Contains(p.stderr.String(), "no network namespace") {
		t.Errorf("%s, and nothing says why", f.Missing)
	}
	if text, err := os.ReadFile(file("all.md")); err != nil || !strings.Contains(string(text), "| `write_1m_crc` |") {
		t.Errorf("%v, %s", err, text)
	}

	// Another run takes over what it lacks.
	p = perfAll(t, "--rounds", "1", "--only", "latency", "--with", file("all.json"), "--json", file("more.json"), "--svg", file("svg"))
	p.want(t, exitPassed, "write_1m_crc ", "latency ", "plot")
	more, err := readFigures(file("more.json"))
	if err != nil {
		t.Fatal(err)
	}
	if more.Figures["write_1m_crc"].Median != rep.Figures["write_1m_crc"].Median || len(more.Curves) != 1 {
		t.Errorf("%+v, %d curves", more.Figures["write_1m_crc"], len(more.Curves))
	}
	if _, err := os.Stat(filepath.Join(file("svg"), "latency.svg")); err != nil {
		t.Error(err)
	}
}

func TestPerfAllRefuses(t *testing.T) {
	bad := filepath.Join(t.TempDir(), "bad.json")
	if err := os.WriteFile(bad, []byte(`{"a":1}`), 0o666); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ args, want string }{
		{"--rounds 0", "rounds"},
		{"--time-per 0s", "measurement"},
		{"--only nothing-like-it", "no figure or plot"},
		{"--only write_1m_crc,nothing", "no figure or plot has an id like .nothing."},
		{"--only [", "pattern"},
		{"--json /nonexistent/x.json", "--json /nonexistent/x.json: its folder can't be written to: no such"},
		{"--markdown /tmp", "--markdown /tmp: is a folder"},
		{"--server-cpu 0", "two CPUs"},
		{"--client-cpu 1000 --server-cpu 1001", "may not run on CPU 1000"},
		{"--procs 0", "GOMAXPROCS"},
		{"--with /nonexistent.json", "no such file"},
		{"--with " + bad, "no figures"},
		{"--cong nosuch", "--cong nosuch: .*; this machine has .*reno"},
		{"--provider both", "siw|kernel"},
	} {
		t.Run(tc.args, func(t *testing.T) {
			args := strings.Fields(tc.args)
			if tc.args == "--provider both" {
				if _, err := findKernel(netip.Addr{}); err == nil {
					return // there is one: it would run
				}
			}
			if !strings.Contains(tc.args, "-cpu") { // or it is refused for these
				client, server := pintest.Two(t)
				args = append(args, "--client-cpu", strconv.Itoa(client), "--server-cpu", strconv.Itoa(server))
			}
			var stdout, stderr transcript
			if status := run(context.Background(), append([]string{"perf", "all"}, args...), &stdout, &stderr); status != exitUsage {
				t.Errorf("status %d, want %d", status, exitUsage)
			}
			stderr.await(t, tc.want)
		})
	}
}

// Figures are what they were after a file.
func TestFiguresInAFile(t *testing.T) {
	for _, text := range []string{`{"figures":{"a":{"median":1,"min":1,"max":1,"rounds":1,"conditions":{}}}}`, `{"figures":{"a":{"missing":"b"}}}`} {
		name := filepath.Join(t.TempDir(), "x.json")
		if err := os.WriteFile(name, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
		rep, err := readFigures(name)
		if err != nil {
			t.Fatal(err)
		}
		got, err := json.Marshal(map[string]any{"figures": rep.Figures})
		if err != nil || string(got) != text {
			t.Errorf("%s came back as %s, %v", text, got, err)
		}
	}
}
