//go:build !race

package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/govs-rdma/govs/provider/conformance"
)

// stackProfile describes the engine under another name, which a test gives to an engine.
const stackProfile = `about = "a stack"
provider = "kernel"
seen = "1.0"
[options]
scale = 3.0
[[leave-out]]
scenarios = ["send/zero"]
reason = "it stops"
[[divergence]]
id = "pigs"
reason = "Pigs do not fly."
evidence = "notes"
requirements = ["MPA-4.4-14"]
[[divergence.shows]]
scenarios = ["send/one-octet"]
keys = ["check:pigs fly"]
`

func writeProfile(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "stack.toml")
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestProfileCommand(t *testing.T) {
	withoutSiw(t)
	start(t, "profile").want(t, exitPassed,
		parts("PROFILE  PROVIDER  DIVERGENCES", "bridge   bridge", "siw      kernel"), nil)
	list := start(t, "profile", "list", "--json")
	list.want(t, exitPassed, nil, nil)
	var rows []profileRow
	if err := json.Unmarshal([]byte(list.stdout.String()), &rows); err != nil || len(rows) != 2 || rows[1].Entries < 500 {
		t.Errorf("%+v, %v", rows, err)
	}
	start(t, "profile", "show", "siw").want(t, exitPassed, parts("siw: siw of Linux", "\nsiw-terminate-layout: siw packs",
		"    requirements: RDMAP-4.8-01\n", "    fixed in: 6.1.178, 6.12.96\n", "    shows in: send/with-invalidate "), nil)

	file := writeProfile(t, stackProfile)
	start(t, "profile", "show", file).want(t, exitPassed,
		parts("stack: a stack (provider kernel)\n\nleft out: send/zero\n    it stops\n\npigs: "),
		nil)
	start(t, "profile", "check", file).want(t, exitPassed,
		parts("stack.toml: provider kernel, 1 divergences, 1 entries\n"), nil)
	text := start(t, "profile", "show", "siw", "--toml")
	text.want(t, exitPassed, nil, nil)
	start(t, "profile", "check", file, writeProfile(t, text.stdout.String())).want(t, exitPassed, nil, nil)

	bad := writeProfile(t, strings.Replace(stackProfile, "send/one-octet", "send/two-octets", 1))
	const wrong = `stack.toml:15: no scenario matches "send/two-octets"`
	start(t, "profile", "check", bad, file).want(t, exitFailed, parts("1 divergences"), parts(wrong))
	start(t, "run", "--profile", bad).want(t, exitUsage, nil, parts("--profile: ", wrong))
	start(t, "compare", t.TempDir(), "--profile", bad).want(t, exitUsage, nil, parts("--profile: ", wrong))
	start(t, "run", "--profile", writeProfile(t, strings.Replace(stackProfile, "kernel", "kernal", 1))).want(t,
		exitUsage, nil, parts(`is about the provider "kernal", which no run has: there are engine, kernel, bridge`))
	start(t, "run", "--profile", file, "--only", "send/zero", "--no-tshark").want(t, exitPassed,
		parts("the profile "+file+" is not used: its stack takes no part"), nil)
	start(t, "run", "--profile", file, "--profile", file).want(t, exitUsage, nil,
		parts("are both about the provider kernel"))
	const noProfile = " is not one of the profiles that are built in, bridge, siw, and can't be read as a file: "
	start(t, "profile", "show", "none").want(t, exitUsage, nil, parts("none"+noProfile+"open none: no such file"))
	start(t, "profile", "show", "..").want(t, exitUsage, nil, parts(".."+noProfile+"read ..: is a directory"))
}

