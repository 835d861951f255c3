package figures

import (
	"fmt"
	"io"
	"maps"
	"math"
	"runtime"
	"slices"
	"strings"

	"github.com/govs-rdma/govs/ci/bench/load"
	govs "github.com/govs-rdma/govs/provider/engine"
)

// A Report is the result of a run.
type Report struct {
	Figures map[string]Figure // all goals by id
	More    map[string]Figure // other ratios

	Goals      []Goal
	Conditions map[string]any // of the whole run
	Notes      []string       // what figures are of, where no measurement says so
	Curves     []Curve
	Measured   []Measured // but for the path's, and for points of curves
}

// Measured is what came of one measure.
type Measured struct {
	Name, What string
	Unit       string
	Value, CPU Figure // in Unit; CPU time as the ratios have it
}

const notAsked = "not asked for (--only)"

func (r *runner) report() *Report {
	rep := &Report{
		Figures: r.idleFigures(), More: make(map[string]Figure), Goals: Goals(),
		Conditions: r.general(), Notes: r.notes(),
	}
	for _, f := range formulas {
		fig := r.figure(f)
		if isGoal(f.id) {
			rep.Figures[f.id] = fig
		} else if fig.Missing != notAsked {
			rep.More[f.id] = fig
		}
	}
	rep.Figures["allocs_per_op"] = r.allocs()
	for _, s := range sweeps(r.Config) {
		if c := s.curve(r.samples); len(c.Series) > 0 {
			rep.Curves = append(rep.Curves, c)
		}
	}
	for _, m := range hostMeasures(r.Config) {
		if s := r.samples[m.Name]; len(s) > 0 {
			value, cpu := gbps, cpuPerGiB
			if alone(s, rtt.of).Missing == "" {
				value, cpu = rtt, cpuPerOp
			}
			rep.Measured = append(rep.Measured,
				Measured{m.Name, r.describe(m), value.unit, alone(s, value.of), alone(s, cpu.of)})
		}
	}
	return rep
}

func isGoal(id string) bool {
	return slices.ContainsFunc(goals, func(g Goal) bool { return g.ID == id })
}

func (r *runner) figure(f formula) Figure {
	if !r.wants(f.id) {
		return Figure{Missing: notAsked}
	}
	if why := r.lacks(f.needs); why != "" {
		return Figure{Missing: why}
	}
	if f.to == "" {
		return alone(r.samples[f.of], f.value.of)
	}
	fig := ratio(r.samples[f.of], r.samples[f.to], f.value.of)
	fig.Of, fig.To = alone(r.samples[f.of], f.value.of).Median, alone(r.samples[f.to], f.value.of).Median
	return fig
}

