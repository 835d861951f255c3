package figures

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/govs-rdma/govs/ci/bench/load"
	"github.com/govs-rdma/govs/ci/bench/outside"
)

// A sweep is a plot of a value over one that is varied.
type sweep struct {
	id, title, x, y string
	points          []sweepPoint
	value           value
}

type sweepPoint struct {
	series  string
	x       float64
	measure measure
}

// A Curve is the result of a sweep.
type Curve struct {
	ID     string
	Title  string
	X      string
	Y      string
	Series []Series
}

// Series is one line of a plot.
type Series struct {
	Name   string
	Points []Point
}

// A Point is the median over the rounds.
type Point struct {
	X      float64
	Median float64
	Min    float64
	Max    float64
	Rounds int
}

// rows are the medians as a table.
func (c Curve) rows(b *strings.Builder) {
	fmt.Fprintf(b, "\n%s, %s:\n\n| %s |", c.Title, c.Y, c.X)
	points := make(map[float64]map[string]float64)
	for _, s := range c.Series {
		fmt.Fprintf(b, " %s |", s.Name)
		for _, p := range s.Points {
			if points[p.X] == nil {
				points[p.X] = make(map[string]float64)
			}
			points[p.X][s.Name] = p.Median
		}
	}
	b.WriteString("\n|--:|" + strings.Repeat("--:|", len(c.Series)) + "\n")
	for _, x := range slices.Sorted(maps.Keys(points)) {
		fmt.Fprintf(b, "| %.0f |", x)
		for _, s := range c.Series {
			if y, ok := points[x][s.Name]; ok {
				fmt.Fprintf(b, " %s |", digits(y))
			} else {
				b.WriteString(" |")
			}
		}
		b.WriteString("\n")
	}
}

// sweeps are all plots.
func sweeps(c Config) []sweep { return []sweep{bandwidths(c), latencies(c)} }

// depthFor keeps 16 MiB under way at most.
func depthFor(size int) int { return min(128, max(8, 16*mib/size)) }

var plotSizes = []int{64, 256, kib, 4 * kib, 16 * kib, 64 * kib, 256 * kib, mib, 4 * mib}

// bandwidths and latencies are the plots that readers look for first.
func bandwidths(c Config) sweep {
	s := sweep{
		id: "bandwidth", title: "Bandwidth over message size, one connection, loopback, spinning", x: "bytes", y: "GB/s",
		value: gbps.of,
	}
	for _, size := range plotSizes {
		write := load.Spec{Op: load.WriteBW, Size: size, TxDepth: depthFor(size)}
		s.add("engine RDMA Write, CRC on", size, c.over(engine, write))
		s.add("engine RDMA Write, CRC off", size, c.over(noCRC(engine), write))
		s.add("raw TCP in Go", size, c.over(load.Device{Provider: "tcp"}, load.Spec{Op: load.TCPBW, Size: size}))
		s.add("UCX put", size, c.program("", outside.UCXPutBW, size))
		s.add("UCX tag", size, c.program("", outside.UCXTagBW, size))
		s.add("libfabric (ping-pong)", size, c.program("", outside.FabricPing, size))
	}
	return s
}

func latencies(c Config) sweep {
	s := sweep{
		id: "latency", title: "Round trip over message size, loopback, spinning", x: "bytes", y: "us",
		value: rtt.of,
	}
	for _, size := range plotSizes {
		if size > mib {
			break
		}
		s.add("engine Send, CRC on", size, c.over(engine, load.Spec{Op: load.SendLat, Size: size}))
		s.add("engine Send, CRC off", size, c.over(noCRC(engine), load.Spec{Op: load.SendLat, Size: size}))
		s.add("raw TCP in Go", size, c.over(load.Device{Provider: "tcp"}, load.Spec{Op: load.TCPLat, Size: size}))
		s.add("UCX tag", size, c.program("", outside.UCXTagLat, size))
		s.add("libfabric", size, c.program("", outside.FabricPing, size))
	}
	return s
}

func (c Config) over(d load.Device, spec load.Spec) measure {
	spec.Duration = c.Time
	return measure{Device: &d, Spec: spec}
}

func (s *sweep) add(series string, size int, m measure) {
	m.Name = fmt.Sprintf("%s/%s/%d", s.id, series, size)
	s.points = append(s.points, sweepPoint{series, float64(size), m})
}

// curve is the curve of a sweep's samples. Points without a value are not in it, and
// neither are series without points.
func (s sweep) curve(samples map[string][]Sample) Curve {
	c := Curve{ID: s.id, Title: s.title, X: s.x, Y: s.y}
	for _, p := range s.points {
		f := alone(samples[p.measure.Name], s.value)
		if f.Missing != "" {
			continue
		}
		i := slices.IndexFunc(c.Series, func(sr Series) bool { return sr.Name == p.series })
		if i < 0 {
			c.Series = append(c.Series, Series{Name: p.series})
			i = len(c.Series) - 1
		}
		c.Series[i].Points = append(c.Series[i].Points, Point{p.x, f.Median, f.Min, f.Max, f.Rounds})
	}
	return c
}
