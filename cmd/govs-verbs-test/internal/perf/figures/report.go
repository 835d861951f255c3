package figures

import (
	"fmt"
	"io"
	"maps"
	"math"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/govs-rdma/govs/cmd/govs-verbs-test/internal/perf/load"
	"github.com/govs-rdma/govs/ibverbs/rsocket"
	govs "github.com/govs-rdma/govs/provider/engine"
)

// A Report is the result of a run.
type Report struct {
	Figures map[string]Figure `json:"figures"` // all goals by id
	More    map[string]Figure `json:"more"`    // other ratios

	Goals        []Goal         `json:"goals"`
	Conditions   map[string]any `json:"conditions"` // of the whole run
	Curves       []Curve        `json:"curves"`
	Measurements []Measurement  `json:"measurements"`
}

// A Measurement is all samples of one thing that was measured.
type Measurement struct {
	Name       string         `json:"name"`
	Conditions map[string]any `json:"conditions"`
	Samples    []Sample       `json:"samples"`
}

const notAsked = "not asked for (--only)"

func (r *runner) report() *Report {
	rep := &Report{
		Figures: r.idleFigures(), More: make(map[string]Figure), Goals: Goals(),
		Conditions: r.general(), Curves: []Curve{}, Measurements: []Measurement{},
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
	for _, m := range chosen(r.Config) {
		if s := r.samples[m.Name]; len(s) > 0 {
			rep.Measurements = append(rep.Measurements, Measurement{m.Name, r.conditions(m), s})
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
	var fig Figure
	if f.to == "" {
		fig = alone(r.samples[f.of], f.value.of)
	} else {
		fig = ratio(r.samples[f.of], r.samples[f.to], f.value.of)
	}
	if fig.Missing != "" {
		return fig
	}
	fig.Conditions = r.general()
	fig.Conditions["of"] = r.conditionsOf(f.of, f.value.of)
	if f.to != "" {
		fig.Conditions["to"] = r.conditionsOf(f.to, f.value.of)
	}
	return fig
}

// allocs is allocations per operation: of each round, those of the workload with
// most.
func (r *runner) allocs() Figure {
	if !r.wants("allocs_per_op") {
		return Figure{Missing: notAsked}
	}
	most, worst := map[int]float64{}, map[string]float64{}
	var all []Sample
	for _, name := range allocating {
		for _, s := range r.samples[name] {
			all = append(all, s)
			if s.Error == "" {
				most[s.Round] = max(most[s.Round], math.Floor(s.Allocs))
				worst[name] = max(worst[name], s.Allocs)
			}
		}
	}
	var values []float64
	for _, v := range most {
		values = append(values, v)
	}
	f := orWhy(summarize(values), all)
	if f.Missing == "" {
		f.Conditions = r.general()
		f.Conditions["counted"] = "runtime.MemStats.Mallocs of either process, whatever allocated, over all operations of a run: whole ones per operation, as testing.AllocsPerRun counts"
		f.Conditions["most_before_rounding_down"] = worst
	}
	return f
}

// general are the conditions of the whole run.
func (r *runner) general() map[string]any {
	client, server := r.pair.client.who, r.pair.server.who
	c := map[string]any{
		"rounds": r.Rounds, "seconds_each": r.Time.Seconds(),
		"client_cpu": r.ClientCPU, "server_cpu": r.ServerCPU, "cpus": runtime.NumCPU(), "cpu_model": cpuModel(),
		"gomaxprocs": client.Procs,
		"kernel":     client.Kernel, "go": client.Go, "govs": client.Govs, "govs_server": server.Govs,
		"congestion_control": orSystem(r.Cong), "network": "loopback, in a network namespace of its own",
	}
	if !r.Separate {
		c["network"] = "this machine's own: " + r.NoSplit
	}
	if r.load != "" {
		c["load_average_before"] = r.load
	}
	if p, ok := r.paths[r.addr(engine)]; ok {
		c["mss"] = p.MSS
		c["congestion_control_of_other_programs"] = p.Cong
	}
	if r.Kernel != nil {
		c["siw_device"], c["siw_crc"] = r.Kernel.Name, r.Kernel.CRC
	}
	return c
}

func orSystem(cong string) string {
	if cong == "" {
		return "the system's"
	}
	return cong
}

// conditions are those of a measure.
func (r *runner) conditions(m measure) map[string]any {
	if m.Test != nil {
		c := map[string]any{
			"program": m.Test.Program, "version": r.version[m.Test.Program], "size": m.Test.Size, "iterations": m.Test.Iters,
			"poll": m.Test.Waits(), "congestion_control": r.paths[r.addr(engine)].Cong, "checksum": "none of the payload",
			"mean": m.Test.Means(), // instead of the median
		}
		if m.Test.Bridged() {
			c["crc"] = map[bool]string{true: "off", false: "on"}[m.Test.NoCRC]
			delete(c, "checksum")
		}
		return c
	}
	d := *m.Device
	s := m.Spec
	c := map[string]any{"provider": d.Provider, "op": string(s.Op), "size": s.Size, "poll": string(orSpin(s.Poll))}
	if p, ok := r.paths[r.addr(d)]; ok {
		c["mss"] = p.MSS
	}
	if d.Link != "" {
		l := links[linkOf(d)]
		c["mtu"], c["delay_each_way_us"] = l.mtu, l.delay.Microseconds()
	}
	if !d.overVerbs() {
		c["one_write_per_message"] = true
	}
	if d.Stream {
		c["stream"] = "rsocket"
		c["buffers"] = rsocket.DefaultReceiveBuffer
	}
	if d.Provider == "tcp" {
		return c
	}
	if err := s.Complete(); err == nil && d.overVerbs() {
		c["depth"], c["qps"], c["post_list"], c["sges"], c["mrs"] = s.TxDepth, s.QPs, s.PostList, s.SGEs, s.MRs
		if s.Inline > 0 {
			c["inline"] = s.Size <= s.Inline
		}
		if s.Op == load.ReadBW || s.Op == load.ReadLat {
			c["reads_outstanding"] = s.Outstanding
		}
	}
	if d.Provider == "engine" {
		c["crc"] = d.CRC
		if s.Poll == load.Block {
			c["looks_before_sleeping_us"] = busyWait(d).Microseconds()
		}
	} else if r.Kernel != nil {
		c["crc"] = map[bool]string{true: "on", false: "off"}[r.Kernel.CRC]
	}
	return c
}

// busyWait is how long a blocking end polls before it sleeps, if waits are short.
func busyWait(d Device) time.Duration {
	if d.Sleeps {
		return 0
	}
	return govs.DefaultBusyWait
}

func orSpin(p load.Poll) load.Poll {
	if p == "" {
		return load.Spin
	}
	return p
}

// conditionsOf are the conditions of the measure of a name, with its own median.
func (r *runner) conditionsOf(name string, v value) map[string]any {
	m, err := inPlan(r.Config, name)
	if err != nil {
		panic(err) // a formula names a measure that is not in the plan
	}
	c := r.conditions(m)
	c["measurement"] = name
	f := alone(r.samples[name], v)
	c["median"], c["min"], c["max"] = f.Median, f.Min, f.Max
	return c
}

// Adopt takes over from another run's report the figures that are missing here,
// with their conditions.
func (rep *Report) Adopt(other *Report) {
	for _, list := range []struct{ to, from map[string]Figure }{{rep.Figures, other.Figures}, {rep.More, other.More}} {
		for id, f := range list.from {
			if have, ok := list.to[id]; f.Missing == "" && (!ok || have.Missing != "") {
				list.to[id] = f
			}
		}
	}
	for _, m := range other.Measurements {
		if !slices.ContainsFunc(rep.Measurements, func(have Measurement) bool { return have.Name == m.Name }) {
			rep.Measurements = append(rep.Measurements, m)
		}
	}
}

// Markdown writes the figures and the conditions of the run as tables, without what was not asked
// for.
func (rep *Report) Markdown(w io.Writer) error {
	var b strings.Builder
	b.WriteString(rep.pathMarkdown())
	fmt.Fprint(&b, "A figure is the median of the rounds' ratios, of which min and max are shown. It has a\n"+
		"goal to reach, and a better one to aim for; the last column has the better one that the\n"+
		"median meets. Medians are those of the two measurements. Figures of the second table have\n"+
		"no goals: each divides a value of one measurement by that of another (`measurements` in\n"+
		"JSON describe both), or is that value where there is no other.\n\n")
	fmt.Fprintf(&b, "| id | figure | medians | ratio | min | max | rounds | reach | aim | meets |\n"+
		"|---|---|--:|--:|--:|--:|--:|--:|--:|---|\n")
	for _, g := range rep.Goals {
		f := rep.Figures[g.ID]
		if f.Missing == notAsked {
			continue
		}
		if f.Missing != "" {
			fmt.Fprintf(&b, "| `%s` | %s | | | | | | %s | %s | missing: %s |\n", g.ID, g.What,
				g.bound(g.Reach), g.bound(g.Aim), oneLine(f.Missing))
			continue
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s | %s | %d | %s | %s | %s |\n",
			g.ID, withUnit(g), medians(f, quantityOf(g.ID)), digits(f.Median),
			digits(f.Min), digits(f.Max), f.Rounds, g.bound(g.Reach), g.bound(g.Aim), g.Standing(f))
	}
	b.WriteString(rep.besideRows())
	if len(rep.Conditions) > 0 {
		fmt.Fprintf(&b, "\n| condition | |\n|---|---|\n")
		for _, key := range slices.Sorted(maps.Keys(rep.Conditions)) {
			fmt.Fprintf(&b, "| %s | %v |\n", strings.ReplaceAll(key, "_", " "), rep.Conditions[key])
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// besideRows are the table of the ratios without goals.
func (rep *Report) besideRows() string {
	var b strings.Builder
	for _, f := range hostFormulas {
		fig, ok := rep.More[f.id]
		if !ok {
			continue
		}
		what := "`" + f.of + "`"
		if f.to != "" {
			what += " / `" + f.to + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s, %s |", f.id, f.value.name, what)
		if fig.Missing != "" {
			fmt.Fprintf(&b, " | missing: %s | | | |\n", oneLine(fig.Missing))
			continue
		}
		fmt.Fprintf(&b, " %s | %s | %s | %s | %d |\n", medians(fig, f.value), digits(fig.Median), digits(fig.Min),
			digits(fig.Max), fig.Rounds)
	}
	if b.Len() == 0 {
		return ""
	}
	return "\n| beside | what | medians | ratio | min | max | rounds |\n|---|---|--:|--:|--:|--:|--:|\n" + b.String()
}

// medians are those of the measurements of a figure, which its conditions have, with their unit.
func medians(f Figure, q quantity) string {
	var list []string
	for _, key := range []string{"of", "to"} {
		c, _ := f.Conditions[key].(map[string]any)
		if m, ok := c["median"].(float64); ok {
			list = append(list, digits(m))
		}
	}
	if len(list) == 0 {
		return ""
	}
	return strings.Join(list, " / ") + " " + q.unit
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

// Rows are the figures for a table, under the headings id, median, min, max, rounds,
// reach, aim and standing; for a missing one the last has the reason. Those of the path come
// first, those beside the goals follow the others, and then come the plots. What was not asked for
// is left out.
func (rep *Report) Rows() [][]string {
	rows := rep.pathTexts()
	for _, g := range rep.Goals {
		f := rep.Figures[g.ID]
		if f.Missing == notAsked {
			continue
		}
		rows = append(rows, rowOf(g.ID, f, g.bound(g.Reach), g.bound(g.Aim), g.Standing(f)))
	}
	for _, f := range hostFormulas {
		if fig, ok := rep.More[f.id]; ok {
			rows = append(rows, rowOf(f.id, fig, "", "", "beside"))
		}
	}
	for _, c := range rep.Curves {
		rows = append(rows, []string{c.ID, "", "", "", "", "", "", "plot"})
	}
	return rows
}

func rowOf(id string, f Figure, reach, aim, standing string) []string {
	if f.Missing != "" {
		return []string{id, "", "", "", "", reach, aim, "missing: " + oneLine(f.Missing)}
	}
	return []string{id, digits(f.Median), digits(f.Min), digits(f.Max), fmt.Sprint(f.Rounds), reach, aim, standing}
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
