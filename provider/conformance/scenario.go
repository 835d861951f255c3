package conformance

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/govs-rdma/govs/provider/conformance/catalogue"
	"github.com/govs-rdma/govs/provider/conformance/wire"
)

// Level says how binding a scenario's expectation is.
type Level string

// The levels.
const (
	Must     Level = "must"     // an RFC says MUST or MUST NOT, or libibverbs' manual is clear
	Should   Level = "should"   // an RFC says SHOULD
	Observed Level = "observed" // no rule applies: what happens is recorded and compared
)

// Role is the part that the scripted raw peer plays.
type Role string

// The roles.
const (
	RoleInitiator Role = "initiator" // the raw peer connects to the provider under test
	RoleResponder Role = "responder" // the provider under test connects to the raw peer
)

// Raw is the name that the scripted peer has in pairings and reports.
const Raw = "raw"

// A Pairing names the two sides of a run: providers, or Raw for one of them.
type Pairing struct {
	Initiator string `json:"initiator"`
	Responder string `json:"responder"`
}

// AtPeer is the suffix of a provider's name in a pairing if it is on the other host of a run.
const AtPeer = "@peer"

// OnPeer reports whether a name of a pairing is a provider on the other host, and returns that
// provider's name.
func OnPeer(name string) (provider string, far bool) { return strings.CutSuffix(name, AtPeer) }

// String returns "initiator->responder".
func (p Pairing) String() string { return p.Initiator + "->" + p.Responder }

// far reports whether one of the sides is on the other host.
func (p Pairing) far() bool {
	_, i := OnPeer(p.Initiator)
	_, r := OnPeer(p.Responder)
	return i || r
}

// Has reports whether one of the sides is name.
func (p Pairing) Has(name string) bool { return p.Initiator == name || p.Responder == name }

// HasAll reports whether each of names is a side of the pairing.
func (p Pairing) HasAll(names []string) bool {
	return !slices.ContainsFunc(names, func(name string) bool { return !p.Has(name) })
}

// Uses reports whether one of the sides is a provider, wherever it is: on this host or the other,
// or as the stack of a target.
func (p Pairing) Uses(provider string) bool {
	return p.Has(provider) || p.Has(provider+AtPeer) || p.Has(provider+AtTarget)
}

// A Scenario is one test of the suite. Exactly one of Verbs and Raw is set.
type Scenario struct {
	// Slug is its stable name, "group/what-happens". It is never reused and
	// never positional.
	Slug  string
	Title string // one sentence that says what is right

	// Requirements are ids of the requirement catalogue that it shows.
	Requirements []string
	Level        Level

	// Timeout bounds one run, before Config.Scale; zero means 10 s.
	Timeout time.Duration

	// OnlyByName, if not empty, says why the scenario runs only when a pattern
	// without wildcards names it: it is known to crash a kernel.
	OnlyByName string

	// Options varies how the engine is opened for this scenario: "crc=off",
	// "markers=on"; the kernel has no such options and ignores them.
	Options []string

	// ResponderOptions are more of them, for the responder of a verbs scenario only.
	ResponderOptions []string

	// Unwitnessed, if not empty, is the reason why the witness is not asked about
	// this scenario's captures: something legal that tshark does not follow.
	Unwitnessed string

	// Concurrent says that what crosses the wire, or when, depends on timing:
	// the wires of two runs are not compared.
	Concurrent bool

	// Idle says that a run does little but wait for seconds, for instance for a time limit of
	// siw's. Such runs are under way beside others, because their waits would only delay those.
	Idle bool

	// Verbs runs between two providers.
	Verbs func(*VerbsRun)

	// Raw runs between the scripted peer, in the role RawRole, and a provider.
	Raw     func(*RawRun)
	RawRole Role

	// Needs is what Raw needs of the side that it is played to. It is empty for verbs scenarios,
	// because both their sides are programs of the suite.
	Needs Needs

	// Wire checks the decoded capture of a run, after it. It may be nil.
	Wire func(*WireRun)
}

// Area is the word before the slash of a scenario's slug.
func Area(slug string) string {
	name, _, _ := strings.Cut(slug, "/")
	return name
}

// Kind returns "verbs" or "raw".
func (s *Scenario) Kind() string {
	if s.Raw != nil {
		return "raw"
	}
	return "verbs"
}

// scripts reports whether the key of a difference on the wire is of the raw
// peer's direction.
func (s *Scenario) scripts(key string) bool {
	dir := wire.ToResponder
	if s.RawRole == RoleResponder {
		dir = wire.ToInitiator
	}
	return s.Raw != nil && strings.HasPrefix(key, dir.String()+":")
}

