package figures

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/govs-rdma/govs/ci/bench/chart"
)

// Plot is the curve to be drawn.
func (c Curve) Plot() *chart.Plot {
	p := &chart.Plot{Title: c.Title, X: c.X, Y: c.Y, XBinary: c.X == "bytes"}
	for i, s := range c.Series {
		l := chart.Line{Name: s.Name, Style: i}
		for _, pt := range s.Points {
			l.Points = append(l.Points, chart.Point{X: pt.X, Y: pt.Median, Low: pt.Min, High: pt.Max})
		}
		p.Lines = append(p.Lines, l)
	}
	p.Notes = append(p.Notes, "bars: least and most of the rounds")
	return p
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
