package profile

import (
	"errors"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/govs-rdma/govs/provider/conformance"
	"github.com/govs-rdma/govs/provider/conformance/catalogue"
	"github.com/govs-rdma/govs/provider/conformance/wire"
)

// MaxScale is the largest Options.Scale.
const MaxScale = 1000

// checker looks for everything that is wrong with a document.
type checker struct {
	file   string
	places places
	suite  *conformance.Suite
	doc    *document
	errs   []error
}

// wrong notes an error about what is at a path.
func (c *checker) wrong(at, format string, args ...any) {
	what := fmt.Sprintf(format, args...)
	c.errs = append(c.errs, fmt.Errorf("%s:%d: %s", c.file, c.places.line(at), what))
}

func (c *checker) check() error {
	doc := c.doc
	switch doc.Provider {
	case "":
		c.wrong("provider", "no provider: add the name that the stack has in pairings, as "+
			"provider = \"kernel\"")
	case conformance.Raw:
		c.wrong("provider", "provider %q is the suite's own scripted peer: name that of the stack",
			doc.Provider)
	}
	if doc.About == "" {
		c.wrong("about", "no about: say in a sentence which stack this is")
	}
	if s := doc.Options.Scale; s != nil && !(*s > 0 && *s <= MaxScale) {
		c.wrong("options.scale", "scale %v: it has to be above 0, and at most %d", *s, MaxScale)
	}
	c.noneTwice("variants", doc.Variants)
	for i, l := range doc.LeaveOut {
		at := element("leave-out", i)
		if l.Reason == "" {
			c.wrong(at, "no reason why these scenarios are left out: add it")
		}
		c.scenarios(at, l.Scenarios)
	}
	for i := range doc.Divergence {
		c.divergence(element("divergence", i), i)
	}
	return errors.Join(c.errs...)
}

var kebab = regexp.MustCompile(`^[a-z0-9]+(-[a-z0-9]+)*$`)

func (c *checker) divergence(at string, i int) {
	d := &c.doc.Divergence[i]
	if !kebab.MatchString(d.ID) {
		c.wrong(at+".id", "id %q: give it one of lower-case letters, digits and hyphens, as "+
			"\"siw-resets\"", d.ID)
	}
	for k := range c.doc.Divergence[:i] {
		if c.doc.Divergence[k].ID == d.ID {
			c.wrong(at+".id", "id %q is that of line %d, too: join the two, or rename one", d.ID,
				c.places.line(element("divergence", k)+".id"))
		}
	}
	if d.Reason == "" {
		c.wrong(at, "%s: no reason: say in a sentence or two what the stack does", d.ID)
	}
	if d.Evidence == "" {
		c.wrong(at, "%s: no evidence: name a file or a URL that shows it", d.ID)
	}
	if d.Seen == "" && c.doc.Seen == "" {
		c.wrong(at, "%s: no seen, and the profile has none: add the versions that it was seen on",
			d.ID)
	}
	for k, v := range d.Fixed {
		if _, ok := conformance.ParseKernel(v); !ok {
			c.wrong(element(at+".fixed", k), "%s: fixed in %q, which is no release: write it "+
				"as \"6.1.178\"", d.ID, v)
		}
	}
	c.requirements(at, d)
	if len(d.Shows) == 0 {
		c.wrong(at, "%s: add a [[divergence.shows]] with the scenarios and keys that it shows in",
			d.ID)
	}
	for k := range d.Shows {
		c.shows(element(at+".shows", k), &d.Shows[k])
	}
}

func (c *checker) requirements(at string, d *divergence) {
	known, err := catalogue.Load()
	if err != nil {
		c.wrong(at, "%v", err)
		return
	}
	c.noneTwice(at+".requirements", d.Requirements)
	for k, id := range d.Requirements {
		if known.ByID(id) == nil {
			c.wrong(element(at+".requirements", k), "%s: requirement %q is not in the catalogue: "+
				"its ids are in provider/conformance/catalogue/requirements.tsv", d.ID, id)
		}
	}
}

