package conformance

import (
	"slices"
	"strings"

	"github.com/govs-rdma/govs/provider/conformance/catalogue"
)

// coverage returns for each requirement the state of each provider, from the results of
// the scenarios that name it.
func (j *Judge) coverage(c *catalogue.Catalogue, results []Result) []Coverage {
	all := c.All()
	out := make([]Coverage, 0, len(all))
	index := make(map[string]int, len(all))
	for _, r := range all {
		index[r.ID] = len(out)
		out = append(out, Coverage{
			ID: r.ID, Document: r.Document, Section: r.Section, Level: string(r.Level), Side: r.Side, Text: r.Text,
			Tests: r.Tests, Reason: r.Reason,
		})
	}
	for _, sc := range j.Suite.All() {
		for _, id := range sc.Requirements {
			if at, ok := index[id]; ok {
				out[at].Scenarios = append(out[at].Scenarios, sc.Slug)
			}
		}
	}
	for i := range results {
		res := &results[i]
		for _, id := range res.Requirements {
			if at, ok := index[id]; ok {
				j.stands(&out[at], res)
			}
		}
	}
	return out
}

// stands counts a result into a requirement that its scenario names. A result that could
// not be tried shows nothing. One that a profile explains counts against the provider
// that the entry is about, and shows nothing about the other one. A failure and an
// unneeded entry count against every provider that took part, because it is not known
// which of them is at fault.
func (j *Judge) stands(c *Coverage, res *Result) {
	for _, name := range []string{res.Initiator, res.Responder} {
		if name == Raw {
			continue
		}
		switch res.Verdict {
		case Pass:
			c.add(name, Shown, res.Scenario, nil)
		case XFail:
			if ids := j.entriesAbout(name, res); len(ids) > 0 {
				c.add(name, Excepted, res.Scenario, ids)
			}
		case Fail, XPass:
			c.add(name, Failed, res.Scenario, nil)
		}
	}
}

// entriesAbout returns the ids of the entries that explain a result by what a
// provider does.
func (j *Judge) entriesAbout(provider string, res *Result) []string {
	var ids []string
	plain, _ := OnPeer(provider)
	for _, d := range res.Divergences {
		at := slices.IndexFunc(j.Profile, func(e ProfileEntry) bool { return e.ID == d.Entry })
		if at >= 0 && j.Profile[at].Provider == plain && !slices.Contains(ids, d.Entry) {
			ids = append(ids, d.Entry)
		}
	}
	return ids
}

func (c *Coverage) add(provider string, state State, scenario string, entries []string) {
	if c.Providers == nil {
		c.Providers = make(map[string]*Standing)
	}
	s := c.Providers[provider]
	if s == nil {
		s = &Standing{State: Shown}
		c.Providers[provider] = s
	}
	if state == Failed || state == Excepted && s.State == Shown {
		s.State = state
	}
	if !slices.Contains(s.Scenarios, scenario) {
		s.Scenarios = append(s.Scenarios, scenario)
	}
	for _, id := range entries {
		if !slices.Contains(s.Entries, id) {
			s.Entries = append(s.Entries, id)
		}
	}
}

// unshown returns the entries of the profiles that explained nothing, though they could have.
func (j *Judge) unshown(c *Collection, results []Result) []Unshown {
	var out []Unshown
	for k := range j.Profile {
		e := &j.Profile[k]
		about := e.runs(c, results)
		if len(about) == 0 || slices.ContainsFunc(about, e.showsIn) {
			continue
		}
		out = append(out, Unshown{
			Entry: e.ID, Scenario: e.Scenario, Key: e.Key, Sometimes: e.Sometimes,
			Unknown: !slices.ContainsFunc(about, e.knownIn),
		})
	}
	return out
}

// Shown reports in how many runs of a judged collection the entry could show, and in how many it
// does. It counts no runs against a target, because a target's version is not known.
func (e *ProfileEntry) Shown(c *Collection, r *Report) (could, does int) {
	about := e.runs(c, r.Results)
	for _, res := range about {
		if e.showsIn(res) {
			does++
		}
	}
	return len(about), does
}

// runs returns the results in which the entry could show.
func (e *ProfileEntry) runs(c *Collection, results []Result) []*Result {
	var about []*Result
	for i := range results {
		res := &results[i]
		tried := res.Verdict != Setup && res.Verdict != Unsupported
		p := Pairing{res.Initiator, res.Responder}
		if tried && !p.atTarget() && e.applies(res.Scenario, p, c) && !e.unasked(res) {
			about = append(about, res)
		}
	}
	return about
}

// unasked reports whether the entry is about the witness, which was not asked about the result.
func (e *ProfileEntry) unasked(res *Result) bool {
	return strings.HasPrefix(e.Key, "witness:") && !res.Witness.Asked
}

// showsIn reports whether a divergence of the result is the entry's.
func (e *ProfileEntry) showsIn(res *Result) bool {
	return slices.ContainsFunc(res.Divergences, func(d Divergence) bool { return e.covers(d.Key) })
}

// knownIn reports whether the result has a check or an observation that the entry's key matches.
// Other keys always count, because there is no list of what could differ on the wire.
func (e *ProfileEntry) knownIn(res *Result) bool {
	if !strings.HasPrefix(e.Key, "check:") && !strings.HasPrefix(e.Key, "observe:") {
		return true
	}
	return slices.ContainsFunc(res.Checks, func(c Check) bool {
		return e.covers("check:" +
			c.What)
	}) ||
		slices.ContainsFunc(res.Observations,
			func(o Observation) bool { return e.covers("observe:" + o.Key) })
}
