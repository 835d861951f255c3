//go:build !race

package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/govs-rdma/govs/ci/vm/vmtest"
	"github.com/govs-rdma/govs/cmd/govs-verbs-test/internal/perf/load"
)

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
