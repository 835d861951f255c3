// Package figures measures the goals for govs' speed: ratios to raw TCP and to the other
// stacks, taken side by side, and how cost grows.
//
// Nothing is compared across runs. All measurements of a figure are made in each
// of several rounds, one directly after the other, by two processes that are there
// for the whole run, each pinned to a CPU. A figure is the median over the rounds
// of what each round gives.
package figures

import (
	"fmt"
	"math"
	"slices"
)

// A Figure is the result for one Goal.
type Figure struct {
	Median, Min, Max float64
	Of, To           float64 // of a ratio: the medians of what is divided, and by what
	Rounds           int     // that gave a value
	Missing          string  // why there is none; then nothing else is set
}

// summarize is the figure of the values of rounds, without conditions.
func summarize(values []float64) Figure {
	if len(values) == 0 {
		return Figure{Missing: "no round gave a value"}
	}
	v := slices.Sorted(slices.Values(values))
	return Figure{Median: median(v), Min: v[0], Max: v[len(v)-1], Rounds: len(v)}
}

// median is that of sorted values.
func median(sorted []float64) float64 {
	n := len(sorted)
	if n%2 == 1 {
		return sorted[n/2]
	}
	return (sorted[n/2-1] + sorted[n/2]) / 2
}

// A Goal has the values that a figure has to reach.
type Goal struct {
	ID    string
	What  string
	Unit  string // none for a ratio
	Lower bool   // is better
	Reach float64
	Aim   float64
}

// Goals are all figures, in the order of reports.
func Goals() []Goal { return slices.Clone(goals) }

var goals = []Goal{
	{ID: "write_1m_crc", What: "1 MiB RDMA Write, spinning / raw Go TCP spinning, 1 MiB writes", Reach: 0.82, Aim: 0.88},
	{ID: "write_1m_cpu_per_gib", Lower: true, Reach: 1.25, Aim: 1.12,
		What: "CPU time of both ends per GiB, 1 MiB RDMA Write, spinning / raw Go TCP spinning, 1 MiB writes"},
	{ID: "write_1m_nocrc", Reach: 0.90, Aim: 0.97,
		What: "1 MiB RDMA Write with CRC off, spinning / raw Go TCP spinning, 1 MiB writes"},
	{ID: "read_1m_crc", What: "1 MiB RDMA Read / raw Go TCP spinning, 1 MiB writes", Reach: 0.78, Aim: 0.85},
	{ID: "send_1m_crc", What: "1 MiB Send / raw Go TCP spinning, 1 MiB writes", Reach: 0.78, Aim: 0.85},
	{ID: "write_64k_vs_ucx_put", What: "64 KiB RDMA Write / UCX put", Reach: 2.0, Aim: 2.5},
	{ID: "write_4k_vs_tcp", What: "4 KiB RDMA Writes, depth 64 / raw TCP, one write per 4 KiB", Reach: 2.4, Aim: 3.5},
	{ID: "write_64b_mops", Unit: "million/s", Reach: 8, Aim: 10,
		What: "64-byte RDMA Writes, depth 128, lists of 64, one QP"},
	{ID: "send_rtt_spin_vs_tcp", Lower: true, Reach: 1.08, Aim: 1.05,
		What: "64-byte Send round trip, spinning / raw Go TCP spinning"},
	{ID: "send_rtt_block_vs_tcp", Lower: true, Reach: 1.05, Aim: 1.0,
		What: "64-byte Send round trip, blocking / Go net.Conn"},
	{ID: "write_1m_mss1448", What: "1 MiB RDMA Write at MSS 1448 / the same at loopback's MSS", Reach: 0.70, Aim: 0.85},
	{ID: "guest_write_1m_nocrc_vs_siw", What: "in the guest: 1 MiB RDMA Write, CRC off / siw", Reach: 1.2, Aim: 1.4},
	{ID: "guest_write_64k_crc_vs_siw", Reach: 1.2, Aim: 1.5,
		What: "in the guest: 64 KiB RDMA Write, CRC on / siw with CRC"},
	{ID: "guest_send_rtt_vs_siw", What: "in the guest: 64-byte Send round trip / siw", Lower: true, Reach: 1.0, Aim: 0.85},
	{ID: "idle_qp_kib", What: "user memory per idle connected QP (end)", Unit: "KiB", Lower: true, Reach: 6, Aim: 4},
	{ID: "allocs_per_op", What: "allocations per operation, post to completion", Lower: true, Reach: 0, Aim: 0},
	{ID: "qp1000_vs_1", What: "1,000 QPs in one process, all moving 64 KiB Writes / one QP", Reach: 0.85, Aim: 0.95},
	{ID: "exec_write_1m", Reach: 0.9, Aim: 1.0,
		What: "1 MiB RDMA Writes of ib_write_bw over the bridge / of perf write-bw"},
	{ID: "exec_write_64k", What: "the same with 64 KiB", Reach: 0.9, Aim: 1.0},
	{ID: "exec_send_rtt", Lower: true, Reach: 1.1, Aim: 1.0,
		What: "64-byte Send round trip of ib_send_lat over the bridge / of perf send-lat"},
	{ID: "stream_1m_vs_tcp", Reach: 0.6, Aim: 0.8,
		What: "1 MiB writes to a stream, blocking / raw Go TCP spinning"},
	{ID: "stream_64k_vs_tcp", What: "the same with 64 KiB", Reach: 0.6, Aim: 0.8},
	{ID: "stream_1m_vs_netconn", Reach: 1.2, Aim: 1.5,
		What: "1 MiB writes to a stream, blocking / Go net.Conn"},
	{ID: "stream_64k_vs_netconn", What: "the same with 64 KiB", Reach: 1.2, Aim: 1.5},
	{ID: "stream_rtt_vs_netconn", Lower: true, Reach: 1.0, Aim: 0.9,
		What: "64-byte round trip over a stream, blocking / Go net.Conn"},
	{ID: "idle_10000_mib", What: "10,000 idle QPs in one process", Unit: "MiB", Lower: true, Reach: 100, Aim: 60},
}

