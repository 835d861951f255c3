package report

import (
	"slices"

	"github.com/govs-rdma/govs/provider/conformance"
)

// A stack sums up the runs of one provider. Runs that are UNSUPPORTED or SETUP do not count,
// because they show nothing.
type stack struct {
	Name     string // of the provider, and of its kernel module if that is known
	Runs     int
	Expected int // runs in which neither a known divergence of the stack showed, nor anything failed
	Failed   int // FAIL and XPASS: which of a run's two stacks is at fault is not known
	Known    int // known divergences of the stack that showed
	Musts    int // those of Known that break a MUST or MUST NOT, as the stack's profile says
}

// stacks returns the stacks of a report, the reference first.
func stacks(rep *conformance.Report) []stack {
	binding := make(map[string]bool)
	for i := range rep.Requirements {
		binding[rep.Requirements[i].ID] = isMust(&rep.Requirements[i])
	}
	var out []stack
	for _, name := range providersOf(rep) {
		s := newStack(rep, name, binding)
		if name == rep.Reference {
			out = slices.Insert(out, 0, s)
		} else {
			out = append(out, s)
		}
	}
	return out
}

func newStack(rep *conformance.Report, name string, binding map[string]bool) stack {
	plain, siw := plainName(name), rep.Siw
	if _, far := conformance.OnPeer(name); far && rep.Peer != nil {
		siw = rep.Peer.Siw
	}
	s := stack{Name: name}
	if plain == "kernel" && siw != "" {
		s.Name += " (siw)"
	}
	known := make(map[string]bool) // whether the entry breaks a MUST
	for i := range rep.Results {
		res := &rep.Results[i]
		if res.Initiator != name && res.Responder != name ||
			res.Verdict == conformance.Unsupported || res.Verdict == conformance.Setup {
			continue
		}
		s.Runs++
		diverges := false
		for k := range res.Divergences {
			if d := &res.Divergences[k]; d.Entry != "" && d.Provider == plain {
				diverges = true
				known[d.Entry] = slices.ContainsFunc(d.Requirements,
					func(id string) bool { return binding[id] })
			}
		}
		switch {
		case res.Verdict == conformance.Fail || res.Verdict == conformance.XPass:
			s.Failed++
		case !diverges:
			s.Expected++
		}
	}
	for _, must := range known {
		s.Known++
		if must {
			s.Musts++
		}
	}
	return s
}

// plainName returns the provider of a name in a pairing, without its host.
func plainName(name string) string {
	if stack, is := conformance.OnTarget(name); is {
		return stack
	}
	plain, _ := conformance.OnPeer(name)
	return plain
}
