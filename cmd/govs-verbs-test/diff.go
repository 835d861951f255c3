package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/govs-rdma/govs/provider/conformance/wire"
)

type diffCmd struct {
	A    string   `arg:"" help:"The capture file that the other is compared with."`
	B    string   `arg:"" help:"The other capture file."`
	Port []uint16 `help:"Only connections to or from this TCP port: one for both files, or one for each. Default: all." placeholder:"PORT[,PORT]"`
	All  bool     `help:"Also print messages that are the same."`
	JSON bool     `name:"json" help:"Print JSON."`
}

// Help implements kong's HelpProvider.
func (*diffCmd) Help() string {
	return `What may differ between two runs of the same program is not compared: addresses, ports and ` +
		`times, where segments and packets were cut, ` +
		`and the values of STags and tagged offsets, of which only the relations are compared. Payload is compared by its CRC32.

Messages that differ, and those that only one of the files has, are printed with their ` +
		`lines of both captures, "-" for the first and "+" for the second ` +
		`(` + name + ` decode --help explains these), and each field that differs: its value ` +
		`in the first, and in the second.

The exit status is 0 if the captures are the same, 1 if they differ, and 2 if one can't be ` +
		`read or has no iWARP in it.`
}

// Validate implements kong's check.
func (c *diffCmd) Validate() error {
	if len(c.Port) > 2 {
		return fmt.Errorf("--port: %d ports for two files: give one for both, or one for each", len(c.Port))
	}
	return nil
}

// diffRow is a message of the first capture and the corresponding one of the second.
type diffRow struct {
	A      []string    `json:"a,omitempty"` // lines of the ladder, without times
	B      []string    `json:"b,omitempty"`
	Fields []diffField `json:"fields,omitempty"` // empty if the messages are equal
}

type diffField struct {
	Key string `json:"key"` // as in profiles after "wire:"
	A   string `json:"a"`
	B   string `json:"b"`
}

// diffed is the output of diff --json.
type diffed struct {
	Same     bool      `json:"same"`
	Messages int       `json:"messages"` // compared
	Rows     []diffRow `json:"rows"`     // with differences, or all with --all
}

// Run compares the captures. It fails if they differ.
func (c *diffCmd) Run(out *output) error {
	var traces [2]*wire.Trace
	for i, file := range []string{c.A, c.B} {
		trace, err := wire.ReadFile(file, c.port(i))
		if err != nil {
			return unable(err)
		}
		if traces[i] = trace.IWARP(); len(traces[i].Conns) == 0 {
			return unable(fmt.Errorf("%s: no iWARP to compare: none of %d TCP connections "+
				"begins with an MPA Request", file, len(trace.Conns)))
		}
		for _, note := range trace.Notes {
			fmt.Fprintf(out.errors, "note: %s: %s\n", file, note)
		}
	}
	d := compareTraces(traces[0], traces[1], c.All)
	if c.JSON {
		if err := out.json(d); err != nil {
			return err
		}
	} else {
		d.print(out)
	}
	if !d.Same {
		return errFailed
	}
	return nil
}

// port returns the port to compare in a file, or 0 for all.
func (c *diffCmd) port(file int) uint16 {
	switch len(c.Port) {
	case 0:
		return 0
	case 1:
		return c.Port[0]
	}
	return c.Port[file]
}

// compareTraces returns rows for the differences between two captures, or for everything.
func compareTraces(a, b *wire.Trace, all bool) *diffed {
	aligned := wire.Align(a, b)
	d := &diffed{Same: true, Messages: len(aligned)}
	for _, r := range aligned {
		d.Same = d.Same && len(r.Differences) == 0
	}
	d.Rows = diffRows(aligned, [2][]string{withoutTimes(a.Ladder()), withoutTimes(b.Ladder())}, all)
	return d
}

// diffRows returns the rows with differences, or all rows, with their lines of the two ladders.
func diffRows(aligned []wire.Row, ladders [2][]string, all bool) []diffRow {
	rows := []diffRow{}
	for _, r := range aligned {
		if len(r.Differences) == 0 && !all {
			continue
		}
		row := diffRow{A: pick(ladders[0], r.Reference), B: pick(ladders[1], r.Got)}
		for _, f := range r.Differences {
			row.Fields = append(row.Fields, diffField{f.Key, f.Reference, f.Got})
		}
		rows = append(rows, row)
	}
	return rows
}

// withoutTimes removes the column of times, because times always differ.
func withoutTimes(ladder []string) []string {
	out := slices.Clone(ladder)
	for i, line := range out {
		if at := max(strings.Index(line, " --> "), strings.Index(line, " <-- ")); at >= 0 {
			out[i] = line[at+1:]
		}
	}
	return out
}

func pick(lines []string, which []int) []string {
	out := make([]string, 0, len(which))
	for _, i := range which {
		out = append(out, lines[i])
	}
	return out
}

// print prints rows for people.
func (d *diffed) print(out *output) {
	differ := 0
	for i := range d.Rows {
		d.Rows[i].print(out)
		if len(d.Rows[i].Fields) > 0 {
			differ++
		}
	}
	what := fmt.Sprintf("%d of %d messages differ", differ, d.Messages)
	if d.Same {
		what = fmt.Sprintf("the same: %d messages", d.Messages)
	}
	fmt.Fprintln(out, what)
}

func (r *diffRow) print(out *output) {
	if len(r.Fields) == 0 {
		printLines(out, "  ", r.B)
		return
	}
	printLines(out, "- ", r.A)
	printLines(out, "+ ", r.B)
	for _, f := range r.Fields {
		fmt.Fprintf(out, "      %s: %s | %s\n", f.Key, orNone(f.A), orNone(f.B))
	}
}

// printLines prints the lines of a message: all of a short one, and only the first and the last of
// one with many segments.
func printLines(out *output, mark string, lines []string) {
	const most = 6
	if n := len(lines); n > most {
		fmt.Fprintf(out, "%s%s\n%s... %d more segments\n%s%s\n", mark, lines[0], mark, n-2, mark,
			lines[n-1])
		return
	}
	for _, line := range lines {
		fmt.Fprintf(out, "%s%s\n", mark, line)
	}
}

func orNone(s string) string {
	if s == "" {
		return "(nothing)"
	}
	return s
}
