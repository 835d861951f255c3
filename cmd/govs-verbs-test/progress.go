package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/govs-rdma/govs/provider/conformance"
)

// progress prints the results: a line for each run, or a line for each area when all of its runs
// are done.
type progress struct {
	out   io.Writer
	each  bool // a line for each run
	total int
	areas map[string]*areaProgress
}

// areaProgress counts the results of an area so far.
type areaProgress struct {
	planned, done int
	millis        int64
	states        map[string]int // by Outcome.State
}

func newProgress(out io.Writer, cfg *conformance.Config, each bool) (*progress, error) {
	planned, err := cfg.Planned()
	if err != nil {
		return nil, err
	}
	p := &progress{out: out, each: each, areas: make(map[string]*areaProgress)}
	for area, n := range planned {
		p.areas[area] = &areaProgress{planned: n, states: make(map[string]int)}
		p.total += n
	}
	return p, nil
}

// ran implements conformance.Config.Progress.
func (p *progress) ran(done, total int, o *conformance.Outcome) {
	count := fmt.Sprintf("[%*d/%d]", len(fmt.Sprint(total)), done, total)
	if p.each {
		fmt.Fprintf(p.out, "%s %-9s %s  %s  %d ms\n",
			count, o.State(), o.Scenario, o.Pairing, o.DurationMillis)
		return
	}
	name := conformance.Area(o.Scenario)
	a := p.areas[name]
	a.done++
	a.millis += o.DurationMillis
	a.states[o.State()]++
	if a.done == a.planned {
		fmt.Fprintf(p.out, "%s %-10s %s, %.1f s\n", count, name, a.text(), float64(a.millis)/1000)
	}
}

// text returns the number of runs for each result.
func (a *areaProgress) text() string {
	var parts []string
	for _, state := range []string{"ok", "differs", "lacking", "setup"} {
		if n := a.states[state]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, state))
		}
	}
	return strings.Join(parts, ", ")
}
