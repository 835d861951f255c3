package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/pprof"
	"time"

	"github.com/govs-rdma/govs/cmd/govs-verbs-test/internal/perf/load"
)

// perfReport is the output of --json.
type perfReport struct {
	Op       load.Op   `json:"op"`
	Poll     load.Poll `json:"poll"`
	Client   load.End  `json:"client"`
	Server   load.End  `json:"server"`
	Messages []perfRow `json:"results"` // one row per size
}

// perfRow is the result of a run.
type perfRow struct {
	Spec        load.Spec `json:"spec"`
	Size        int       `json:"size"`       // bytes
	Iterations  uint64    `json:"iterations"` // messages, or round trips
	Seconds     float64   `json:"seconds"`
	GBps        float64   `json:"gb_per_s"` // 10^9 bytes per second
	PeakGBps    float64   `json:"peak_gb_per_s,omitempty"`
	Mops        float64   `json:"mops"`        // million messages per second
	CPUPerGiB   float64   `json:"cpu_per_gib"` // seconds of CPU time at both ends
	CPUPerOp    float64   `json:"cpu_per_op"`  // microseconds per message or round trip
	RTT         *perfRTT  `json:"rtt_us,omitempty"`
	ClientUsage perfUsage `json:"client_usage"`
	ServerUsage perfUsage `json:"server_usage"`
}

// perfRTT is a distribution of round trips, in microseconds.
type perfRTT struct {
	Min     float64 `json:"min"`
	Typical float64 `json:"typical"` // the median
	Mean    float64 `json:"mean"`
	P99     float64 `json:"p99"`
	P999    float64 `json:"p999"`
	Max     float64 `json:"max"`
}

// perfUsage is what a run cost at one end.
type perfUsage struct {
	AllocsPerOp float64 `json:"allocs_per_op"`
	UserSeconds float64 `json:"user_s"`
	SysSeconds  float64 `json:"sys_s"`
}

func newPerfRow(s load.Spec, r load.Result) perfRow {
	row := perfRow{
		Spec: s, Size: s.Size, Iterations: r.Ops, Seconds: r.Elapsed.Seconds(),
		GBps: r.GBps(), PeakGBps: r.Peak / 1e9, Mops: r.Mops(),
		CPUPerGiB: r.CPUPerGiB().Seconds(), CPUPerOp: us(r.CPUPerOp()),
		ClientUsage: newPerfUsage(r.Client), ServerUsage: newPerfUsage(r.Server),
	}
	if row.PeakGBps > 0 { // the average includes what follows the last 10 ms
		row.PeakGBps = max(row.PeakGBps, row.GBps)
	}
	if l := r.Lat; l != nil {
		row.RTT = &perfRTT{us(l.Min), us(l.Median), us(l.Mean), us(l.P99), us(l.P999), us(l.Max)}
	}
	return row
}

func newPerfUsage(u load.Usage) perfUsage {
	return perfUsage{u.AllocsPerOp, u.User.Seconds(), u.Sys.Seconds()}
}

func us(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }

// measure does the runs and prints each result at once.
func (f *perfFlags) measure(ctx context.Context, out *output, spec load.Spec, run func(context.Context, load.Spec) (load.Result, error), client, server load.End) error {
	report := perfReport{Op: spec.Op, Poll: spec.Poll, Client: client, Server: server}
	if !f.JSON {
		s := withSize(spec, f.sizes()[0])
		if client.Provider != "tcp" {
			_ = s.Complete() // for the defaults; Validate has excluded errors
		}
		fmt.Fprintf(out, "%s: %s\n", spec.Op, describe(s, client, server))
		fmt.Fprintln(out, headings(spec.Op))
	}
	for _, size := range f.sizes() {
		s := withSize(spec, size)
		r, err := run(ctx, s)
		if err != nil {
			return fmt.Errorf("messages of %d bytes: %w", size, err)
		}
		row := newPerfRow(s, r)
		report.Messages = append(report.Messages, row)
		if !f.JSON {
			fmt.Fprintln(out, row.line())
		}
	}
	if f.JSON {
		return out.json(report)
	}
	return nil
}

// headings returns perftest's columns, and one for the CPU time of both ends.
func headings(op load.Op) string {
	if op.Latency() {
		return fmt.Sprintf("%9s %12s %12s %12s %12s %12s %12s %12s %12s", "#bytes", "#iterations",
			"t_min[us]", "t_typical", "t_avg", "99%", "99.9%", "t_max", "CPU[us/op]")
	}
	return fmt.Sprintf("%9s %12s %14s %17s %15s %12s", "#bytes", "#iterations",
		"BW peak[GB/s]", "BW average[GB/s]", "MsgRate[Mpps]", "CPU[s/GiB]")
}

func (r perfRow) line() string {
	if t := r.RTT; t != nil {
		return fmt.Sprintf("%9d %12d %12.2f %12.2f %12.2f %12.2f %12.2f %12.2f %12.2f", r.Size,
			r.Iterations, t.Min, t.Typical, t.Mean, t.P99, t.P999, t.Max, r.CPUPerOp)
	}
	peak := "-" // the run is too short for a peak
	if r.PeakGBps > 0 {
		peak = fmt.Sprintf("%.3f", r.PeakGBps)
	}
	return fmt.Sprintf("%9d %12d %14s %17.3f %15.4f %12.3f", r.Size, r.Iterations, peak, r.GBps, r.Mops, r.CPUPerGiB)
}

// profile starts the requested profiles, and returns a function that ends and writes them.
func (f *perfFlags) profile() (stop func() error, err error) {
	var cpu, mem *os.File
	discard := func() { // without errors, because the files are not kept
		for _, file := range []*os.File{cpu, mem} {
			if file != nil {
				_ = file.Close()
			}
		}
	}
	if f.CPUProfile != "" {
		if cpu, err = os.Create(f.CPUProfile); err != nil {
			return nil, unable(fmt.Errorf("--cpuprofile: %w", err))
		}
	}
	if f.MemProfile != "" {
		if mem, err = os.Create(f.MemProfile); err != nil {
			discard()
			return nil, unable(fmt.Errorf("--memprofile: %w", err))
		}
		runtime.MemProfileRate = 1 // every allocation
	}
	if cpu != nil {
		if err := pprof.StartCPUProfile(cpu); err != nil {
			discard()
			return nil, err
		}
	}
	return func() error {
		var errs []error
		if cpu != nil {
			pprof.StopCPUProfile()
			errs = append(errs, cpu.Close())
		}
		if mem != nil {
			errs = append(errs, pprof.Lookup("allocs").WriteTo(mem, 0), mem.Close())
		}
		return errors.Join(errs...)
	}, nil
}
