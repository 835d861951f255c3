package report

import (
	"fmt"
	"html/template"
	"strings"

	"github.com/govs-rdma/govs/provider/conformance"
)

// page is what the template sees.
type page struct {
	*conformance.Report
	Summary    string
	Counted    []verdictCount
	Conditions []condition
	Stacks     []stack
	Areas      []area
	Wrong      []wrong // at most wrongShown
	MoreWrong  int     // that are left out of Wrong
	Lacks      []lack
	Entries    []entryUse // of the profiles, that explained something
	Coverage   []documentCoverage
	Providers  []string // that the coverage has columns for
	Data       template.HTML
	Files      string // as in HTML
}

type condition struct{ Name, Value string }

// wrong is a run that lets the suite fail: FAIL, XPASS or SETUP.
type wrong struct {
	*conformance.Result
	Unexplained  []conformance.Divergence // at most differencesShown
	More         int                      // that are left out of Unexplained
	Requirements []*conformance.Coverage
}

// How long the list of what to look at gets; the list of scenarios is complete.
const (
	wrongShown       = 60
	differencesShown = 4
)

// otherHost describes the other host of a run between two.
func otherHost(p *conformance.PeerHost) string {
	if p == nil {
		return "none"
	}
	return fmt.Sprintf("%s: govs %s, kernel %s, variant of siw %s, %d CPUs", p.Address, p.Version,
		p.Kernel, or(p.Siw, "not given"), p.CPUs)
}

func newPage(rep *conformance.Report) (*page, error) {
	p := &page{
		Report: rep, Summary: Summary(rep), Counted: counted(rep.Counts),
		Stacks: stacks(rep), Areas: areas(rep),
		Wrong: wrongRuns(rep), Lacks: lacks(rep), Entries: entryUses(rep),
	}
	if n := len(p.Wrong); n > wrongShown {
		p.Wrong, p.MoreWrong = p.Wrong[:wrongShown], n-wrongShown
	}
	p.Conditions = []condition{
		{"started", rep.Started.UTC().Format("2006-01-02 15:04:05 UTC")},
		{"govs", rep.Version},
		{"kernel", kernel(rep)},
		{"variant of siw", or(rep.Siw, "not given")},
		{"CPUs", fmt.Sprint(rep.CPUs)},
		{"other host", otherHost(rep.Peer)},
		{"target", or(rep.Target, "none")},
		{"seed", fmt.Sprint(rep.Seed)},
		{"compared with", or(rep.Reference, "nothing")},
		{"second decoder", or(rep.Tshark, "not asked")},
	}
	p.Providers = providersOf(rep)
	p.Coverage = coverageByDocument(rep.Requirements, p.Providers)
	island, err := newPageData(rep, p).island()
	p.Data = island
	return p, err
}

// kernel is the kernel's name, and which release it was built of.
func kernel(rep *conformance.Report) string {
	if rep.KernelVersion == "" || strings.HasPrefix(rep.Kernel, rep.KernelVersion) {
		return rep.Kernel
	}
	return rep.Kernel + " (" + rep.KernelVersion + ")"
}

func or(s, other string) string {
	if s == "" {
		return other
	}
	return s
}

// wrongRuns lists the runs that let the suite fail: what failed before what could not be tried.
func wrongRuns(rep *conformance.Report) []wrong {
	var out []wrong
	for _, v := range []conformance.Verdict{conformance.Fail, conformance.XPass, conformance.Setup} {
		for i := range rep.Results {
			res := &rep.Results[i]
			if res.Verdict != v {
				continue
			}
			w := wrong{Result: res, Unexplained: unexplained(res), Requirements: requirementsOf(rep, res)}
			if n := len(w.Unexplained); n > differencesShown {
				w.Unexplained, w.More = w.Unexplained[:differencesShown], n-differencesShown
			}
			out = append(out, w)
		}
	}
	return out
}

// unexplained returns the divergences that no profile has an entry for.
func unexplained(res *conformance.Result) []conformance.Divergence {
	var out []conformance.Divergence
	for _, d := range res.Divergences {
		if d.Entry == "" {
			out = append(out, d)
		}
	}
	return out
}

// requirementsOf returns the requirements that a run shows. One that the report's catalogue lacks
// has an id only.
func requirementsOf(rep *conformance.Report, res *conformance.Result) []*conformance.Coverage {
	var out []*conformance.Coverage
	for _, id := range res.Requirements {
		c := &conformance.Coverage{ID: id}
		for i := range rep.Requirements {
			if rep.Requirements[i].ID == id {
				c = &rep.Requirements[i]
			}
		}
		out = append(out, c)
	}
	return out
}

// Pairing returns how the page names the run's two sides.
func (w *wrong) Pairing() string { return pairingOf(w.Result) }

// pairingOf returns how the page and the matrix name a run's two sides.
func pairingOf(res *conformance.Result) string { return res.Initiator + "->" + res.Responder }

// runRoute is the fragment of the page's address that opens a run.
func runRoute(res *conformance.Result) string {
	return "run/" + res.Scenario + "/" + res.Initiator + "/" + res.Responder
}
