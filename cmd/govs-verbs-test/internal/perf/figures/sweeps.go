package figures

import (
	"fmt"
	"math"
	"slices"

	"github.com/govs-rdma/govs/cmd/govs-verbs-test/internal/perf/load"
	"github.com/govs-rdma/govs/cmd/govs-verbs-test/internal/perf/outside"
	"github.com/govs-rdma/govs/cmd/govs-verbs-test/internal/perf/rawtcp"
)

// A sweep is a plot of a value over one that is varied.
type sweep struct {
	id, title, x, y string
	points          []sweepPoint
	growth          bool // the plot is about how y grows with x
	value           func(x float64, s Sample) float64
}

type sweepPoint struct {
	series  string
	x       float64
	measure measure
}

// A Curve is the result of a sweep.
type Curve struct {
	ID     string   `json:"id"`
	Title  string   `json:"title"`
	X      string   `json:"x"`
	Y      string   `json:"y"`
	Series []Series `json:"series"`
}

// Series is one line of a plot.
type Series struct {
	Name   string  `json:"name"`
	Points []Point `json:"points"`
	Growth *Growth `json:"growth,omitempty"`
}

// A Point is the median over the rounds.
type Point struct {
	X      float64 `json:"x"`
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
	Rounds int     `json:"rounds"`
}

// Growth says how y grows with x: as x to the power of the slope.
type Growth struct {
	Slope    float64 `json:"slope"`    // of the line through all points in a plot with logarithmic axes (least squares)
	Steepest float64 `json:"steepest"` // slope between two points of which one is at least 4 times as far out, the largest of them
	Linear   bool    `json:"linear_or_better"`
}

// Growth counts as linear up to the slope linear of all points, if it is not steeper than
// linearPart between any two of them. The parts above 1 are differences between repeated
// measurements, which are larger for two points.
const (
	linear     = 1.1
	linearPart = 1.3
)

// growthOf fits y = c * x^slope. It needs at least three points.
func growthOf(points []Point) *Growth {
	if len(points) < 3 {
		return nil
	}
	var n, sx, sy, sxx, sxy float64
	steepest := math.Inf(-1)
	for i, p := range points {
		x, y := math.Log(p.X), math.Log(p.Median)
		n, sx, sy, sxx, sxy = n+1, sx+x, sy+y, sxx+x*x, sxy+x*y
		for _, q := range points[i+1:] {
			if q.X >= 4*p.X {
				steepest = max(steepest, (math.Log(q.Median)-y)/(math.Log(q.X)-x))
			}
		}
	}
	g := &Growth{Slope: (n*sxy - sx*sy) / (n*sxx - sx*sx), Steepest: steepest}
	if math.IsInf(steepest, 0) {
		g.Steepest = g.Slope
	}
	g.Linear = g.Slope <= linear && g.Steepest <= linearPart
	return g
}

// sweeps are all plots that come from measures.
func sweeps(c Config) []sweep {
	return []sweep{
		bandwidths(c), latencies(c),
		c.growth("growth-size", "RDMA Write: time per message over its size", "octets", "us per Write",
			[]int{64, 256, kib, 4 * kib, 16 * kib, 64 * kib, 256 * kib, mib, 4 * mib}, timePerOp,
			func(n int) load.Spec {
				return load.Spec{Op: load.WriteBW, Size: n, TxDepth: depthFor(n)}
			}),
		c.growth("growth-qps", "4 KiB RDMA Writes: time for one on each QP", "QPs", "us for one Write on each",
			[]int{1, 4, 16, 64, 250, 1000, 4000}, timePerRound,
			func(n int) load.Spec {
				return load.Spec{Op: load.WriteBW, Size: 4 * kib, TxDepth: 8, QPs: n}
			}),
		c.growth("growth-reads", "4 KiB RDMA Reads: time for as many as are outstanding", "Reads outstanding", "us for so many Reads",
			[]int{1, 2, 4, 8, 16, 32, 64, 128}, timePerRound,
			func(n int) load.Spec {
				return load.Spec{Op: load.ReadBW, Size: 4 * kib, TxDepth: n, PostList: 1, Outstanding: n}
			}),
		c.growth("growth-sges", "4 KiB RDMA Write: time over its scatter/gather entries", "entries", "us per Write",
			[]int{1, 2, 4, 8, 16}, timePerOp,
			func(n int) load.Spec {
				return load.Spec{Op: load.WriteBW, Size: 4 * kib, TxDepth: 64, SGEs: n}
			}),
		c.growth("growth-mrs", "4 KiB RDMA Writes: time per message over the regions that they go through", "regions at each end", "us per Write",
			[]int{1, 16, 256, 4096, 16384}, timePerOp,
			func(n int) load.Spec {
				return load.Spec{Op: load.WriteBW, Size: 4 * kib, TxDepth: 64, MRs: n}
			}),
	}
}

