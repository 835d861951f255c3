package main

import (
	"bytes"
	"fmt"
	"strings"
)

// coverage says which parts of files have run, by file below the project's folder.
type coverage map[string][]block

type block struct {
	from, end place
	ran       bool
}

// parseCoverage reads a profile of the go command, whose files have the module's path before them.
func parseCoverage(profile []byte, module string) (coverage, error) {
	c := coverage{}
	for line := range bytes.Lines(profile) {
		file, rest, ok := strings.Cut(strings.TrimPrefix(string(line), module+"/"), ":")
		if !ok || file == "mode" {
			continue
		}
		var n [6]int // first and last position, statements, how often they ran
		if _, err := fmt.Sscanf(rest, "%d.%d,%d.%d %d %d",
			&n[0], &n[1], &n[2], &n[3], &n[4], &n[5]); err != nil {
			return nil, fmt.Errorf("a line of the coverage, %q: %w", line, err)
		}
		c[file] = append(c[file], block{placeOf(n[0], n[1]), placeOf(n[2], n[3]), n[5] > 0})
	}
	return c, nil
}

// reaches reports whether a fault has run. What is in no block, such as the expression of a case,
// has run if its function has; a declaration outside of functions always has.
func (c coverage) reaches(f *fault) bool {
	inFunction, found := false, false
	for _, b := range c[f.file] {
		if b.from <= f.probe && f.probe < b.end {
			found = true
			if b.ran {
				return true
			}
		}
		inFunction = inFunction || b.ran && b.from.line() >= f.fn[0] && b.end.line() <= f.fn[1]
	}
	return !found && (inFunction || f.fn[0] == 0)
}
