package figures

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/govs-rdma/govs/ci/bench/chart"
	"github.com/govs-rdma/govs/ci/bench/load"
	"github.com/govs-rdma/govs/ci/bench/outside"
)

// curveID names the plot of bandwidth over message size.
const (
	curveID    = "bandwidth"
	curveTitle = "Bandwidth over message size, one connection, loopback, spinning"
)

// A curvePoint is the measurement of a point of the plot.
type curvePoint struct {
	series  string
	size    int
	measure measure
}

// Series is one line of the plot.
type Series struct {
	Name   string
	Points []chart.Point
}

var plotSizes = []int{64, 256, kib, 4 * kib, 16 * kib, 64 * kib, 256 * kib, mib, 4 * mib}

// depthFor keeps at most 16 MiB under way.
func depthFor(size int) int { return min(128, max(8, 16*mib/size)) }

// points are all points of the plot if it is requested.
func (c Config) points() (list []curvePoint) {
	if !c.wants(curveID) {
		return nil
	}
	for _, size := range plotSizes {
		add := func(series string, m measure) {
			m.Name, m.Rounds = fmt.Sprintf("%s/%s/%d", curveID, series, size), fewRounds
			list = append(list, curvePoint{series, size, m})
		}
		over := func(series string, d load.Device, spec load.Spec) {
			spec.Size, spec.Duration = size, c.Time
			add(series, measure{Device: &d, Spec: spec})
		}
		write := load.Spec{Op: load.WriteBW, TxDepth: depthFor(size)}
		over("engine RDMA Write, CRC on", engine, write)
		over("engine RDMA Write, CRC off", noCRC(engine), write)
		over("raw TCP in Go", load.Device{Provider: "tcp"}, load.Spec{Op: load.TCPBW})
		add("UCX put", c.program("", outside.UCXPutBW, size))
		add("UCX tag", c.program("", outside.UCXTagBW, size))
		add("libfabric (ping-pong)", c.program("", outside.FabricPing, size))
	}
	return list
}

// curve is the plot of the samples. It leaves out points without a value and series without points.
func curve(points []curvePoint, samples map[string][]Sample) (list []Series) {
	for _, p := range points {
		f := alone(samples[p.measure.Name], gbps.of)
		if f.Missing != "" {
			continue
		}
		i := slices.IndexFunc(list, func(s Series) bool { return s.Name == p.series })
		if i < 0 {
			list = append(list, Series{Name: p.series})
			i = len(list) - 1
		}
		list[i].Points = append(list[i].Points,
			chart.Point{X: float64(p.size), Y: f.Median, Low: f.Min, High: f.Max})
	}
	return list
}

// curve is the table of the medians.
func (rep *Report) curve(b *strings.Builder) {
	if len(rep.Curve) == 0 {
		return
	}
	fmt.Fprintf(b, "%s, GB/s:\n\n| bytes |", curveTitle)
	points := make(map[float64]map[string]float64)
	for _, s := range rep.Curve {
		fmt.Fprintf(b, " %s |", s.Name)
		for _, p := range s.Points {
			if points[p.X] == nil {
				points[p.X] = make(map[string]float64)
			}
			points[p.X][s.Name] = p.Y
		}
	}
	b.WriteString("\n|--:|" + strings.Repeat("--:|", len(rep.Curve)) + "\n")
	for _, x := range slices.Sorted(maps.Keys(points)) {
		fmt.Fprintf(b, "| %.0f |", x)
		for _, s := range rep.Curve {
			if y, ok := points[x][s.Name]; ok {
				fmt.Fprintf(b, " %s |", digits(y))
			} else {
				b.WriteString(" |")
			}
		}
		b.WriteString("\n")
	}
	b.WriteString("\n")
}

// WriteSVG draws the plot into a file named after it in dir, if it was measured.
func (rep *Report) WriteSVG(dir string) error {
	if len(rep.Curve) == 0 {
		return nil
	}
	p := &chart.Plot{Title: curveTitle, X: "bytes", Y: "GB/s", XBinary: true}
	for i, s := range rep.Curve {
		p.Lines = append(p.Lines, chart.Line{Name: s.Name, Style: i, Points: s.Points})
	}
	p.Notes = append(p.Notes, "bars: least and most of the rounds")
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(dir, curveID+".svg"))
	if err != nil {
		return err
	}
	if err := errors.Join(p.WriteSVG(f), f.Close()); err != nil {
		return fmt.Errorf("%s: %w", f.Name(), err)
	}
	return nil
}
