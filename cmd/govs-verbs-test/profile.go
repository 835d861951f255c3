package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/govs-rdma/govs/provider/conformance"
	"github.com/govs-rdma/govs/provider/conformance/profile"
	"github.com/govs-rdma/govs/provider/conformance/report"
	"github.com/govs-rdma/govs/provider/conformance/scenarios"
)

// profileFlags are flags of the commands that judge.
type profileFlags struct {
	Profile []string `help:"A profile of the stack under test: its options and known divergences (docs/profiles.md). It replaces the built-in one of the same provider. May be given several times." placeholder:"FILE" type:"path" sep:"none"`
}

// profiles are the profiles that a command uses.
type profiles struct {
	all   []*profile.Profile
	names []string // for the report: files, or the names of built-in ones
}

// load reads the requested profiles and the built-in ones.
func (f *profileFlags) load() (*profiles, error) {
	suite := scenarios.Suite()
	builtin, err := profile.Builtin(suite)
	if err != nil {
		return nil, err
	}
	var asked []*profile.Profile
	for _, file := range f.Profile {
		p, err := profile.ReadFile(file, suite)
		if err != nil {
			return nil, fmt.Errorf("--profile: %w", err)
		}
		if !slices.Contains(providerNames, p.Provider) {
			return nil, fmt.Errorf("--profile: %s is about the provider %q, which no run has: there "+
				"are %s", file, p.Provider, strings.Join(providerNames, ", "))
		}
		asked = append(asked, p)
	}
	all, err := profile.Replace(builtin, asked)
	if err != nil {
		return nil, fmt.Errorf("--profile: %w", err)
	}
	out := &profiles{all: all}
	for _, p := range all {
		name := p.Name
		if i := slices.Index(asked, p); i >= 0 {
			name = f.Profile[i]
		}
		out.names = append(out.names, name)
	}
	return out, nil
}

func (p *profiles) entries() []conformance.ProfileEntry { return profile.Entries(p.all) }

// scale returns the largest time scale of the stacks in the pairings.
func (p *profiles) scale(pairings []conformance.Pairing) float64 {
	scale := 1.0
	for _, of := range p.all {
		if slices.ContainsFunc(pairings,
			func(x conformance.Pairing) bool { return x.Uses(of.Provider) }) {
			scale = max(scale, of.Options.Scale)
		}
	}
	return scale
}

// noteIdle prints the requested files whose stack is in none of the pairings.
func (p *profiles) noteIdle(out *output, pairings []conformance.Pairing) {
	for i, of := range p.all {
		if p.names[i] != of.Name && !slices.ContainsFunc(pairings,
			func(x conformance.Pairing) bool { return x.Uses(of.Provider) }) {
			fmt.Fprintf(out, "the profile %s is not used: its stack takes no part\n", p.names[i])
		}
	}
}

// leavesOut returns why a scenario is not run over a pairing, or "".
func (p *profiles) leavesOut(slug string, pairing conformance.Pairing) string {
	for _, of := range p.all {
		if why := of.LeavesOut(slug, pairing); why != "" {
			return why
		}
	}
	return ""
}

type profileCmd struct {
	List  profileListCmd  `cmd:"" default:"withargs" help:"List the profiles that are built in."`
	Show  profileShowCmd  `cmd:"" help:"Print the facts of a profile."`
	Check profileCheckCmd `cmd:"" help:"Check profiles: status 1 if something is wrong with one."`
}

// Help implements kong's HelpProvider.
func (*profileCmd) Help() string {
	return `A profile is a TOML file that describes a stack to the suite: options of runs, ` +
		`scenarios to leave out, and how the stack is known ` +
		`to differ. ` + name + ` run --profile FILE and compare --profile FILE use it. ` +
		`docs/profiles.md describes the format; ` + name +
		` profile show siw --toml prints one to begin with.`
}

type profileListCmd struct {
	JSON bool `name:"json" help:"Print JSON."`
}