func (c *checker) shows(at string, s *shows) {
	c.scenarios(at, s.Scenarios)
	if len(s.Keys) == 0 {
		c.wrong(at, "no keys: add those of the divergences, which the report has")
	}
	c.noneTwice(at+".keys", s.Keys)
	for k, key := range s.Keys {
		if err := checkKey(key); err != nil {
			c.wrong(element(at+".keys", k), "key %q: %v", key, err)
		}
	}
	switch conformance.Role(s.As) {
	case "", conformance.RoleInitiator, conformance.RoleResponder:
	default:
		c.wrong(at+".as", "as %q: it is %q or %q, or is left out for both sides", s.As,
			conformance.RoleInitiator, conformance.RoleResponder)
	}
	c.noneTwice(at+".variants", s.Variants)
	for k, v := range s.Variants {
		if !slices.Contains(c.doc.Variants, v) {
			c.wrong(element(at+".variants", k),
				"variant %q is not in the profile's variants: correct "+
					"it, or add it there", v)
		}
	}
}

// scenarios checks the scenarios key of a table: patterns that each match one of the suite.
func (c *checker) scenarios(at string, patterns []string) {
	if len(patterns) == 0 {
		c.wrong(at, "no scenarios: add their names or patterns, which the subcommand list prints")
	}
	at += ".scenarios"
	c.noneTwice(at, patterns)
	for k, pattern := range patterns {
		if _, err := path.Match(pattern, ""); err != nil {
			c.wrong(element(at, k), "scenario pattern %q is malformed: close its [ or escape "+
				"it as \\[", pattern)
			continue
		}
		if !slices.ContainsFunc(c.suite.All(), func(sc *conformance.Scenario) bool {
			ok, _ := path.Match(pattern, sc.Slug)
			return ok
		}) {
			c.wrong(element(at, k), "no scenario matches %q: the subcommand list prints them all",
				pattern)
		}
	}
}

func (c *checker) noneTwice(at string, list []string) {
	for i, s := range list {
		if slices.Contains(list[:i], s) {
			c.wrong(element(at, i), "%q stands there twice: remove one", s)
		}
	}
}

// keyKinds are what keys of divergences begin with.
var keyKinds = []string{"check", "observe", "wire", "witness"}

// checkKey says what is wrong with a pattern of keys. It does not check a check's text or an
// observation's name, because these are known only once a scenario has run. The judge reports those
// that no run had.
func checkKey(key string) error {
	if _, err := path.Match(key, ""); err != nil {
		return errors.New("a malformed pattern: close its [ or escape it as \\[")
	}
	kind, rest, _ := strings.Cut(key, ":")
	switch {
	case strings.Trim(key, "*") == "":
		return errors.New("it would cover everything: begin with " +
			strings.Join(keyKinds, ":, ") + ":")
	case !slices.Contains(keyKinds, kind):
		return errors.New("a key begins with " + strings.Join(keyKinds, ":, ") +
			": and the report has them")
	case rest == "":
		return fmt.Errorf("after %s: there is nothing; the report has the keys", kind)
	case kind == "wire":
		return checkWireKey(rest)
	case kind == "witness" && !matches(rest, "tshark"):
		return errors.New("the only witness is tshark: write witness:tshark")
	}
	return nil
}

// checkWireKey checks the parts of a pattern after "wire:". If a part ends in a "*", anything may
// follow, because the star also stands for colons.
func checkWireKey(rest string) error {
	parts := strings.Split(rest, ":")
	allowed := [][]string{{wire.ToInitiator.String(), wire.ToResponder.String(), "connection"},
		wire.Kinds()}
	if parts[0] == "connection" {
		allowed[1] = []string{"missing", "extra"}
	}
	for i, list := range allowed {
		if i == len(parts) {
			return fmt.Errorf("%d parts are too few for wire:DIRECTION:MESSAGE:FIELD", len(parts)+1)
		}
		if !slices.ContainsFunc(list, func(s string) bool { return matches(parts[i], s) }) {
			return fmt.Errorf("%q is none of %s", parts[i], strings.Join(list, ", "))
		}
		if strings.HasSuffix(parts[i], "*") && i == len(parts)-1 {
			return nil
		}
	}
	if want := 3; parts[0] != "connection" && len(parts) != want {
		return fmt.Errorf("%d parts, wire:DIRECTION:MESSAGE:FIELD has %d", len(parts)+1, want+1)
	}
	return nil
}

// matches reports whether a pattern that is known to be well-formed matches s (path.Match).
func matches(pattern, s string) bool {
	ok, _ := path.Match(pattern, s)
	return ok
}
