//go:build !race

// A process under the race detector takes a second of processor time. TestPerfSelf is one.

package main

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

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
