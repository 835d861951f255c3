package conformance

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// standing prints where providers stand with one requirement.
func standing(t *testing.T, r *Report, id string) map[string]Standing {
	t.Helper()
	out := make(map[string]Standing)
	for _, c := range r.Requirements {
		if c.ID == id {
			for name, s := range c.Providers {
				out[name] = *s
			}
		}
	}
	return out
}

func TestCoverage(t *testing.T) {
	first, second := verbs("a/first", nothing), verbs("a/second", nothing)
	rawOne := raw("r/w", RoleInitiator, func(*RawRun) {})
	rawOne.Requirements = []string{requirement}
	known := entry("known", "a/second", "check:it holds")
	lacking := outcome("a/first", "engine", "kernel")
	lacking.Unsupported = "x"
	for name, tc := range map[string]struct {
		runs []Outcome
		want map[string]Standing
	}{
		"nothing was tried": {[]Outcome{lacking}, map[string]Standing{}},
		"passed by one": {
			[]Outcome{outcome("a/first", "engine", "engine", check(true))},
			map[string]Standing{"engine": {State: Shown, Scenarios: []string{"a/first"}}},
		},
		"passed between two": {
			[]Outcome{outcome("a/first", "engine", "kernel", check(true)), outcome("a/second", "engine", "engine", check(true))},
			map[string]Standing{"engine": {State: Shown, Scenarios: []string{"a/first", "a/second"}}, "kernel": {State: Shown, Scenarios: []string{"a/first"}}},
		},
		"the raw peer shows nothing": {
			[]Outcome{outcome("r/w", Raw, "kernel", check(true))},
			map[string]Standing{"kernel": {State: Shown, Scenarios: []string{"r/w"}}},
		},
		"an exception is the kernel's, not the engine's": {
			[]Outcome{outcome("a/first", "engine", "kernel", check(true)), outcome("a/second", "engine", "kernel", check(false))},
			map[string]Standing{
				"engine": {State: Shown, Scenarios: []string{"a/first"}},
				"kernel": {State: Excepted, Scenarios: []string{"a/first", "a/second"}, Entries: []string{"known"}},
			},
		},
		"an exception is that of the provider on the other host, too": {
			[]Outcome{
				outcome("a/first", "engine", "kernel"+AtPeer, check(true)),
				outcome("a/second", "engine", "kernel"+AtPeer, check(false)),
			},
			map[string]Standing{
				"engine": {State: Shown, Scenarios: []string{"a/first"}},
				"kernel" + AtPeer: {State: Excepted, Scenarios: []string{"a/first", "a/second"},
					Entries: []string{"known"}},
			},
		},
		"a failure is everybody's, and hides the rest": {
			[]Outcome{outcome("a/second", "kernel", "kernel", check(false)), outcome("a/first", "engine", "kernel", check(false)), outcome("r/w", Raw, "engine", check(true))},
			map[string]Standing{
				"engine": {State: Failed, Scenarios: []string{"a/first", "r/w"}},
				"kernel": {State: Failed, Scenarios: []string{"a/second", "a/first"}, Entries: []string{"known"}},
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			j := &Judge{Suite: suite(first, second, rawOne), Profile: []ProfileEntry{known}, Reference: "engine"}
			r := reportOf(t, j, collection(tc.runs...))
			if d := cmp.Diff(tc.want, standing(t, r, requirement)); d != "" {
				t.Errorf("-want +got:\n%s", d)
			}
			for _, c := range r.Requirements {
				var about []string
				if c.ID == requirement {
					about = []string{"a/first", "a/second", "r/w"}
				} else if c.Providers != nil {
					t.Errorf("%s, which no scenario is about, has %v", c.ID, c.Providers)
				}
				if !slices.Equal(c.Scenarios, about) {
					t.Errorf("%s is named by %q, want %q", c.ID, c.Scenarios, about)
				}
			}
			if len(r.Requirements) < 500 || r.Requirements[0].ID == "" || r.Requirements[0].Document == "" || r.Requirements[0].Text == "" {
				t.Errorf("%d requirements, the first is %+v", len(r.Requirements), r.Requirements[0])
			}
		})
	}
}

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
