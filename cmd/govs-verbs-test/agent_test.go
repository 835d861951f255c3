//go:build !race

package main

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider"
	"github.com/govs-rdma/govs/provider/conformance"
	"github.com/govs-rdma/govs/provider/conformance/onengine"
	"github.com/govs-rdma/govs/provider/conformance/remote"
)

const testSecret = "a secret of a test"

// startAgent starts an agent and returns its address.
func startAgent(t *testing.T, cmd *exec.Cmd) (*program, string) {
	t.Helper()
	p := startCmd(t, cmd)
	m := p.stdout.await(t, `listening on (\S+);`)
	return p, m[1]
}

// localAgent starts an agent with the engine in a new process.
func localAgent(t *testing.T) (*program, string) {
	t.Helper()
	return startAgent(t, self(t, "agent", "--listen", "127.0.0.1:0", "--provider", "engine"))
}

// stoppable is a recording that reports when it is stopped.
type stoppable struct{ stopped bool }

func (s *stoppable) Stop(file string) error {
	s.stopped = true
	return os.WriteFile(file, nil, 0o600)
}

// TestRecordingEnds: a recording ends even if there is no folder for its file.
func TestRecordingEnds(t *testing.T) {
	t.Setenv("TMPDIR", filepath.Join(t.TempDir(), "none"))
	var r stoppable
	if _, err := captured(&r); err == nil || !r.stopped {
		t.Errorf("captured: %v; the recording is stopped: %v", err, r.stopped)
	}
}

// verbsGroups are the groups that have scenarios between two providers; most have nothing else.
const verbsGroups = "send,write,read,order,conn,protection,srq,queue,objects,memory,states,window,ext"

// TestRunPeer runs the verbs scenarios between two processes. Checks, observations and the wire
// must be the same as in one process, in each direction.
func TestRunPeer(t *testing.T) {
	const least = 200
	p, addr := localAgent(t)
	dir := t.TempDir()
	data := onengine.ProcessAddr().String()
	startCmd(t, self(t, "run", "--verbose", "--peer", addr, "--addr", data, "--peer-addr", data, "--no-tshark",
		"--report", dir, "--only", verbsGroups, "--scale", "2")).want(t, exitPassed,
		"engine->engine engine->engine@peer engine@peer->engine", "the suite passed")
	rep := readReport(t, filepath.Join(dir, "report.json"))
	far := 0
	for _, r := range rep.Results {
		if r.Verdict != conformance.Pass {
			t.Error(story(&r))
		}
		if !strings.Contains(r.Initiator+r.Responder, conformance.AtPeer) {
			continue
		}
		far++
		if r.CaptureAtPeer == "" {
			t.Errorf("%s %s->%s: the agent has captured nothing", r.Scenario, r.Initiator, r.Responder)
		}
	}
	if far < least {
		t.Errorf("%d runs with the agent", far)
	}
	if rep.Peer == nil || rep.Peer.Address != addr || rep.Peer.CPUs == 0 || rep.Peer.ClockWithin == 0 {
		t.Errorf("the other host is %+v", rep.Peer)
	}
	testkit.OK(t, p.cmd.Process.Signal(os.Interrupt))
	p.want(t, exitPassed, "the run has ended: the client said so")
	if strings.Contains(p.stdout.String(), "not freed") {
		t.Error(p.stdout.String())
	}
}

// story returns what a report says about a run: the reason of its verdict in the first line, then
// its log and the wire, which has another process's connection if the capture recorded one.
func story(r *conformance.Result) string {
	lines := []string{fmt.Sprintf("%s %s->%s: %s: %s", r.Scenario, r.Initiator, r.Responder, r.Verdict, r.Why),
		fmt.Sprintf("port %d, %d ms, again: %s", r.Port, r.DurationMillis, r.Replay)}
	for _, d := range r.Divergences {
		lines = append(lines, fmt.Sprintf("%s: want %q, got %q, against %q", d.Key, d.Reference, d.Got, d.Against))
	}
	lines = append(append(lines, r.Log...), r.Ladder...)
	return strings.Join(lines, "\n\t")
}

