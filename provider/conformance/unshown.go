package conformance

import (
	"slices"
	"strings"
)

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
// does. It counts no runs against a target, because neither is known of them.
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
