package conformance

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestLedgerCheck(t *testing.T) {
	s := suite(verbs("a/b", nothing))
	if err := (Ledger{entry("one", "a/b", "observe:wc"), entry("one", "a/*", "check:*"), entry("two", "*/*", "wire:*")}).Check(s); err != nil {
		t.Errorf("a good ledger is refused: %v", err)
	}
	for name, tc := range map[string]struct {
		change func(*LedgerEntry)
		want   string
	}{
		"no id":                {func(e *LedgerEntry) { e.ID = "" }, "no id"},
		"a key for everything": {func(e *LedgerEntry) { e.Key = "*" }, "would cover everything"},
		"no key":               {func(e *LedgerEntry) { e.Key = "" }, "would cover everything"},
		"a malformed key":      {func(e *LedgerEntry) { e.Key = "observe:[" }, "key pattern"},
		"no reason":            {func(e *LedgerEntry) { e.Reason = "" }, "have to be said"},
		"no kernels":           {func(e *LedgerEntry) { e.Kernels = "" }, "have to be said"},
		"no evidence":          {func(e *LedgerEntry) { e.Evidence = "" }, "have to be said"},
		"no provider":          {func(e *LedgerEntry) { e.Provider = "" }, "have to be said"},
		"fixed in no release":  {func(e *LedgerEntry) { e.Fixed = []string{"6.1.178", "6.12"} }, `fixed in "6.12"`},
		"no such scenario":     {func(e *LedgerEntry) { e.Scenario = "a/c" }, `no scenario matches "a/c"`},
		"a malformed scenario": {func(e *LedgerEntry) { e.Scenario = "a/[" }, "scenario pattern"},
		"another of its name":  {func(e *LedgerEntry) { e.ID, e.Reason = "first", "something else" }, "say different things"},
	} {
		t.Run(name, func(t *testing.T) {
			e := entry("second", "a/b", "observe:wc")
			tc.change(&e)
			err := Ledger{entry("first", "a/b", "check:*"), e}.Check(s)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("the error is %v, want one with %q", err, tc.want)
			}
		})
	}
}

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
				"kernel": {State: Excepted, Scenarios: []string{"a/first", "a/second"}, Ledger: []string{"known"}},
			},
		},
		"a failure is everybody's, and hides the rest": {
			[]Outcome{outcome("a/second", "kernel", "kernel", check(false)), outcome("a/first", "engine", "kernel", check(false)), outcome("r/w", Raw, "engine", check(true))},
			map[string]Standing{
				"engine": {State: Failed, Scenarios: []string{"a/first", "r/w"}},
				"kernel": {State: Failed, Scenarios: []string{"a/second", "a/first"}, Ledger: []string{"known"}},
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			j := &Judge{Suite: suite(first, second, rawOne), Ledger: Ledger{known}, Reference: "engine"}
			r := reportOf(t, j, collection(tc.runs...))
			if d := cmp.Diff(tc.want, standing(t, r, requirement)); d != "" {
				t.Errorf("-want +got:\n%s", d)
			}
			for _, c := range r.Requirements {
				if c.ID != requirement && c.Providers != nil {
					t.Errorf("%s, which no scenario is about, has %v", c.ID, c.Providers)
				}
			}
			if len(r.Requirements) < 500 || r.Requirements[0].ID == "" || r.Requirements[0].Document == "" || r.Requirements[0].Text == "" {
				t.Errorf("%d requirements, the first is %+v", len(r.Requirements), r.Requirements[0])
			}
		})
	}
}
