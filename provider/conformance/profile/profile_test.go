package profile_test

import (
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/govs-rdma/govs/ci/testkit"
	"github.com/govs-rdma/govs/provider/conformance"
	"github.com/govs-rdma/govs/provider/conformance/profile"
	"github.com/govs-rdma/govs/provider/conformance/scenarios"
)

// whole is a profile with every key.
const whole = `about = "a stack"
provider = "stack"
seen = "1.0"
variants = ["plain", "crc"]

[options]
scale = 2.5

[[leave-out]]
scenarios = ["mpa/request-http", "srq/*"]
reason = "it panics"

[[divergence]]
id = "stack-resets"
reason = "It resets."
evidence = "notes/resets.md"
requirements = ["MPA-4.4-14"]

[[divergence.shows]]
scenarios = ["mpa/request-http", "mpa/reply-*"]
keys = ["observe:end", "wire:to-*:end:how"]

[[divergence.shows]]
scenarios = ["send/zero"]
keys = ["check:*"]
as = "responder"
sometimes = true
variants = ["crc"]

[[divergence]]
id = "stack-slow"
reason = "It is slow."
evidence = "notes/slow.md"
seen = "0.9"
fixed = ["6.1.178"]
shows = [
    { scenarios = ["read/*"], keys = ["witness:tshark", "wire:connection:missing", "wire:to-initiator:*"] },
]
`

// suite is made once, because it takes longer than all that is done with it here.
var suite = sync.OnceValue(scenarios.Suite)

func parse(text string) (*profile.Profile, error) {
	return profile.Parse("folder/stack.toml", []byte(text), suite())
}

func TestParse(t *testing.T) {
	p := testkit.Must(parse(whole))(t)
	want := &profile.Profile{
		Name: "stack", About: "a stack", Provider: "stack", Seen: "1.0", Variants: []string{"plain", "crc"},
		Options:  profile.Options{Scale: 2.5},
		LeaveOut: []profile.LeaveOut{{Scenarios: []string{"mpa/request-http", "srq/*"}, Reason: "it panics"}},
		Divergences: []profile.Divergence{
			{
				ID: "stack-resets", Reason: "It resets.", Evidence: "notes/resets.md", Seen: "1.0",
				Requirements: []string{"MPA-4.4-14"},
				Shows: []profile.Shows{
					{Scenarios: []string{"mpa/request-http", "mpa/reply-*"}, Keys: []string{"observe:end", "wire:to-*:end:how"}},
					{
						Scenarios: []string{"send/zero"}, Keys: []string{"check:*"}, As: conformance.RoleResponder,
						Sometimes: true, Variants: []string{"crc"},
					},
				},
			},
			{
				ID: "stack-slow", Reason: "It is slow.", Evidence: "notes/slow.md", Seen: "0.9", Fixed: []string{"6.1.178"},
				Shows: []profile.Shows{{
					Scenarios: []string{"read/*"},
					Keys:      []string{"witness:tshark", "wire:connection:missing", "wire:to-initiator:*"},
				}},
			},
		},
	}
	if d := cmp.Diff(want, p); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
	l := p.Entries()
	if len(l) != 2*2+1+3 {
		t.Fatalf("%d entries: %+v", len(l), l)
	}
	entry := conformance.ProfileEntry{
		ID: "stack-resets", Scenario: "send/zero", Provider: "stack", As: conformance.RoleResponder, Key: "check:*",
		Reason: "It resets.", Kernels: "1.0", Evidence: "notes/resets.md", Sometimes: true, Variants: []string{"crc"},
		Requirements: []string{"MPA-4.4-14"},
	}
	if d := cmp.Diff(entry, l[4]); d != "" {
		t.Errorf("the fifth entry, -want +got:\n%s", d)
	}
	if l[7].Kernels != "0.9" || !slices.Equal(l[7].Fixed, []string{"6.1.178"}) {
		t.Errorf("the last entry is %+v", l[7])
	}
}

