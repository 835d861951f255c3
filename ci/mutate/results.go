package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
)

// verdict says who noticed a fault, or why nobody could.
type verdict string

const (
	bySuite    verdict = "suite"
	byTests    verdict = "tests"
	byNobody   verdict = "nobody"
	notReached verdict = "not reached" // neither the suite nor the tests run the line
	noCompile  verdict = "no compile"
)

// counts reports whether the fault was tried.
func (v verdict) counts() bool { return v == bySuite || v == byTests || v == byNobody }

// result is what became of a fault.
type result struct {
	by   verdict
	what string // the scenario or test that failed first
}

// line is a line of the file of results.
func (r result) line(name string) string { return fmt.Sprintf("%s\t%s\t%s", r.by, name, r.what) }

// results are those of faults by their names.
type results map[string]result

// readResults returns the results that a file has, or none if there is no file.
func readResults(file string) (results, error) {
	known := results{}
	text, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for line := range bytes.Lines(text) {
		cells := strings.Split(strings.TrimSuffix(string(line), "\n"), "\t")
		if len(cells) != 6 {
			return nil, fmt.Errorf("%s: not a line of results: %q", file, line)
		}
		known[strings.Join(cells[1:5], "\t")] = result{verdict(cells[0]), cells[5]}
	}
	return known, nil
}

// print prints who noticed the faults of each package, and then those that nobody noticed.
func (rs results) print(w io.Writer) {
	rows := map[string]map[verdict]int{"all": {}}
	var survivors []string
	for name, r := range rs {
		file, _, _ := strings.Cut(name, ":")
		row := path.Dir(file)
		if rows[row] == nil {
			rows[row] = map[verdict]int{}
		}
		rows[row][r.by]++
		rows["all"][r.by]++
		if r.by == byNobody {
			survivors = append(survivors, strings.ReplaceAll(name, "\t", "  "))
		}
	}
	fmt.Fprintln(w, "| package | faults | noticed by the suite | by suite or tests | not reached |")
	fmt.Fprintln(w, "|---|--:|--:|--:|--:|")
	for _, row := range slices.Sorted(maps.Keys(rows)) {
		n := rows[row]
		tried := n[bySuite] + n[byTests] + n[byNobody]
		fmt.Fprintf(w, "| %s | %d | %s | %s | %d |\n", row, tried, share(n[bySuite], tried),
			share(n[bySuite]+n[byTests], tried), n[notReached])
	}
	slices.Sort(survivors)
	fmt.Fprintf(w, "\nNobody noticed %d faults:\n", len(survivors))
	for _, s := range survivors {
		fmt.Fprintln(w, s)
	}
}

// share returns n, and its percentage of all.
func share(n, all int) string {
	if all == 0 {
		return "0"
	}
	return fmt.Sprintf("%d (%d %%)", n, 100*n/all)
}
