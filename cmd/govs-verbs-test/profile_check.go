package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/govs-rdma/govs/provider/conformance"
	"github.com/govs-rdma/govs/provider/conformance/profile"
	"github.com/govs-rdma/govs/provider/conformance/report"
	"github.com/govs-rdma/govs/provider/conformance/scenarios"
)

type profileCheckCmd struct {
	Profiles  []string `arg:"" name:"profile" help:"Profiles that are built in, or files."`
	Collected []string `help:"Also list the entries that explain nothing in what run --collect has written to this folder, which needs the runs of the engine with itself, too. May be given several times, as for several builds of the stack: then those that explain nothing in any." placeholder:"DIR" type:"path" sep:"none"`
}

// collected is a collection and the folder of its captures.
type collected struct {
	dir string
	*conformance.Collection
}

// Run checks.
func (c *profileCheckCmd) Run(ctx context.Context, out *output) error {
	var all []collected
	for _, dir := range c.Collected {
		col, err := report.ReadCollection(filepath.Join(dir, collectionFile))
		if err != nil {
			return unable(notCollected(dir, err))
		}
		all = append(all, collected{dir, col})
	}
	var errs []error
	for _, name := range c.Profiles {
		p, _, err := findProfile(name)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		r := rowOf(p)
		fmt.Fprintf(out, "%s: provider %s, %d divergences, %d entries\n", name, r.Provider,
			r.Divergences, r.Entries)
		if len(all) > 0 {
			errs = append(errs, neverShown(ctx, out, p, all))
		}
	}
	return errors.Join(errs...)
}

// neverShown lists the entries of a profile that explain nothing in collections, with the reason.
func neverShown(ctx context.Context, out *output, p *profile.Profile, all []collected) error {
	takesPart := func(o conformance.Outcome) bool { return o.Pairing.Uses(p.Provider) }
	if !slices.ContainsFunc(all, func(col collected) bool {
		return slices.ContainsFunc(col.Outcomes, takesPart)
	}) {
		fmt.Fprintf(out, "  none of its entries is tried: no run in %s has %s at a side\n",
			strings.Join(dirsOf(all), ", "), p.Provider)
		return nil
	}
	entries := p.Entries()
	could, does := make([]int, len(entries)), make([]int, len(entries))
	for _, col := range all {
		judge := conformance.Judge{Suite: scenarios.Suite(), Profile: entries, Dir: col.dir,
			Reference: referenceName}
		rep, err := judge.Judge(ctx, col.Collection)
		if err != nil {
			return fmt.Errorf("%s: %w", col.dir, err)
		}
		for i := range entries {
			a, b := entries[i].Shown(col.Collection, rep)
			could[i], does[i] = could[i]+a, does[i]+b
		}
	}
	never := 0
	for i := range entries {
		if does[i] > 0 {
			continue
		}
		never++
		e := &entries[i]
		as := ""
		if e.As != "" {
			as = " as " + string(e.As)
		}
		fmt.Fprintf(out, "  %s: %s%s, %s: %s\n", e.ID, e.Scenario, as, e.Key, whyNever(e, could[i]))
	}
	fmt.Fprintf(out, "%d of %d entries explain nothing in %s\n", never, len(entries),
		strings.Join(dirsOf(all), ", "))
	return nil
}

// whyNever returns why an entry explains nothing in the runs that it covers.
func whyNever(e *conformance.ProfileEntry, runs int) string {
	switch {
	case runs > 0 && e.Sometimes:
		return fmt.Sprintf("it depends on timing, and did not show (runs: %d)", runs)
	case runs > 0:
		return fmt.Sprintf("it did not show (runs: %d)", runs)
	case strings.HasPrefix(e.Key, "witness:"):
		return "tshark was not asked, which compare does"
	case e.Variants != nil:
		return "not run with " + strings.Join(e.Variants, ", ")
	case e.Fixed != nil:
		return "not run with a kernel before " + strings.Join(e.Fixed, ", ")
	}
	return "not run with " + e.Provider
}

func dirsOf(all []collected) []string {
	var dirs []string
	for _, col := range all {
		dirs = append(dirs, col.dir)
	}
	return dirs
}