func TestLeavesOut(t *testing.T) {
	p := testkit.Must(parse(whole))(t)
	for _, tc := range []struct{ slug, initiator, responder, want string }{
		{"mpa/request-http", conformance.Raw, "stack", "left out by the profile stack: it panics"},
		{"srq/shared", "stack", "engine", "left out by the profile stack: it panics"},
		{"srq/shared", "engine", "stack" + conformance.AtPeer, "left out by the profile stack: it panics"},
		{"mpa/request-http", conformance.Raw, "stack" + conformance.AtTarget, "left out by the profile stack: it panics"},
		{"srq/shared", "stack" + conformance.AtPeer, "engine", "left out by the profile stack: it panics"},
		{"mpa/request-http", conformance.Raw, "stack" + conformance.AtPeer, "left out by the profile stack: it panics"},
		{"mpa/request-http", conformance.Raw, conformance.TargetName, ""},
		{"srq/shared", "engine", "engine", ""},
		{"send/zero", "engine", "stack", ""},
	} {
		if got := p.LeavesOut(tc.slug,
			conformance.Pairing{Initiator: tc.initiator, Responder: tc.responder}); got != tc.want {
			t.Errorf("%s %s->%s: %q, want %q", tc.slug, tc.initiator, tc.responder, got, tc.want)
		}
	}
}

