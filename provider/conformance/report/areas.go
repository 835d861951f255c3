package report

import (
	"slices"

	"github.com/govs-rdma/govs/provider/conformance"
)

// An area sums up the scenarios of a report whose slugs begin with the same word.
type area struct {
	Name, About string
	Runs        int
	Counted     []verdictCount // in the order of verdictOrder, without those of no run
	Millis      int64
}

// aboutAreas says what the areas of package scenarios are about. Others are shown without.
var aboutAreas = map[string]string{
	"conn":       "opening and closing connections",
	"ddp":        "segments, queues and offsets (RFC 5041)",
	"ext":        "atomics and immediate data (RFC 7306)",
	"memory":     "registration and re-registration",
	"mpa":        "start-up, framing and CRCs (RFC 5044, RFC 6581)",
	"objects":    "objects of verbs, their queries and refusals",
	"order":      "what happens before what",
	"product":    "combinations of rights, opcodes, states and faults",
	"protection": "keys, bounds and rights of memory",
	"queue":      "work queues and completion queues",
	"rdmac":      "version 0, of the RDMA Consortium",
	"rdmap":      "operations and Terminates (RFC 5040)",
	"read":       "RDMA Reads",
	"send":       "Sends",
	"srq":        "shared receive queues",
	"states":     "states of queue pairs",
	"window":     "memory windows",
	"write":      "RDMA Writes",
}

// areas sums up a report by area, in the order in which areas first come.
func areas(rep *conformance.Report) []area {
	var out []area
	for i := range rep.Results {
		res := &rep.Results[i]
		name := conformance.Area(res.Scenario)
		at := slices.IndexFunc(out, func(a area) bool { return a.Name == name })
		if at < 0 {
			at = len(out)
			out = append(out, area{Name: name, About: aboutAreas[name]})
		}
		out[at].Runs++
		out[at].Millis += res.DurationMillis
	}
	for i := range out {
		counts := make(map[conformance.Verdict]int)
		for k := range rep.Results {
			if conformance.Area(rep.Results[k].Scenario) == out[i].Name {
				counts[rep.Results[k].Verdict]++
			}
		}
		out[i].Counted = counted(counts)
	}
	return out
}

type verdictCount struct {
	Verdict conformance.Verdict
	N       int
}

// verdictOrder is the order in which verdicts are summed up.
var verdictOrder = []conformance.Verdict{
	conformance.Pass, conformance.XFail, conformance.Unsupported,
	conformance.Fail, conformance.XPass, conformance.Setup,
}

// counted lists the verdicts that some run has.
func counted(counts map[conformance.Verdict]int) []verdictCount {
	var out []verdictCount
	for _, v := range verdictOrder {
		if n := counts[v]; n > 0 {
			out = append(out, verdictCount{v, n})
		}
	}
	return out
}

// A lack is a reason for which runs are UNSUPPORTED.
type lack struct {
	Why  string
	Runs []*conformance.Result
}

// lacks groups the UNSUPPORTED runs by their reason, in the order in which reasons first come.
func lacks(rep *conformance.Report) []lack {
	var out []lack
	for i := range rep.Results {
		res := &rep.Results[i]
		if res.Verdict != conformance.Unsupported {
			continue
		}
		at := slices.IndexFunc(out, func(l lack) bool { return l.Why == res.Why })
		if at < 0 {
			at = len(out)
			out = append(out, lack{Why: res.Why})
		}
		out[at].Runs = append(out[at].Runs, res)
	}
	return out
}
