//go:build !race

package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/govs-rdma/govs/ci/vm/vmtest"
	"github.com/govs-rdma/govs/provider/conformance/fuzz"
)

// TestFuzz plays the engine against itself, goes on where it ended, and plays one sequence again.
func TestFuzz(t *testing.T) {
	dir := t.TempDir()
	args := words("fuzz --count 60 --time 5m --seed 3 --out " + dir)
	start(t, args...).want(t, exitPassed, parts("seed 3, from index 0", "seed 3: 60 sequences", "0 findings"), nil)
	start(t, args...).want(t, exitPassed, parts("seed 3, from index 60", "seed 3: 120 sequences", "0 findings"), nil)
	start(t, append(args, "--seed", "4")...).want(t, exitPassed, parts("seed 4, from index 0"), nil)

	file := filepath.Join(dir, "one.txt")
	var text strings.Builder
	if err := fuzz.Generate(3, 7).Write(&text); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	start(t, "fuzz", "--replay", file).want(t, exitPassed, parts("0 differences"), nil)
	if err := os.WriteFile(file, []byte("hello\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	start(t, "fuzz", "--replay", file).want(t, exitUsage, nil, parts("one.txt: line 1: hello has no value"))
	start(t, "fuzz", "--targets", "kernel").want(t, exitUsage, nil, parts("engine and engine,kernel are possible"))
	start(t, "fuzz", "--vm").want(t, exitUsage, nil, parts("--vm is for --targets engine,kernel"))
	start(t, "fuzz", "--count", "-1").want(t, exitUsage, nil, parts("a count is not negative"))
	start(t, "fuzz", "--time", "0s").want(t, exitUsage, nil, parts("a run takes 1s or more"))
	start(t, "fuzz", "--out", file).want(t, exitUsage, nil, parts("--out names a folder", "not a directory"))
	if err := os.WriteFile(filepath.Join(dir, progressFile), []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	start(t, args...).want(t, exitUsage, nil, parts("remove "+dir+"/progress.json to begin anew"))
}

// TestFuzzGuestDied: the sequence at which a guest has died is kept, and the next run leaves it
// out.
func TestFuzzGuestDied(t *testing.T) {
	c := &fuzzCmd{Targets: []string{"engine"}, Seed: 3, Out: t.TempDir()}
	if err := os.WriteFile(filepath.Join(c.Out, atFile), []byte("5     "), 0o644); err != nil {
		t.Fatal(err)
	}
	p, err := c.progress()
	if err == nil {
		err = c.died(p, 121)
	}
	if err != nil {
		t.Fatal(err)
	}
	kept := filepath.Join(c.Out, "3-5-guest-died.txt")
	text, err := os.ReadFile(kept)
	if err != nil || !strings.Contains(string(text), "# the guest ended with status 121\n") {
		t.Errorf("%s: %v, %q", kept, err, text)
	}
	start(t, words("fuzz --count 10 --seed 3 --out "+c.Out)...).want(t, exitFailed,
		parts("seed 3: 9 sequences", "1 findings", kept), nil)

	// After its last sequence, too: closing may have been too much for it.
	p = &fuzzProgress{Seed: 3, Next: 10, file: filepath.Join(c.Out, progressFile)}
	if err := c.died(p, 120); err != nil || len(p.Findings) != 1 || len(p.Skip) != 0 {
		t.Errorf("%v, findings %q, left out %v", err, p.Findings, p.Skip)
	}
}

// TestFuzzNothingTaken: a run in which the targets took nothing has not compared them.
func TestFuzzNothingTaken(t *testing.T) {
	out := &output{stdout: io.Discard}
	for _, c := range []struct {
		p    fuzzProgress
		fine bool
	}{
		{fuzzProgress{}, false},
		{fuzzProgress{Played: 10}, true},
		{fuzzProgress{Played: 100}, false},
		{fuzzProgress{Played: 100, Taken: 1}, true},
		{fuzzProgress{Played: 100, Taken: 1, Findings: []string{"file"}}, false},
	} {
		if err := c.p.print(out); (err == nil) != c.fine {
			t.Errorf("%+v: %v", c.p, err)
		}
	}
}

// receiveOnSendCQ has two segments of a Send. The next FPDU has DDP version 3 and is a Read
// Response (kernel-notes/siw-receive-on-send-cq.md).
const receiveOnSendCQ = `request 4d504120494420526571204672616d655002000400100010
reads 0
fpdu 00160143000000000000000000000001000000000a0b0c0d
fpdu 00160143000000000000000000000001000000040a0b0c0d
fpdu 0012c34200000000000000000000000000000000
`

// TestFuzzKernel: a note explains each difference between engine and siw.
func TestFuzzKernel(t *testing.T) {
	if !inGuest(t, vmtest.Options{}) {
		return
	}
	file := filepath.Join(t.TempDir(), "receive-on-send-cq.txt")
	if err := os.WriteFile(file, []byte(receiveOnSendCQ), 0o644); err != nil {
		t.Fatal(err)
	}
	start(t, "fuzz", "--targets", "engine,kernel", "--replay", file).want(t, exitPassed,
		parts("all explained"), nil)
	start(t, words("fuzz --targets engine,kernel --count 250 --time 10m --seed 5 --out "+t.TempDir())...).want(t,
		exitPassed, parts("seed 5: 250 sequences", "siw-places-before-crc", "siw-sge-checks",
			"0 findings"), nil)
}
