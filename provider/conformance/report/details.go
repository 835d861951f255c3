package report

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/govs-rdma/govs/provider/conformance"
)

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
