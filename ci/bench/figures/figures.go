// Package figures measures govs' speed: ratios to raw TCP and to the other stacks, taken
// side by side.
//
// Nothing is compared across runs. All measurements of a figure are made in each of several rounds,
// one directly after the other, by two processes that live for the whole run, each pinned to a CPU.
// A figure is the median of the rounds' values.
package figures

import (
	"fmt"
	"math"
	"slices"
	"strings"
)

// A Figure is the median of the rounds' values.
type Figure struct {
	Median, Min, Max float64
	Of, To           float64 // of a ratio: the medians of the numerator and the denominator
	Rounds           int     // that gave a value
	Missing          string  // why there is no value; then nothing else is set
}

// summarize returns the figure of the rounds' values, without conditions.
func summarize(values []float64) Figure {
	if len(values) == 0 {
		return Figure{Missing: "no round gave a value"}
	}
	v := slices.Sorted(slices.Values(values))
	return Figure{Median: median(v), Min: v[0], Max: v[len(v)-1], Rounds: len(v)}
}

// median returns the median of sorted values.
func median(sorted []float64) float64 {
	n := len(sorted)
	if n%2 == 1 {
		return sorted[n/2]
	}
	return (sorted[n/2-1] + sorted[n/2]) / 2
}

// A Sample is the result of one run. Values that the run does not have are 0.
type Sample struct {
	Round  int // from 0
	GBps   float64
	Mops   float64
	RTT    float64 // round trip: the median, in microseconds
	Allocs float64 // per operation, of the end with more
	Value  float64 // a value that is none of these

	// CPU time, user and system, of the processes of both ends.
	PerGiB float64 // in seconds
	PerOp  float64 // in microseconds

	Error string // why there is no result
}

// A value selects the number of a sample that a figure uses.
type value func(Sample) float64

// A quantity is a value with its unit.
type quantity struct {
	unit  string
	lower bool // smaller values are better
	of    value
}

var (
	gbps      = quantity{unit: "GB/s", of: func(s Sample) float64 { return s.GBps }}
	mops      = quantity{unit: "million/s", of: func(s Sample) float64 { return s.Mops }}
	rtt       = quantity{"us", true, func(s Sample) float64 { return s.RTT }}
	cpuPerGiB = quantity{"s", true, func(s Sample) float64 { return s.PerGiB }}
	cpuPerOp  = quantity{"us", true, func(s Sample) float64 { return s.PerOp }}
	kibOfEach = quantity{"KiB", true, func(s Sample) float64 { return s.Value }}
	counted   = quantity{lower: true, of: func(s Sample) float64 { return s.Value }}
)

// cpu is the CPU time shown beside a quantity.
func (q quantity) cpu() quantity {
	if q.unit == gbps.unit {
		return cpuPerGiB
	}
	return cpuPerOp
}

// goal returns the bound that a median must meet, with its sign, and whether the median misses it.
// It is empty without a goal.
func (q quantity) goal(reach, median float64) string {
	if reach == 0 {
		return ""
	}
	bound, missed := fmt.Sprintf(">=%g", reach), median < reach
	if q.lower {
		bound, missed = fmt.Sprintf("<=%g", reach), median > reach
	}
	if missed {
		bound += " missed"
	}
	return bound
}

// medians returns the medians of a ratio's measurements, or the value itself, with their unit.
func (f Figure) medians(q quantity) string {
	if f.To == 0 {
		return strings.TrimSpace(digits(f.Median) + " " + q.unit)
	}
	return digits(f.Of) + " / " + digits(f.To) + " " + q.unit
}

// ratio returns the ratio, or "" if the figure is a value.
func (f Figure) ratio() string {
	if f.To == 0 {
		return ""
	}
	return digits(f.Median)
}

// byRound returns the samples' values by round, without failed samples and values that are not
// positive numbers.
func byRound(samples []Sample, v value) map[int]float64 {
	m := make(map[int]float64)
	for _, s := range samples {
		if x := v(s); s.Error == "" && x > 0 && !math.IsInf(x, 0) && !math.IsNaN(x) {
			m[s.Round] = x
		}
	}
	return m
}

// ratio returns the figure of one measurement over another, from the rounds that have both.
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

// alone returns the figure of one measurement by itself.
func alone(of []Sample, v value) Figure {
	var list []float64
	for _, x := range byRound(of, v) {
		list = append(list, x)
	}
	return orWhy(summarize(list), of)
}

// orWhy says what went wrong first, if a figure has no round.
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

// digits writes a number with three significant digits.
func digits(x float64) string {
	if x == 0 {
		return "0"
	}
	decimals := 2 - int(math.Floor(math.Log10(math.Abs(x))))
	return fmt.Sprintf("%.*f", min(max(decimals, 0), 6), x)
}