// TestRunPeerRaw: the scripted peer here meets the provider at the agent, in both roles.
func TestRunPeerRaw(t *testing.T) {
	_, addr := localAgent(t)
	data := onengine.ProcessAddr().String()
	startCmd(t, self(t, "run", "--verbose", "--peer", addr, "--addr", data, "--peer-addr", data, "--no-tshark",
		"--scale", "2", "--responder", "engine@peer", "--only", "rdmap/read-*,mpa/reply-*")).want(t,
		exitPassed, "the suite passed", "engine@peer")
}

// TestAgentKilled: a run whose agent dies ends at once, and the verdict on the run under way says
// so.
func TestAgentKilled(t *testing.T) {
	p, addr := localAgent(t)
	data := onengine.ProcessAddr().String()
	file := filepath.Join(t.TempDir(), "report.json")
	run := startCmd(t, self(t, "run", "--verbose", "--peer", addr, "--addr", data, "--peer-addr", data, "--no-tshark",
		"--json", file, "--responder", "engine@peer", "--only", "conn,order,read"))
	run.stdout.await(t, `\[ *5/`)
	testkit.OK(t, p.cmd.Process.Kill())
	run.want(t, exitFailed)
	wantText(t, "stderr", run.stderr.String(), parts("the agent at "+addr+
		" has gone: it has ended, or was restarted", "runs were left out"))
	rep := readReport(t, file)
	last := rep.Results[len(rep.Results)-1]
	if len(rep.Results) > 25 || rep.Passed {
		t.Errorf("%d runs were judged, and passed is %v", len(rep.Results), rep.Passed)
	}
	if last.Verdict == conformance.Setup && !strings.Contains(last.Why, "has gone") {
		t.Errorf("the last: %s: %s", last.Verdict, last.Why)
	}
}

// TestAgentKilledCollecting: a run whose agent died leaves no collection, because that would be
// judged without the runs that were left out.
func TestAgentKilledCollecting(t *testing.T) {
	p, addr := localAgent(t)
	data := onengine.ProcessAddr().String()
	dir := t.TempDir()
	run := startCmd(t, self(t, "run", "--verbose", "--peer", addr, "--addr", data, "--peer-addr", data,
		"--collect", dir, "--responder", "engine@peer", "--only", "conn,order,read"))
	run.stdout.await(t, `\[ *2/`)
	testkit.OK(t, p.cmd.Process.Kill())
	run.want(t, exitFailed)
	wantText(t, "stderr", run.stderr.String(), parts("has gone", "runs were left out, and nothing was collected"))
	if left := testkit.Must(os.ReadDir(dir))(t); len(left) > 0 {
		t.Errorf("it leaves %v", left)
	}
}

// TestCutShort: a run whose agent has gone fails only if it has left out runs.
func TestCutShort(t *testing.T) {
	c := &runCmd{peer: &remote.Session{}} // has no agent
	if err := c.cutShort(47, 47); err != nil {
		t.Errorf("after the last run: %v", err)
	}
	if err := c.cutShort(9, 47); err == nil || !strings.Contains(err.Error(), "38 of 47 runs were left out") {
		t.Errorf("before: %v", err)
	}
}