// allocs is allocations per operation: of each round, those of the workload with
// most.
func (r *runner) allocs() Figure {
	if !r.wants("allocs_per_op") {
		return Figure{Missing: notAsked}
	}
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

// notes say what figures of no measurement, or of several, are.
func (r *runner) notes() []string {
	var notes []string
	if r.wants("allocs_per_op") {
		notes = append(notes, "`allocs_per_op` is runtime.MemStats.Mallocs of either process, whatever "+
			"allocated, over all operations of a run: whole ones per operation, as testing.AllocsPerRun counts.")
	}
	if r.wantsIdle() && r.idling.memory != nil {
		notes = append(notes, r.idleNote())
	}
	return notes
}

// general are the conditions of the whole run.
func (r *runner) general() map[string]any {
	who := r.pair.who
	c := map[string]any{
		"rounds": r.Rounds, "seconds each": r.Time.Seconds(),
		"client CPU": r.ClientCPU, "server CPU": r.ServerCPU, "CPUs": runtime.NumCPU(), "CPU model": cpuModel(),
		"GOMAXPROCS": who.Procs, "kernel": who.Kernel, "Go": who.Go, "govs": who.Govs,
		"congestion control": Cong, "network": "loopback, in a network namespace of its own",
	}
	if !r.Separate {
		c["network"] = "this machine's own"
	}
	if r.load != "" {
		c["load average before"] = r.load
	}
	if p, ok := r.paths[r.addr(engine)]; ok {
		c["MSS"] = p.MSS
		c["congestion control of other programs"] = p.Cong
	}
	if r.Kernel != nil {
		c["siw device"], c["siw CRC"] = r.Kernel.Name, onOff(r.Kernel.CRC)
	}
	return c
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

// describe says what a measure depends on.
func (r *runner) describe(m measure) string {
	var parts []string
	add := func(format string, args ...any) { parts = append(parts, fmt.Sprintf(format, args...)) }
	if t := m.Test; t != nil {
		add("%s %s", t.Program, r.version[t.Program])
		add("%d messages of %d bytes", t.Iters, t.Size)
		if t.Bridged() {
			add("CRC %s", onOff(!t.NoCRC))
		}
		if t.Means() {
			add("the mean")
		}
		add("%s", t.Waits())
		return strings.Join(parts, ", ")
	}
	d, s := *m.Device, m.Spec
	if done, ok := r.specs[m.Name]; ok { // with what its ends have added
		s = done
	}
	switch {
	case d.Stream:
		add("%s over rsockets", s.Op)
	case d.Provider == "kernel":
		add("%s over siw", s.Op)
	default:
		add("%s", s.Op)
	}
	add("%d bytes", s.Size)
	if s.QPs > 1 {
		add("%d connections", s.QPs)
	}
	if s.TxDepth > 1 && d.Provider != "tcp" && !d.Stream {
		add("%d outstanding in lists of %d", s.TxDepth, s.PostList)
	}
	if s.Op == load.ReadBW {
		add("%d Reads", s.Outstanding)
	}
	if s.Inline > 0 {
		add("inline")
	}
	switch {
	case d.Provider == "engine":
		add("CRC %s", d.CRC)
	case d.Provider == "kernel" && r.Kernel != nil:
		add("CRC %s", onOff(r.Kernel.CRC))
	}
	switch {
	case s.Poll == load.Block && d.Sleeps:
		add("block, and sleep at once")
	case s.Poll == load.Block && d.Provider == "engine":
		add("block after %v", govs.DefaultBusyWait)
	default:
		add("%s", s.Poll)
	}
	if p, ok := r.paths[r.addr(d)]; ok && d.Segments {
		add("MSS %d", p.MSS)
	}
	return strings.Join(parts, ", ")
}

// Markdown writes the figures and the conditions of the run as tables, without what was not asked
// for.
func (rep *Report) Markdown(w io.Writer) error {
	var b strings.Builder
	b.WriteString(rep.pathMarkdown())
	rep.goalRows(&b)
	rep.besideRows(&b)
	for _, c := range rep.Curves {
		c.rows(&b)
	}
	rep.measuredRows(&b)
	for _, note := range rep.Notes {
		fmt.Fprintf(&b, "\n%s\n", note)
	}
	if len(rep.Conditions) > 0 {
		fmt.Fprintf(&b, "\n| condition | |\n|---|---|\n")
		for _, key := range slices.Sorted(maps.Keys(rep.Conditions)) {
			fmt.Fprintf(&b, "| %s | %v |\n", key, rep.Conditions[key])
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// goalRows are the table of the goals.
func (rep *Report) goalRows(b *strings.Builder) {
	var rows strings.Builder
	for _, g := range rep.Goals {
		f := rep.Figures[g.ID]
		switch {
		case f.Missing == notAsked:
		case f.Missing != "":
			fmt.Fprintf(&rows, "| `%s` | %s | | | | | | %s | %s | missing: %s |\n", g.ID, g.What,
				g.bound(g.Reach), g.bound(g.Aim), oneLine(f.Missing))
		default:
			fmt.Fprintf(&rows, "| `%s` | %s | %s | %s | %s | %s | %d | %s | %s | %s |\n",
				g.ID, withUnit(g), medians(f, quantityOf(g.ID)), digits(f.Median),
				digits(f.Min), digits(f.Max), f.Rounds, g.bound(g.Reach), g.bound(g.Aim), g.Standing(f))
		}
	}
	if rows.Len() > 0 {
		b.WriteString("A figure is the median of the rounds' ratios, of which min and max are shown. It has a\n" +
			"goal to reach, and a better one to aim for; the last column has the better one that the\n" +
			"median meets. Medians are those of the two measurements, which a table below describes.\n\n" +
			"| id | figure | medians | ratio | min | max | rounds | reach | aim | meets |\n" +
			"|---|---|--:|--:|--:|--:|--:|--:|--:|---|\n" + rows.String())
	}
}

// besideRows are the table of the ratios without goals.
func (rep *Report) besideRows(b *strings.Builder) {
	var rows strings.Builder
	for _, f := range hostFormulas {
		fig, ok := rep.More[f.id]
		if !ok {
			continue
		}
		what := "`" + f.of + "`"
		if f.to != "" {
			what += " / `" + f.to + "`"
		}
		fmt.Fprintf(&rows, "| `%s` | %s, %s |", f.id, f.value.name, what)
		if fig.Missing != "" {
			fmt.Fprintf(&rows, " | missing: %s | | | |\n", oneLine(fig.Missing))
			continue
		}
		fmt.Fprintf(&rows, " %s | %s | %s | %s | %d |\n", medians(fig, f.value), digits(fig.Median),
			digits(fig.Min), digits(fig.Max), fig.Rounds)
	}
	if rows.Len() > 0 {
		b.WriteString("\nThese have no goals. Each divides a value of one measurement by that of another, or is the\n" +
			"value where there is no other.\n\n| beside | what | medians | ratio | min | max | rounds |\n" +
			"|---|---|--:|--:|--:|--:|--:|\n" + rows.String())
	}
}

// measuredRows are the table of what was measured.
func (rep *Report) measuredRows(b *strings.Builder) {
	if len(rep.Measured) == 0 {
		return
	}
	b.WriteString("\nCPU time is that of both ends: s per GiB, or us per round trip where the unit is us.\n\n" +
		"| measurement | what | median | min | max | CPU time |\n|---|---|--:|--:|--:|--:|\n")
	for _, m := range rep.Measured {
		if m.Value.Missing != "" {
			fmt.Fprintf(b, "| `%s` | %s | missing: %s | | | |\n", m.Name, m.What, oneLine(m.Value.Missing))
			continue
		}
		cpu := ""
		if m.CPU.Missing == "" {
			cpu = digits(m.CPU.Median)
		}
		fmt.Fprintf(b, "| `%s` | %s | %s %s | %s | %s | %s |\n", m.Name, m.What, digits(m.Value.Median),
			m.Unit, digits(m.Value.Min), digits(m.Value.Max), cpu)
	}
}

// medians are those of the measurements of a figure, with their unit.
func medians(f Figure, q quantity) string {
	if f.To == 0 { // the value itself, which besideRows has as the ratio
		return q.unit
	}
	return digits(f.Of) + " / " + digits(f.To) + " " + q.unit
}

// quantityOf is what a figure compares, if a formula makes it.
func quantityOf(id string) (q quantity) {
	for _, f := range formulas {
		if f.id == id {
			q = f.value
		}
	}
	return q
}

// bound is one of the goals with its sign: what the median has to be at least, or at most.
func (g Goal) bound(v float64) string {
	if g.Lower {
		return fmt.Sprintf("<=%g", v)
	}
	return fmt.Sprintf(">=%g", v)
}

func withUnit(g Goal) string {
	if g.Unit == "" {
		return g.What
	}
	return g.What + ", " + g.Unit
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// digits shows three of a number.
func digits(x float64) string {
	if x == 0 {
		return "0"
	}
	decimals := 2 - int(math.Floor(math.Log10(math.Abs(x))))
	return fmt.Sprintf("%.*f", min(max(decimals, 0), 6), x)
}