func (s *Scenario) timeout() time.Duration {
	if s.Timeout == 0 {
		return 10 * time.Second
	}
	return s.Timeout
}

// pairings returns which of the wanted pairings the scenario runs on. A verbs
// scenario runs on all of them. A raw scenario runs once for each provider in
// them, opposite the raw peer.
func (s *Scenario) pairings(wanted []Pairing) []Pairing {
	if s.Raw == nil {
		return wanted
	}
	var out []Pairing
	for _, w := range wanted {
		for _, name := range []string{w.Initiator, w.Responder} {
			if name == Raw {
				continue
			}
			p := Pairing{Initiator: Raw, Responder: name}
			if s.RawRole == RoleResponder {
				p = Pairing{Initiator: name, Responder: Raw}
			}
			if !slices.Contains(out, p) {
				out = append(out, p)
			}
		}
	}
	return out
}

// A Suite is an ordered set of scenarios with distinct slugs.
type Suite struct {
	scenarios []*Scenario
}

// Add adds scenarios. It panics if one is malformed or a duplicate, which is an error in
// the program.
func (s *Suite) Add(scenarios ...*Scenario) {
	for _, sc := range scenarios {
		if err := sc.validate(); err != nil {
			panic("conformance: " + err.Error())
		}
		for _, other := range s.scenarios {
			if captureName(other.Slug, Pairing{}) == captureName(sc.Slug, Pairing{}) {
				panic("conformance: " + other.Slug + " and " + sc.Slug +
					" would share the names of their captures")
			}
		}
		s.scenarios = append(s.scenarios, sc)
	}
}

func (s *Scenario) validate() error {
	switch {
	case !strings.Contains(s.Slug, "/") || strings.ContainsAny(s.Slug, " *?["):
		return fmt.Errorf("slug %q is not of the form group/what-happens", s.Slug)
	case (s.Verbs == nil) == (s.Raw == nil):
		return fmt.Errorf("%s: exactly one of Verbs and Raw has to be set", s.Slug)
	case s.Raw != nil && s.RawRole != RoleInitiator && s.RawRole != RoleResponder:
		return fmt.Errorf("%s: a raw scenario needs a RawRole", s.Slug)
	case !s.Needs.fits(s):
		return fmt.Errorf("%s: Needs is %q, which is not for a %s scenario with RawRole %q", s.Slug,
			s.Needs, s.Kind(), s.RawRole)
	case s.Title == "":
		return fmt.Errorf("%s: no title", s.Slug)
	case s.Level != Must && s.Level != Should && s.Level != Observed:
		return fmt.Errorf("%s: level %q", s.Slug, s.Level)
	}
	requirements, err := catalogue.Load()
	if err != nil {
		return err
	}
	for _, id := range s.Requirements {
		if requirements.ByID(id) == nil {
			return fmt.Errorf("%s: requirement %q is not in the catalogue", s.Slug, id)
		}
	}
	return nil
}

// All returns the scenarios in the order in which they were added. The slice is
// the caller's, the scenarios are not.
func (s *Suite) All() []*Scenario { return slices.Clone(s.scenarios) }

// Find returns the scenario with this slug, nil if there is none.
func (s *Suite) Find(slug string) *Scenario {
	for _, sc := range s.scenarios {
		if sc.Slug == slug {
			return sc
		}
	}
	return nil
}

// Select returns the scenarios that match one of the comma-separated glob
// patterns (path.Match; a pattern that ends in "/" or has none stands for the
// group). The empty string selects all but those that run only by name. It is an
// error if a pattern is malformed or matches nothing.
func (s *Suite) Select(patterns string) ([]*Scenario, error) {
	if strings.TrimSpace(patterns) == "" {
		patterns = "*/*"
	}
	chosen := make(map[*Scenario]bool)
	for _, pattern := range strings.Split(patterns, ",") {
		pattern = strings.TrimSpace(pattern)
		asked := pattern
		if !strings.Contains(strings.TrimSuffix(pattern, "/"), "/") {
			pattern = strings.TrimSuffix(pattern, "/") + "/*"
		}
		matched := false
		for _, sc := range s.scenarios {
			ok, err := path.Match(pattern, sc.Slug)
			if err != nil {
				return nil, fmt.Errorf("scenario pattern %q: %w", asked, err)
			}
			if !ok {
				continue
			}
			matched = true
			if sc.OnlyByName == "" || pattern == sc.Slug {
				chosen[sc] = true
			}
		}
		if !matched {
			return nil, fmt.Errorf("no scenario matches %q; the subcommand list prints them all", asked)
		}
	}
	var out []*Scenario
	for _, sc := range s.scenarios {
		if chosen[sc] {
			out = append(out, sc)
		}
	}
	return out, nil
}
