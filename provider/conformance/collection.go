package conformance

import (
	"fmt"
	"path/filepath"
	"slices"
)

// A Part is one of several collections that are judged together, and the folder of its captures.
type Part struct {
	Dir        string
	Collection *Collection
}

// Join makes one collection of parts, for instance of runs of the engine alone on one machine and
// runs with the kernel on another. Its captures have their absolute names.
//
// Join returns an error for parts that can't be compared. Their versions of the program and seeds
// have to be the same, and no run may be in two of them. Parts that have other providers than the
// reference need the same kernel and the same variant of siw, too. For a part that has runs of the
// reference alone the kernel does not matter.
func Join(reference string, parts ...Part) (*Collection, error) {
	if len(parts) == 0 {
		return nil, fmt.Errorf("no collection to join")
	}
	main := parts[0] // its conditions become the collection's
	if i := slices.IndexFunc(parts, func(p Part) bool { return p.others(reference) }); i >= 0 {
		main = parts[i]
	}
	out := *main.Collection
	out.Outcomes, out.Require = nil, nil
	ran := make(map[string]string)
	for _, p := range parts {
		if err := p.fits(&main, reference); err != nil {
			return nil, err
		}
		dir, err := filepath.Abs(p.Dir)
		if err != nil {
			return nil, err
		}
		for _, o := range p.Collection.Outcomes {
			run := o.Scenario + " " + o.Pairing.String()
			if other, twice := ran[run]; twice {
				return nil, fmt.Errorf("both %s and %s have the run %s: leave one out with "+
					"--only or --with", other, p.Dir, run)
			}
			ran[run] = p.Dir
			for _, name := range []*string{&o.Capture, &o.CaptureAtPeer} {
				if *name != "" {
					*name = filepath.Join(dir, *name)
				}
			}
			out.Outcomes = append(out.Outcomes, o)
		}
		for _, name := range p.Collection.Require {
			if !slices.Contains(out.Require, name) {
				out.Require = append(out.Require, name)
			}
		}
		if p.Collection.Started.Before(out.Started) {
			out.Started = p.Collection.Started
		}
	}
	return &out, nil
}

// others reports whether a part has runs with another provider than the reference.
func (p *Part) others(reference string) bool {
	return slices.ContainsFunc(p.Collection.Outcomes, func(o Outcome) bool {
		return slices.ContainsFunc([]string{o.Pairing.Initiator, o.Pairing.Responder},
			func(name string) bool { return name != Raw && name != reference })
	})
}

// fits says why the part can't be judged together with another.
func (p *Part) fits(other *Part, reference string) error {
	type condition struct{ what, a, b string }
	a, b := other.Collection, p.Collection
	all := []condition{
		{"schema", a.Schema, b.Schema},
		{"version of the program", a.Version, b.Version},
		{"seed", fmt.Sprint(a.Seed), fmt.Sprint(b.Seed)},
	}
	if p.others(reference) {
		all = append(all, condition{"kernel", a.Kernel, b.Kernel},
			condition{"variant of siw", a.Siw, b.Siw})
	}
	for _, c := range all {
		if c.a != c.b {
			return fmt.Errorf("%s and %s can't be judged together: the %s is %q and %q", other.Dir,
				p.Dir, c.what, c.a, c.b)
		}
	}
	return nil
}
