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

	"github.com/govs-rdma/govs/ci/bench/figures"
	"github.com/govs-rdma/govs/ci/bench/load"
)

// Report is the result of a run.
type Report struct {
	Conditions map[string]any
	Results    []Result
	Curve      figures.Curve // empty for one number of peers
}

// A Result is what peers of a kind did to the victim.
type Result struct {
	Case
	Idle   Times // beside as many idle connections
	Beside Times // beside the peers

	Ratio  Spread
	Middle Spread  // depends less on a quiet machine than Ratio
	Limit  float64 // of the median of Ratio; 0: none
	Within bool    // Ratio is, the machine was quiet, and the peers worked

	ServerCPU    float64 // seconds per second, beside the peers
	ServerWaited float64 // for a CPU, seconds per second
	ClientWaited float64
	Did          Counts  // in all rounds
	Seconds      float64 // of all rounds

	IdleRounds   []Sample
	BesideRounds []Sample
	Error        string
}

// Times are medians over the rounds, in microseconds.
type Times struct {
	P50        float64
	P99        float64
	P999       float64
	Max        float64
	RequestP99 float64
}

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

// Within reports whether all results are within their limits; one that could not be measured
// is not.
func (rep *Report) Within() bool {
	return !slices.ContainsFunc(rep.Results, func(r Result) bool { return !r.Within })
}

func (r *runner) report() *Report {
	rep := &Report{Conditions: r.conditions()}
	for _, poll := range r.Polls {
		for _, n := range r.Peers {
			for _, k := range r.Kinds {
				c := Case{k, n, poll}
				rep.Results = append(rep.Results, result(c, r.idle[c], r.beside[c]))
			}
		}
	}
	if len(r.Peers) > 1 {
		rep.Curve = curve(r.Polls[0], rep.Results)
	}
	return rep
}

// result sums up the rounds. One that failed does not count as a round, but then the result
// has an error and is not within its limit.
func result(c Case, idle, beside []Sample) Result {
	r := Result{Case: c, Limit: limit(c.Peers), IdleRounds: idle, BesideRounds: beside}
	var ratios, middles, cpu, server, client []float64
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
		middles = append(middles, float64(s.Pings.RTT.Median)/float64(max(before.Pings.RTT.Median, 1)))
		cpu = append(cpu, s.Server.share(s.Server.CPU))
		server = append(server, s.Server.share(s.Server.Waited))
		client = append(client, s.Client.share(s.Client.Waited))
		r.Did = r.Did.plus(s.Did)
		r.Seconds += s.Peers.Time.Seconds()
	}
	r.Idle, r.Beside = times(idle), times(beside)
	r.Ratio, r.Middle = spread(ratios), spread(middles)
	r.ServerCPU = spread(cpu).Median
	r.ServerWaited, r.ClientWaited = spread(server).Median, spread(client).Median
	r.Within = r.Error == "" && !r.disturbed() && r.worked() && r.Ratio.Rounds > 0 &&
		(r.Limit == 0 || r.Ratio.Median <= r.Limit)
	return r
}

// quiet is how many times p50 the p99 beside idle connections may be: nothing of the
// measurement delays a round trip then.
const quiet = 5

// disturbed reports whether something else ran on the machine, or on its host: then p99 is
// caused by that.
func (r *Result) disturbed() bool { return r.Idle.P99 > quiet*r.Idle.P50 }

// worked reports whether the peers did something in each round besides coming and being
// refused. If they got no CPU, the victim had no peers beside it.
func (r *Result) worked() bool {
	for _, s := range r.BesideRounds {
		if s.Did.Cut = 0; s.Error == "" && s.Did == (Counts{}) {
			return false
		}
	}
	return len(r.BesideRounds) > 0
}

// share returns d in seconds per second of u.
func (u Usage) share(d time.Duration) float64 { return d.Seconds() / max(u.Time.Seconds(), 1e-9) }

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
		P50:        of(func(p *Pings) time.Duration { return p.RTT.Median }),
		P99:        of(func(p *Pings) time.Duration { return p.RTT.P99 }),
		P999:       of(func(p *Pings) time.Duration { return p.RTT.P999 }),
		Max:        of(func(p *Pings) time.Duration { return p.RTT.Max }),
		RequestP99: of(func(p *Pings) time.Duration { return p.Request.P99 }),
	}
}

// conditions are all that the figures depend on.
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

// session says whether the script has other sessions give way.
func session() string {
	text, _ := os.ReadFile("/proc/self/autogroup")
	if strings.HasSuffix(strings.TrimSpace(string(text)), "nice -20") {
		return "with precedence over all others (autogroup nice -20)"
	}
	return "as the system schedules it"
}