// TestCompareWithProfile judges one collection with a profile from a file, with the program's own,
// and with a stale one.
func TestCompareWithProfile(t *testing.T) {
	withoutSiw(t)
	dir := t.TempDir()
	start(t, "run", "--only", oneVerbs, "--collect", dir).want(t, exitPassed, nil, nil)
	file := filepath.Join(dir, collectionFile)
	var col conformance.Collection
	if err := json.Unmarshal(readFile(t, file), &col); err != nil {
		t.Fatal(err)
	}
	other := col.Outcomes[0] // the same run by another stack
	other.Pairing.Responder = "kernel"
	other.Checks = append(slices.Clone(other.Checks), conformance.Check{What: "pigs fly", Got: "they don't"})
	col.Outcomes = append(col.Outcomes, other)
	writeJSON(t, file, col)

	known := writeProfile(t, stackProfile)
	asJSON := filepath.Join(dir, "report.json")
	start(t, "compare", dir, "--no-tshark").want(t, exitFailed, parts("1 PASS, 1 FAIL: the suite did not pass"), nil)
	idle := writeProfile(t, strings.Replace(stackProfile, "kernel", "bridge", 1))
	start(t, "compare", dir, "--no-tshark", "--profile", idle).want(t, exitFailed,
		parts("the profile "+idle+" is not used: its stack takes no part"), nil)
	start(t, "compare", dir, "--no-tshark", "--profile", known, "--json", asJSON).want(t, exitPassed,
		parts("pigs, in 1 run: Pigs do not fly. (notes)", "1 PASS, 1 XFAIL: the suite passed"), nil)
	if rep := readReport(t, asJSON); !slices.Equal(rep.Profiles, []string{"bridge", known}) || len(rep.Unshown) != 0 {
		t.Errorf("profiles %q, unshown %v", rep.Profiles, rep.Unshown)
	}

	start(t, "profile", "check", idle, "--collected", dir).want(t, exitPassed,
		parts("none of its entries is tried: no run in "+dir+" has bridge at a side"), nil)
	start(t, "profile", "check", known, "--collected", dir).want(t, exitPassed,
		parts("0 of 1 entries explain nothing in "+dir), nil)

	col.Outcomes[1].Checks = col.Outcomes[0].Checks
	writeJSON(t, file, col)
	start(t, "compare", dir, "--no-tshark", "--profile", known).want(t, exitFailed,
		parts("the profile's pigs did not show",
			"misspelled or stale:\n  pigs, in send/one-octet: check:pigs fly\n", "1 PASS, 1 XPASS"),
		nil)
	start(t, "profile", "check", known, "siw", "--collected", dir).want(t, exitPassed, parts(
		"  pigs: send/one-octet, check:pigs fly: it did not show (runs: 1)\n1 of 1 entries explain nothing",
		"  siw-peer-to-peer: mpa/* as initiator, wire:to-responder:request:ABCD: not run with p2p\n",
		": not run with a kernel before 6.1.178, 6.12.96\n", ": not run with kernel\n"), nil)
	about := writeProfile(t, strings.Replace(stackProfile, "check:pigs fly", "witness:tshark", 1))
	start(t, "profile", "check", about, "--collected", dir).want(t, exitPassed,
		parts("  pigs: send/one-octet, witness:tshark: tshark was not asked, which compare does\n"), nil)
	start(t, "profile", "check", known, "--collected", known).want(t, exitUsage, nil,
		parts("is not a folder that run --collect wrote"))
}

// TestProfileOptions checks that the options of a profile count only if its stack takes part.
func TestProfileOptions(t *testing.T) {
	f := &profileFlags{Profile: []string{writeProfile(t, stackProfile)}}
	known, err := f.load()
	if err != nil {
		t.Fatal(err)
	}
	with := conformance.Pairing{Initiator: "engine", Responder: "kernel"}
	alone := conformance.Pairing{Initiator: "engine", Responder: "engine"}
	if a, b := known.scale([]conformance.Pairing{alone}),
		known.scale([]conformance.Pairing{alone, with}); a != 1 || b != 3 {
		t.Errorf("scale %v without the stack and %v with it, want 1 and 3", a, b)
	}
	far := conformance.Pairing{Initiator: "engine", Responder: "kernel" + conformance.AtPeer}
	if s := known.scale([]conformance.Pairing{alone, far}); s != 3 {
		t.Errorf("scale %v with the stack on the other host, want 3", s)
	}
	if a, b := known.leavesOut("send/zero", alone), known.leavesOut("send/zero", with); a != "" ||
		!strings.Contains(b, "it stops") {
		t.Errorf("left out: %q without the stack, %q with it", a, b)
	}
}
