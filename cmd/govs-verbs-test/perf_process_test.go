//go:build !race

// A process under the race detector takes a second of processor time. TestPerfSelf is one.

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/govs-rdma/govs/ci/vm/vmtest"
	"github.com/govs-rdma/govs/cmd/govs-verbs-test/internal/perf/load"
	"github.com/govs-rdma/govs/cmd/govs-verbs-test/internal/perf/pin"
)

func TestPerfProfiles(t *testing.T) {
	server, addr := perfServe(t, load.WriteBW, "127.0.0.1:0", "--provider", "engine")
	cpu, mem := filepath.Join(t.TempDir(), "cpu"), filepath.Join(t.TempDir(), "mem")
	// The rate of the allocation profile belongs to the process.
	startCommand(t, nil, words("perf write-bw --provider engine -n 10 --warmup 2 -t 2 -s 64 "+
		"--cpuprofile "+cpu+" --memprofile "+mem+" "+addr)...).want(t, exitPassed)
	server.want(t, exitPassed, nil, nil)
	for _, file := range []string{cpu, mem} {
		if info, err := os.Stat(file); err != nil || info.Size() == 0 {
			t.Errorf("%s: %v, %v", file, info, err)
		}
	}
	for _, option := range []string{"--cpuprofile", "--memprofile"} {
		start(t, "perf", "tcp-bw", "127.0.0.1:1", option, "/proc/none").want(t, exitUsage, nil,
			parts(option+": "))
	}
}

// TestPerfPinned pins a new process to a CPU, because pinning ours can't be undone.
func TestPerfPinned(t *testing.T) {
	cpus, err := pin.CPUs()
	if err != nil {
		t.Fatal(err)
	}
	cpu := strconv.Itoa(cpus[0])
	server, addr := perfServe(t, load.WriteBW, "127.0.0.1:0", "--provider", "engine")
	p := startCommand(t, nil, words("perf write-bw --provider engine -n 10 --warmup 2 -t 2 -s 64 "+
		"--cpu "+cpu+" "+addr)...)
	p.want(t, exitPassed, "on CPU "+cpu+" GOMAXPROCS 1")
	server.want(t, exitPassed, nil, nil)
}

// TestPerfSelfOps makes one command both ends of each workload.
func TestPerfSelfOps(t *testing.T) {
	for _, op := range load.Ops() {
		p := startCommand(t, nil, words("perf "+string(op)+
			" --self --provider engine -n 40 --warmup 2 --rounds 2")...)
		p.want(t, exitPassed, string(op)+": spin; ", "2 rounds, raw TCP after each",
			"least to most", " to ")
	}
}

// TestPerfOverKernel runs each workload between siw and the engine, bandwidth in one direction and
// latency in the other, and one of each over siw alone, whose ends poll without a pause. The ends
// are processes, as the ends of a program are.
func TestPerfOverKernel(t *testing.T) {
	if !inGuest(t, vmtest.Options{}) {
		return
	}
	const spins = "-n 50 --warmup 4 -s 5000 -t 8 --poll spin"
	const blocks = "-n 50 --warmup 4 -s 64 -q 3 -t 8 -b --poll block"
	var bandwidth, latency []load.Op
	for _, op := range load.Ops() {
		if op.Latency() {
			latency = append(latency, op)
		} else {
			bandwidth = append(bandwidth, op)
		}
	}
	for _, p := range []struct {
		client, server, flags string
		ops                   []load.Op
	}{
		{"kernel", "kernel", spins, []load.Op{load.ReadBW, load.SendLat}},
		{"engine", "kernel", blocks, bandwidth},
		{"kernel", "engine", blocks, latency},
	} {
		t.Run(p.client+" to "+p.server, func(t *testing.T) {
			addr := addrOf(freePort())
			server := startCommand(t, nil, words(fmt.Sprintf("perf %s --provider %s --serve %d --listen %s",
				p.ops[0], p.server, len(p.ops), addr))...)
			server.stderr.await(t, "listening on")
			for _, op := range p.ops {
				perfOver(t, op, p.client, p.server, p.flags, addr)
			}
			server.want(t, exitPassed)
		})
	}
}