// TestAgentRefuses checks what is printed about secrets and a second run.
func TestAgentRefuses(t *testing.T) {
	dir := t.TempDir()
	good, bad, empty := filepath.Join(dir, "good"), filepath.Join(dir, "bad"), filepath.Join(dir, "empty")
	for file, text := range map[string]string{good: testSecret + "\n", bad: "another secret of a test", empty: "\n"} {
		testkit.OK(t, os.WriteFile(file, []byte(text), 0o600))
	}
	start(t, "agent", "--listen", "0.0.0.0:0").want(t, exitUsage, nil,
		parts("0.0.0.0 is not a loopback address, so that a secret of at least 16 bytes is needed", secretVariable))
	start(t, "agent", "--listen", "127.0.0.1:0", "--secret-file", empty).want(t, exitUsage, nil, parts("is empty"))
	start(t, "run", "--peer", fmt.Sprintf("127.0.0.1:%d", freePort()), "--only", "send/zero").want(t, exitUsage, nil,
		parts("nobody listens there; start the agent first"))
	p, addr := startAgent(t, self(t, "agent", "--listen", "127.0.0.1:0", "--provider", "engine", "--secret-file", good))
	for _, c := range []struct {
		args []string
		want []string
	}{
		{nil, parts("the two ends have different secrets", "this end has none", "--secret-file or "+secretVariable)},
		{[]string{"--secret-file", bad}, parts("the two ends have different secrets")},
		{[]string{"--secret-file", filepath.Join(dir, "none")}, parts("no such file")},
	} {
		start(t, append([]string{"run", "--peer", addr, "--only", "send/zero"}, c.args...)...).want(t, exitUsage, nil, c.want)
	}
	run := startCmd(t, self(t, "run", "--verbose", "--peer", addr, "--secret-file", good, "--no-tshark", "--addr",
		onengine.ProcessAddr().String(), "--peer-addr", onengine.ProcessAddr().String()))
	run.stdout.await(t, `\[ *2/`)
	start(t, "run", "--peer", addr, "--secret-file", good).want(t, exitUsage, nil,
		parts("the agent is busy: it serves a run of 127.0.0.1:"))
	testkit.OK(t, run.cmd.Process.Signal(os.Interrupt))
	run.want(t, exitFailed)
	p.stdout.await(t, "the run has ended")
	start(t, "run", "--peer", addr, "--secret-file", good, "--only", "send/zero", "--no-tshark",
		"--responder", "kernel@peer").want(t, exitUsage,
		parts("left out: pairings with kernel@peer: the agent can't use it: "+
			"it was not started with it"), parts("no provider for any pairing"))
}

// TestExplainPeer: advice about secrets is only given where a secret helps.
func TestExplainPeer(t *testing.T) {
	weak := remote.CheckSecret(nil, netip.MustParseAddr("192.0.2.1"))
	for _, c := range []struct {
		err    error
		advice bool
	}{{weak, true}, {remote.ErrSecret, true}, {remote.ErrBusy, false}, {remote.ErrVersion, false}} {
		if err := explainPeer(c.err, nil); strings.Contains(err.Error(), secretVariable) != c.advice {
			t.Errorf("%v", err)
		}
	}
}

// TestNetdevOfForwardedAgent: if ssh forwards a port of this host to the agent, captures are not
// taken on loopback, because the other side is elsewhere.
func TestNetdevOfForwardedAgent(t *testing.T) {
	l := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	a := &remote.Agent{Open: func(string, []string) (provider.Provider, error) { return nil, nil },
		Host: remote.Host{Offers: []remote.Offer{{Name: "engine", Addr: netip.MustParseAddr("192.0.2.77")},
			{Name: "kernel", Why: "it has none"}}}}
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- a.Serve(ctx, l) }()
	defer func() {
		stop()
		testkit.OK(t, <-served)
	}()
	s := testkit.Must(remote.Dial(t.Context(), l.Addr().String(), remote.Options{}))(t)
	defer s.Close()
	c := &runCmd{peer: s, Interface: loopback}
	ours := netip.MustParseAddr("192.0.2.78")
	if got, err := c.netdev(ours); err == nil || !strings.Contains(err.Error(), ours.String()) {
		t.Errorf("%q, %v; want the interface with %v, which there is not", got, err, ours)
	}
	c.PeerAddr = netip.MustParseAddr("127.0.0.1")
	if got, err := c.netdev(ours); got != loopback || err != nil {
		t.Errorf("the other side on this host: %q, %v", got, err)
	}
}

// TestNetdevOf finds loopback by any of its addresses.
func TestNetdevOf(t *testing.T) {
	ifcs := testkit.Must(net.Interfaces())(t)
	got := testkit.Must(netdevOf(netip.MustParseAddr("127.0.0.9")))(t)
	for _, ifc := range ifcs {
		if ifc.Name == got && ifc.Flags&net.FlagLoopback == 0 {
			t.Errorf("%s is not the loopback interface", got)
		}
	}
	if _, err := netdevOf(netip.MustParseAddr("192.0.2.77")); err == nil || !strings.Contains(err.Error(), "--interface") {
		t.Errorf("an address of no interface: %v", err)
	}
}
