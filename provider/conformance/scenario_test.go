package conformance

import (
	"fmt"
	"strings"
	"testing"
)

func nothing(*VerbsRun) {}

func TestAddRefuses(t *testing.T) {
	ok := func() *Scenario { return verbs("group/one", nothing) }
	for name, tc := range map[string]struct {
		change func(*Scenario)
		want   string
	}{
		"no group":             {func(s *Scenario) { s.Slug = "one" }, "group/what-happens"},
		"a pattern for a slug": {func(s *Scenario) { s.Slug = "group/*" }, "group/what-happens"},
		"no body":              {func(s *Scenario) { s.Verbs = nil }, "exactly one of Verbs and Raw"},
		"two bodies":           {func(s *Scenario) { s.Raw = func(*RawRun) {} }, "exactly one of Verbs and Raw"},
		"no role":              {func(s *Scenario) { s.Verbs, s.Raw = nil, func(*RawRun) {} }, "RawRole"},
		"needs nothing": {func(s *Scenario) {
			s.Verbs, s.Raw, s.RawRole = nil, func(*RawRun) {}, RoleInitiator
		}, "Needs"},
		"needs another side's role": {func(s *Scenario) {
			s.Verbs, s.Raw, s.RawRole, s.Needs = nil, func(*RawRun) {}, RoleResponder, NeedsAccept
		}, "Needs"},
		"needs of two programs": {func(s *Scenario) { s.Needs = NeedsAccept }, "Needs"},
		"no title":              {func(s *Scenario) { s.Title = "" }, "no title"},
		"no level":              {func(s *Scenario) { s.Level = "" }, "level"},
		"unknown requirement":   {func(s *Scenario) { s.Requirements = append(s.Requirements, "MPA-99-01") }, `"MPA-99-01" is not in the catalogue`},
		"the same slug":         {func(s *Scenario) { s.Slug = "there/already" }, "there/already"},
		"the same capture name": {func(s *Scenario) { s.Slug = "there-al/ready" }, "share the names of their captures"},
	} {
		t.Run(name, func(t *testing.T) {
			s := suite(verbs("there/already", nothing), verbs("there/al-ready", nothing))
			sc := ok()
			tc.change(sc)
			defer func() {
				if p := recover(); p == nil || !strings.Contains(fmt.Sprint(p), tc.want) {
					t.Errorf("it says %v, want something with %q", p, tc.want)
				}
			}()
			s.Add(sc)
		})
	}
	suite(ok())
}

func slugs(list []*Scenario) string {
	var out []string
	for _, sc := range list {
		out = append(out, sc.Slug)
	}
	return strings.Join(out, " ")
}

func TestSelect(t *testing.T) {
	crash := verbs("a/crash", nothing)
	crash.OnlyByName = "it has crashed a kernel"
	s := suite(verbs("a/one", nothing), crash, verbs("b/two", nothing), verbs("b/three", nothing))
	for pattern, want := range map[string]string{
		"":               "a/one b/two b/three",
		"  ":             "a/one b/two b/three",
		"a":              "a/one",
		"a/":             "a/one",
		"a/*":            "a/one",
		"*/t*":           "b/two b/three",
		"b/three,a/one":  "a/one b/three",
		"a/crash":        "a/crash",
		"a/cras?":        "",
		"a, a/crash,b/t": "error",
		"c":              "error",
		"a/[":            "error",
	} {
		got, err := s.Select(pattern)
		switch {
		case want == "error" && err == nil:
			t.Errorf("%q selects %s, want an error", pattern, slugs(got))
		case want != "error" && (err != nil || slugs(got) != want):
			t.Errorf("%q selects %q (%v), want %q", pattern, slugs(got), err, want)
		}
	}
	if s.Find("b/two") == nil || s.Find("b/four") != nil || len(s.All()) != 4 {
		t.Error("Find or All is wrong")
	}
}

func TestPairings(t *testing.T) {
	all := []Pairing{{"engine", "engine"}, {"engine", "kernel"}, {"kernel", "engine"}, {"kernel", "kernel"}}
	for _, tc := range []struct {
		sc     *Scenario
		wanted []Pairing
		want   string
	}{
		{verbs("a/b", nothing), all, "[engine->engine engine->kernel kernel->engine kernel->kernel]"},
		{raw("a/b", RoleInitiator, func(*RawRun) {}), all, "[raw->engine raw->kernel]"},
		{raw("a/b", RoleResponder, func(*RawRun) {}), all, "[engine->raw kernel->raw]"},
		{raw("a/b", RoleResponder, func(*RawRun) {}), all[3:], "[kernel->raw]"},
	} {
		if got := fmt.Sprint(tc.sc.pairings(tc.wanted)); got != tc.want {
			t.Errorf("pairings are %s, want %s", got, tc.want)
		}
	}
}
