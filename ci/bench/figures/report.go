package figures

import (
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
)

// A Report is the result of a run.
type Report struct {
	Lines      []Line
	Curve      []Series       // bandwidth over the size of messages
	Heading    string         // of the lines outside the path
	Notes      []string       // about lines that no measurement makes
	Conditions map[string]any // of the whole run
}

// A Line is a row of the tables with its figures.
type Line struct {
	row
	Value, CPU Figure
}

func (r *runner) report() *Report {
	rep := &Report{
		Heading: "The loopback", Curve: curve(r.points(), r.samples), Conditions: r.conditions(),
	}
	if r.Kernel != nil {
		rep.Heading = "siw as it is, without CRC"
		if r.Kernel.CRC {
			rep.Heading = "siw that requires CRC"
		}
	}
	for _, w := range r.rows() {
		rep.Lines = append(rep.Lines, r.line(w))
		if w.id == idleID {
			rep.Notes = append(rep.Notes, r.idleNote())
		}
	}
	return rep
}

func (r *runner) line(w row) Line {
	switch w.id {
	case idleID:
		return Line{row: w, Value: r.idleFigure()}
	case allocsID:
		return Line{row: w, Value: r.allocs()}
	}
	return Line{w, r.figure(w, w.value), r.figure(w, w.value.cpu())}
}

func (r *runner) figure(w row, q quantity) Figure {
	of := alone(r.samples[w.of], q.of)
	if w.to == "" {
		return of
	}
	fig := ratio(r.samples[w.of], r.samples[w.to], q.of)
	fig.Of, fig.To = of.Median, alone(r.samples[w.to], q.of).Median
	return fig
}

// allocs returns allocations per operation: in each round, the value of the workload with most.
func (r *runner) allocs() Figure {
	most := map[int]float64{}
	var all []Sample
	for _, name := range allocating {
		for _, s := range r.samples[name] {
			all = append(all, s)
			if s.Error == "" {
				most[s.Round] = max(most[s.Round], math.Floor(s.Allocs))
			}
		}
	}
	return orWhy(summarize(slices.Collect(maps.Values(most))), all)
}

// conditions are the conditions of the whole run, with the versions of other programs.
func (r *runner) conditions() map[string]any {
	who := r.pair.who
	c := map[string]any{
		"rounds": r.Rounds, "seconds each": r.Time.Seconds(), "GOMAXPROCS": who.Procs,
		"kernel": who.Kernel, "congestion control": Cong,
	}
	maps.Copy(c, Machine())
	if slices.ContainsFunc(r.rows(), func(w row) bool { return w.link == "" }) {
		c["MSS"], c["network"] = r.mss, "this machine's own"
		if r.Separate {
			c["network"] = "loopback, in a network namespace of its own"
		}
	}
	for pkg, version := range r.versions {
		c[pkg] = version
	}
	return c
}

// Markdown writes the figures and the conditions of the run as tables.
func (rep *Report) Markdown(w io.Writer) error {
	var b strings.Builder
	rep.path(&b)
	rep.rest(&b)
	rep.curve(&b)
	for _, note := range rep.Notes {
		fmt.Fprintf(&b, "%s\n\n", note)
	}
	b.WriteString("| condition | |\n|---|---|\n")
	for _, key := range slices.Sorted(maps.Keys(rep.Conditions)) {
		fmt.Fprintf(&b, "| %s | %v |\n", key, rep.Conditions[key])
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// rest writes the table of the lines outside the path.
func (rep *Report) rest(b *strings.Builder) {
	var rows strings.Builder
	for _, l := range rep.Lines {
		if l.link == "" {
			fmt.Fprintf(&rows, "| %s | %s |\n", l.what, l.cells())
		}
	}
	if rows.Len() > 0 {
		b.WriteString("## " + rep.Heading + "\n\n" +
			"| | medians | ratio | range | goal | CPU time | ratio | goal |\n" +
			"|---|--:|--:|--:|---|--:|--:|---|\n" + rows.String() + "\n")
	}
}

// cells are the cells of a line after its name. Another project's program does not print its CPU
// time, so that is missing.
func (l Line) cells() string {
	if l.Value.Missing != "" {
		return fmt.Sprintf("missing: %s | | | | | |", oneLine(l.Value.Missing))
	}
	v, cpu := l.Value, l.CPU
	cells := []string{
		v.medians(l.value), v.ratio(), digits(v.Min) + " to " + digits(v.Max),
		l.value.goal(l.goal, v.Median), "", "", "",
	}
	if cpu.Rounds > 0 {
		q := l.value.cpu()
		cells[4], cells[5], cells[6] = cpu.medians(q), cpu.ratio(), q.goal(l.cpuGoal, cpu.Median)
	}
	return strings.Join(cells, " | ")
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
