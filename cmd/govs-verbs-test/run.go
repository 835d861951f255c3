package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/govs-rdma/govs/provider/conformance"
	"github.com/govs-rdma/govs/provider/conformance/capture"
	"github.com/govs-rdma/govs/provider/conformance/report"
	"github.com/govs-rdma/govs/provider/conformance/scenarios"
)

type runCmd struct {
	Initiator  string  `enum:"engine,kernel,mutant," default:"" help:"Provider that connects: engine or kernel. Default engine." placeholder:"PROVIDER"`
	Responder  string  `enum:"engine,kernel,mutant," default:"" help:"Provider that listens: engine or kernel. Default engine." placeholder:"PROVIDER"`
	Matrix     bool    `help:"All pairings of the providers that are there."`
	Only       string  `help:"Glob patterns of scenarios, comma-separated; a group's name stands for all in it." placeholder:"GLOB"`
	RequireSiw bool    `help:"A missing kernel device is a failure." env:"REQUIRE_SIW"`
	Report     string  `help:"Write index.html, report.json, junit.xml and the captures to this folder." placeholder:"DIR" type:"path"`
	JSON       string  `name:"json" help:"Write the JSON report to this file." placeholder:"FILE" type:"path"`
	JUnit      string  `name:"junit" help:"Write the JUnit report to this file." placeholder:"FILE" type:"path"`
	Seed       uint64  `help:"Seed of everything random; 0 takes one and prints it." default:"0"`
	Collect    string  `help:"Only run, and write what happened to this folder, for the command compare." placeholder:"DIR" type:"path"`
	Addr       string  `help:"Address to use on both sides. Default: that of the kernel device's interface, or 127.0.0.1." placeholder:"ADDR"`
	Interface  string  `help:"Interface to capture on." default:"lo"`
	Scale      float64 `help:"Stretch all time limits, as for an emulated machine." default:"1" env:"GOVS_TIME_SCALE"`
	NoTshark   bool    `help:"Do not ask tshark."`
}

// Run runs, and unless it only collects, judges.
func (c *runCmd) Run(ctx context.Context, out *output) error {
	if c.Scale <= 0 {
		return &environmentError{fmt.Errorf("--scale %v: has to be above 0", c.Scale)}
	}
	if c.Seed == 0 {
		c.Seed = rand.Uint64()>>1 | 1
	}
	suite := scenarios.Suite()
	if _, err := suite.Select(c.Only); err != nil {
		return &environmentError{err}
	}
	bench, err := c.bench(out)
	if err != nil {
		return &environmentError{err}
	}
	dir, cleanup, err := c.workDir()
	if err != nil {
		return &environmentError{err}
	}
	defer cleanup()

	col := &conformance.Collection{
		Schema: conformance.CollectionSchema, Started: time.Now().UTC(), Version: version(), Kernel: kernelRelease(), CPUs: runtime.NumCPU(),
		Siw: os.Getenv("VM_SIW"), Seed: c.Seed, Only: c.Only,
	}
	if c.RequireSiw {
		col.Require = []string{"kernel"}
	}
	fmt.Fprintf(out, "seed %d, capture from %s, %s\n", c.Seed, bench.capture.Source(), pairingsText(bench.pairings))
	col.Outcomes, err = conformance.Run(ctx, conformance.Config{
		Suite: suite, Only: c.Only, Pairings: bench.pairings, Open: bench.openers, Seed: c.Seed, Scale: c.Scale,
		Capture: bench.capture, Dir: dir, Tap: bench.tap,
		Progress: func(done, total int, o *conformance.Outcome) {
			fmt.Fprintf(out, "[%*d/%d] %-9s %s  %s  %d ms\n", len(fmt.Sprint(total)), done, total, o.State(), o.Scenario, o.Pairing, o.DurationMillis)
		},
	})
	if err != nil {
		return fmt.Errorf("the suite was interrupted after %d runs: %w", len(col.Outcomes), err)
	}
	if c.Collect != "" {
		name := filepath.Join(dir, collectionFile)
		if err := report.WriteJSON(name, col); err != nil {
			return err
		}
		fmt.Fprintf(out, "%d runs collected in %s\n", len(col.Outcomes), name)
		return nil
	}
	j := judging{Report: c.Report, JSON: c.JSON, JUnit: c.JUnit, NoTshark: c.NoTshark}
	return j.judge(ctx, out, col, dir)
}