func timePerOp(_ float64, s Sample) float64    { return s.Secs / float64(s.Ops) * 1e6 }
func timePerRound(x float64, s Sample) float64 { return x * timePerOp(x, s) }

// depthFor keeps 16 MiB under way at most.
func depthFor(size int) int { return min(128, max(8, 16*mib/size)) }

// growth is a sweep over the engine as it is by default.
func (c Config) growth(id, title, x, y string, xs []int, v func(float64, Sample) float64, spec func(int) load.Spec) sweep {
	s := sweep{id: id, title: title, x: x, y: y, growth: true, value: v}
	for _, n := range xs {
		sp := spec(n)
		sp.Duration = c.Time
		d := engine
		s.points = append(s.points, sweepPoint{"engine, CRC on", float64(n), measure{
			Name: fmt.Sprintf("%s/%d", id, n), Device: &d, Spec: sp,
		}})
	}
	return s
}

var plotSizes = []int{64, 256, kib, 4 * kib, 16 * kib, 64 * kib, 256 * kib, mib, 4 * mib}

// bandwidths and latencies are the plots that readers look for first.
func bandwidths(c Config) sweep {
	s := sweep{
		id: "bandwidth", title: "Bandwidth over message size, one connection, loopback, spinning", x: "octets", y: "GB/s",
		value: func(_ float64, s Sample) float64 { return s.GBps },
	}
	for _, size := range plotSizes {
		s.add("engine RDMA Write, CRC on", size, c.over(engine, load.Spec{Op: load.WriteBW, Size: size, TxDepth: depthFor(size)}))
		s.add("engine RDMA Write, CRC off", size, c.over(engine.noCRC(), load.Spec{Op: load.WriteBW, Size: size, TxDepth: depthFor(size)}))
		s.add("raw TCP in Go", size, c.over(Device{Provider: "tcp"}, load.Spec{Op: rawtcp.BW, Size: size}))
		s.add("UCX put", size, c.program("", outside.UCXPutBW, size))
		s.add("UCX tag", size, c.program("", outside.UCXTagBW, size))
		s.add("libfabric (ping-pong)", size, c.program("", outside.FabricPing, size))
	}
	return s
}

func latencies(c Config) sweep {
	s := sweep{
		id: "latency", title: "Round trip over message size, loopback, spinning", x: "octets", y: "us",
		value: func(_ float64, s Sample) float64 { return s.RTT },
	}
	for _, size := range plotSizes {
		if size > mib {
			break
		}
		s.add("engine Send, CRC on", size, c.over(engine, load.Spec{Op: load.SendLat, Size: size}))
		s.add("engine Send, CRC off", size, c.over(engine.noCRC(), load.Spec{Op: load.SendLat, Size: size}))
		s.add("raw TCP in Go", size, c.over(Device{Provider: "tcp"}, load.Spec{Op: rawtcp.Lat, Size: size}))
		s.add("UCX tag", size, c.program("", outside.UCXTagLat, size))
		s.add("libfabric", size, c.program("", outside.FabricPing, size))
	}
	return s
}

func (c Config) over(d Device, spec load.Spec) measure {
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
		f := alone(samples[p.measure.Name], func(sm Sample) float64 { return s.value(p.x, sm) })
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
	if s.growth {
		for i := range c.Series {
			c.Series[i].Growth = growthOf(c.Series[i].Points)
		}
	}
	return c
}
