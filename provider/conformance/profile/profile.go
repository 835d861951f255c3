// Package profile reads profiles: a file for each stack that the suite tests, which says how to run
// the stack and which divergences of it are known. docs/profiles.md describes the format.
//
// The profiles of siw and of the bridge are part of the program (Builtin).
package profile

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"github.com/govs-rdma/govs/provider/conformance"
)

// A Profile describes one stack to the suite.
type Profile struct {
	Name     string   // of the file, without folder and ".toml"
	About    string   // which stack it is, in a sentence
	Provider string   // the stack's provider in pairings: "kernel", "bridge"
	Seen     string   // versions that divergences were seen on, unless a divergence has its own
	Variants []string // builds or settings of the stack that Shows may be limited to

	Options     Options
	LeaveOut    []LeaveOut
	Divergences []Divergence
}

// Options are defaults of a run that tests the stack. Options of the command line take precedence.
type Options struct {
	Scale float64 // stretches all time limits; 0 leaves them as they are
}

// LeaveOut names scenarios that are not run with the stack.
type LeaveOut struct {
	Scenarios []string // slugs or path.Match patterns
	Reason    string
}

// A Divergence is one fact: something that the stack does differently from what scenarios expect,
// or from what the engine does.
type Divergence struct {
	ID           string // stable, kebab-case: "siw-terminate-layout"
	Reason       string // why, in one or two sentences
	Evidence     string // where it is shown: a file of this repository or a URL
	Seen         string
	Fixed        []string // first release of each series that is free of it: "6.1.178"
	Requirements []string // ids of the catalogue that the stack does not keep here
	Shows        []Shows
}

// Shows says in which scenarios a fact shows, and under which keys: each of the keys in each of
// the scenarios.
type Shows struct {
	Scenarios []string         // slugs or path.Match patterns
	Keys      []string         // path.Match patterns of divergences' keys
	As        conformance.Role // only if the stack is this side of the run; "" for either
	Sometimes bool             // it depends on timing
	Variants  []string         // only with these variants of the stack; nil for all
}

// Entries returns the divergences as the judge looks them up.
func (p *Profile) Entries() []conformance.ProfileEntry {
	var l []conformance.ProfileEntry
	for i := range p.Divergences {
		d := &p.Divergences[i]
		for _, s := range d.Shows {
			for _, key := range s.Keys {
				for _, slug := range s.Scenarios {
					l = append(l, conformance.ProfileEntry{
						ID: d.ID, Scenario: slug, Provider: p.Provider, As: s.As, Key: key,
						Reason: d.Reason, Kernels: d.Seen, Fixed: d.Fixed, Evidence: d.Evidence,
						Requirements: d.Requirements,
						Sometimes:    s.Sometimes, Variants: s.Variants,
					})
				}
			}
		}
	}
	return l
}

// LeavesOut returns why a scenario is not run over a pairing, "" if it is.
func (p *Profile) LeavesOut(slug string, pairing conformance.Pairing) string {
	if !pairing.Uses(p.Provider) {
		return ""
	}
	for _, l := range p.LeaveOut {
		for _, pattern := range l.Scenarios {
			if ok, err := path.Match(pattern, slug); err == nil && ok {
				return fmt.Sprintf("left out by the profile %s: %s", p.Name, l.Reason)
			}
		}
	}
	return ""
}

// document is a profile as TOML has it.
type document struct {
	About      string       `toml:"about"`
	Provider   string       `toml:"provider"`
	Seen       string       `toml:"seen"`
	Variants   []string     `toml:"variants"`
	Options    options      `toml:"options"`
	LeaveOut   []leaveOut   `toml:"leave-out"`
	Divergence []divergence `toml:"divergence"`
}

type options struct {
	Scale *float64 `toml:"scale"`
}

type leaveOut struct {
	Scenarios []string `toml:"scenarios"`
	Reason    string   `toml:"reason"`
}

type divergence struct {
	ID           string   `toml:"id"`
	Reason       string   `toml:"reason"`
	Evidence     string   `toml:"evidence"`
	Seen         string   `toml:"seen"`
	Fixed        []string `toml:"fixed"`
	Requirements []string `toml:"requirements"`
	Shows        []shows  `toml:"shows"`
}

type shows struct {
	Scenarios []string `toml:"scenarios"`
	Keys      []string `toml:"keys"`
	As        string   `toml:"as"`
	Sometimes bool     `toml:"sometimes"`
	Variants  []string `toml:"variants"`
}

// ReadFile reads a profile for the scenarios of a suite. The error lists everything that is wrong
// with the file, each with its line.
func ReadFile(name string, suite *conformance.Suite) (*Profile, error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("profile: %w", err)
	}
	return Parse(name, data, suite)
}