// headings are those of rows.
func headings() []string {
	return []string{
		"KIND", "PEERS", "SERVER", "IDLE p50", "p99", "BESIDE p50", "p99", "99.9%", "max [us]",
		"REQUEST p99", "RATIO p50", "p99", "LIMIT", "", "CPU", "WAITED", "PEERS DID, A SECOND",
	}
}

// rows are the results for a table.
func (rep *Report) rows() [][]string {
	var rows [][]string
	for _, r := range rep.Results {
		row := []string{string(r.Kind), fmt.Sprint(r.Peers), string(r.Poll)}
		b := r.Beside
		for _, v := range []float64{
			r.Idle.P50, r.Idle.P99, b.P50, b.P99, b.P999, b.Max, b.RequestP99, r.Middle.Median,
		} {
			row = append(row, digits(v))
		}
		rows = append(rows, append(row,
			fmt.Sprintf("%s (%s-%s)", digits(r.Ratio.Median), digits(r.Ratio.Min), digits(r.Ratio.Max)),
			r.limit(), r.Standing(), fmt.Sprintf("%.0f%%", 100*r.ServerCPU),
			fmt.Sprintf("%.0f+%.0f%%", 100*r.ServerWaited, 100*r.ClientWaited), r.did()))
	}
	return rows
}

// Standing says in a word or two how a result stands to its limit.
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

// did says what the peers did in a second, all together.
func (r *Result) did() string {
	var parts []string
	add := func(n uint64, what string) {
		if n > 0 && r.Seconds > 0 {
			parts = append(parts, short(float64(n)/r.Seconds)+" "+what)
		}
	}
	d := r.Did
	add(d.TCP, "TCP connections")
	add(d.Connections, "with Reply")
	add(d.Reads, "Reads")
	add(d.Received, "octets taken")
	add(d.FPDUs, "FPDUs")
	add(d.Sent, "octets sent")
	add(d.TermSeen, "Terminates taken")
	add(d.TermSent, "Terminates sent")
	add(d.Cut, "connections cut short")
	return strings.Join(parts, ", ")
}

// Markdown writes results and conditions as tables.
func (rep *Report) Markdown(w io.Writer) error {
	var b strings.Builder
	b.WriteString("Round trips in microseconds, of one connection beside others. " +
		"RATIO divides those beside the peers by those beside as many idle connections. LIMIT is that of p99.\n\n")
	row := func(cells []string) {
		for i, c := range cells {
			cells[i] = strings.ReplaceAll(c, "|", "\\|")
		}
		fmt.Fprintf(&b, "| %s |\n", strings.Join(cells, " | "))
	}
	row(headings())
	b.WriteString("|---|--:|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|---|--:|--:|---|\n")
	for _, r := range rep.rows() {
		row(r)
	}
	b.WriteString("\nCPU is that of the server's process. WAITED is how long threads of the server, " +
		"and of the victim's client, were ready to run and had no CPU. If p99 beside idle connections " +
		"is more than 5 times p50, the machine was not quiet, and the result is not within its limit. " +
		"Nor is it if the peers did nothing.\n")
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

// curve is the ratio over the number of peers.
func curve(poll load.Poll, results []Result) figures.Curve {
	c := figures.Curve{
		ID: "victim", Title: fmt.Sprintf("One connection's p99 beside hostile peers, server: %s", poll),
		X: "peers", Y: "p99 / p99 beside as many idle connections",
	}
	series := make(map[Kind]*figures.Series)
	for _, r := range results {
		if r.Poll != poll || r.Ratio.Rounds == 0 {
			continue
		}
		s := series[r.Kind]
		if s == nil {
			s = &figures.Series{Name: string(r.Kind)}
			series[r.Kind] = s
		}
		s.Points = append(s.Points, figures.Point{
			X: float64(r.Peers), Median: r.Ratio.Median, Min: r.Ratio.Min, Max: r.Ratio.Max, Rounds: r.Ratio.Rounds,
		})
	}
	for _, k := range Kinds() {
		if s := series[k]; s != nil {
			c.Series = append(c.Series, *s)
		}
	}
	return c
}

// WriteSVGs draws the curve into a folder.
func (rep *Report) WriteSVGs(dir string) error {
	if len(rep.Curve.Series) == 0 {
		return nil
	}
	drawn := figures.Report{Curves: []figures.Curve{rep.Curve}}
	return drawn.WriteSVGs(dir)
}

// digits writes x with three significant digits.
func digits(x float64) string {
	if x == 0 {
		return "0"
	}
	decimals := 2 - int(math.Floor(math.Log10(math.Abs(x))))
	return fmt.Sprintf("%.*f", min(max(decimals, 0), 6), x)
}

// short writes x with a unit prefix, such as 4.2M.
func short(x float64) string {
	units := []string{"", "k", "M", "G"}
	i := 0
	for ; x >= 1000 && i+1 < len(units); i++ {
		x /= 1000
	}
	return fmt.Sprintf("%.3g%s", x, units[i])
}
