package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"text/tabwriter"

	"golang.org/x/sys/unix"

	"github.com/govs-rdma/govs/provider/conformance"
)

// output is where commands print: results to the output itself, and messages about them to errors.
// If writing fails, it stops the command, because nobody reads its output any more, and remembers
// the error. So a full disk does not count as success, and commands need not check. Goroutines may
// print concurrently.
type output struct {
	stdout io.Writer
	errors io.Writer
	stop   func()
	mu     sync.Mutex
	err    error // the first failed write to stdout; guarded by mu while there are goroutines
}

// Write implements io.Writer.
func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	n, err := o.stdout.Write(b)
	if err != nil && o.err == nil {
		o.err = err
		o.stop()
	}
	return n, err
}

// terminal reports whether the output is a terminal.
func (o *output) terminal() bool {
	f, ok := o.stdout.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// json prints v as JSON.
func (o *output) json(v any) error {
	enc := json.NewEncoder(o)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// table prints rows under headings, in columns.
func (o *output) table(headings []string, rows [][]string) error {
	tw := tabwriter.NewWriter(o, 0, 0, 2, ' ', 0)
	for _, row := range append([][]string{headings}, rows...) {
		fmt.Fprintln(tw, strings.TrimRight(strings.Join(row, "\t"), "\t"))
	}
	return tw.Flush()
}

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
