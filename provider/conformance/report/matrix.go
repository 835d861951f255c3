package report

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/govs-rdma/govs/provider/conformance"
)

// Matrix prints the report for a terminal: a row per scenario, a column per
// pairing, then whatever is not PASS, explained, and the sums.
func Matrix(w io.Writer, r *conformance.Report) error {
	for _, kind := range []string{"verbs", "raw"} {
		if err := table(w, r, kind); err != nil {
			return err
		}
	}
	for i := range r.Results {
		res := &r.Results[i]
		if res.Verdict == conformance.Pass || res.Verdict == conformance.XFail {
			continue
		}
		fmt.Fprintf(w, "%-11s %s  %s->%s\n            %s\n", res.Verdict, res.Scenario, res.Initiator, res.Responder, res.Why)
		if !res.Verdict.Good() {
			for _, line := range Details(res) {
				fmt.Fprintf(w, "            %s\n", line)
			}
		}
	}
	ledger(w, r)
	_, err := fmt.Fprintln(w, Summary(r))
	return err
}

// Summary is one line: the sums by verdict, and whether the suite passed.
func Summary(r *conformance.Report) string {
	var parts []string
	for _, v := range []conformance.Verdict{conformance.Pass, conformance.XFail, conformance.Unsupported, conformance.Fail, conformance.XPass, conformance.Setup} {
		if n := r.Counts[v]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, v))
		}
	}
	if len(parts) == 0 {
		parts = []string{"nothing was run"}
	}
	verdict := "the suite did not pass"
	if r.Passed {
		verdict = "the suite passed"
	}
	return strings.Join(parts, ", ") + ": " + verdict
}

func table(w io.Writer, r *conformance.Report, kind string) error {
	var columns, rows []string
	cells := make(map[[2]string]conformance.Verdict)
	for i := range r.Results {
		res := &r.Results[i]
		if res.Kind != kind {
			continue
		}
		pairing := res.Initiator + "->" + res.Responder
		if kind == "raw" {
			// The raw peer's role is the scenario's; who is tested is what counts.
			pairing = res.Responder
			if res.Responder == conformance.Raw {
				pairing = res.Initiator
			}
		}
		if !slices.Contains(columns, pairing) {
			columns = append(columns, pairing)
		}
		if !slices.Contains(rows, res.Scenario) {
			rows = append(rows, res.Scenario)
		}
		cells[[2]string{res.Scenario, pairing}] = res.Verdict
	}
	if len(rows) == 0 {
		return nil
	}
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(tw, "%s scenarios\t%s\n", kind, strings.Join(columns, "\t"))
	for _, row := range rows {
		fmt.Fprint(tw, row)
		for _, col := range columns {
			v, ok := cells[[2]string{row, col}]
			if !ok {
				v = "-"
			}
			fmt.Fprintf(tw, "\t%s", v)
		}
		fmt.Fprintln(tw)
	}
	fmt.Fprintln(tw)
	return tw.Flush()
}

// ledger prints each explanation that was used, once, with where.
func ledger(w io.Writer, r *conformance.Report) {
	var ids []string
	reasons := make(map[string]*conformance.Divergence)
	runs := make(map[string]int)
	for i := range r.Results {
		seen := make(map[string]bool)
		for k := range r.Results[i].Divergences {
			d := &r.Results[i].Divergences[k]
			if d.Ledger == "" || seen[d.Ledger] {
				continue
			}
			seen[d.Ledger] = true
			if reasons[d.Ledger] == nil {
				ids = append(ids, d.Ledger)
				reasons[d.Ledger] = d
			}
			runs[d.Ledger]++
		}
	}
	if len(ids) == 0 {
		return
	}
	fmt.Fprintln(w, "Known divergences that showed (XFAIL):")
	for _, id := range ids {
		d := reasons[id]
		fmt.Fprintf(w, "  %s, in %d runs: %s (%s)\n", id, runs[id], d.Reason, d.Evidence)
	}
	fmt.Fprintln(w)
}

// Details says what was wrong with a run, for whoever has to find out why: what
// did not hold, what differs, the last frames on the wire, and the command to
// run it again.
func Details(res *conformance.Result) []string {
	var out []string
	if len(res.Requirements) > 0 {
		out = append(out, "requirements: "+strings.Join(res.Requirements, " "))
	}
	for _, d := range res.Divergences {
		line := d.Key
		switch {
		case d.Against != "":
			line += fmt.Sprintf(": %s has %q, this %q", d.Against, d.Reference, d.Got)
		case d.Got != "":
			line += ": " + d.Got
		}
		if d.Ledger != "" {
			line += " [" + d.Ledger + "]"
		}
		out = append(out, line)
	}
	const lastFrames = 12
	if n := len(res.Ladder); n > 0 {
		from := max(0, n-lastFrames)
		out = append(out, fmt.Sprintf("the last %d of %d frames:", n-from, n))
		out = append(out, res.Ladder[from:]...)
	}
	return append(out, "again: "+res.Replay)
}
