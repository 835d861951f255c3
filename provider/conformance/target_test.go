package conformance

import (
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// TestTargetLacks: each target has what it offers, and what its offer includes.
func TestTargetLacks(t *testing.T) {
	all := []Needs{NeedsListener, NeedsAccept, NeedsReceive, NeedsProgram, NeedsConnect}
	for offer, has := range map[Needs]int{NeedsListener: 1, NeedsAccept: 2, NeedsReceive: 3} {
		target := &Target{Offers: offer}
		for i, n := range all {
			if why := target.lacks(&Scenario{Needs: n}); (why == "") != (i < has) {
				t.Errorf("%q of a target that offers %q: %q", n, offer, why)
			}
		}
	}
}

// TestTargetEntries: entries are about the target whose stack they describe, whatever its version,
// and need not show.
func TestTargetEntries(t *testing.T) {
	e := &ProfileEntry{ID: "x", Scenario: "a/*", Provider: "kernel", Key: "check:x",
		Fixed: []string{"6.1.5"}, Variants: []string{"crc"}}
	c := &Collection{KernelVersion: "6.1.9", Siw: "default"}
	for name, want := range map[string]bool{
		"kernel@target": true, "bridge@target": false, "target": false, "kernel": false,
	} {
		p := Pairing{Raw, name}
		if got := e.applies("a/b", p, c); got != want {
			t.Errorf("it applies to %s: %v", p, got)
		}
		if e.applies("a/b", p, c) && !e.open(p, c) {
			t.Errorf("with %s its absence is an XPASS", p)
		}
	}
}

// TestTargetReplay: the command that repeats a run names the target.
func TestTargetReplay(t *testing.T) {
	c := &Collection{Seed: 3, Target: "192.0.2.1:7"}
	for name, want := range map[string]string{
		"target": "govs-verbs-test run --only a/b --seed 3 --target 192.0.2.1:7",
		"kernel@target": "govs-verbs-test run --only a/b --seed 3 --target 192.0.2.1:7 " +
			"--target-stack kernel",
	} {
		for _, p := range []Pairing{{Raw, name}, {name, Raw}} {
			if got := replay(c, &Outcome{Scenario: "a/b", Pairing: p}); got != want {
				t.Errorf("%s: %s", p, got)
			}
		}
	}
}

// TestRunTarget: raw scenarios are played to the target one after another, at its port and without
// a provider. Scenarios that need more, and verbs scenarios, are not played.
func TestRunTarget(t *testing.T) {
	at := netip.MustParseAddrPort("192.0.2.1:77")
	var under atomic.Int32
	plays := func(r *RawRun) {
		r.Check(under.Add(1) == 1, "it is alone")
		time.Sleep(5 * time.Millisecond) // for others to begin
		r.Check(r.Addr == at && !r.HasProgram(), "it has the target")
		under.Add(-1)
	}
	var list []*Scenario
	for _, slug := range []string{"a/one", "a/two", "a/three"} {
		sc := raw(slug, RoleInitiator, plays)
		sc.Needs, sc.Idle = NeedsAccept, true
		list = append(list, sc)
	}
	list = append(list, raw("a/program", RoleInitiator, plays), raw("a/connect", RoleResponder, plays),
		verbs("a/verbs", nothing))
	out, err := Run(t.Context(), Config{Suite: suite(list...),
		Target:   &Target{Name: TargetName, Addr: at, Offers: NeedsAccept},
		Pairings: []Pairing{{Raw, TargetName}}})
	if err != nil || len(out) != 5 {
		t.Fatalf("%d outcomes, %v", len(out), err)
	}
	for _, o := range out {
		lacks := o.Scenario == "a/program" || o.Scenario == "a/connect"
		if o.failed() || o.Setup != "" || o.Port != 77 ||
			lacks != strings.HasPrefix(o.Unsupported, "needs a program that") {
			t.Errorf("%+v", o)
		}
	}
}
