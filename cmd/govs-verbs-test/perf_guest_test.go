package main

import (
	"strings"
	"testing"

	"github.com/govs-rdma/govs/ci/vm/vmtest"
	"github.com/govs-rdma/govs/cmd/govs-verbs-test/internal/perf/load"
)

// TestPerfOverKernel has each workload run over siw, and between siw and the
// engine. The ends are processes: a device of siw is in the hands of one.
func TestPerfOverKernel(t *testing.T) {
	if !inGuest(t, vmtest.Options{}) {
		return
	}
	both := []string{"-n 50 -s 5000 -t 8 --poll spin", "-n 50 -s 64 -q 3 -t 8 -b --poll block"}
	for _, p := range []struct {
		client, server string
		flags          []string
	}{{"kernel", "kernel", both}, {"engine", "kernel", both[1:]}, {"kernel", "engine", both[1:]}} {
		for _, op := range load.Ops() {
			for _, flags := range p.flags {
				if op == load.WriteLat {
					flags = strings.Replace(flags, "--poll block", "--poll spin", 1)
				}
				if op.Latency() {
					flags = strings.Replace(flags, "-q 3 -t 8 -b ", "", 1)
				}
				t.Run(p.client+" to "+p.server+" "+string(op)+" "+flags, func(t *testing.T) {
					addr := addrOf(freePort())
					server := startCommand(t, nil, words("perf "+string(op)+" --provider "+p.server+" --listen "+addr)...)
					server.stderr.await(t, "listening on")
					client := startCommand(t, nil, words("perf "+string(op)+" --provider "+p.client+" "+flags+" "+addr)...)
					client.want(t, exitPassed, string(op)+": ", "client "+p.client+" ", "server "+p.server+" ")
					server.want(t, exitPassed)
				})
			}
		}
	}
}