// perfOver makes a client run a workload with the server that listens on addr.
func perfOver(t *testing.T, op load.Op, provider, server, flags, addr string) {
	if op == load.WriteLat {
		flags = strings.Replace(flags, "--poll block", "--poll spin", 1)
	}
	if op.Latency() {
		flags = strings.NewReplacer("-q 3 ", "", "-t 8 ", "", "-b ", "").Replace(flags)
	}
	t.Run(string(op)+" "+flags, func(t *testing.T) {
		client := startCommand(t, nil, words("perf "+string(op)+" --provider "+provider+" "+flags+" "+addr)...)
		client.want(t, exitPassed, string(op)+": ", "client "+provider+" ", "server "+server+" ")
	})
}

func TestPerfWrongUsage(t *testing.T) {
	for args, want := range map[string]string{
		"write-bw": "give either ADDR:PORT of the server, or --listen ADDR:PORT",
		"write-bw 192.0.2.1:7175 --listen 192.0.2.1:7175": "give either ADDR:PORT of the server",
		"write-bw 192.0.2.1":                              "an IP address or a name, and a port are needed",
		"tcp-bw localhost":                                "an IP address or a name, and a port are needed",
		"write-bw 192.0.2.1:0": "port 0 can't be listened on: " +
			"name a port from 1 to 65535",
		"write-bw 192.0.2.1:7175 --iters 1 --duration 1s":    "--iters and --duration can't be used together",
		"write-bw 192.0.2.1:7175 --iters=-1":                 "--iters -1: has to be at least 1",
		"write-bw 192.0.2.1:7175 --duration=-1s":             "--duration -1s: has to be above 0",
		"write-bw 192.0.2.1:7175 --size -5":                  "--size -5: has to be 1 to",
		"write-bw 192.0.2.1:7175 -s -5":                      "--size -5: has to be 1 to",
		"write-bw 192.0.2.1:7175 -D -1s":                     "--duration -1s: has to be above 0",
		"write-bw --listen 192.0.2.1:7175 --serve -3":        "--serve -3: has to be at least 0",
		"write-bw 192.0.2.1:7175 --size 0":                   "--size 0: has to be 1 to",
		"tcp-bw 192.0.2.1:7175 --size 2000000000":            "--size 2000000000: has to be 1 to",
		"write-bw 192.0.2.1:7175 --tx-depth 100000":          "--tx-depth 100000: has to be 1 to",
		"write-bw 192.0.2.1:7175 --tx-depth 4 --post-list 8": "--post-list 8 is more than --tx-depth 4",
		"write-bw 192.0.2.1:7175 --qp=-1":                    "--qp -1: has to be 1 to",
		"send-lat 192.0.2.1:7175 --qp 2":                     "--qp 2: send-lat has one message under way",
		"tcp-lat 192.0.2.1:7175 --qp 2":                      "--qp 2: tcp-lat has one message under way",
		"send-lat 192.0.2.1:7175 --tx-depth 8":               "--tx-depth: send-lat has one message under way",
		"read-lat 192.0.2.1:7175 --post-list 5":              "--post-list: read-lat has one message under way",
		"tcp-lat 192.0.2.1:7175 --warmup=-2":                 "--warmup -2: has to be at least 0",
		"send-lat 192.0.2.1:7175 --bidirectional":            "--bidirectional: send-lat has one message under way",
		"write-bw 192.0.2.1:7175 --size 64 --all":            "--size and --all can't be used together",
		"write-bw 192.0.2.1:7175 --iters 0":                  "--iters 0: has to be at least 1",
		"write-bw 192.0.2.1:7175 --duration soon":            "10s or 500ms, or a whole number of seconds",
		"write-bw 192.0.2.1:7175 -D 0":                       "--duration 0s: has to be above 0",
		"write-bw 192.0.2.1:7175 --duration 0s":              "--duration 0s: has to be above 0",
		"write-bw 192.0.2.1:7175 --qp 0":                     "--qp 0: has to be 1 to",
		"write-bw 192.0.2.1:7175 --tx-depth 0":               "--tx-depth 0: has to be 1 to",
		"write-bw 192.0.2.1:7175 --post-list 0":              "--post-list 0: has to be 1 to",
		"write-bw 192.0.2.1:7175 --sge 0":                    "--sge 0: has to be 1 to 16",
		"write-bw 192.0.2.1:7175 --mr 0":                     "--mr 0: has to be 1 to",
		"read-bw 192.0.2.1:7175 --outstanding 0":             "--outstanding 0: has to be 1 to 128",
		"write-bw 192.0.2.1:7175 --inline=-1":                "--inline -1: has to be 0 to",
		"write-lat 192.0.2.1:7175 --poll block":              "use --poll spin",
		"read-bw 192.0.2.1:7175 --inline 64":                 "--inline: read-bw posts RDMA Reads, which can't be inline",
		"read-bw 192.0.2.1:7175 --outstanding 129":           "--outstanding 129: has to be 1 to 128",
		"write-bw 192.0.2.1:7175 --poll sometimes":           "--poll must be one of",
		"write-bw 192.0.2.1:7175 --crc maybe":                "--crc must be one of",
		"write-bw --listen 192.0.2.1:7175 --serve=-1":        "--serve -1: has to be at least 0",
		"write-bw 192.0.2.1:7175 --procs=-1":                 "--procs -1: has to be at least 1",
		"write-bw 192.0.2.1:7175 --cpu=-2":                   "--cpu -2: there is no such CPU",
		"write-bw 192.0.2.1:7175 -o 3":                       "--outstanding: write-bw posts no RDMA Reads: leave",
		"send-lat 192.0.2.1:7175 -o 3":                       "--outstanding: send-lat posts no RDMA Reads: leave",
		"read-lat 192.0.2.1:7175 -I 3":                       "--inline: read-lat posts RDMA Reads, which can't be inline",
		"write-bw 192.0.2.1:7175 --serve 3":                  "--serve 3: is for a server, with --listen",
		"tcp-lat 192.0.2.1:7175 --serve 1":                   "--serve 1: is for a server, with --listen",
		"send-bw --listen 192.0.2.1:7175 -s 64":              "--size: the client decides the workload",
		"send-bw --listen 192.0.2.1:7175 --all":              "--all: the client decides the workload",
		"tcp-bw --listen 192.0.2.1:7175 --poll block":        "--poll: the client decides the workload",
		"read-bw --listen 192.0.2.1:7175 -o 3":               "--outstanding: the client decides the workload",
		"write-bw --listen 192.0.2.1:7175 --json":            "--json: the client prints the result",
		"write-bw 192.0.2.1:7175 --provider kernel --crc on": "--crc: is for the engine, and --provider is kernel",
		"write-bw --listen 192.0.2.1:7175 --busy-wait -1s":   "--busy-wait -1s: has to be at least 0",
		"write-bw 192.0.2.1:7175 --busy-wait 1us":            "--busy-wait: with --poll spin this end never sleeps",
		"tcp-bw 192.0.2.1:7175 --crc on":                     "unknown flag --crc",
		"frobnicate":                                         "unexpected argument frobnicate",
		"write-bw --self --listen 127.0.0.1:0":               "--self and --listen can't be used together",
		"write-bw --self -b":                                 "leave --bidirectional out",
		"write-bw --self --rounds 0":                         "--rounds 0: has to be 1 to",
		"write-bw 192.0.2.1:7175 --rounds 3":                 "--rounds 3: is for --self",
	} {
		cmd := start(t, append([]string{"perf"}, strings.Fields(args)...)...)
		cmd.want(t, exitUsage, nil, parts(name+": ", want, hint))
		if cmd.stdout.String() != "" {
			t.Errorf("%s: stdout %q", cmd, &cmd.stdout)
		}
	}
}

// TestPerfHelp shows that a workload's help has its own name and no option that it refuses.
func TestPerfHelp(t *testing.T) {
	for _, op := range perfOps() {
		help := start(t, "perf", string(op), "--help")
		help.want(t, exitPassed, parts("perf "+string(op)+" --listen 192.0.2.1:7175", "--size", "--serve"), nil)
		for _, option := range workloadOptions {
			offered := strings.Contains(help.stdout.String(), "--"+option)
			usable := useless(op, option) == "" &&
				(slices.Contains(load.Ops(), op) || !slices.Contains(onlyRDMA, option))
			if offered != usable {
				t.Errorf("%s --%s: the help has it: %v, it is of use: %v", op, option, offered, usable)
			}
		}
	}
}

// onlyRDMA are options that workloads over raw TCP do not have.
var onlyRDMA = []string{"tx-depth", "post-list", "inline", "sge", "mr", "outstanding", "bidirectional"}
