package main

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/govs-rdma/govs/ci/vm/vmtest"
	"github.com/govs-rdma/govs/provider/conformance"
)

// targetGroup has scenarios of each kind of need, and of those that a target can't have.
const targetGroup = "mpa/request-http,mpa/request-revision-3,mpa/request-depth-1," +
	"mpa/request-private-data-252,mpa/request-revision-1,mpa/crc-wrong-send,ddp/send-queue-1," +
	"ddp/write-unknown-stag,rdmap/terminated," +
	"rdmap/terminate-layout,rdmap/read-whole,mpa/reply-silence"

// targetVerdicts returns how many runs of a report have each verdict, and checks that all are
// against a target of that name.
func targetVerdicts(t *testing.T, file, name string) map[conformance.Verdict]int {
	t.Helper()
	rep := readReport(t, file)
	counts := make(map[conformance.Verdict]int)
	for _, r := range rep.Results {
		counts[r.Verdict]++
		if r.Initiator != name && r.Responder != name {
			t.Errorf("%s: %s->%s has no %s", r.Scenario, r.Initiator, r.Responder, name)
		}
		if r.Verdict == conformance.Fail {
			t.Errorf("%s: %s", r.Scenario, r.Why)
		}
	}
	if rep.Target == "" || rep.Passed != (counts[conformance.Fail] == 0) {
		t.Errorf("target %q, passed %v", rep.Target, rep.Passed)
	}
	return counts
}

// TestRunTarget plays scenarios to a server of ping, which knows nothing of the suite.
func TestRunTarget(t *testing.T) {
	t.Setenv("REQUIRE_SIW", "")
	server, addr := serve(t, "127.0.0.1:0", "--persistent", "--provider", "engine")
	file := filepath.Join(t.TempDir(), "report.json")
	run := func(args ...string) *command {
		return start(t, append([]string{"run", "--no-tshark", "--verbose", "--json", file, "--scale", "2",
			"--target"}, args...)...)
	}
	run(addr, "--only", targetGroup+",send/zero").want(t, exitPassed, parts(
		"captures from the tap, pairings raw->target\n",
		"target "+addr+", which has to accept connections with a receive",
		"which an agent has (--peer): 1 verbs scenarios", "10 PASS, 2 UNSUPPORTED: the suite passed",
	), nil)
	for _, r := range readReport(t, file).Results {
		if r.Verdict == conformance.Pass && (r.Capture == "" || len(r.Ladder) == 0) {
			t.Errorf("%s: no packets", r.Scenario)
		}
	}
	targetVerdicts(t, file, conformance.TargetName)
	run(addr, "--target-offers", "accept", "--only", "mpa/crc-wrong-send,rdmap/terminate-layout").want(
		t, exitPassed, parts("1 PASS, 1 UNSUPPORTED"), nil)
	run(addr, "--target-offers", "listener", "--target-stack", "kernel",
		"--only", "mpa/request-http,ddp/send-queue-1").want(t, exitPassed,
		parts("pairings raw->kernel@target", "1 PASS, 1 UNSUPPORTED"), nil)
	targetVerdicts(t, file, "kernel@target")

	server.stop()
	server.want(t, exitPassed, nil, nil)
	run(addr, "--only", "mpa/request-http").want(t, exitFailed, parts("SETUP",
		"no TCP connection to the target",
		"connection refused", "run --only mpa/request-http", "--target "+addr), nil)
	run(addr).want(t, exitUsage, nil,
		parts("--target: no TCP connection to the target", "rping -s -P"))
}

// TestRunTargetSiw plays them to the C rping on siw, whose divergences the ledger has.
func TestRunTargetSiw(t *testing.T) {
	if !inGuest(t, vmtest.Options{}) {
		return
	}
	port := freePort()
	startServer(t, port, "rping", "-s", "-P", "-a", siwAddr, "-p", fmt.Sprint(port))
	file := filepath.Join(t.TempDir(), "report.json")
	args := append(words("run --no-tshark --verbose --scale 6 --target-stack kernel --json"), file,
		"--target", addrOf(port),
		"--only", targetGroup+",mpa/request-private-data-253,mpa/request-revision-0")
	process(t, args, exitPassed, parts("raw->kernel@target", "the suite passed"), nil)
	counts := targetVerdicts(t, file, "kernel@target")
	if counts[conformance.Pass] < 6 || counts[conformance.XFail] < 3 ||
		counts[conformance.Unsupported] != 2 {
		t.Errorf("verdicts of siw: %v", counts)
	}
}
