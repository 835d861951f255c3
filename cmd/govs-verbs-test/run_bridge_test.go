//go:build !race

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider/conformance"
	"github.com/govs-rdma/govs/provider/conformance/capture"
	"github.com/govs-rdma/govs/provider/conformance/onengine"
	"github.com/govs-rdma/govs/provider/kernel"
)

// startRun starts a run of the suite with the bridge, in a new process.
func (b *bridged) startRun(args ...string) *program {
	b.t.Helper()
	cmd := self(b.t, append([]string{"run", "--library", b.libraries, "--addr",
		onengine.ProcessAddr().String(), "--scale", "2", "--no-tshark"}, args...)...)
	cmd.Env = append(cmd.Env, "REQUIRE_SIW=1", "XDG_CACHE_HOME="+b.cache)
	return startCmd(b.t, cmd)
}

// TestRunBridge runs some scenarios of each kind over C's libraries and the bridge, against
// themselves, the engine and the scripted peer, and compares the wire with the engine's. A step of
// ci/test runs all scenarios: ci/suite --bridge.
func TestRunBridge(t *testing.T) {
	b := newBridged(t)
	if err := (&capture.Wire{Interface: loopback}).Usable(); err != nil {
		b.startRun("--responder", bridgeName).want(t, exitUsage)
		if os.Getenv("REQUIRE_SIW") == "1" {
			t.Fatal(err)
		}
		t.Skipf("pairings with the bridge are captured on the wire: %v", err)
	}
	file := filepath.Join(t.TempDir(), "report.json")
	only := strings.Join([]string{"send", "order", "protection", "conn/reject", "conn/shutdown*",
		"conn/private*", "rdmap/invalidate*", "mpa/reply-*"}, ",")
	b.startRun("--matrix", "--providers", "engine,bridge", "--only", only, "--json", file).want(t,
		exitPassed, "engine->engine engine->bridge bridge->engine bridge->bridge",
		"the suite passed")
	compared := 0
	for _, r := range readReport(t, file).Results {
		p := conformance.Pairing{Initiator: r.Initiator, Responder: r.Responder}
		switch {
		case !p.Has(bridgeName) || r.Verdict == conformance.Unsupported || len(r.Ladder) == 0:
		case len(r.Aligned) == 0:
			t.Errorf("%s %s: the wire was not compared with the engine's", r.Scenario, p)
		default:
			compared++
		}
	}
	if compared < 120 {
		t.Errorf("the wires of %d runs were compared", compared)
	}
}

// TestRunBridgeInterrupted: the process that has the bridge is the process that was started, and it
// ends cleanly.
func TestRunBridgeInterrupted(t *testing.T) {
	b := newBridged(t)
	if err := (&capture.Wire{Interface: loopback}).Usable(); err != nil {
		if os.Getenv("REQUIRE_SIW") == "1" {
			t.Fatal(err)
		}
		t.Skipf("pairings with the bridge are captured on the wire: %v", err)
	}
	p := b.startRun("--initiator", bridgeName, "--seed", "5", "--verbose")
	p.stdout.await(t, `\[ *3/`)
	testkit.OK(t, p.cmd.Process.Signal(os.Interrupt))
	p.want(t, exitFailed, "pairings bridge->engine")
	wantText(t, "stderr", p.stderr.String(), parts("nothing was judged (seed 5)"))
}

// TestRunBridgeRefuses checks what is printed without the libraries.
func TestRunBridgeRefuses(t *testing.T) {
	dir := t.TempDir()
	want := parts(preloadLibrary, dir, "make build", "make install")
	if !kernel.Available {
		want = parts("the kernel provider, which this build is without", "libibverbs-dev")
	}
	for _, side := range []string{"--initiator", "--responder"} {
		start(t, "run", side, bridgeName, "--library", dir).want(t, exitUsage, nil, want)
	}
}
