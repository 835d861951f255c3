// Package load measures workloads on a connection between two ends: RDMA Writes, RDMA Reads or
// Sends for bandwidth, or one at a time for latency. The client chooses the run; the server gets it
// from the client and needs no options other than those of its device.
//
// An end is one goroutine, which only posts and polls. Nothing is allocated between the first and
// the last operation that count.
//
// # What is measured
//
// Bandwidth counts from the first post until the peer has confirmed that it has everything: the
// last byte is placed, and not only accepted by a socket. Latency is the client's round trip, never
// half of it.
//
// All QPs of an end use the same memory if it is at most 1 MiB or one message, so that the run
// measures the stack instead of the cache.
//
// Sinks are cleared before each run, and compared with the pattern of the sources after it, at both
// ends and outside of the measured time. A run whose data arrives changed is an error.
package load

import (
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Op is a workload, named after perftest's programs: write-bw is ib_write_bw.
type Op string

// The workloads over RDMA.
const (
	WriteBW  Op = "write-bw"
	WriteLat Op = "write-lat" // a Write each way; the ends watch the last byte
	ReadBW   Op = "read-bw"
	ReadLat  Op = "read-lat"
	SendBW   Op = "send-bw"
	SendLat  Op = "send-lat"
)

// Ops returns all workloads over RDMA.
func Ops() []Op { return []Op{WriteBW, WriteLat, ReadBW, ReadLat, SendBW, SendLat} }

// Latency reports whether the workload measures latency.
func (op Op) Latency() bool { return strings.HasSuffix(string(op), "-lat") }

// Poll is how an end waits for completions.
type Poll string

// The ways to wait.
const (
	Spin  Poll = "spin"  // it polls the CQ without pause
	Block Poll = "block" // it sleeps on the completion channel
)

// Spec describes a run. Zero means the default for fields that have one.
type Spec struct {
	Op   Op
	Size int // bytes of a message, at least 1

	// The length of a run: a number of operations for each QP and direction, or a time. One of the
	// two is 0.
	Iters    int           `json:",omitempty"`
	Duration time.Duration `json:",omitempty"`
	// Warmup is how many operations each QP does before the measured ones: by default 16 MiB of
	// them, 4 to 1000. If it is negative there are none.
	Warmup int `json:",omitempty"`

	QPs           int  `json:",omitempty"` // connections; default 1, for latency only 1
	TxDepth       int  `json:",omitempty"` // operations outstanding on a QP; default depthOf, for latency 1
	PostList      int  `json:",omitempty"` // WRs in one post, the last one signalled; default a quarter of TxDepth, at most 64
	SGEs          int  `json:",omitempty"` // scatter/gather entries of a message, default 1
	MRs           int  `json:",omitempty"` // regions that an end's messages use in turn, default 1
	Outstanding   int  `json:",omitempty"` // RDMA Reads outstanding on a QP (ORD, 1 to 128), default 16
	Inline        int  `json:",omitempty"` // messages of up to this many bytes are posted inline; default 0
	Bidirectional bool `json:",omitempty"` // bandwidth: the server sends to the client, too
	Poll          Poll `json:",omitempty"` // of both ends, default Spin
}

// Limits of a Spec. A server refuses values beyond them.
const (
	MaxSize        = 1 << 30
	MaxQPs         = 1 << 14
	MaxTxDepth     = 1 << 13
	MaxMRs         = 1 << 16
	MaxSGEs        = 16
	MaxOutstanding = 128
)

// depthOf returns the default number of outstanding operations on each of n QPs. All of them are
// posted before the clock is read for the first time.
func depthOf(n int) int { return max(4, min(128, 1024/max(n, 1))) }

// Complete sets defaults, and returns an error for an impossible Spec.
func (s *Spec) Complete() error {
	lat := s.Op.Latency()
	setDefault(&s.QPs, 1)
	setDefault(&s.SGEs, 1)
	setDefault(&s.MRs, 1)
	setDefault(&s.Outstanding, 16)
	setDefault(&s.Poll, Spin)
	if lat {
		setDefault(&s.TxDepth, 1)
	}
	setDefault(&s.TxDepth, max(s.PostList, depthOf(s.QPs)))
	setDefault(&s.PostList, min(max(s.TxDepth/4, 1), 64))
	setDefault(&s.Warmup, min(max(16<<20/max(s.Size, 1)/max(s.QPs, 1), 4), 1000))
	switch {
	case !slices.Contains(Ops(), s.Op):
		return fmt.Errorf("there is no workload %q", s.Op)
	case s.Poll != Spin && s.Poll != Block:
		return fmt.Errorf("poll %q: has to be spin or block", s.Poll)
	case (s.Iters == 0) == (s.Duration == 0):
		return fmt.Errorf("either a number of iterations or a duration is needed")
	case s.Iters < 0 || s.Duration < 0 || s.Inline < 0:
		return fmt.Errorf("iterations, duration and inline bytes have to be at least 0")
	case s.Op == WriteLat && s.Poll == Block:
		return fmt.Errorf("%s: the target of a Write gets no completion: use --poll spin", s.Op)
	case lat && (s.QPs != 1 || s.TxDepth != 1 || s.PostList != 1 || s.Bidirectional):
		return fmt.Errorf("%s has one message under way at a time", s.Op)
	case s.PostList > s.TxDepth:
		return fmt.Errorf("a post list of %d is longer than the TX depth, %d",
			s.PostList, s.TxDepth)
	case s.Size > 0 && s.SGEs > s.Size:
		return fmt.Errorf("%d scatter/gather entries need messages of as many bytes, which have %d",
			s.SGEs, s.Size)
	case s.Inline > 0 && (s.Op == ReadBW || s.Op == ReadLat):
		return fmt.Errorf("%s: what is read can't be inline", s.Op)
	}
	return firstOutside([]bound{
		{"size", s.Size, MaxSize}, {"QPs", s.QPs, MaxQPs}, {"TX depth", s.TxDepth, MaxTxDepth}, {"post list", s.PostList, MaxTxDepth},
		{"scatter/gather entries", s.SGEs, MaxSGEs}, {"MRs", s.MRs, MaxMRs}, {"outstanding Reads", s.Outstanding, MaxOutstanding},
	})
}

type bound struct {
	what   string
	n, max int
}

func firstOutside(bounds []bound) error {
	for _, b := range bounds {
		if b.n < 1 || b.n > b.max {
			return fmt.Errorf("%s %d: has to be 1 to %d", b.what, b.n, b.max)
		}
	}
	return nil
}

func setDefault[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

// Result is the result of a run, the sum of both directions if it has two.
type Result struct {
	Ops     uint64        // messages; for latency, round trips
	Octets  uint64        // of payload
	Elapsed time.Duration // the client's

	Peak float64  `json:",omitempty"` // bandwidth: bytes per second in the fastest 10 ms, 0 if the run was shorter
	Lat  *Latency `json:",omitempty"` // latency: of the round trip

	Client, Server Usage
}

// Usage is what a run cost the process of one end.
type Usage struct {
	AllocsPerOp float64       // objects allocated, by all goroutines
	User, Sys   time.Duration // CPU time
}

// CPU returns the process's CPU time.
func (u Usage) CPU() time.Duration { return u.User + u.Sys }

// CPUPerGiB returns the CPU time of both ends per 2^30 bytes of payload, or 0 if there was none.
func (r Result) CPUPerGiB() time.Duration { return r.cpuPer(float64(r.Octets) / (1 << 30)) }

// CPUPerOp returns the CPU time of both ends per message or round trip, or 0 if there was none.
func (r Result) CPUPerOp() time.Duration { return r.cpuPer(float64(r.Ops)) }

func (r Result) cpuPer(n float64) time.Duration {
	if n == 0 {
		return 0
	}
	return time.Duration(float64(r.Client.CPU()+r.Server.CPU()) / n)
}

// GBps returns the bandwidth in 10^9 bytes per second.
func (r Result) GBps() float64 { return r.perSecond(r.Octets) / 1e9 }

// Mops returns the rate in million messages per second.
func (r Result) Mops() float64 { return r.perSecond(r.Ops) / 1e6 }

func (r Result) perSecond(n uint64) float64 {
	if r.Elapsed <= 0 {
		return math.NaN()
	}
	return float64(n) / r.Elapsed.Seconds()
}

// Latency is the distribution of round trips. Each is exact to 0.4 percent; Min,
// Max and Mean are exact.
type Latency struct {
	Min, Median, P99, P999, Max, Mean time.Duration
}

// An End describes one end, as far as results depend on it; the ends exchange it. Only Provider is
// used; the other fields are for the reader.
type End struct {
	Provider string // engine, kernel, tcp
	Device   string `json:",omitempty"`
	CRC      string `json:",omitempty"` // on, off: the setting of this end
	BusyWait string `json:",omitempty"` // engine, blocking: how long it polls before it sleeps, such as 50us
	Cong     string `json:",omitempty"` // TCP_CONGESTION; empty for the system's default
	CPU      string // the CPU that it is pinned to, such as "0"; empty if it is not pinned
	Procs    int    // GOMAXPROCS
	Kernel   string // uname -r
	Go       string
	Govs     string
}

// A Meter measures the cost of a stretch of a run for the process.
type Meter struct {
	began     time.Time
	mallocs   uint64
	user, sys time.Duration
}

// StartMeter begins a stretch. It stops the world briefly.
func StartMeter() Meter {
	var m Meter
	m.mallocs = mallocs()
	m.user, m.sys = cpuTime()
	m.began = time.Now()
	return m
}

// Stop ends the stretch, which had ops operations. The time ends when Stop is called.
func (m Meter) Stop(ops uint64) (time.Duration, Usage) {
	elapsed := time.Since(m.began)
	user, sys := cpuTime()
	return elapsed, Usage{
		AllocsPerOp: float64(mallocs()-m.mallocs) / float64(max(ops, 1)),
		User:        user - m.user,
		Sys:         sys - m.sys,
	}
}

func mallocs() uint64 {
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	return s.Mallocs
}

func cpuTime() (user, sys time.Duration) {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		return 0, 0 // impossible, because the arguments are valid
	}
	return time.Duration(u.Utime.Nano()), time.Duration(u.Stime.Nano())
}
