package figures

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/govs-rdma/govs/cmd/govs-verbs-test/internal/perf/chart"
)

// Plot is the curve to be drawn.
func (c Curve) Plot() *chart.Plot {
	p := &chart.Plot{Title: c.Title, X: c.X, Y: c.Y, XBinary: c.X == "octets" || !decimal(c)}
	for i, s := range c.Series {
		l := chart.Line{Name: s.Name, Style: style(s.Name, i)}
		for _, pt := range s.Points {
			l.Points = append(l.Points, chart.Point{X: pt.X, Y: pt.Median, Low: pt.Min, High: pt.Max})
		}
		p.Lines = append(p.Lines, l)
	}
	p.Notes = append(p.Notes, "bars: least and most of the rounds")
	return p
}

// stacks are those that plots compare, by what their lines' names begin with, in
// the order of their styles, so that each looks alike in all plots.
var stacks = []string{"engine RDMA Write, CRC on", "engine RDMA Write, CRC off", "raw TCP", "UCX put", "UCX tag", "libfabric"}

func style(name string, otherwise int) int {
	name = strings.Replace(name, "engine Send", "engine RDMA Write", 1)
	for i, s := range stacks {
		if strings.HasPrefix(name, s) {
			return i
		}
	}
	return otherwise
}

// decimal reports whether the values of X are not powers of 2.
func decimal(c Curve) bool {
	for _, s := range c.Series {
		for _, p := range s.Points {
			if n := int(p.X); n&(n-1) != 0 {
				return true
			}
		}
	}
	return false
}

// WriteSVGs draws each curve into a file of its id in dir.
func (rep *Report) WriteSVGs(dir string) error {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	for _, c := range rep.Curves {
		f, err := os.Create(filepath.Join(dir, c.ID+".svg"))
		if err != nil {
			return err
		}
		if err := errors.Join(c.Plot().WriteSVG(f), f.Close()); err != nil {
			return fmt.Errorf("%s: %w", f.Name(), err)
		}
	}
	return nil
}