// collectionFile is the name of a collection beside its captures.
const collectionFile = "collection.json"

// workDir returns where captures go: the folder asked for, or one that goes
// away again.
func (c *runCmd) workDir() (string, func(), error) {
	dir := c.Collect
	if dir == "" {
		dir = c.Report
	}
	if dir == "" {
		dir, err := os.MkdirTemp("", "govs-")
		return dir, func() { _ = os.RemoveAll(dir) }, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", nil, err
	}
	// Captures of scenarios that an earlier run had, and this one may not have.
	old, err := filepath.Glob(filepath.Join(dir, "*.pcapng"))
	if err != nil {
		return "", nil, err
	}
	for _, name := range old {
		if err := os.Remove(name); err != nil {
			return "", nil, err
		}
	}
	return dir, func() {}, nil
}

func pairingsText(pairings []conformance.Pairing) string {
	var list []string
	for _, p := range pairings {
		list = append(list, p.String())
	}
	return "pairings " + strings.Join(list, " ")
}

// bench is what scenarios run on.
type bench struct {
	pairings []conformance.Pairing
	openers  map[string]conformance.Opener
	capture  conformance.Capturer
	tap      *capture.Tap
}

// bench decides which pairings can run, and how they are captured.
func (c *runCmd) bench(out *output) (*bench, error) {
	if c.Matrix && (c.Initiator != "" || c.Responder != "") {
		return nil, errors.New("--matrix takes all pairings: leave --initiator and --responder out, or leave --matrix out")
	}
	pairing := conformance.Pairing{Initiator: or(c.Initiator, "engine"), Responder: or(c.Responder, "engine")}
	wanted := []conformance.Pairing{pairing}
	if c.Matrix {
		wanted = nil
		for _, i := range []string{"engine", "kernel"} {
			for _, r := range []string{"engine", "kernel"} {
				wanted = append(wanted, conformance.Pairing{Initiator: i, Responder: r})
			}
		}
	}
	k, kernelErr := findKernel(c.Addr)
	b := &bench{openers: make(map[string]conformance.Opener)}
	for _, p := range wanted {
		if kernelErr == nil || !p.Has("kernel") || c.RequireSiw {
			b.pairings = append(b.pairings, p)
		}
	}
	if kernelErr != nil && len(b.pairings) < len(wanted) {
		if !c.Matrix {
			return nil, kernelErr
		}
		fmt.Fprintf(out.errors, "left out: every pairing with the kernel: %v\n", kernelErr)
	}
	if err := b.captureOn(c, out); err != nil {
		return nil, err
	}
	addr, err := c.address(k)
	if err != nil {
		return nil, err
	}
	b.openers["engine"] = engineOpener(addr, b.tap)
	b.openers["kernel"] = k.opener(addr, kernelErr)
	return b, nil
}

// captureOn takes the wire where it may, and taps otherwise. The kernel's
// sockets have no taps.
func (b *bench) captureOn(c *runCmd, out *output) error {
	w := &capture.Wire{Interface: c.Interface}
	err := w.Usable()
	if err == nil {
		b.capture = w
		return nil
	}
	for _, p := range b.pairings {
		if p.Has("kernel") {
			return fmt.Errorf("pairings with the kernel have to be captured on the wire: %w", err)
		}
	}
	fmt.Fprintf(out.errors, "captures are taken at the sockets: %v\n", err)
	b.tap = &capture.Tap{}
	b.capture = b.tap
	return nil
}

func or(s, other string) string {
	if s == "" {
		return other
	}
	return s
}

// version is govs' own version, as the Go toolchain recorded it.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	v := info.Main.Version
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && !strings.Contains(v, s.Value[:min(12, len(s.Value))]) {
			v += " " + s.Value[:min(12, len(s.Value))]
		}
	}
	return v
}

// kernelRelease is what uname -r prints.
func kernelRelease() string {
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(u.Release[:])
}
