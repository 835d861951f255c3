package conformance

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestUnshown(t *testing.T) {
	j := &Judge{Suite: suite(verbs("a/b", nothing), verbs("a/c", nothing)), Reference: "engine"}
	often := entry("often", "a/b", "observe:event")
	often.Sometimes = true
	asInitiator := entry("as-initiator", "a/b", "check:*")
	asInitiator.As = RoleInitiator
	j.Profile = []ProfileEntry{
		entry("shows", "a/*", "check:it holds"),
		entry("same-fact", "a/*", "observe:wc"),
		entry("held", "a/b", "check:another*"),
		entry("misspelled", "a/b", "check:it hold"),
		entry("of-the-wire", "a/b", "wire:to-*:send:MSN"),
		often,
		asInitiator,
		entry("not-run", "a/c", "check:it holds"),
	}
	lacking := outcome("a/c", "engine", "kernel")
	lacking.Unsupported = "no SRQ"
	rep := reportOf(t, j, collection(
		observed(outcome("a/b", "engine", "engine", check(true)), "wc", "ok"),
		observed(outcome("a/b", "engine", "kernel", check(false), Check{What: "another holds", OK: true}), "wc", "ok"),
		lacking,
	))
	want := []Unshown{
		{Entry: "same-fact", Scenario: "a/*", Key: "observe:wc"},
		{Entry: "held", Scenario: "a/b", Key: "check:another*"},
		{Entry: "misspelled", Scenario: "a/b", Key: "check:it hold", Unknown: true},
		{Entry: "of-the-wire", Scenario: "a/b", Key: "wire:to-*:send:MSN"},
		{Entry: "often", Scenario: "a/b", Key: "observe:event", Sometimes: true, Unknown: true},
	}
	if d := cmp.Diff(want, rep.Unshown); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
}
