package report

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"unicode"

	"github.com/govs-rdma/govs/provider/conformance"
)

// Matrix prints the report for a terminal: a row per scenario, a column per pairing, then what is
// not PASS, explained, and the sums.
func Matrix(w io.Writer, r *conformance.Report) error {
	for _, kind := range []string{"verbs", "raw"} {
		if m := newMatrix(r, kind); len(m.Rows) > 0 {
			if err := table(w, m); err != nil {
				return err
			}
		}
	}
	return explained(w, r)
}

// Areas prints the report for a log, as Matrix does, but with a row per area.
func Areas(w io.Writer, r *conformance.Report) error {
	sums := counted(r.Counts)
	if len(sums) > 0 {
		tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		fmt.Fprint(tw, "area\truns")
		for _, s := range sums {
			fmt.Fprintf(tw, "\t%s", s.Verdict)
		}
		fmt.Fprintln(tw)
		for _, a := range areas(r) {
			fmt.Fprintf(tw, "%s\t%d", a.Name, a.Runs)
			for _, s := range sums {
				n := "-"
				for _, c := range a.Counted {
					if c.Verdict == s.Verdict {
						n = fmt.Sprint(c.N)
					}
				}
				fmt.Fprintf(tw, "\t%s", n)
			}
			fmt.Fprintln(tw)
		}
		fmt.Fprintln(tw)
		if err := tw.Flush(); err != nil {
			return err
		}
	}
	return explained(w, r)
}

// explained prints what lets the suite fail, what was not tried, which entries of the profiles
// showed, and the sums.
func explained(w io.Writer, r *conformance.Report) error {
	w = shown{w}
	for _, bad := range wrongRuns(r) {
		fmt.Fprintf(w, "%-11s %s  %s\n            %s\n",
			bad.Verdict, bad.Scenario, bad.Pairing(), bad.Why)
		for _, line := range Details(r, bad.Result) {
			fmt.Fprintf(w, "            %s\n", line)
		}
		fmt.Fprintln(w)
	}
	lacking(w, r)
	known(w, r)
	unshown(w, r)
	_, err := fmt.Fprintln(w, Summary(r))
	return err
}

// Summary returns one line: the sums by verdict, and whether the suite passed.
func Summary(r *conformance.Report) string {
	var parts []string
	for _, c := range counted(r.Counts) {
		parts = append(parts, fmt.Sprintf("%d %s", c.N, c.Verdict))
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

// lacking prints why runs were not tried, each reason once.
func lacking(w io.Writer, r *conformance.Report) {
	list := lacks(r)
	if len(list) == 0 {
		return
	}
	fmt.Fprintln(w, "Not tried (UNSUPPORTED):")
	for _, l := range list {
		var slugs []string
		for _, res := range l.Runs {
			if !slices.Contains(slugs, res.Scenario) {
				slugs = append(slugs, res.Scenario)
			}
		}
		const most = 4
		if n := len(slugs); n > most {
			slugs = append(slugs[:most], fmt.Sprintf("%d more scenarios", n-most))
		}
		fmt.Fprintf(w, "  %s, in %s: %s\n", l.Why, runs(len(l.Runs)), strings.Join(slugs, ", "))
	}
	fmt.Fprintln(w)
}

func runs(n int) string {
	if n == 1 {
		return "1 run"
	}
	return fmt.Sprintf("%d runs", n)
}

// known prints each explanation that was used, once, with how often.
func known(w io.Writer, r *conformance.Report) {
	uses := entryUses(r)
	if len(uses) == 0 {
		return
	}
	fmt.Fprintln(w, "Known divergences that showed (XFAIL):")
	for _, u := range uses {
		fmt.Fprintf(w, "  %s, in %s: %s (%s)\n", u.ID, runs(len(u.Runs)), u.Reason, u.Evidence)
	}
	fmt.Fprintln(w)
}

// unshown prints the entries of the profiles whose checks or observations no run has made, because
// they may be misspelled. Only the JSON has the entries that depend on timing, and the entries of
// what ran and did not differ.
func unshown(w io.Writer, r *conformance.Report) {
	heading := "Entries of a profile with a key that no run has, misspelled or stale:\n"
	for _, u := range r.Unshown {
		if !u.Unknown || u.Sometimes {
			continue
		}
		fmt.Fprintf(w, "%s  %s, in %s: %s\n", heading, u.Entry, u.Scenario, u.Key)
		heading = ""
	}
	if heading == "" {
		fmt.Fprintln(w)
	}
}

// lastFrames is how many lines of the ladder Details has.
const lastFrames = 12

// Details says what was wrong with a run, for a reader who looks for the cause. It lists what the
// scenario and its requirements ask for, what was expected and what was found, and the last frames
// on the wire. It ends with the seed and the command that repeats the run.
func Details(rep *conformance.Report, res *conformance.Result) []string {
	out := []string{"scenario: " + res.Title}
	for _, c := range requirementsOf(rep, res) {
		out = append(out, "requirement: "+requirementText(c))
	}
	for _, d := range res.Divergences {
		out = append(out, differenceText(&d)...)
	}
	if n := len(res.Ladder); n > 0 {
		from := max(0, n-lastFrames)
		out = append(out, fmt.Sprintf("the last %d of %d frames, the initiator on the left:", n-from, n))
		out = append(out, res.Ladder[from:]...)
	}
	return append(out, fmt.Sprintf("seed: %d", rep.Seed), "again: "+res.Replay)
}

// requirementText is a requirement on one line.
func requirementText(c *conformance.Coverage) string {
	if c.Text == "" {
		return c.ID + ", which is not in the catalogue"
	}
	return fmt.Sprintf("%s, %s (%s section %s): %s", c.ID, c.Level, c.Document, c.Section, c.Text)
}

// differenceText says what was expected and what was found.
func differenceText(d *conformance.Divergence) []string {
	var out []string
	known := ""
	if d.Entry != "" {
		known = " [" + d.Entry + "]"
	}
	expected, actual := d.Reference, cmp.Or(d.Got, "it is not so")
	if d.Against != "" {
		out = append(out, d.Key+known+", compared with "+d.Against+":")
		expected, actual, known = cmp.Or(d.Reference, "nothing"), cmp.Or(d.Got, "nothing"), ""
	} else if !strings.HasPrefix(d.Key, "check:") {
		out = append(out, d.Key+":")
	}
	return append(out, "expected: "+expected+known, "actual:   "+actual)
}

// shown replaces the control characters that a terminal acts on, because a report, and the log that
// shows it, have texts of stacks and of other hosts.
type shown struct{ w io.Writer }

// Write implements io.Writer. Each call has to have whole characters.
func (p shown) Write(b []byte) (int, error) {
	text := string(b)
	if strings.ContainsFunc(text, acted) {
		var out strings.Builder
		for _, r := range text {
			if acted(r) {
				fmt.Fprintf(&out, `\x%02x`, r)
			} else {
				out.WriteRune(r)
			}
		}
		text = out.String()
	}
	if _, err := io.WriteString(p.w, text); err != nil {
		return 0, err
	}
	return len(b), nil
}

// acted reports whether a terminal acts on a character that no line of a report needs.
func acted(r rune) bool { return unicode.IsControl(r) && r != '\n' && r != '\t' }
