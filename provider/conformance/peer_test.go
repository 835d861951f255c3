package conformance

import (
	"context"
	"errors"
	"testing"
)

// TestEntryTakesThePeersKernel: an entry about a provider on the other host applies by that host's
// kernel and variant.
func TestEntryTakesThePeersKernel(t *testing.T) {
	e := ProfileEntry{Scenario: "*/*", Provider: "kernel", Key: "x", Fixed: []string{"6.1.100"},
		Variants: []string{"crc"}}
	c := &Collection{KernelVersion: "6.1.200", Siw: "default",
		Peer: &PeerHost{KernelVersion: "6.1.50", Siw: "crc"}}
	for p, want := range map[Pairing]bool{
		{"kernel" + AtPeer, "engine"}: true, {"engine", "kernel" + AtPeer}: true,
		{"kernel", "engine"}: false, {"engine" + AtPeer, "engine"}: false,
	} {
		if got := e.applies("a/b", p, c); got != want {
			t.Errorf("%s: %v", p, got)
		}
	}
	c.Peer.KernelVersion = "6.1.150"
	if e.applies("a/b", Pairing{"kernel" + AtPeer, "engine"}, c) {
		t.Error("it applies to a kernel that is free of it")
	}
	c.Peer.KernelVersion = ""
	p := Pairing{"engine", "kernel" + AtPeer}
	if !e.applies("a/b", p, c) || !e.open(p, c) || e.open(Pairing{"kernel", "engine"}, c) {
		t.Error("a kernel without a version is not told apart")
	}
}

// TestRunLosesThePeer: the run under way ends at once and says why, and no other begins.
func TestRunLosesThePeer(t *testing.T) {
	why := errors.New("the agent has gone")
	lost := make(chan struct{})
	var s Suite
	began := 0
	for _, slug := range []string{"a/first", "a/second", "a/third"} {
		s.Add(&Scenario{Slug: slug, Title: "t", Level: Must, Verbs: func(r *VerbsRun) {
			if began++; began == 2 {
				close(lost)
				<-r.Context().Done()
			}
			r.Check(began == 1, "it is the first")
		}})
	}
	cfg := config(t, &s, Pairing{"engine", "engine" + AtPeer})
	cfg.Open["engine"+AtPeer] = opener(t, "engine")
	cfg.Lost, cfg.Why = lost, func() error { return why }
	outcomes, err := Run(context.Background(), cfg)
	if err != nil || len(outcomes) != 2 || began != 2 {
		t.Fatalf("%d outcomes, %d runs, %v", len(outcomes), began, err)
	}
	if o := outcomes[0]; o.Setup != "" || o.State() != "ok" {
		t.Errorf("the first: %+v", o)
	}
	if o := outcomes[1]; o.Setup != why.Error() {
		t.Errorf("the second: %+v", o)
	}
}
