package main

import (
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/ci/vm/vmtest"
	"github.com/govs-rdma/govs/provider/conformance"
)

// targetGroup has scenarios of each kind of requirement, and scenarios that can't run on a target.
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

// TestRunTarget runs scenarios against a server of ping, which knows nothing of the suite.
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

// reply is a Reply of revision 2 that accepts, with CRCs and an IRD and ORD of 1.
const reply = "MPA ID Rep Frame\x50\x02\x00\x04\x00\x01\x00\x01"

// hostileTarget listens, answers the first connection as a stack does, and leaves the others to a
// function. Each ends after 20 s at the latest.
func hostileTarget(t *testing.T, serve func(net.Conn)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.OK(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for first := true; ; first = false {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.SetDeadline(time.Now().Add(patience))
			go func() {
				defer c.Close()
				if !first {
					serve(c)
					return
				}
				_, _ = c.Read(make([]byte, 100))
				_, _ = c.Write([]byte(reply))
				_, _ = io.Copy(io.Discard, c)
			}()
		}
	}()
	return l.Addr().String()
}

// TestRunTargetHostile: a target that answers when the run begins, and then misbehaves as no stack
// does, gets its verdicts, and the run ends. The run reports once that the target no longer speaks
// iWARP.
func TestRunTargetHostile(t *testing.T) {
	t.Setenv("REQUIRE_SIW", "")
	ff := strings.Repeat("\xff", 1<<16)
	endless := func(begin string) func(net.Conn) {
		return func(c net.Conn) {
			_, err := c.Write([]byte(begin))
			for err == nil {
				_, err = io.WriteString(c, ff)
			}
		}
	}
	says := func(text string, stay bool) func(net.Conn) {
		return func(c net.Conn) {
			_, _ = c.Read(make([]byte, 100))
			_, _ = io.WriteString(c, text)
			if stay {
				_, _ = io.Copy(io.Discard, c)
			}
		}
	}
	const over = "after ddp/send-queue-1, which failed, the target no longer answers"
	for _, c := range []struct {
		name   string
		serve  func(net.Conn)
		counts string // of two scenarios
		want   []string
	}{
		{"silence", says("", true), "1 FAIL, 1 SETUP", []string{
			"actual:   instead of a reply: nothing came", over, "within 500ms (nothing came)"}},
		{"half a Reply", says(reply[:11], true), "1 FAIL, 1 SETUP", []string{
			"instead of a reply: 11 octets of an unfinished frame (4d 50 41 20 49 44 20 52 65 70 20), then",
			over}},
		{"half a Reply and FIN", says(reply[:11], false), "1 FAIL, 1 SETUP", []string{over, "then: EOF"}},
		{"FIN", says("", false), "1 FAIL, 1 SETUP", []string{"instead of a reply: EOF", over}},
		{"garbage", says(ff[:300], true), "1 FAIL, 1 SETUP", []string{over, "does not speak iWARP"}},
		{"garbage without end", endless(""), "1 FAIL, 1 SETUP", []string{over, "does not speak iWARP"}},
		{"no octet is read", func(net.Conn) { <-t.Context().Done() }, "1 FAIL, 1 SETUP",
			[]string{over}},
		{"a Reply alone", says(reply, true), "2 FAIL", []string{"instead of a Terminate: nothing came"}},
		{"a Reply and FIN", says(reply, false), "2 FAIL", []string{"instead of a Terminate: "}},
		{"a Reply, then octets without end", endless(reply), "2 FAIL",
			[]string{"instead of a Terminate a reserved opcode 15 came", "the last 12 of "}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			began := time.Now()
			start(t, words("run --no-tshark --scale 0.1 --only ddp/send-queue-1,rdmap/version-2 --target "+
				hostileTarget(t, c.serve))...).want(t, exitFailed,
				parts(append(c.want, c.counts+": the suite did not pass")...), nil)
			if took := time.Since(began); took > time.Minute {
				t.Errorf("it took %v", took)
			}
		})
	}
}

// TestRunTargetSiw runs them against the C rping on siw, whose divergences are in its profile.
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
