package report

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/govs-rdma/govs/provider/conformance"
)

// Matrix prints the report for a terminal: a row per scenario, a column per
// pairing, then whatever is not PASS, explained, and the sums.
func Matrix(w io.Writer, r *conformance.Report) error {
	for _, kind := range []string{"verbs", "raw"} {
		if m := newMatrix(r, kind); len(m.Rows) > 0 {
			if err := table(w, m); err != nil {
				return err
			}
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
	for _, v := range verdictOrder {
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

func table(w io.Writer, m matrix) error {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(tw, "%s scenarios\t%s\n", m.Kind, strings.Join(m.Columns, "\t"))
	for _, row := range m.Rows {
		fmt.Fprint(tw, row.Scenario)
		for _, res := range row.Cells {
			v := conformance.Verdict("-")
			if res != nil {
				v = res.Verdict
			}
			fmt.Fprintf(tw, "\t%s", v)
		}
		fmt.Fprintln(tw)
	}
	fmt.Fprintln(tw)
	return tw.Flush()
}

// ledger prints each explanation that was used, once, with how often.
func ledger(w io.Writer, r *conformance.Report) {
	uses := ledgerUses(r)
	if len(uses) == 0 {
		return
	}
	fmt.Fprintln(w, "Known divergences that showed (XFAIL):")
	for _, u := range uses {
		runs := "1 run"
		if n := len(u.Runs); n > 1 {
			runs = fmt.Sprintf("%d runs", n)
		}
		fmt.Fprintf(w, "  %s, in %s: %s (%s)\n", u.ID, runs, u.Reason, u.Evidence)
	}
	fmt.Fprintln(w)
}

// Details says what was wrong with a run, for the reader who looks for the cause: which
// checks did not hold, what differs, the last frames on the wire, and the command to run
// it again.
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