// profileRow is a profile as profile list --json prints it.
type profileRow struct {
	Name        string `json:"profile"`
	Provider    string `json:"provider"`
	Divergences int    `json:"divergences"`
	Entries     int    `json:"entries"` // pairs of a scenario and a key
	About       string `json:"about"`
}

func rowOf(p *profile.Profile) profileRow {
	return profileRow{p.Name, p.Provider, len(p.Divergences), len(p.Entries()), p.About}
}

// Run lists.
func (c *profileListCmd) Run(out *output) error {
	known, err := (&profileFlags{}).load()
	if err != nil {
		return err
	}
	rows := make([]profileRow, 0, len(known.all))
	var cells [][]string
	for _, p := range known.all {
		r := rowOf(p)
		rows = append(rows, r)
		cells = append(cells, []string{r.Name, r.Provider, fmt.Sprint(r.Divergences),
			fmt.Sprint(r.Entries), r.About})
	}
	if c.JSON {
		return out.json(rows)
	}
	return out.table([]string{"PROFILE", "PROVIDER", "DIVERGENCES", "ENTRIES", "ABOUT"}, cells)
}

type profileShowCmd struct {
	Name string `arg:"" help:"A profile that is built in, or a file."`
	TOML bool   `name:"toml" help:"Print the file as it is."`
}

// Run prints.
func (c *profileShowCmd) Run(out *output) error {
	p, text, err := findProfile(c.Name)
	if err != nil {
		return err
	}
	if c.TOML {
		_, err := out.Write(text)
		return err
	}
	fmt.Fprintf(out, "%s: %s (provider %s)\n", p.Name, p.About, p.Provider)
	for _, l := range p.LeaveOut {
		fmt.Fprintf(out, "\nleft out: %s\n    %s\n", strings.Join(l.Scenarios, " "), l.Reason)
	}
	for i := range p.Divergences {
		d := &p.Divergences[i]
		fmt.Fprintf(out, "\n%s: %s\n    evidence: %s; seen on %s\n", d.ID, d.Reason, d.Evidence,
			d.Seen)
		if len(d.Fixed) > 0 {
			fmt.Fprintf(out, "    fixed in: %s\n", strings.Join(d.Fixed, ", "))
		}
		if len(d.Requirements) > 0 {
			fmt.Fprintf(out, "    requirements: %s\n", strings.Join(d.Requirements, " "))
		}
		fmt.Fprintf(out, "    shows in: %s\n", strings.Join(scenariosOf(d), " "))
	}
	return nil
}

// scenariosOf returns the scenario patterns of a fact, without duplicates.
func scenariosOf(d *profile.Divergence) []string {
	var all []string
	for _, s := range d.Shows {
		for _, slug := range s.Scenarios {
			if !slices.Contains(all, slug) {
				all = append(all, slug)
			}
		}
	}
	return all
}

// findProfile reads a profile, given by its name or its file.
func findProfile(nameOrFile string) (*profile.Profile, []byte, error) {
	if slices.Contains(profile.Names(), nameOrFile) {
		text, err := profile.Text(nameOrFile)
		if err != nil {
			return nil, nil, err
		}
		p, err := profile.Parse(nameOrFile+".toml", text, scenarios.Suite())
		return p, text, err
	}
	text, err := os.ReadFile(nameOrFile)
	if err != nil {
		return nil, nil, unable(fmt.Errorf("%s is not one of the profiles that are built in, %s, and can't be "+
			"read as a file: %w", nameOrFile, strings.Join(profile.Names(), ", "), err))
	}
	p, err := profile.Parse(nameOrFile, text, scenarios.Suite())
	return p, text, err
}

type profileCheckCmd struct {
	Profiles  []string `arg:"" name:"profile" help:"Profiles that are built in, or files."`
	Collected []string `help:"Also list the entries that explain nothing in what run --collect has written to this folder, which needs the runs of the engine with itself, too. May be given several times, as for several builds of the stack: then it lists the entries that explain nothing in any of them." placeholder:"DIR" type:"path" sep:"none"`
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
