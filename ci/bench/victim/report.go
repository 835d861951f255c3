package victim

import (
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/govs-rdma/govs/ci/bench/load"
)

// Report is the result of a run.
type Report struct {
	Conditions map[string]any
	Polls      []load.Poll
	Results    []Result
}

// A Result is the effect of peers of a kind on the victim.
type Result struct {
	Case
	Idle   Times // beside as many idle connections
	Beside Times // beside the peers

	Ratio  Spread  // of the two p99
	Limit  float64 // of the median of Ratio; 0: none
	Within bool    // Ratio is within Limit, the machine was quiet, and the peers worked

	IdleRounds   []Sample
	BesideRounds []Sample
	Error        string
}

// Times are medians over the rounds, in microseconds.
type Times struct{ P50, P99 float64 }

// Spread is the spread of a value over the rounds.
type Spread struct {
	Median float64
	Min    float64
	Max    float64
	Rounds int
}

func spread(values []float64) Spread {
	if len(values) == 0 {
		return Spread{}
	}
	v := slices.Sorted(slices.Values(values))
	middle := v[len(v)/2]
	if len(v)%2 == 0 {
		middle = (v[len(v)/2-1] + middle) / 2
	}
	return Spread{middle, v[0], v[len(v)-1], len(v)}
}

// Within reports whether all results are within their limits. A result that could not be measured
// is not.
func (rep *Report) Within() bool {
	return !slices.ContainsFunc(rep.Results, func(r Result) bool { return !r.Within })
}

func (r *runner) report() *Report {
	rep := &Report{Polls: r.Polls, Conditions: r.conditions()}
	for _, poll := range r.Polls {
		for _, n := range r.Peers {
			for _, k := range r.Kinds {
				c := Case{k, n, poll}
				rep.Results = append(rep.Results, result(c, r.idle[c], r.beside[c]))
			}
		}
	}
	return rep
}

// result sums up the rounds. A failed round does not count, but then the result has an error and
// is not within its limit.
func result(c Case, idle, beside []Sample) Result {
	r := Result{Case: c, Limit: limit(c.Peers), IdleRounds: idle, BesideRounds: beside}
	var ratios []float64
	for i := range min(len(idle), len(beside)) {
		before, s := idle[i], beside[i]
		for _, err := range []string{before.Error, s.Error} {
			if err != "" && r.Error == "" {
				r.Error = fmt.Sprintf("round %d: %s", i+1, err)
			}
		}
		if before.Pings == nil || s.Pings == nil {
			continue
		}
		ratios = append(ratios, float64(s.Pings.RTT.P99)/float64(max(before.Pings.RTT.P99, 1)))
	}
	r.Idle, r.Beside = times(idle), times(beside)
	r.Ratio = spread(ratios)
	r.Within = r.Error == "" && !r.disturbed() && r.worked() && r.Ratio.Rounds > 0 &&
		(r.Limit == 0 || r.Ratio.Median <= r.Limit)
	return r
}

// quiet limits the ratio of p99 to p50 beside idle connections, where nothing of the measurement
// delays a round trip.
const quiet = 5

// disturbed reports whether something else ran on the machine or its host, which then caused the
// p99.
func (r *Result) disturbed() bool { return r.Idle.P99 > quiet*r.Idle.P50 }

// worked reports whether the peers did something in each round besides connecting and being
// refused. Peers that get no CPU do not disturb the victim.
func (r *Result) worked() bool {
	for _, s := range r.BesideRounds {
		if s.Did.Cut = 0; s.Error == "" && s.Did == (Counts{}) {
			return false
		}
	}
	return len(r.BesideRounds) > 0
}

func times(samples []Sample) Times {
	of := func(v func(*Pings) time.Duration) float64 {
		var list []float64
		for _, s := range samples {
			if s.Pings != nil {
				list = append(list, float64(v(s.Pings))/1e3)
			}
		}
		return spread(list).Median
	}
	return Times{
		P50: of(func(p *Pings) time.Duration { return p.RTT.Median }),
		P99: of(func(p *Pings) time.Duration { return p.RTT.P99 }),
	}
}