// Parse reads a profile from the octets of a file. Its errors are those of ReadFile.
func Parse(name string, data []byte, suite *conformance.Suite) (*Profile, error) {
	var doc document
	dec := toml.NewDecoder(bytes.NewReader(data)).DisallowUnknownFields()
	if err := dec.Decode(&doc); err != nil {
		return nil, decodeError(name, err)
	}
	c := checker{file: name, places: findPlaces(data), suite: suite, doc: &doc}
	if err := c.check(); err != nil {
		return nil, err
	}
	return doc.profile(strings.TrimSuffix(filepath.Base(name), ".toml")), nil
}

// goField matches what the decoder's errors say about this package's types.
var goField = regexp.MustCompile(`struct field \S+ of type `)

// decodeError says where a file is not TOML, or has keys that a profile does not have.
func decodeError(name string, err error) error {
	var unknown *toml.StrictMissingError
	if errors.As(err, &unknown) {
		var all []error
		for i := range unknown.Errors {
			e := &unknown.Errors[i]
			line, _ := e.Position()
			all = append(all, fmt.Errorf("%s:%d: a profile has no key %q: remove or correct it "+
				"(docs/profiles.md lists the keys)", name, line, strings.Join(e.Key(), ".")))
		}
		return errors.Join(all...)
	}
	var bad *toml.DecodeError
	if errors.As(err, &bad) {
		line, column := bad.Position()
		why := goField.ReplaceAllString(strings.TrimPrefix(bad.Error(), "toml: "), "")
		return fmt.Errorf("%s:%d: column %d: %s", name, line, column, why)
	}
	return fmt.Errorf("%s: %w", name, err)
}

// profile converts a document that has been checked.
func (doc *document) profile(name string) *Profile {
	p := &Profile{Name: name, About: doc.About, Provider: doc.Provider, Seen: doc.Seen,
		Variants: doc.Variants}
	if doc.Options.Scale != nil {
		p.Options.Scale = *doc.Options.Scale
	}
	for _, l := range doc.LeaveOut {
		p.LeaveOut = append(p.LeaveOut, LeaveOut(l))
	}
	for _, d := range doc.Divergence {
		fact := Divergence{
			ID: d.ID, Reason: d.Reason, Evidence: d.Evidence, Seen: d.Seen, Fixed: d.Fixed,
			Requirements: d.Requirements,
		}
		if fact.Seen == "" {
			fact.Seen = doc.Seen
		}
		for _, s := range d.Shows {
			fact.Shows = append(fact.Shows, Shows{
				Scenarios: s.Scenarios, Keys: s.Keys, As: conformance.Role(s.As),
				Sometimes: s.Sometimes, Variants: s.Variants,
			})
		}
		p.Divergences = append(p.Divergences, fact)
	}
	return p
}

// Entries returns the divergences of several profiles, in their order.
func Entries(profiles []*Profile) []conformance.ProfileEntry {
	var l []conformance.ProfileEntry
	for _, p := range profiles {
		l = append(l, p.Entries()...)
	}
	return l
}

// Replace returns the profiles in with, and those in base that are about other providers. It is an
// error if two profiles in with are about one provider.
func Replace(base, with []*Profile) ([]*Profile, error) {
	for i, p := range with {
		if k := slices.IndexFunc(with[:i], p.sameProvider); k >= 0 {
			return nil, fmt.Errorf("profiles %s and %s are both about the provider %s: give "+
				"one of them", with[k].Name, p.Name, p.Provider)
		}
	}
	var out []*Profile
	for _, p := range base {
		if !slices.ContainsFunc(with, p.sameProvider) {
			out = append(out, p)
		}
	}
	return append(out, with...), nil
}

func (p *Profile) sameProvider(other *Profile) bool { return p.Provider == other.Provider }

//go:embed *.toml
var files embed.FS

// Names returns the names of the built-in profiles, sorted.
func Names() []string {
	entries, err := files.ReadDir(".")
	if err != nil {
		panic("profile: the embedded files can't be listed: " + err.Error())
	}
	var names []string
	for _, e := range entries {
		names = append(names, strings.TrimSuffix(e.Name(), ".toml"))
	}
	return names
}

// Text returns the file of a built-in profile, octet for octet.
func Text(name string) ([]byte, error) {
	data, err := files.ReadFile(name + ".toml")
	if err != nil {
		return nil, fmt.Errorf("no profile %q is built in: there are %s", name,
			strings.Join(Names(), ", "))
	}
	return data, nil
}

// Builtin returns the profiles that are part of the program.
func Builtin(suite *conformance.Suite) ([]*Profile, error) {
	var out []*Profile
	for _, name := range Names() {
		data, err := Text(name)
		if err != nil {
			return nil, err
		}
		p, err := Parse(name+".toml", data, suite)
		if err != nil {
			return nil, fmt.Errorf("the profile %s that is built in: %w", name, err)
		}
		out = append(out, p)
	}
	return out, nil
}