// Standing says where a figure is: aimed, reached, missed, or missing.
func (g Goal) Standing(f Figure) string {
	better := func(than float64) bool {
		if g.Lower {
			return f.Median <= than
		}
		return f.Median >= than
	}
	switch {
	case f.Missing != "":
		return "missing"
	case better(g.Aim):
		return "aim"
	case better(g.Reach):
		return "reach"
	}
	return "missed"
}

// A Sample is the result of one run. Values that the run does not have are 0.
type Sample struct {
	Round  int // from 0
	GBps   float64
	Mops   float64
	RTT    float64 // round trip: the median, in microseconds
	Allocs float64 // per operation, of the end with more
	Value  float64 // of what is none of these

	// CPU time, user and system, of the processes of both ends.
	PerGiB float64 // in seconds
	PerOp  float64 // in microseconds

	Error string // there is none: why
}

// A value selects the number of a sample that a figure uses.
type value func(Sample) float64

// A quantity is a value with its name for a table.
type quantity struct {
	name string
	unit string
	of   value
}

var (
	gbps      = quantity{"bandwidth", "GB/s", func(s Sample) float64 { return s.GBps }}
	mops      = quantity{"operations a second", "million/s", func(s Sample) float64 { return s.Mops }}
	rtt       = quantity{"round trip", "us", func(s Sample) float64 { return s.RTT }}
	cpuPerGiB = quantity{"CPU time per GiB", "s", func(s Sample) float64 { return s.PerGiB }}
	cpuPerOp  = quantity{"CPU time per operation", "us", func(s Sample) float64 { return s.PerOp }}
	kibOfEach = quantity{"memory of each", "KiB", func(s Sample) float64 { return s.Value }}
)

// byRound returns the samples' values by round. What failed, or is no number, is
// left out.
func byRound(samples []Sample, v value) map[int]float64 {
	m := make(map[int]float64)
	for _, s := range samples {
		if x := v(s); s.Error == "" && x > 0 && !math.IsInf(x, 0) && !math.IsNaN(x) {
			m[s.Round] = x
		}
	}
	return m
}

// ratio is the figure of one measurement over another, of the rounds that have
// both.
func ratio(of, to []Sample, v value) Figure {
	above, below := byRound(of, v), byRound(to, v)
	var list []float64
	for round, x := range above {
		if y, ok := below[round]; ok {
			list = append(list, x/y)
		}
	}
	return orWhy(summarize(list), of, to)
}

// alone is the figure of one measurement by itself.
func alone(of []Sample, v value) Figure {
	var list []float64
	for _, x := range byRound(of, v) {
		list = append(list, x)
	}
	return orWhy(summarize(list), of)
}

// orWhy says of a figure without a round what went wrong first.
func orWhy(f Figure, all ...[]Sample) Figure {
	if f.Missing == "" {
		return f
	}
	for _, samples := range all {
		if len(samples) == 0 {
			f.Missing = "not measured"
		}
		for _, s := range samples {
			if s.Error != "" {
				return Figure{Missing: fmt.Sprintf("round %d: %s", s.Round+1, s.Error)}
			}
		}
	}
	return f
}