// conditions returns everything that the figures depend on.
func (r *runner) conditions() map[string]any {
	client := "it blocks, and sleeps at once"
	if !r.shared() {
		client = "as the server's end does"
	}
	c := map[string]any{
		"rounds": r.Rounds, "seconds each": r.Time.Seconds(), "request every, us": r.Every.Microseconds(),
		"server CPU": r.ServerCPU, "client CPU": r.ClientCPU, "peers' CPU": r.HostileCPU, "GOMAXPROCS": 1,
		"CRC": "on", "congestion control": cong, "network": "this machine's loopback",
		"message, bytes": echoSize, "Read, bytes": readSize, "IRD": maxDepth,
		"client waits": client, "peers' policy": r.policy,
		"idle CPUs": awake(), "session": session(),
	}
	maps.Copy(c, r.machine)
	return c
}

// awake says whether the script keeps idle CPUs awake.
func awake() string {
	var most [4]byte // microseconds until a CPU wakes
	if f, err := os.Open("/dev/cpu_dma_latency"); err == nil {
		_, err = f.Read(most[:])
		if _ = f.Close(); err == nil && most == [4]byte{} {
			return "kept awake"
		}
	}
	return "may sleep"
}

// session says whether the script makes other sessions yield.
func session() string {
	text, _ := os.ReadFile("/proc/self/autogroup")
	if strings.HasSuffix(strings.TrimSpace(string(text)), "nice -20") {
		return "with precedence over all others (autogroup nice -20)"
	}
	return "as the system schedules it"
}

// headings are those of rows.
func (rep *Report) headings() []string {
	cells := []string{"kind", "peers"}
	for _, p := range rep.Polls {
		cells = append(cells, string(p)+": p50 idle", "p50", "p99", "ratio of p99")
	}
	return append(cells, "limit")
}

// rows has a row for each kind and number of peers.
func (rep *Report) rows() [][]string {
	var rows [][]string
	for _, first := range rep.Results {
		if first.Poll != rep.Polls[0] {
			continue
		}
		row := []string{string(first.Kind), fmt.Sprint(first.Peers)}
		for _, r := range rep.Results {
			if r.Kind == first.Kind && r.Peers == first.Peers {
				row = append(row, digits(r.Idle.P50), digits(r.Beside.P50), digits(r.Beside.P99),
					r.ratio())
			}
		}
		rows = append(rows, append(row, first.limit()))
	}
	return rows
}

// ratio returns the ratio with its range, and, if it is not within its limit, the reason.
func (r *Result) ratio() string {
	text := fmt.Sprintf("%s (%s-%s)", digits(r.Ratio.Median), digits(r.Ratio.Min), digits(r.Ratio.Max))
	if s := r.Standing(); s != "within" && s != "no limit" {
		text += " " + s
	}
	return text
}

// Standing says in a word or two how a result compares with its limit.
func (r *Result) Standing() string {
	switch {
	case r.Error != "":
		return "failed: " + strings.Join(strings.Fields(r.Error), " ")
	case r.disturbed():
		return "not quiet"
	case !r.worked():
		return "peers idle"
	case r.Limit == 0:
		return "no limit"
	case r.Within:
		return "within"
	}
	return "beyond"
}

func (r *Result) limit() string {
	if r.Limit == 0 {
		return "-"
	}
	return fmt.Sprintf("<=%g", r.Limit)
}

// Markdown writes results and conditions as tables.
func (rep *Report) Markdown(w io.Writer) error {
	var b strings.Builder
	b.WriteString("Round trips in microseconds of one connection, whose server blocks or spins,\n" +
		"beside hostile peers. The ratio divides p99 beside them by p99 beside as many\n" +
		"idle connections: the median of the rounds, with the smallest and largest.\n\n")
	row := func(cells []string) {
		for i, c := range cells {
			cells[i] = strings.ReplaceAll(c, "|", "\\|")
		}
		fmt.Fprintf(&b, "| %s |\n", strings.Join(cells, " | "))
	}
	row(rep.headings())
	fmt.Fprintf(&b, "|---|--:|%s---|\n", strings.Repeat("--:|--:|--:|--:|", len(rep.Polls)))
	for _, r := range rep.rows() {
		row(r)
	}
	b.WriteString("\n| kind | |\n|---|---|\n")
	for _, m := range meaning {
		row([]string{string(m.kind), m.what})
	}
	b.WriteString("\n| condition | |\n|---|---|\n")
	for _, key := range slices.Sorted(maps.Keys(rep.Conditions)) {
		row([]string{key, fmt.Sprint(rep.Conditions[key])})
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// digits writes x with three significant digits.
func digits(x float64) string {
	if x == 0 {
		return "0"
	}
	decimals := 2 - int(math.Floor(math.Log10(math.Abs(x))))
	return fmt.Sprintf("%.*f", min(max(decimals, 0), 6), x)
}