// TestErrors puts one fault at a time into the profile, and checks the error and its line.
func TestErrors(t *testing.T) {
	for name, tc := range map[string]struct{ old, new, want string }{
		"not TOML":        {`about = "a stack"`, `about = "a stack`, "stack.toml:1: column "},
		"not TOML, later": {`sometimes = true`, `sometimes = yes`, "stack.toml:27: column "},
		"a wrong type": {`sometimes = true`, `sometimes = "true"`,
			"stack.toml:27: column 13: cannot decode TOML string into bool"},
		"a key twice": {`scale = 2.5`, "scale = 2.5\nscale = 3", "stack.toml:8: column "},
		"an unknown key": {`sometimes = true`, `sometime = true`,
			`stack.toml:27: a profile has no key "divergence.shows.sometime": remove or correct it`},
		"an unknown table":       {`[options]`, `[opts]`, `stack.toml:6: a profile has no key "opts"`},
		"no provider":            {`provider = "stack"`, ``, "stack.toml:1: no provider: add"},
		"the raw peer":           {`provider = "stack"`, `provider = "raw"`, `stack.toml:2: provider "raw"`},
		"no about":               {`about = "a stack"`, ``, "stack.toml:1: no about: say"},
		"a scale":                {`scale = 2.5`, `scale = 0.0`, "stack.toml:7: scale 0: it has to be above 0"},
		"no reason to leave out": {`reason = "it panics"`, ``, "stack.toml:9: no reason why"},
		"nothing left out":       {`scenarios = ["mpa/request-http", "srq/*"]`, ``, "stack.toml:9: no scenarios"},
		"left out unknown":       {`"srq/*"`, `"srqs/*"`, `stack.toml:10: no scenario matches "srqs/*": the subcommand list`},
		"an id":                  {`"stack-resets"`, `"Stack resets"`, `stack.toml:14: id "Stack resets": give it one`},
		"no id":                  {`id = "stack-resets"`, ``, `stack.toml:13: id "": give it one`},
		"an id twice": {`"stack-slow"`, `"stack-resets"`,
			`stack.toml:31: id "stack-resets" is that of line 14, too`},
		"no reason":   {`reason = "It resets."`, ``, "stack.toml:13: stack-resets: no reason"},
		"no evidence": {`evidence = "notes/resets.md"`, ``, "stack.toml:13: stack-resets: no evidence"},
		"never seen":  {`seen = "1.0"`, ``, "stack.toml:13: stack-resets: no seen"},
		"fixed in no release": {`"6.1.178"`, `"6.1.178", "6.12"`,
			`stack.toml:35: stack-slow: fixed in "6.12", which is no release`},
		"a requirement": {`"MPA-4.4-14"`, `"MPA-4.4-99"`,
			`stack.toml:17: stack-resets: requirement "MPA-4.4-99" is not in the catalogue`},
		"it shows nowhere": {"shows = [\n    { scenarios = [\"read/*\"], keys = [\"witness:tshark\", " +
			"\"wire:connection:missing\", \"wire:to-initiator:*\"] },\n]", "",
			"stack.toml:30: stack-slow: add a [[divergence.shows]]"},
		"no such scenario": {`"mpa/reply-*"`, "\n  \"mpa/answer-*\"",
			`stack.toml:21: no scenario matches "mpa/answer-*"`},
		"a malformed scenario": {`"mpa/reply-*"`, `"mpa/[reply"`,
			`stack.toml:20: scenario pattern "mpa/[reply" is malformed`},
		"a scenario twice": {`"mpa/reply-*"`, `"mpa/request-http"`,
			`stack.toml:20: "mpa/request-http" stands there twice`},
		"no scenarios":         {`scenarios = ["send/zero"]`, ``, "stack.toml:23: no scenarios"},
		"no keys":              {`keys = ["check:*"]`, ``, "stack.toml:23: no keys"},
		"a key for everything": {`"check:*"`, `"*"`, `stack.toml:25: key "*": it would cover everything`},
		"a malformed key":      {`"check:*"`, `"check:["`, `stack.toml:25: key "check:[": a malformed pattern`},
		"a key of no kind":     {`"check:*"`, `"checks:*"`, `stack.toml:25: key "checks:*": a key begins with`},
		"a key of a kind only": {`"check:*"`, `"check:"`, `stack.toml:25: key "check:": after check: there is nothing`},
		"no such direction": {`"check:*"`, `"wire:to-server:send:MSN"`,
			`stack.toml:25: key "wire:to-server:send:MSN": "to-server" is none of`},
		"no such message": {`"check:*"`, `"wire:to-*:writes:MSN"`,
			`stack.toml:25: key "wire:to-*:writes:MSN": "writes" is none of`},
		"too few parts": {`"check:*"`, `"wire:to-initiator:send"`,
			`stack.toml:25: key "wire:to-initiator:send": 3 parts, wire:DIRECTION`},
		"a direction only": {`"check:*"`, `"wire:to-initiator"`,
			`stack.toml:25: key "wire:to-initiator": 2 parts are too few`},
		"of a connection": {`"check:*"`, `"wire:connection:lost"`,
			`stack.toml:25: key "wire:connection:lost": "lost" is none of missing, extra`},
		"another witness": {`"witness:tshark"`, `"witness:wireshark"`,
			`stack.toml:37: key "witness:wireshark": the only witness`},
		"a side": {`as = "responder"`, `as = "server"`,
			`stack.toml:26: as "server": it is "initiator" or "responder"`},
		"no such variant": {`variants = ["crc"]`, `variants = ["p2p"]`,
			`stack.toml:28: variant "p2p" is not in the profile's variants`},
	} {
		t.Run(name, func(t *testing.T) {
			text := strings.Replace(whole, tc.old, tc.new, 1)
			if text == whole {
				t.Fatalf("the profile has no %q", tc.old)
			}
			_, err := parse(text)
			if err == nil || !strings.Contains(err.Error(), "folder/"+tc.want) {
				t.Fatalf("the error is\n%v\nwant\nfolder/%s", err, tc.want)
			}
			if n := strings.Count(err.Error(), "\n"); n > 0 {
				t.Errorf("one fault, and %d errors:\n%v", n+1, err)
			}
		})
	}
}

// TestAllErrors shows that an author sees everything at once.
func TestAllErrors(t *testing.T) {
	text := strings.NewReplacer(`"srq/*"`, `"no/such"`, `"check:*"`, `"*"`, `"crc"]`+"\n\n[[div",
		`"other"]`+"\n\n[[div").Replace(whole)
	_, err := parse(text)
	if err == nil || strings.Count(err.Error(), "\n") != 2 {
		t.Errorf("three faults:\n%v", err)
	}
}

func TestReadFile(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "my-stack.toml")
	testkit.OK(t, os.WriteFile(name, []byte(whole), 0o644))
	if p := testkit.Must(profile.ReadFile(name, suite()))(t); p.Name != "my-stack" || len(p.Divergences) != 2 {
		t.Errorf("%+v", p)
	}
	if _, err := profile.ReadFile(filepath.Join(dir, "none.toml"), suite()); err == nil ||
		!strings.Contains(err.Error(), "none.toml: no such file") {
		t.Errorf("no file: %v", err)
	}
}

