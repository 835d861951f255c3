// Package load has the workloads that figures give to govs-verbs-test perf end, and its answers.
// Names and lines of JSON are those of the package load of govs-verbs-test.
package load

import (
	"slices"
	"time"
)

// Op is a workload, with the name of the subcommand of govs-verbs-test perf.
type Op string

// The workloads. Those of TCP run over rsockets, too.
const (
	WriteBW Op = "write-bw"
	ReadBW  Op = "read-bw"
	SendBW  Op = "send-bw"
	SendLat Op = "send-lat"
	TCPBW   Op = "tcp-bw"
	TCPLat  Op = "tcp-lat"
)

// Poll says how an end waits.
type Poll string

// The ways to wait.
const (
	Spin  Poll = "spin"
	Block Poll = "block"
)

// Spec is a run. A field that is zero has perf's default, which the answer reports.
type Spec struct {
	Op       Op
	Size     int           // bytes of a message
	Duration time.Duration // of the run
	QPs      int           `json:",omitempty"` // or connections
	TxDepth  int           `json:",omitempty"`
	PostList int           `json:",omitempty"`
	Inline   int           `json:",omitempty"` // bytes, up to which messages are inline

	Outstanding int  `json:",omitempty"` // Reads
	Poll        Poll `json:",omitempty"`
}

// Device says what a run between processes at two addresses uses.
type Device struct {
	Provider string // engine, kernel, or tcp for raw TCP
	CRC      string `json:",omitempty"` // engine: on, off
	Sleeps   bool   `json:",omitempty"` // engine: an end that blocks does so at once
	Stream   bool   `json:",omitempty"` // over rsockets

	Link string `json:"-"` // over a link of the path, by name
}

// Result is the result of a run.
type Result struct {
	Ops     uint64        // messages, or round trips
	Octets  uint64        // of payload
	Elapsed time.Duration // the client's
	Lat     *Latency      // of a round trip

	Client, Server Usage
}

// Usage is what a run costs the process of one end.
type Usage struct {
	AllocsPerOp float64
	User, Sys   time.Duration // CPU time
}

// CPU is the time that the process had a CPU.
func (u Usage) CPU() time.Duration { return u.User + u.Sys }

// Latency is a distribution of durations.
type Latency struct{ Median, P99, Max time.Duration }

// LatencyOf sorts and summarizes durations, of which there must be at least one.
func LatencyOf(list []time.Duration) Latency {
	slices.Sort(list)
	at := func(share float64) time.Duration { return list[int(share*float64(len(list)))] }
	return Latency{at(0.5), at(0.99), list[len(list)-1]}
}

// End describes an end.
type End struct {
	Procs  int
	Kernel string
}