func TestReplace(t *testing.T) {
	about := func(name, provider string) *profile.Profile {
		return &profile.Profile{Name: name, Provider: provider}
	}
	names := func(list []*profile.Profile) (out string) {
		for _, p := range list {
			out += p.Name + " "
		}
		return out
	}
	base := []*profile.Profile{about("bridge", "bridge"), about("siw", "kernel")}
	for _, tc := range []struct {
		with []*profile.Profile
		want string
	}{
		{nil, "bridge siw "},
		{[]*profile.Profile{about("card", "kernel")}, "bridge card "},
		{[]*profile.Profile{about("other", "other")}, "bridge siw other "},
	} {
		if got := names(testkit.Must(profile.Replace(base, tc.with))(t)); got != tc.want {
			t.Errorf("with %s: %s, want %s", names(tc.with), got, tc.want)
		}
	}
	if _, err := profile.Replace(base, []*profile.Profile{about("card", "kernel"), about("mine", "kernel")}); err == nil ||
		!strings.Contains(err.Error(), "profiles card and mine are both about the provider kernel") {
		t.Errorf("two of one provider: %v", err)
	}
}

// TestBuiltin checks what authors of the built-in profiles could forget.
func TestBuiltin(t *testing.T) {
	all := testkit.Must(profile.Builtin(suite()))(t)
	if names := profile.Names(); !slices.Equal(names, []string{"bridge", "siw"}) || len(all) != len(names) {
		t.Fatalf("%d profiles, %v", len(all), names)
	}
	for _, p := range all {
		if len(p.Entries()) < 40 {
			t.Errorf("%s: %d entries", p.Name, len(p.Entries()))
		}
		for _, d := range p.Divergences {
			if _, err := os.Stat(filepath.Join("../../..", d.Evidence)); err != nil {
				t.Errorf("%s: %s: the evidence: %v", p.Name, d.ID, err)
			}
		}
	}
	if _, err := profile.Text("none"); err == nil || !strings.Contains(err.Error(), "there are bridge, siw") {
		t.Errorf("a profile that is not there: %v", err)
	}
}

// TestMended: mended siw has a profile of its own, with few entries, for its two variants.
func TestMended(t *testing.T) {
	p := testkit.Must(profile.ReadFile("mended/siw.toml", suite()))(t)
	if !slices.Equal(p.Variants, []string{"mended", "mended-p2p"}) || p.Provider != "kernel" {
		t.Errorf("it is about %s, %v", p.Provider, p.Variants)
	}
	if n := len(p.Divergences); n == 0 || n > 15 {
		t.Errorf("%d divergences", n)
	}
	for _, d := range p.Divergences {
		if _, err := os.Stat(filepath.Join("../../..", d.Evidence)); err != nil {
			t.Errorf("%s: the evidence: %v", d.ID, err)
		}
	}
}

// TestDocument shows that the example of docs/profiles.md is a profile with every key, and that the
// document's tables have them all.
func TestDocument(t *testing.T) {
	data := testkit.Must(os.ReadFile("../../../docs/profiles.md"))(t)
	_, rest, _ := strings.Cut(string(data), "```toml\n")
	text, _, ok := strings.Cut(rest, "```")
	if !ok {
		t.Fatal("docs/profiles.md has no example")
	}
	p := testkit.Must(parse(text))(t)
	for i := range reflect.TypeOf(*p).NumField() {
		if f := reflect.ValueOf(*p).Field(i); f.IsZero() {
			t.Errorf("the example has no %s", reflect.TypeOf(*p).Field(i).Name)
		}
	}
	for _, key := range regexp.MustCompile(`(?m)^([a-z-]+) = `).FindAllStringSubmatch(whole, -1) {
		if key[1] != "shows" && !strings.Contains(string(data), "| `"+key[1]+"` |") {
			t.Errorf("docs/profiles.md has no row for %q", key[1])
		}
	}
}
